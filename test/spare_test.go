package test

// spare_test.go - a spare host, a cluster that goes on with fewer hosts, and one that is stopped when it loses a guest.

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// A cluster that is to be restored loses a guest, which goes to the spare host. Then it loses the spare, too, and both guests
// share the host that is left. Another cluster, which is to be stopped, loses a guest at the same time, and is stopped.
func TestASpareTakesLostGuestsAndThenOneHostRunsAll(t *testing.T) {
	full(t)
	hostsReady(t)
	must(t, "host", "spare", "b2")
	t.Cleanup(func() {
		must(t, "host", "spare", "--undo", "b2")
		hostsReady(t)
	})
	must(t, "host", "drain", "a2") // only a1 and b1 take guests
	t.Cleanup(func() { must(t, "host", "drain", "--undo", "a2") })
	newCluster(t, "hot", 2, "--spread", "host", "--lease", "12s", "--on-host-loss", "restore")
	newCluster(t, "halts", 2, "--spread", "host", "--lease", "12s", "--on-host-loss", "stop")
	settled(t, "hot", 2)
	settled(t, "halts", 2)
	for _, cluster := range []string{"hot", "halts"} {
		if got := divided(t, cluster); got != "a1 1, b1 1" {
			t.Fatalf("the guests of %s are divided as %s", cluster, got)
		}
	}
	refused(t, []string{"it is a spare, for guests that are lost elsewhere"}, "migrate", "hot-0", "--to", "b2")
	p := computes(t, "hot")
	must(t, "run", "halts", "--name", "halts-run", "--detach", "--", "sh", "-c", "echo begun; sleep 1000")
	started(t, "halts-run")
	made := copied(t, checkpointed(t, "hot").Meta.Name)
	lost := ""
	for _, g := range guestsOf(t, "halts") {
		if g.Host == "b1" {
			lost = g.Meta.Name
		}
	}
	startB1 := loses(t, "b1")

	settledWithin(t, 3*time.Minute, "hot", 2)
	if got := divided(t, "hot"); got != "a1 1, b2 1" {
		t.Errorf("without b1 the guests are divided as %s", got)
	}
	eventsTell(t, "goes back to checkpoint "+made.Meta.Name+": guest hot-", "is restored on b2 from checkpoint "+made.Meta.Name)
	p.goesOn(t)

	until(t, time.Minute, "cluster halts is stopped", func() (bool, string) {
		for _, g := range guestsOf(t, "halts") {
			if n := copies(g.Meta.UID); n != 0 || !strings.HasSuffix(g.State, "_STOPPED") {
				return false, fmt.Sprintf("%s on %s: %s, %d copies: %s", g.Meta.Name, g.Host, g.State, n, g.Message)
			}
		}
		return true, ""
	})
	until(t, time.Minute, "its run has ended", func() (bool, string) {
		run := decoded[run](t, "run", "show", "halts-run")
		return strings.HasSuffix(run.State, "_FAILED") && strings.Contains(run.Message, "guest halts-"), run.State + " " + run.Message
	})
	eventsTell(t, "is stopped: guest "+lost+" was lost")

	startB2 := loses(t, "b2")
	settledWithin(t, 3*time.Minute, "hot", 2)
	if got := divided(t, "hot"); got != "a1 2" {
		t.Errorf("without b1 and b2 the guests are divided as %s", got)
	}
	p.goesOn(t)
	startB1()
	startB2()
	p.right(t)
	settled(t, "hot", 2)
	for _, g := range guestsOf(t, "halts") {
		if !strings.HasSuffix(g.State, "_STOPPED") {
			t.Errorf("%s is %s after its host came back", g.Meta.Name, g.State)
		}
	}
}
