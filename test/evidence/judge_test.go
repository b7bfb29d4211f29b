package evidence

import (
	"cmp"
	"strings"
	"testing"
	"time"
)

const tick = 100 * time.Millisecond

// second returns a time for tests.
func second(s float64) time.Time {
	return time.Date(2026, 11, 24, 8, 0, 0, 0, time.UTC).Add(time.Duration(s * float64(time.Second)))
}

// life is a copy in a test. It is alive from begin to end, and uses CPU time in the ticks for which runs returns true.
type life struct {
	pid        int
	begin, end int // ticks
	runs       func(tick int) bool
	busy       time.Duration // CPU time per tick; 0: the whole tick
	threads    int           // 0: one; negative: none
}

func between(from, to int) func(int) bool { return func(n int) bool { return n >= from && n < to } }

// play gives a judge a guest's copies, tick by tick.
func play(ticks int, copies ...life) (found []Violation) {
	var j Judge
	used := map[int]time.Duration{}
	for n := range ticks {
		g := Guest{UID: "u", Name: "md-0"}
		for _, c := range copies {
			if n < c.begin || n >= c.end {
				continue
			}
			if c.runs(n) {
				used[c.pid] += cmp.Or(c.busy, tick)
			}
			g.Copies = append(g.Copies, Copy{Process{PID: c.pid, Host: "h"}, max(cmp.Or(c.threads, 1), 0), used[c.pid]})
		}
		var guests []Guest
		if len(g.Copies) > 0 {
			guests = append(guests, g)
		}
		found = append(found, j.See(second(0).Add(time.Duration(n)*tick), guests)...)
	}
	return found
}

func TestTwoCopiesThatRunAreSeen(t *testing.T) {
	for _, c := range []struct {
		name    string
		copies  []life
		violate bool
	}{
		{"one copy", []life{{pid: 1, end: 100, runs: between(0, 100)}}, false},
		{"both run", []life{{pid: 1, end: 100, runs: between(0, 100)}, {pid: 2, begin: 20, end: 100, runs: between(30, 100)}}, true},
		{"both run for a second and a half", []life{{pid: 1, end: 100, runs: between(0, 60)}, {pid: 2, begin: 20, end: 100, runs: between(45, 100)}}, true},
		{"both are idle", []life{{pid: 1, end: 100, runs: between(0, 100), busy: tick / 1000}, {pid: 2, end: 100, runs: between(0, 100), busy: tick / 1000}}, true},
		{"one sleeps, which cannot be told from standing still", []life{{pid: 1, end: 100, runs: between(0, 100)},
			{pid: 2, end: 100, runs: between(0, 100), busy: tick / 10000}}, false},
		{"three, two of which run", []life{{pid: 1, end: 100, runs: between(0, 100)}, {pid: 2, end: 100, runs: between(0, 0)},
			{pid: 3, end: 100, runs: between(0, 100)}}, true},
		{"the target stands still", []life{{pid: 1, end: 100, runs: between(0, 100)}, {pid: 2, begin: 20, end: 100, runs: between(0, 0)}}, false},
		{"the source stands still", []life{{pid: 1, end: 100, runs: between(0, 0)}, {pid: 2, end: 100, runs: between(0, 100)}}, false},
		{"the target works while it is set up", []life{{pid: 1, end: 100, runs: between(0, 100)}, {pid: 2, begin: 20, end: 100, runs: between(20, 30)}}, false},
		{"the second begins after the first has ended", []life{{pid: 1, end: 50, runs: between(0, 50)}, {pid: 2, begin: 50, end: 100, runs: between(50, 100)}}, false},
		{"they take turns", []life{{pid: 1, end: 200, runs: func(n int) bool { return n/20%2 == 0 }},
			{pid: 2, end: 200, runs: func(n int) bool { return n/20%2 == 1 }}}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			found := play(200, c.copies...)
			if (len(found) > 0) != c.violate || len(found) > 1 {
				t.Errorf("found %v, want one: %v", found, c.violate)
			}
			if c.violate && len(found) > 0 && !strings.Contains(found[0].String(), "guest md-0 (u): two copies run: process 1 on h, process") {
				t.Errorf("it reads %q", found[0])
			}
		})
	}
}

// A move is not a violation, whenever it switches, however short the pause, and however rare the samples.
func TestAMoveIsNotTakenForTwo(t *testing.T) {
	for at := 20; at < 60; at++ {
		for stopped := range 8 {
			source := life{pid: 1, end: at + 10, runs: between(0, at)}
			target := life{pid: 2, begin: 10, end: 200, runs: between(at+stopped, 200)}
			if found := play(100, source, target); found != nil {
				t.Fatalf("switched at tick %d, stopped for %d: %v", at, stopped, found)
			}
		}
	}
}

func TestACopyWithoutThreadsIsToldOf(t *testing.T) {
	blind := life{pid: 1, end: 300, runs: between(0, 0), threads: -1}
	found := play(300, blind)
	if len(found) != 1 || !strings.Contains(found[0].What, "cannot be seen") {
		t.Errorf("found %v", found)
	}
	blind.end = 90
	if found := play(300, blind); found != nil {
		t.Errorf("one that has just been started: %v", found)
	}
}

func TestTwoProcessesWithoutAMove(t *testing.T) {
	two := []Guest{{UID: "u", Name: "md-0", Copies: []Copy{{Process{PID: 1}, 1, 0}, {Process{PID: 2}, 1, 0}}}}
	var j Judge
	tell := func(from, to int, moving bool) (found []Violation) {
		for s := from; s < to; s += 10 {
			at := second(float64(s))
			j.See(at, two)
			for _, uid := range j.Overlaps(at, 30*time.Second) {
				found = append(found, j.Moves(at, uid, moving)...)
			}
		}
		return found
	}
	if found := tell(0, 3600, true); found != nil {
		t.Errorf("a long move: %v", found)
	}
	if found := tell(3600, 3890, false); found != nil {
		t.Errorf("just after the move: %v", found)
	}
	if found := tell(3890, 4200, false); len(found) != 1 || !strings.Contains(found[0].What, "does not move") {
		t.Errorf("long after it: %v", found)
	}
	two[0].Copies = two[0].Copies[:1]
	if tell(4200, 4210, false); len(j.Overlaps(second(4210), 0)) != 0 {
		t.Error("one process is an overlap")
	}
}
