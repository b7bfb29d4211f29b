package test

// relay_test.go - sites that only dial out, and hosts that reach each other only through a third host.

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// host has the manager's description of a host.
type host struct {
	Meta    meta
	Relayed []struct{ Peer, Relay string }
}

// behindNAT puts sites and hosts of the lab behind NAT until the test ends.
func behindNAT(t *testing.T, names ...string) {
	t.Helper()
	must(t, append([]string{"lab", "wan", "nat", "--name", labName}, names...)...)
	t.Cleanup(func() {
		if out, err := shared.watari(time.Minute, "lab", "wan", "nat", "--name", labName); err != nil {
			t.Errorf("end the NAT: %v\n%s", err, out)
		}
		hostsReady(t)
	})
}

// TestHostsThatOnlyDialOutHaveARelay makes the hosts of a program's two guests only dial out, so that a third host relays
// between them. The relay's agent is killed while the program runs, and a guest moves through the relay. The whole site b
// only dials out.
func TestHostsThatOnlyDialOutHaveARelay(t *testing.T) {
	if wholeHosts {
		t.Skip("the relay does not depend on what hosts are made of")
	}
	newCluster(t, "nat", 2, "--spread", "site")
	for guest, to := range map[string]string{"nat-0": "a1", "nat-1": "b1"} {
		if at := guestNamed(t, guest).Host; at != to {
			must(t, "migrate", guest, "--to", to)
		}
	}
	unmarked := mark(t, "nat-0", "nat-1")
	begun := time.Now()
	lap := func(what string) {
		t.Logf("%s after %v", what, time.Since(begun).Round(100*time.Millisecond))
		begun = time.Now()
	}
	const name, steps = "nat-melt", "180"
	log := filepath.Join(t.TempDir(), "log")
	done := make(chan struct{})
	go func() {
		defer close(done)
		carriedByPM(t, must(t, meltOf("nat", name, steps, append([]string{"--collect", "log.lammps:" + log}, overPM...)...)...), 2, 5e6)
	}()
	lines := func() int {
		out, _ := shared.watari(20*time.Second, "run", "logs", name)
		return strings.Count(out, "\n")
	}
	computing(t, time.Minute, name)
	lap("the program runs")
	behindNAT(t, "a1", "b")
	until(t, time.Minute, "host a2 relays between a1 and b1", func() (bool, string) {
		h := decoded[host](t, "host", "show", "a1")
		return len(h.Relayed) == 1 && h.Relayed[0].Peer == "b1" && h.Relayed[0].Relay == "a2", fmt.Sprint(h)
	})
	lap("a relay is chosen")
	if out := must(t, "explain", "host", "a2"); !strings.Contains(out, "relays between hosts a1 and b1") {
		t.Errorf("nothing explains that a2 relays:\n%s", out)
	}
	if state := decoded[run](t, "run", "show", name).State; !strings.HasSuffix(state, "_RUNNING") {
		t.Fatalf("the run was %s before there was a relay", state)
	}
	before := lines()
	// TCP in the guests tries again after 25 s of silence, and then after 51 s.
	until(t, time.Minute, "the program goes on", func() (bool, string) { return lines() > before, "" })
	lap("the program goes on")
	mustKill(t, "a2", "[w]atari-agent --manager")
	before = lines()
	until(t, time.Minute, "the program goes on without the relay's first agent", func() (bool, string) { return lines() > before, "" })
	lap("the relay's agent was killed; the program goes on")
	if state := decoded[run](t, "run", "show", name).State; !strings.HasSuffix(state, "_RUNNING") {
		t.Errorf("the run was %s too early", state)
	}
	<-done
	lap("the program has ended")
	if rows := strings.Split(strings.TrimSpace(table(t, log)), "\n"); !strings.HasPrefix(strings.TrimSpace(rows[len(rows)-1]), steps+" ") {
		t.Errorf("the last line is %q", rows[len(rows)-1])
	}
	moveAway(t, "nat-1") // to a1, through the relay
	lap("a guest has moved through the relay")
	noneRestarted(t, unmarked)
	settled(t, "nat", 2)
	hostsReady(t)
}
