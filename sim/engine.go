package sim

// engine.go - simulated time: events in the order of their time.

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"time"
)

// start is when simulated time begins.
var start = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)

// engine runs events.
type engine struct {
	now    time.Time
	queue  events
	serial uint64
	rng    *rand.Rand
	log    func(format string, a ...any) // nil: there is no log
}

// event is something that happens at a time.
type event struct {
	at     time.Time
	serial uint64 // events of one time happen in the order in which they were planned
	do     func()
}

type events []event

func (q events) Len() int { return len(q) }
func (q events) Less(i, j int) bool {
	if q[i].at.Equal(q[j].at) {
		return q[i].serial < q[j].serial
	}
	return q[i].at.Before(q[j].at)
}
func (q events) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *events) Push(x any)   { *q = append(*q, x.(event)) }
func (q *events) Pop() any {
	old := *q
	last := old[len(old)-1]
	old[len(old)-1] = event{}
	*q = old[:len(old)-1]
	return last
}

// after plans an event.
func (e *engine) after(d time.Duration, do func()) { e.at(e.now.Add(d), do) }

func (e *engine) at(t time.Time, do func()) {
	if t.Before(e.now) {
		t = e.now
	}
	e.serial++
	heap.Push(&e.queue, event{t, e.serial, do})
}

// step runs the next event.
func (e *engine) step() {
	next := heap.Pop(&e.queue).(event)
	e.now = next.at
	next.do()
}

// between returns a random duration from low to high, all equally likely.
func (e *engine) between(low, high time.Duration) time.Duration {
	return low + time.Duration(e.rng.Int64N(int64(high-low)+1))
}

// latency returns a mostly short, and sometimes long, duration.
func (e *engine) latency(usual time.Duration) time.Duration {
	switch n := e.rng.IntN(100); {
	case n < 80:
		return e.between(usual/4, usual)
	case n < 97:
		return e.between(usual, 5*usual)
	}
	return e.between(5*usual, 50*usual)
}

// chance returns true in this percentage of calls.
func (e *engine) chance(percent int) bool { return e.rng.IntN(100) < percent }

// tell adds a line to the dialogue.
func (e *engine) tell(who, format string, a ...any) {
	if e.log != nil {
		e.log("%9.3f  %-8s %s", e.now.Sub(start).Seconds(), who, fmt.Sprintf(format, a...))
	}
}
