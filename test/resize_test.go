package test

// resize_test.go - a cluster grows and shrinks while a program that checks itself runs.

import (
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestAClusterIsResizedUnderARun(t *testing.T) {
	newCluster(t, "grows", 2, "--spread", "site")
	unmarked := mark(t, "grows-0", "grows-1")
	log := filepath.Join(t.TempDir(), "log")
	done := make(chan struct{})
	go func() {
		defer close(done)
		must(t, meltOf("grows", "grows-during", "120", "--collect", "log.lammps:"+log)...)
	}()
	computing(t, time.Minute, "grows-during")
	must(t, "cluster", "resize", "grows", "--guests", "3")
	if out := must(t, "cluster", "resize", "grows", "--guests", "3"); !strings.Contains(out, "already has, or is getting, 3 guests") {
		t.Errorf("the same request again: %s", out)
	}
	<-done
	rightAnswer(t, table(t, log), 120)
	must(t, "cluster", "resize", "grows", "--guests", "3", "--wait")
	settled(t, "grows", 3)

	must(t, "run", "grows", "--name", "grows-three", "--detach", "--", "sh", "-c", "echo begun on $(hostname); until ls ~ | grep -q enough; do sleep 1; done")
	until(t, time.Minute, "all guests take part in the run", func() (bool, string) {
		out, _ := shared.watari(20*time.Second, "run", "logs", "grows-three")
		return strings.Count(out, "begun") == 3 && strings.Contains(out, "grows-2"), out
	})
	refused(t, []string{"grows-three", "--when-idle"}, "cluster", "resize", "grows", "--guests", "2")
	killManager(t)
	startManager(t)
	refused(t, []string{"grows-three", "--when-idle"}, "cluster", "resize", "grows", "--guests", "2")
	shrunk := make(chan error, 1)
	go func() {
		_, err := shared.watari(patience, "cluster", "resize", "grows", "--guests", "2", "--when-idle", "--wait")
		shrunk <- err
	}()
	select { // it waits
	case err := <-shrunk:
		t.Fatalf("the cluster has shrunk under a run: %v", err)
	case <-time.After(3 * time.Second):
	}
	if state, have := decoded[run](t, "run", "show", "grows-three").State, len(guestsOf(t, "grows")); !strings.HasSuffix(state, "_RUNNING") || have != 3 {
		t.Errorf("before the run has ended by itself, it is %s, and there are %d guests", state, have)
	}
	must(t, "guest", "exec", "-u", "watari", "grows-0", "--", "sh", "-c", "touch ~/enough")
	if err := <-shrunk; err != nil {
		t.Fatal(err)
	}
	if state := decoded[run](t, "run", "show", "grows-three").State; !strings.HasSuffix(state, "_EXITED") {
		t.Errorf("the run is %s after the cluster has shrunk", state)
	}
	settled(t, "grows", 2)
	if out := must(t, "run", "grows", "--", "hostname"); strings.Contains(out, "grows-2") || strings.Count(out, "grows-") < 2 {
		t.Errorf("a run after the cluster has shrunk: %s", out)
	}
	noneRestarted(t, unmarked)
}
