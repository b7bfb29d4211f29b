package test

// recover_test.go - an older copy of the manager's state is restored while a newer cluster computes.

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// recovery is the output of `watari recover`.
type recovery struct {
	Held   bool
	Done   bool
	Guests []struct {
		Guest, Act, Host, Reason string
	}
	Clusters  []struct{ Cluster string }
	Obstacles []string
}

// stateAside copies the stopped manager's state; the returned function restores the copy.
func stateAside(t *testing.T) (putBack func(t *testing.T)) {
	t.Helper()
	state, copied := filepath.Join(shared.state, "manager"), filepath.Join(shared.state, "manager-of-before")
	replace := func(t *testing.T, from, to string) {
		t.Helper()
		if err := os.RemoveAll(to); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.Command("cp", "-a", from, to).CombinedOutput(); err != nil {
			t.Fatalf("copy %s to %s: %v\n%s", from, to, err, out)
		}
	}
	replace(t, state, copied)
	t.Cleanup(func() { os.RemoveAll(copied) })
	return func(t *testing.T) { t.Helper(); replace(t, copied, state) }
}

// endManager kills the manager and waits until it has ended.
func endManager(t *testing.T) {
	t.Helper()
	pid := daemonPID(t, "manager")
	killManager(t)
	until(t, 10*time.Second, "the manager has ended", func() (bool, string) { return syscall.Kill(pid, 0) != nil, "" })
}

// logOf reads a program's LAMMPS log in the shared home.
func logOf(guest, run string) string {
	out, _ := shared.watari(20*time.Second, "guest", "exec", guest, "--", "cat", "/home/watari/runs/"+run+"/log.lammps")
	return out
}

// The manager's state is restored from a time before a cluster was made and another guest moved. The program on the newer
// cluster continues and gives the right answer. The manager ends nothing, and takes over all guests again.
func TestAnOlderStateIsPutBackUnderANewerClusterThatComputes(t *testing.T) {
	newCluster(t, "older", 1)
	settled(t, "older", 1)
	endManager(t)
	putBack := stateAside(t)
	startManager(t)
	hostsReady(t)

	newCluster(t, "newer", 2, "--spread", "site")
	moveAway(t, "older-0")
	unmarked := mark(t, "older-0", "newer-0", "newer-1")
	must(t, meltOf("newer", "newer-run", "120", "--detach")...)
	until(t, time.Minute, "the program writes its table", func() (bool, string) {
		out := logOf("newer-0", "newer-run")
		return strings.Contains(out, "Step "), out
	})
	before := guestNamed(t, "older-0")

	endManager(t)
	putBack(t)
	startManager(t)
	until(t, time.Minute, "the manager holds", func() (bool, string) {
		out, err := shared.watari(20*time.Second, "status")
		return err == nil && strings.Contains(out, "watari recover") && strings.Contains(out, "took up orders of term"), out
	})
	refused(t, []string{"put back from an older copy", "watari recover"}, "cluster", "delete", "older")
	hostsReady(t)
	plan := decoded[recovery](t, "recover")
	acts := map[string]string{}
	for _, g := range plan.Guests {
		acts[g.Guest] = strings.TrimPrefix(g.Act, "RECOVERY_ACT_")
	}
	if !plan.Held || plan.Done || len(plan.Obstacles) > 0 || acts["older-0"] != "ADOPT" || acts["newer-0"] != "ADOPT" || acts["newer-1"] != "ADOPT" {
		t.Fatalf("the plan: %+v", plan)
	}
	if done := decoded[recovery](t, "recover", "--yes"); !done.Done {
		t.Fatalf("%+v", done)
	}
	settled(t, "older", 1)
	settled(t, "newer", 2)
	if g := guestNamed(t, "older-0"); g.Host != before.Host || g.Epoch != before.Epoch {
		t.Errorf("older-0 is on %s at epoch %s, and was on %s at %s", g.Host, g.Epoch, before.Host, before.Epoch)
	}

	var last string
	until(t, 3*time.Minute, "the program ends", func() (bool, string) {
		last = logOf("newer-0", "newer-run")
		return strings.Contains(last, "Loop time"), last
	})
	if lines, whole := meltTable(last); whole {
		rightAnswer(t, lines, 120)
	} else {
		t.Errorf("the program has written no whole table:\n%s", last)
	}
	if lost := unmarked(); lost != nil {
		t.Errorf("guests were started anew: %v", lost)
	}
	// From now on, the clusters are like any other.
	moveAway(t, "newer-1")
	out := must(t, "run", "newer", "--", "hostname")
	if !strings.Contains(out, "newer-0") || !strings.Contains(out, "newer-1") {
		t.Errorf("a run on the recovered cluster: %s", out)
	}
	settled(t, "newer", 2)
}
