package test

// faults_move_test.go - processes killed at the end of a move, and cuts of the network.

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"watari/test/evidence"
)

// switchFault is a process to be killed at the end of a move.
type switchFault struct {
	victim  string
	host    func(from, to string) string // nil: this machine, for the manager
	pattern string                       // pattern of its command line
	ends    bool                         // the fault may end the guest itself
	gone    bool                         // the process may have ended by itself
}

func source(from, _ string) string { return from }
func target(_, to string) string   { return to }

var switchFaults = []switchFault{
	{victim: "manager"},
	{victim: "agent of the source", host: source, pattern: "watari-agent --manager"},
	{victim: "agent of the target", host: target, pattern: "watari-agent --manager"},
	{victim: "libvirt daemon of the source", host: source, pattern: "libvirtd"},
	{victim: "libvirt daemon of the target", host: target, pattern: "libvirtd"},
	{victim: "QEMU of the source", host: source, pattern: "qemu-system.*watari-switch", ends: true, gone: true},
	{victim: "QEMU of the target", host: target, pattern: "qemu-system.*watari-switch", ends: true},
}

// The stages in which a move switches from one host to the other last some hundredths of a second. Processes are killed
// in these stages.
func TestFaultsWhenAMoveSwitches(t *testing.T) {
	full(t)
	newCluster(t, "switch", 1)
	for _, stage := range []string{evidence.Switching, evidence.Resuming} {
		for _, f := range switchFaults {
			t.Run(f.victim+" killed in "+stage, func(t *testing.T) {
				strikes(t, func() (bool, string) { return killInStage(t, f, stage) })
			})
		}
	}
}

// killInStage moves the guest, kills a process in a stage of the move, and waits until everything is well again.
func killInStage(t *testing.T, f switchFault, stage string) (struck bool, how string) {
	t.Helper()
	settled(t, "switch", 1)
	hostsReady(t)
	unmarked := mark(t, "switch-0")
	from, to := elsewhere(t, "switch-0")
	move := beginMove(t, "switch-0", to)
	var victims []int
	reached := move.await(t, stage, func() { // the target's QEMU starts during the move
		switch {
		case len(victims) > 0:
		case f.host == nil:
			victims = []int{daemonPID(t, "manager")}
		default:
			victims = processesOn(f.host(from, to), f.pattern)
		}
	})
	begun := time.Now()
	killed := reached && signalAll(t, victims, syscall.SIGKILL)
	done := time.Now()
	if f.host == nil && killed {
		startManager(t)
	}
	settled(t, "switch", 1)
	hostsReady(t)
	lost := unmarked()
	if lost != nil && !f.ends {
		t.Errorf("guests were restarted: %v", lost)
	}
	struck, how = move.struck(t, stage, begun, done)
	switch {
	case !reached:
		struck, how = false, "the stage had passed before it was seen: "+how
	case !killed && f.gone:
		how += "; the process had ended by itself"
	case !killed:
		struck, how = false, "there was no process to be killed: "+how
	}
	return struck, fmt.Sprintf("%s; the guest is on %s (moved from %s to %s), restarted: %v", how, guestNamed(t, "switch-0").Host, from, to, lost)
}

// newestMove returns a guest's last move, ended or not.
func newestMove(t *testing.T, guest string) migration {
	t.Helper()
	list := decoded[[]migration](t, "migrate", "list", "--all", guest)
	if len(list) == 0 {
		t.Fatalf("guest %s has never moved", guest)
	}
	return list[len(list)-1]
}

// A command in a guest and its streams continue across a move.
func TestCommandInAGuestGoesOnOverAMove(t *testing.T) {
	full(t)
	newCluster(t, "shell", 1)
	done := make(chan string)
	go func() {
		out, err := shared.watari(3*time.Minute, "guest", "exec", "shell-0", "--", "sh", "-c", "for i in $(seq 20); do echo tick $i; sleep 1; done; exit 7")
		done <- fmt.Sprintf("%sstatus %d", out, exitCode(err))
	}()
	_, to := elsewhere(t, "shell-0")
	must(t, "migrate", "shell-0", "--to", to)
	want := ""
	for i := range 20 {
		want += fmt.Sprintf("tick %d\n", i+1)
	}
	if out := <-done; out != want+"status 7" {
		t.Errorf("the command under which its guest moved wrote\n%s", out)
	}
}

// A short cut of the WAN does not disturb a move. A long cut ends the move, and the guest continues at its source.
func TestWANCutDuringAMove(t *testing.T) {
	full(t)
	newCluster(t, "cut", 1)
	for _, c := range []struct {
		name  string
		cut   time.Duration
		moves bool
	}{{"5 s", 5 * time.Second, true}, {"60 s", time.Minute, false}} {
		t.Run(c.name, func(t *testing.T) {
			strikes(t, func() (bool, string) { return cutWAN(t, c.cut, c.moves) })
		})
	}
}

// cutWAN cuts the WAN for a time while the guest's memory is sent over it.
func cutWAN(t *testing.T, cut time.Duration, moves bool) (struck bool, how string) {
	t.Helper()
	hostsReady(t)
	settled(t, "cut", 1)
	unmarked := mark(t, "cut-0")
	from, to := elsewhere(t, "cut-0")
	move := beginMove(t, "cut-0", to, "--bandwidth", "16M")
	until(t, settle, "memory is being sent", func() (bool, string) {
		m := newestMove(t, "cut-0")
		return m.Progress.ProcessedBytes != "", m.State
	})
	begun := time.Now()
	must(t, "lab", "wan", "cut", "--name", labName, "b")
	done := time.Now()
	time.Sleep(cut) // the duration of the cut
	must(t, "lab", "wan", "heal", "--name", labName, "b")
	var last migration
	until(t, 2*time.Minute, "the move has ended", func() (bool, string) {
		last = newestMove(t, "cut-0")
		return strings.HasSuffix(last.State, "_DONE") || strings.HasSuffix(last.State, "_FAILED"), last.State + last.Message
	})
	settled(t, "cut", 1)
	noneRestarted(t, unmarked)
	at := guestNamed(t, "cut-0").Host
	struck, how = move.struck(t, evidence.Transferring, begun, done)
	how += fmt.Sprintf("; %s: %s; the guest is on %s, moved from %s to %s", last.State, last.Message, at, from, to)
	if moved := at == to; struck && (moved != moves || moved != strings.HasSuffix(last.State, "_DONE")) {
		t.Errorf("the move has ended %s (%s), the guest is on %s", last.State, last.Message, at)
	}
	if struck && !moves && last.Message == "" {
		t.Error("the move that failed does not say why")
	}
	return struck, how
}

// A site that is cut off for six minutes continues: longer than launchers and their connections wait by default. When it comes back, its guests are still the same, a program over both sites
// goes on, and the guests of clusters that were deleted meanwhile are ended.
func TestSiteThatIsCutOffAndComesBack(t *testing.T) {
	full(t)
	newCluster(t, "island", 2, "--spread", "site")
	must(t, "cluster", "create", "wreck", "--guests", "1", "--site", "b", "--memory", "256M", "--image", imageName, "--wait")
	wreck := guestNamed(t, "wreck-0")
	unmarked := mark(t, "island-0", "island-1")
	p := computes(t, "island")
	must(t, "lab", "wan", "cut", "--name", labName, "b")
	cut := time.Now()
	until(t, settle, "the site is missed", func() (bool, string) {
		out := must(t, "guest", "list")
		return strings.Count(out, "unknown") == 2, out
	})
	if out := must(t, "status"); !strings.Contains(out, "host b1 is not reachable") {
		t.Errorf("status does not tell of the site that is cut off:\n%s", out)
	}
	refused(t, []string{"not reachable"}, "migrate", "island-0", "--to", "b1")
	must(t, "cluster", "delete", "wreck")
	time.Sleep(time.Until(cut.Add(6 * time.Minute))) // the duration of the cut
	if n := copies(wreck.Meta.UID); n != 1 {
		t.Errorf("%d copies of a guest that nobody can reach", n)
	}
	must(t, "lab", "wan", "heal", "--name", labName, "b")
	healed := time.Now()
	settled(t, "island", 2)
	until(t, settle, "the deleted cluster's guest is gone", func() (bool, string) {
		return copies(wreck.Meta.UID) == 0 && !strings.Contains(must(t, "cluster", "list"), "wreck"), must(t, "cluster", "list")
	})
	// After such an outage, TCP in a guest tries again every two minutes.
	before := len(p.lines())
	until(t, 5*time.Minute, "the program goes on", func() (bool, string) { return len(p.lines()) > before, "" })
	t.Logf("the program went on %.0f s after the site was back", time.Since(healed).Seconds())
	p.right(t)
	noneRestarted(t, unmarked)
}
