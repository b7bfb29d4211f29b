package test

// hostloss_test.go - clusters with leases that lose their hosts, or a whole site.

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// loses crashes a host. The host is started again when the result is called, or else when the test ends.
func loses(t *testing.T, host string) (start func()) {
	t.Helper()
	crash(t, host)
	start = func() { must(t, "lab", "host", "start", "--name", labName, host) }
	t.Cleanup(start) // if the host runs, this does nothing
	return start
}

// A program on a cluster with leases and a volume survives a damaged checkpoint, then the loss of both its hosts, and then the loss of a
// site, with the host of the cluster's volume. It computes the same as an undisturbed one.
func TestAClusterOutlivesItsHostsAndASite(t *testing.T) {
	hostsReady(t)
	must(t, "volume", "create", "lasts", "--size", "256M", "--host", "b2")
	t.Cleanup(func() { must(t, "volume", "delete", "lasts") })
	newCluster(t, "lasts", 2, "--spread", "host", "--volume", "lasts", "--lease", "25s", "--on-host-loss", "restore")
	settled(t, "lasts", 2)
	p := computes(t, "lasts")
	for _, step := range []struct {
		name string
		do   func(t *testing.T, p *program)
		long bool
	}{
		{"the latest checkpoint is truncated", truncatedCheckpoint, true},
		{"both hosts crash at once", bothHostsCrash, true},
		{"a site is cut off for good", siteIsLost, false},
	} {
		if !t.Run(step.name, func(t *testing.T) {
			if step.long {
				full(t)
			}
			step.do(t, p)
		}) {
			return
		}
	}
}

// truncatedCheckpoint truncates a guest's file of the latest checkpoint on all hosts that have it. A restore refuses that
// checkpoint, and uses the one before.
func truncatedCheckpoint(t *testing.T, p *program) {
	before := copied(t, checkpointed(t, "lasts").Meta.Name).Meta.Name
	p.goesOn(t)
	latest := copied(t, checkpointed(t, "lasts").Meta.Name)
	truncate(t, latest, 0)
	must(t, "checkpoint", "restore", latest.Meta.Name)
	settled(t, "lasts", 2)
	if now := decoded[savedCluster](t, "checkpoint", "show", latest.Meta.Name); !strings.HasSuffix(now.State, "_DAMAGED") {
		t.Errorf("the truncated checkpoint is %s: %s", now.State, now.Message)
	}
	eventsTell(t, "is restored from "+before+": checkpoint "+latest.Meta.Name+" could not be restored", "goes on from checkpoint "+before)
	p.goesOn(t)
}

// bothHostsCrash crashes the hosts of both guests, which are at one site. Their checkpoint has copies at the other site, where
// they go on.
func bothHostsCrash(t *testing.T, p *program) {
	site := onOneSite(t, "lasts")
	made := copied(t, checkpointed(t, "lasts").Meta.Name)
	var starts []func()
	for _, g := range guestsOf(t, "lasts") { // one right after the other, long before a lease ends
		starts = append(starts, loses(t, g.Host))
	}
	crashed := time.Now()
	settledWithin(t, 3*time.Minute, "lasts", 2)
	t.Logf("the cluster ran again %.0f s after its hosts had crashed", time.Since(crashed).Seconds())
	for _, g := range guestsOf(t, "lasts") {
		if strings.HasPrefix(g.Host, site) {
			t.Errorf("%s is on %s, which has crashed", g.Meta.Name, g.Host)
		}
	}
	eventsTell(t, "goes back to checkpoint "+made.Meta.Name+": guest lasts-", "goes on from checkpoint "+made.Meta.Name)
	p.goesOn(t)
	for _, start := range starts {
		start()
	}
	hostsReady(t)
	settled(t, "lasts", 2)
}

// siteIsLost cuts off the site of one guest and of the volume until both guests run at the other site, where the checkpoint has
// copies. When the site comes back, its old copies are not used, and the program's answer is right. A cluster without leases keeps
// its guests over the cut, and what they sent meanwhile arrives. This is the last step: it ends the program.
func siteIsLost(t *testing.T, p *program) {
	if guests := guestsOf(t, "lasts"); guests[0].Host[:1] == guests[1].Host[:1] {
		moveAway(t, "lasts-1")
	}
	var cut guest
	for _, g := range guestsOf(t, "lasts") {
		if strings.HasPrefix(g.Host, "b") {
			cut = g
		}
	}
	if cut.Host == "" {
		t.Fatal("no guest is at site b")
	}
	disk := volumeNamed(t, "lasts")
	if strings.HasPrefix(disk.Host, "a") {
		must(t, "volume", "move", "lasts", "--site", "b")
		disk = volumeNamed(t, "lasts")
	}
	newCluster(t, "island", 2, "--spread", "site")
	unmarked := mark(t, "island-0", "island-1")
	must(t, "run", "island", "--name", "island-counts", "-n", "2", "--detach", "--", "sh", "-c",
		"n=0; while n=$((n+1)); do echo $OMPI_COMM_WORLD_RANK $n; sleep 0.5; done")
	until(t, time.Minute, "both ranks count", func() (bool, string) { return ranksCounted(t, "island-counts") > 0, "" })
	must(t, "guest", "exec", "-u", "watari", "lasts-0", "--", "sh", "-c", "cd; echo from before the cut >kept; sync")
	made := copied(t, checkpointed(t, "lasts").Meta.Name)
	atSiteA := func(host string) bool { return strings.HasPrefix(host, "a") }
	for _, m := range made.Members {
		if !slices.ContainsFunc(m.File.Hosts, atSiteA) {
			t.Fatalf("the file of %s is only on %v", m.Guest, m.File.Hosts)
		}
	}
	if !slices.ContainsFunc(made.Volume.File.Hosts, atSiteA) {
		t.Fatalf("the volume's file is only on %v", made.Volume.File.Hosts)
	}
	heal := func() { must(t, "lab", "wan", "heal", "--name", labName, "b") }
	t.Cleanup(heal)
	counted := ranksCounted(t, "island-counts")
	must(t, "lab", "wan", "cut", "--name", labName, "b")
	begun := time.Now()
	until(t, time.Minute, "the manager misses the site", func() (bool, string) {
		g := guestNamed(t, cut.Meta.Name)
		return g.Host != cut.Host || strings.HasSuffix(g.State, "_UNKNOWN"), g.State
	})
	settledWithin(t, 3*time.Minute, "lasts", 2) // the old copy has ended, too
	t.Logf("the cluster ran again %.0f s after the site was cut off", time.Since(begun).Seconds())
	eventsTell(t, fmt.Sprintf("goes back to checkpoint %s: guest %s was lost: host %s was out of reach until the guest's lease ended", made.Meta.Name, cut.Meta.Name, cut.Host))
	p.goesOn(t)
	if now := volumeNamed(t, "lasts"); !atSiteA(now.Host) || !strings.HasSuffix(now.State, "_READY") {
		t.Errorf("the volume is %s on host %q: %s", now.State, now.Host, now.Message)
	}
	if kept := must(t, "guest", "exec", "-u", "watari", "lasts-0", "--", "sh", "-c", "cat ~/kept"); kept != "from before the cut\n" {
		t.Errorf("the volume's file has %q", kept)
	}
	moved := guestsOf(t, "lasts")
	time.Sleep(time.Until(begun.Add(time.Minute))) // the duration of the cut
	heal()
	hostsReady(t)
	p.goesOn(t)
	settled(t, "lasts", 2)
	until(t, time.Minute, "the old disk is gone", func() (bool, string) {
		left := inHost(t, disk.Host, "ls "+agentState+"/volumes")
		return !strings.Contains(left, disk.Meta.UID), left
	})
	for i, g := range guestsOf(t, "lasts") {
		if was := moved[i]; !strings.HasPrefix(g.Host, "a") || g.Host != was.Host || g.Epoch != was.Epoch {
			t.Errorf("%s is on %s at epoch %s, and was on %s at %s before the site came back", g.Meta.Name, g.Host, g.Epoch, was.Host, was.Epoch)
		}
	}
	if left := processesOn(cut.Host, "qemu-system.*watari-lasts-"); len(left) > 0 {
		t.Errorf("host %s, which was cut off, has processes %v of the cluster", cut.Host, left)
	}
	p.right(t)
	settled(t, "lasts", 2)
	until(t, 3*time.Minute, "the other cluster's ranks count on", func() (bool, string) {
		now := ranksCounted(t, "island-counts")
		return now > counted+60, fmt.Sprintf("from %d to %d", counted, now)
	})
	settled(t, "island", 2)
	noneRestarted(t, unmarked)
}

// ranksCounted returns the number to which both of a run's ranks have counted: each writes lines with its rank and the next number.
func ranksCounted(t *testing.T, name string) int {
	t.Helper()
	out, err := shared.watari(20*time.Second, "run", "logs", name)
	if err != nil {
		return 0
	}
	counted := map[string]int{"0": 0, "1": 0}
	for line := range strings.Lines(out) {
		rank, number, _ := strings.Cut(strings.TrimSpace(line), " ")
		if !strings.HasSuffix(line, "\n") { // not yet whole
			break
		}
		n, err := strconv.Atoi(number)
		if err != nil || n != counted[rank]+1 {
			t.Fatalf("rank %q wrote %q after it had counted to %d", rank, line, counted[rank])
		}
		counted[rank] = n
	}
	return min(counted["0"], counted["1"])
}

// onOneSite moves the second of a cluster's two guests, if necessary, to the other host of the first one's site, and returns
// the site.
func onOneSite(t *testing.T, cluster string) (site string) {
	t.Helper()
	first, second := guestNamed(t, cluster+"-0").Host, guestNamed(t, cluster+"-1").Host
	site = first[:1]
	for _, host := range hosts {
		if strings.HasPrefix(host, site) && host != first && host != second {
			must(t, "migrate", cluster+"-1", "--to", host)
			settled(t, cluster, 2)
		}
	}
	return site
}
