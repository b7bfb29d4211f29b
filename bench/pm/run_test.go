package main

import (
	"bufio"
	"context"
	"strings"
	"testing"
	"time"
)

func TestAStoppedRunCountsForWhatItDid(t *testing.T) {
	w := &variant{mpi: debianOpenMPI, carrier: "libfabric udp;ofi_rxd", cable: &cable{}, losing: true}
	told := "so far 1048576 10000.0 1 30\nso far 1048576 20000.0 2 30\n"
	seen, _ := w.read(context.Background(), bufio.NewScanner(strings.NewReader(told)), nil, "")
	w.giveUp(seen, "ended after "+(10*time.Second).String())
	k := key{large, meanBandwidth}
	if got, want := w.stat(k).Median, float64(large)/20000; got != want {
		t.Errorf("bandwidth %v, not %v", got, want)
	}
	if want := "did not finish (2 of 30 round trips), ended after 10s"; w.unfinished[0] != want {
		t.Errorf("told %q, not %q", w.unfinished[0], want)
	}
}

func TestWhatWasNotMeasuredIsNoFigure(t *testing.T) {
	w := &variant{mpi: debianOpenMPI, carrier: "libfabric tcp", cable: &cable{}}
	w.add(key{small, latency}, 9, 8)
	w.add(key{large, bandwidth}, 3000, 4000)
	w.unfinished = append(w.unfinished, "")
	w.giveUp(soFar{}, "failed")
	if s := w.stat(key{small, latency}); s.Median != 9 || len(s.Runs) != 1 || w.best[key{small, latency}] != 8 {
		t.Errorf("latency %v, best %v", s, w.best[key{small, latency}])
	}
	if s := w.stat(key{large, bandwidth}); s.Min != 0 || len(s.Runs) != 2 || w.best[key{large, bandwidth}] != 4000 {
		t.Errorf("bandwidth %v, best %v", s, w.best[key{large, bandwidth}])
	}
}

func TestOnlyNamespacesOfThisBenchmarkAreItsOwn(t *testing.T) {
	for name, want := range map[string]bool{"pm-bench-12-a": true, "pm-bench-12-f": true, "pm-bench-12-g": false, "pm-test-12-a": false, "x-pm-bench-12-a": false} {
		if got := namespace.MatchString(name); got != want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
