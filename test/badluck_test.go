package test

// badluck_test.go - killed processes and hosts, and cut networks, during moves and runs.

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"watari/test/evidence"
)

// daemonPID returns the pid of a daemon that `watari up` started.
func daemonPID(t *testing.T, name string) int {
	t.Helper()
	pid, err := daemonID(name)
	if err != nil {
		t.Fatal(err)
	}
	return pid
}

func daemonID(name string) (pid int, err error) {
	content, err := os.ReadFile(filepath.Join(shared.state, name, name+".pid"))
	if err != nil {
		return 0, err
	}
	line, _, _ := strings.Cut(string(content), "\n")
	return strconv.Atoi(line)
}

func killManager(t *testing.T) {
	t.Helper()
	if err := syscall.Kill(daemonPID(t, "manager"), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
}

func startManager(t *testing.T) {
	t.Helper()
	must(t, "up", "--no-agent", "--state", shared.state, "--listen", listen)
}

// fault is a fault during a move, and its repair.
type fault struct {
	name string
	long bool
	do   func(t *testing.T, from, to string)
	lift func(t *testing.T, from, to string)
	// breaks means that the fault ends the move.
	breaks bool
	// ends means that the fault ends the guest itself, which is then restarted.
	ends bool
}

var faults = []fault{
	{name: "manager killed", do: func(t *testing.T, _, _ string) { killManager(t) }, lift: func(t *testing.T, _, _ string) { startManager(t) }},
	{name: "agent of the source killed", breaks: true, do: func(t *testing.T, from, _ string) { mustKill(t, from, "watari-agent --manager") }},
	{name: "agent of the target killed", breaks: true, do: func(t *testing.T, _, to string) { mustKill(t, to, "watari-agent --manager") }},
	{name: "libvirt daemon of the source killed", long: true, breaks: true, do: func(t *testing.T, from, _ string) { mustKill(t, from, "libvirtd") }},
	{name: "libvirt daemon of the target killed", long: true, breaks: true, do: func(t *testing.T, _, to string) { mustKill(t, to, "libvirtd") }},
	{name: "QEMU of the target killed", long: true, breaks: true, do: func(t *testing.T, _, to string) { mustKill(t, to, "qemu-system.*watari-fault") }},
	{name: "QEMU of the source killed", long: true, breaks: true, ends: true, do: func(t *testing.T, from, _ string) { mustKill(t, from, "qemu-system.*watari-fault") }},
	{name: "WAN cut", do: func(t *testing.T, _, _ string) { must(t, "lab", "wan", "cut", "--name", labName, "b") },
		lift: func(t *testing.T, _, _ string) { must(t, "lab", "wan", "heal", "--name", labName, "b") }},
	{name: "target host crashed", long: true, breaks: true, do: func(t *testing.T, _, to string) { must(t, "lab", "host", "crash", "--name", labName, to) },
		lift: func(t *testing.T, _, to string) { must(t, "lab", "host", "start", "--name", labName, to) }},
	{name: "source host crashed", long: true, breaks: true, ends: true, do: func(t *testing.T, from, _ string) { must(t, "lab", "host", "crash", "--name", labName, from) },
		lift: func(t *testing.T, from, _ string) { must(t, "lab", "host", "start", "--name", labName, from) }},
	{name: "cancelled", do: func(t *testing.T, _, _ string) { must(t, "migrate", "cancel", "fault-0") }},
	{name: "target drained", long: true, do: func(t *testing.T, _, to string) { must(t, "host", "drain", to) },
		lift: func(t *testing.T, _, to string) { must(t, "host", "drain", "--undo", to) }},
}

// After any fault during a move, the guest is not lost, it never runs twice, and the manager's view agrees with reality
// again.
func TestFaultsDuringAMove(t *testing.T) {
	newCluster(t, "fault", 1)
	for _, f := range faults {
		t.Run(f.name, func(t *testing.T) {
			if f.long {
				full(t)
			}
			strikes(t, func() (bool, string) { return failDuringAMove(t, f) })
		})
	}
}

// failDuringAMove moves the guest, causes the fault while the guest's memory is sent, and waits until everything works
// again.
func failDuringAMove(t *testing.T, f fault) (struck bool, how string) {
	t.Helper()
	settled(t, "fault", 1)
	hostsReady(t)
	unmarked := mark(t, "fault-0")
	from, to := elsewhere(t, "fault-0")
	// At 4 MB/s the move takes long enough to be hit in the middle.
	move := beginMove(t, "fault-0", to, "--bandwidth", "4M")
	until(t, 2*time.Minute, "memory is being sent", func() (bool, string) {
		m := newestMove(t, "fault-0")
		// After a cancelled move, libvirt tells of that move's progress until the target's QEMU has begun.
		return m.Progress.ProcessedBytes != "" && len(processesOn(to, "qemu-system.*watari-fault")) > 0, m.State
	})
	begun := time.Now()
	f.do(t, from, to)
	done := time.Now()
	if f.lift != nil {
		if f.name == "WAN cut" {
			time.Sleep(8 * time.Second) // the duration of the cut
		}
		f.lift(t, from, to)
	}
	if !f.breaks { // the move continues slowly; do not wait for it
		shared.watari(20*time.Second, "migrate", "cancel", "fault-0")
	}
	settled(t, "fault", 1)
	hostsReady(t)
	struck, how = move.struck(t, evidence.Transferring, begun, done)
	if last := newestMove(t, "fault-0"); struck && f.breaks && !strings.HasSuffix(last.State, "_FAILED") {
		t.Errorf("the move has ended %s (%s), and ought to have failed", last.State, last.Message)
	}
	if lost := unmarked(); (lost != nil) != f.ends && (struck || lost != nil) {
		t.Errorf("guests restarted: %v, expected: %v", lost, f.ends)
	}
	return struck, how
}

func TestHostThatVanishesAndComesBack(t *testing.T) {
	newCluster(t, "away", 2, "--spread", "site")
	g := guestNamed(t, "away-1")
	must(t, "lab", "host", "crash", "--name", labName, g.Host)
	until(t, 30*time.Second, "the guest's host is missed", func() (bool, string) {
		g := guestNamed(t, "away-1")
		return strings.HasSuffix(g.State, "_UNKNOWN"), g.State
	})
	must(t, "lab", "host", "start", "--name", labName, g.Host)
	settled(t, "away", 2)
}

func TestGuestThatEndsIsStartedAnew(t *testing.T) {
	newCluster(t, "ends", 1)
	unmarked := mark(t, "ends-0")
	mustKill(t, guestNamed(t, "ends-0").Host, "qemu-system.*watari-ends")
	until(t, 20*time.Second, "the end was seen", func() (bool, string) { return guestNamed(t, "ends-0").Epoch != "1", "" })
	settled(t, "ends", 1)
	if unmarked() == nil {
		t.Error("the guest has its old memory though its QEMU was killed")
	}
}

func TestDaemonsKilledUnderARun(t *testing.T) {
	newCluster(t, "keeps", 2, "--spread", "site")
	killDaemonsUnderARun(t, "keeps")
}

// killDaemonsUnderARun kills the manager and all agents and libvirt daemons while a program runs on a cluster of two
// guests.
func killDaemonsUnderARun(t *testing.T, cluster string) {
	t.Helper()
	ticks := 20
	if wholeHosts {
		ticks = 60 // killing a process there takes seconds
	}
	unmarked := mark(t, cluster+"-0", cluster+"-1")
	name := cluster + "-run"
	must(t, "run", cluster, "--name", name, "--detach", "--", "sh", "-c", fmt.Sprintf("echo begun; for i in $(seq %d); do echo tick $i; sleep 1; done", ticks))
	started(t, name)
	killManager(t)
	for _, host := range hosts {
		for _, daemon := range []string{"[w]atari-agent --manager", "[l]ibvirtd"} { // with [w], the pattern does not match the shell itself
			if !kill9(t, host, daemon) {
				t.Errorf("no %s was killed on %s", daemon, host)
			}
		}
	}
	killed := time.Now()
	startManager(t)
	out := must(t, "run", "logs", "--follow", name)
	if n := strings.Count(out, fmt.Sprint("tick ", ticks)); n != 2 {
		t.Errorf("the end of the output arrived %d times, want once from each of 2 ranks:\n%s", n, out)
	}
	if n := strings.Count(out, "tick"); n != 2*ticks {
		t.Errorf("%d lines of output, want %d", n, 2*ticks)
	}
	if ended := decoded[run](t, "run", "show", name).Ended; !ended.After(killed) {
		t.Errorf("the program ended at %s, the last daemon was killed at %s", ended, killed)
	}
	settled(t, cluster, 2)
	noneRestarted(t, unmarked)
}

func TestManagerAwayForAMinute(t *testing.T) {
	full(t)
	newCluster(t, "alone", 2, "--spread", "site")
	must(t, "run", "alone", "--name", "alone-run", "--detach", "--", "sh", "-c", "echo begun; for i in $(seq 70); do echo tick $i; sleep 1; done")
	started(t, "alone-run")
	killManager(t)
	time.Sleep(time.Minute)
	startManager(t)
	out := must(t, "run", "logs", "--follow", "alone-run")
	if n := strings.Count(out, "tick"); n != 140 {
		t.Errorf("%d lines of output, want 140", n)
	}
	settled(t, "alone", 2)
}

func TestDeleteDuringAMove(t *testing.T) {
	full(t)
	strikes(t, func() (bool, string) {
		must(t, "cluster", "create", "gone", "--guests", "1", "--memory", "256M", "--image", imageName, "--wait")
		uid := guestNamed(t, "gone-0").Meta.UID
		_, to := elsewhere(t, "gone-0")
		move := beginMove(t, "gone-0", to, "--bandwidth", "4M")
		reached := move.await(t, evidence.Transferring, func() {})
		begun := time.Now()
		must(t, "cluster", "delete", "gone", "--wait")
		done := time.Now()
		if n := copies(uid); n != 0 {
			t.Errorf("%d copies are left", n)
		}
		watching.check(t)
		struck, how := move.struck(t, evidence.Transferring, begun, done)
		return reached && struck, how
	})
}

func TestMigrateToADeadHost(t *testing.T) {
	full(t)
	newCluster(t, "dead", 1)
	_, to := elsewhere(t, "dead-0")
	must(t, "lab", "host", "crash", "--name", labName, to)
	t.Cleanup(func() { must(t, "lab", "host", "start", "--name", labName, to) })
	until(t, 30*time.Second, "the host is missed", func() (bool, string) {
		out, err := shared.watari(20*time.Second, "migrate", "dead-0", "--to", to, "--detach")
		return err != nil && strings.Contains(out, "not reachable"), out
	})
	settled(t, "dead", 1)
}

func TestDrainMovesGuestsAway(t *testing.T) {
	full(t)
	newCluster(t, "drain", 2, "--spread", "host")
	drainFirst(t, "drain")
}

// drainFirst drains the host of the first of a cluster's two guests.
func drainFirst(t *testing.T, cluster string) {
	t.Helper()
	unmarked := mark(t, cluster+"-0", cluster+"-1")
	host := guestNamed(t, cluster+"-0").Host
	must(t, "host", "drain", host, "--wait")
	t.Cleanup(func() { must(t, "host", "drain", "--undo", host) })
	settled(t, cluster, 2)
	for _, g := range guestsOf(t, cluster) {
		if g.Host == host {
			t.Errorf("%s is still on %s", g.Meta.Name, host)
		}
	}
	noneRestarted(t, unmarked)
}

// An administrator confirms that a host is off, but the host was only disconnected. Its guest is started on another host, so
// there are two copies. The host ends its copy as soon as it reaches the manager again.
func TestAHostThatWasRemovedAsLostAndWasOnlyCutOff(t *testing.T) {
	full(t)
	newCluster(t, "vouched", 2, "--spread", "site")
	settled(t, "vouched", 2)
	g := guestNamed(t, "vouched-0")
	if !strings.HasPrefix(g.Host, "b") {
		g = guestNamed(t, "vouched-1")
	}
	must(t, "lab", "wan", "cut", "--name", labName, "b")
	defer joinAnew(t, g.Host)
	defer func() { must(t, "lab", "wan", "heal", "--name", labName, "b") }()
	until(t, settle, "the site is missed", func() (bool, string) {
		out := must(t, "host", "list")
		return strings.Count(out, " unreachable ") == 2, out
	})
	must(t, "host", "remove", g.Host, "--lost")
	until(t, time.Minute, "the guest runs elsewhere", func() (bool, string) {
		now := guestNamed(t, g.Meta.Name)
		return now.Host != g.Host && now.Ready, now.Host + " " + now.State + " " + now.Message
	})
	if n := copies(g.Meta.UID); n != 2 {
		t.Errorf("%d copies before the host is reached, want 2: the test shows nothing", n)
	}
	must(t, "lab", "wan", "heal", "--name", labName, "b")
	healed := time.Now()
	until(t, settle, "the removed host has ended its copy", func() (bool, string) {
		n := copies(g.Meta.UID)
		return n == 1, fmt.Sprintf("%d copies", n)
	})
	t.Logf("host %s ended its copy %s after the line was healed", g.Host, time.Since(healed).Round(time.Millisecond))
	watching.take() // two copies ran until then, because of the wrong confirmation
	settled(t, "vouched", 2)
}

// joinAnew makes a removed host join again, as described in docs/guide/trouble.md.
func joinAnew(t *testing.T, host string) {
	t.Helper()
	token := decoded[struct{ Token string }](t, "token", "create", "--host", "--site", host[:1]).Token
	inHost(t, host, "rm -rf /var/lib/watari/agent/pki; echo "+token+" > /var/lib/watari/agent/token")
	kill9(t, host, "watari-agent --manager")
	hostsReady(t)
}
