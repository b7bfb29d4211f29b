package test

// hostloss_test.go - clusters with leases that lose their hosts, or a whole site.

import (
	"fmt"
	"slices"
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

// A program on a cluster with leases survives a damaged checkpoint, then the loss of both its hosts, and then the loss of a
// site. It computes the same as an undisturbed one.
func TestAClusterOutlivesItsHostsAndASite(t *testing.T) {
	hostsReady(t)
	newCluster(t, "lasts", 2, "--spread", "host", "--lease", "12s", "--on-host-loss", "restore")
	settled(t, "lasts", 2)
	p := computes(t, "lasts")
	for _, step := range []struct {
		name string
		do   func(t *testing.T, p *program)
		long bool
	}{
		{"the latest checkpoint is truncated", truncatedCheckpoint, false},
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
	p.right(t)
	settled(t, "lasts", 2)
}

// truncatedCheckpoint truncates a guest's file of the latest checkpoint on all hosts that have it. A restore refuses that
// checkpoint, and uses the one before.
func truncatedCheckpoint(t *testing.T, p *program) {
	before := copied(t, checkpointed(t, "lasts").Meta.Name).Meta.Name
	p.goesOn(t)
	latest := copied(t, checkpointed(t, "lasts").Meta.Name)
	for _, host := range latest.Members[0].File.Hosts {
		inHost(t, host, fmt.Sprintf("truncate -s -1000 %s/checkpoints/%s/%s", agentState, latest.Meta.UID, latest.Members[0].GuestUID))
	}
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

// siteIsLost cuts off the site of one guest until both guests run at the other site, where the checkpoint has copies. When
// the site comes back, its old copy is not run.
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
	made := copied(t, checkpointed(t, "lasts").Meta.Name)
	for _, m := range made.Members {
		if !slices.ContainsFunc(m.File.Hosts, func(host string) bool { return strings.HasPrefix(host, "a") }) {
			t.Fatalf("the file of %s is only on %v", m.Guest, m.File.Hosts)
		}
	}
	heal := func() { must(t, "lab", "wan", "heal", "--name", labName, "b") }
	t.Cleanup(heal)
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
	moved := guestsOf(t, "lasts")
	heal()
	hostsReady(t)
	p.goesOn(t)
	settled(t, "lasts", 2)
	for i, g := range guestsOf(t, "lasts") {
		if was := moved[i]; !strings.HasPrefix(g.Host, "a") || g.Host != was.Host || g.Epoch != was.Epoch {
			t.Errorf("%s is on %s at epoch %s, and was on %s at %s before the site came back", g.Meta.Name, g.Host, g.Epoch, was.Host, was.Epoch)
		}
	}
	if left := processesOn(cut.Host, "qemu-system.*watari-lasts-"); len(left) > 0 {
		t.Errorf("host %s, which was cut off, has processes %v of the cluster", cut.Host, left)
	}
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
