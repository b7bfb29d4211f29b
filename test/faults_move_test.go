package test

// faults_move_test.go - what is killed at the end of a move, and cuts of the network.

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// The points at which a move passes from one host to the other last some tenths of a second: what is killed then.
func TestFaultsWhenAMoveSwitches(t *testing.T) {
	full(t)
	newCluster(t, "switch", 1)
	for _, state := range []string{"_SWITCHING", "_RESUMING"} {
		for _, f := range []struct {
			victim string
			do     func(t *testing.T, from, to string)
			lift   func(t *testing.T)
			ends   bool // the guest itself may be what the fault ends
		}{
			{"manager", func(t *testing.T, _, _ string) { killManager(t) }, startManager, false},
			{"agent of the source", func(t *testing.T, from, _ string) { kill9(t, from, "watari-agent --manager") }, nil, false},
			{"agent of the target", func(t *testing.T, _, to string) { kill9(t, to, "watari-agent --manager") }, nil, false},
			{"libvirt daemon of the source", func(t *testing.T, from, _ string) { kill9(t, from, "libvirtd") }, nil, false},
			{"libvirt daemon of the target", func(t *testing.T, _, to string) { kill9(t, to, "libvirtd") }, nil, false},
			{"QEMU of the source", func(t *testing.T, from, _ string) { kill9(t, from, "qemu-system.*watari-switch") }, nil, true},
			{"QEMU of the target", func(t *testing.T, _, to string) { kill9(t, to, "qemu-system.*watari-switch") }, nil, true},
		} {
			t.Run(f.victim+" killed in"+strings.ToLower(strings.ReplaceAll(state, "_", " ")), func(t *testing.T) {
				settled(t, "switch", 1)
				hostsReady(t)
				unmarked := mark(t, "switch-0")
				from, to := elsewhere(t, "switch-0")
				must(t, "migrate", "switch-0", "--to", to, "--detach")
				seen := awaitMove(t, "switch-0", state)
				f.do(t, from, to)
				if f.lift != nil {
					f.lift(t)
				}
				settled(t, "switch", 1)
				hostsReady(t)
				lost := unmarked()
				t.Logf("killed in state %s; the guest is on %s (moved from %s to %s), started anew: %v", seen, guestNamed(t, "switch-0").Host, from, to, lost)
				if lost != nil && !f.ends {
					t.Errorf("guests were started anew: %v", lost)
				}
			})
		}
	}
}

// newestMove is a guest's last move, ended or not.
func newestMove(t *testing.T, guest string) migration {
	t.Helper()
	list := decoded[[]migration](t, "migrate", "list", "--all", guest)
	if len(list) == 0 {
		t.Fatalf("guest %s has never moved", guest)
	}
	return list[len(list)-1]
}

// awaitMove waits until a guest's newest move is in a state, or past it, and returns the state it is in.
func awaitMove(t *testing.T, guest, state string) string {
	t.Helper()
	order := []string{"_PENDING", "_RESERVING", "_TRANSFERRING", "_SWITCHING", "_RESUMING", "_DONE", "_ROLLING_BACK", "_FAILED"}
	position := func(s string) int {
		for i, suffix := range order {
			if strings.HasSuffix(s, suffix) {
				return i
			}
		}
		return -1
	}
	deadline := time.Now().Add(2 * time.Minute)
	for {
		last := newestMove(t, guest)
		if position(last.State) >= position(state) {
			return last.State
		}
		if time.Now().After(deadline) {
			t.Fatalf("the move does not get on: %+v", last)
		}
	}
}

// What runs in a guest for a caller goes on over a move, and so do its streams.
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

// A short cut of the WAN does a move no harm, a long one ends it, and the guest goes on where it was.
func TestWANCutDuringAMove(t *testing.T) {
	full(t)
	newCluster(t, "cut", 1)
	for _, c := range []struct {
		name  string
		cut   time.Duration
		moves bool
	}{{"5 s", 5 * time.Second, true}, {"40 s", 40 * time.Second, false}} {
		t.Run(c.name, func(t *testing.T) {
			hostsReady(t)
			settled(t, "cut", 1)
			unmarked := mark(t, "cut-0")
			from, to := elsewhere(t, "cut-0")
			must(t, "migrate", "cut-0", "--to", to, "--bandwidth", "16M", "--detach")
			until(t, settle, "memory is being sent", func() (bool, string) {
				m := newestMove(t, "cut-0")
				return m.Progress.ProcessedBytes != "", m.State
			})
			must(t, "lab", "wan", "cut", "--name", labName, "b")
			time.Sleep(c.cut) // the time for which the line is cut
			must(t, "lab", "wan", "heal", "--name", labName, "b")
			var last migration
			until(t, 2*time.Minute, "the move has ended", func() (bool, string) {
				last = newestMove(t, "cut-0")
				return strings.HasSuffix(last.State, "_DONE") || strings.HasSuffix(last.State, "_FAILED"), last.State + last.Message
			})
			settled(t, "cut", 1)
			at := guestNamed(t, "cut-0").Host
			t.Logf("%s: %s; the guest is on %s, moved from %s to %s", last.State, last.Message, at, from, to)
			if moved := at == to; moved != c.moves || moved != strings.HasSuffix(last.State, "_DONE") {
				t.Errorf("the move has ended %s (%s), the guest is on %s", last.State, last.Message, at)
			}
			if !c.moves && last.Message == "" {
				t.Error("the move that failed does not say why")
			}
			if lost := unmarked(); lost != nil {
				t.Errorf("guests were started anew: %v", lost)
			}
		})
	}
}

// A site that is cut off goes on; when it comes back with its guests they are the same, and those of clusters that
// were deleted meanwhile are ended.
func TestSiteThatIsCutOffAndComesBack(t *testing.T) {
	full(t)
	newCluster(t, "island", 2, "--spread", "site")
	must(t, "cluster", "create", "wreck", "--guests", "1", "--site", "b", "--memory", "256M", "--image", imageName, "--wait")
	wreck := guestNamed(t, "wreck-0")
	unmarked := mark(t, "island-0", "island-1")
	must(t, "lab", "wan", "cut", "--name", labName, "b")
	until(t, settle, "the site is missed", func() (bool, string) {
		out := must(t, "guest", "list")
		return strings.Count(out, "unknown") == 2, out
	})
	if out := must(t, "status"); !strings.Contains(out, "host b1 is not reachable") {
		t.Errorf("status does not tell of the site that is cut off:\n%s", out)
	}
	refused(t, []string{"not reachable"}, "migrate", "island-0", "--to", "b1")
	must(t, "cluster", "delete", "wreck")
	time.Sleep(20 * time.Second) // the time for which the line is cut
	if n := copies(wreck.Meta.UID); n != 1 {
		t.Errorf("%d copies of a guest that nobody can reach", n)
	}
	must(t, "lab", "wan", "heal", "--name", labName, "b")
	settled(t, "island", 2)
	until(t, settle, "the deleted cluster's guest is gone", func() (bool, string) {
		return copies(wreck.Meta.UID) == 0 && !strings.Contains(must(t, "cluster", "list"), "wreck"), must(t, "cluster", "list")
	})
	if lost := unmarked(); lost != nil {
		t.Errorf("guests were started anew: %v", lost)
	}
}
