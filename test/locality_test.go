package test

// locality_test.go - guests that exchange messages are moved together.

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// pair has the fields of `watari cluster traffic -o json` about two guests.
type pair struct {
	Guest, Other   string
	Sent, Received float64
	Distance       float64
}

func pairsOf(t *testing.T, cluster string) map[string]pair {
	t.Helper()
	found := map[string]pair{}
	for _, p := range decoded[struct{ Pairs []pair }](t, "cluster", "traffic", cluster).Pairs {
		found[p.Guest+" "+p.Other] = p
	}
	return found
}

// talkUntil makes two guests run an MPI program that exchanges messages and verifies each, repeatedly until a file exists.
// done receives the output.
func talkUntil(file, a, b string) (done chan string) {
	done = make(chan string, 1)
	mpirun := fmt.Sprintf(`mpirun --mca plm_rsh_agent "watari-guest rsh" --host %s,%s -np 2 NPopenmpi -i -n 3 -l 60000 -u 100000`, a, b)
	go func() {
		out, err := shared.watari(patience, "guest", "exec", "-u", "watari", a, "--", "sh", "-c", "until [ -e "+file+" ]; do "+mpirun+" || exit 1; done")
		if err != nil {
			out += "\nFAILED: " + err.Error()
		}
		done <- out
	}()
	return done
}

// Of four guests on two sites, the pairs that exchange messages are split between the sites. Policy locality moves each pair
// to one host while its program runs, records why, and leaves the pairs there.
func TestPairsThatTalkComeTogether(t *testing.T) {
	full(t)
	if wholeHosts {
		t.Skip("needs four hosts")
	}
	newCluster(t, "pairs", 4)
	settled(t, "pairs", 4)
	names := []string{"pairs-0", "pairs-1", "pairs-2", "pairs-3"}
	for i, name := range names {
		if guestNamed(t, name).Host != hosts[i] {
			must(t, "migrate", name, "--to", hosts[i])
		}
	}
	settled(t, "pairs", 4)
	unmarked := mark(t, names...)
	const file = "/home/watari/enough"
	talks := map[string]chan string{"pairs-0 pairs-2": talkUntil(file, "pairs-0", "pairs-2"), "pairs-1 pairs-3": talkUntil(file, "pairs-1", "pairs-3")}
	until(t, 2*time.Minute, "the traffic of both pairs is measured", func() (bool, string) {
		seen := pairsOf(t, "pairs")
		for name, done := range talks {
			if len(done) > 0 {
				t.Fatalf("the program of %s has ended:\n%s", name, <-done)
			}
			if p := seen[name]; p.Sent < 20e3 || p.Received < 20e3 || p.Distance != 10 {
				return false, fmt.Sprintf("%+v", seen)
			}
		}
		return true, ""
	})
	t.Logf("before:\n%s", must(t, "cluster", "traffic", "pairs"))
	applyPolicy(t, "locality: {interval: 2s, horizon: 12h}\n") // emulated guests send little
	until(t, 3*time.Minute, "each pair is on one host", func() (bool, string) {
		together := true
		for name := range talks {
			a, b, _ := strings.Cut(name, " ")
			x, y := guestNamed(t, a), guestNamed(t, b)
			together = together && x.Host == y.Host && strings.HasSuffix(x.State, "_RUNNING") && strings.HasSuffix(y.State, "_RUNNING")
		}
		return together, must(t, "explain", "guest", "pairs-0") + must(t, "cluster", "traffic", "pairs")
	})
	t.Logf("after:\n%s", must(t, "cluster", "traffic", "pairs"))
	var moves []struct{ Guest, Policy, State, Reason string }
	for _, m := range decoded[[]struct{ Guest, Policy, State, Reason string }](t, "migrate", "list", "--all") {
		if m.Policy == "locality" {
			moves = append(moves, m)
		}
	}
	if len(moves) == 0 || len(moves) > 4 {
		t.Errorf("policy locality has made these moves: %+v", moves)
	}
	for _, m := range moves {
		partner := map[string]string{"pairs-0": "pairs-2", "pairs-1": "pairs-3", "pairs-2": "pairs-0", "pairs-3": "pairs-1"}[m.Guest]
		out := must(t, "explain", "guest", m.Guest)
		for _, want := range []string{"locality: it exchanges ", "with " + partner, "at distance 0", "cut its bytes times distance from"} {
			if !strings.Contains(out, want) {
				t.Errorf("no %q in:\n%s", want, out)
			}
		}
	}
	if out := must(t, "events"); !strings.Contains(out, "locality: it exchanges") {
		t.Errorf("the events do not tell of the moves:\n%s", out)
	}
	must(t, "guest", "exec", "pairs-0", "--", "touch", file)
	for name, done := range talks {
		out := <-done
		wholeUpTo(t, 90000, out)
		if strings.Contains(out, "FAILED") || strings.Contains(strings.ToLower(out), "integrity check failed") {
			t.Errorf("the program of %s:\n%s", name, out)
		}
	}
	settled(t, "pairs", 4)
	noneRestarted(t, unmarked)
}
