package machine

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"watari/agent/domain"
	v1 "watari/api/watariv1"
)

// scenario is a sequence of steps for a guest. The world runs between the steps.
type scenario struct {
	steps []func(w *world)
	last  *v1.HostWanted // the orders to repeat after a crash
	ends  []string       // the reports that are permitted in the end, whenever the crash came
}

var scenarios = map[string]scenario{
	"start": {
		steps: []func(*world){func(w *world) { w.take(orders(1, wish(run, 1))) }},
		last:  orders(1, wish(run, 1)),
		ends:  []string{"1 RUNNING", "1 GONE"},
	},
	"receive and resume": {
		steps: []func(*world){
			func(w *world) { w.take(orders(1, wish(incoming, 2))) },
			func(w *world) { w.m.Admit(w.now, guestUID, "m", 7); w.collect() },
			func(w *world) { w.becomes(guestUID, domain.Incoming) },
			func(w *world) { w.becomes(guestUID, domain.Paused) },
			func(w *world) { w.take(orders(2, wish(run, 2))) },
		},
		last: orders(2, wish(run, 2)),
		ends: []string{"2 RUNNING", "2 GONE", "2 FAILED"},
	},
	"send": {
		steps: []func(*world){
			func(w *world) { w.take(orders(1, wish(run, 1))) },
			func(w *world) { w.take(orders(2, wish(outgoing, 1))) },
		},
		last: orders(2, wish(outgoing, 1)),
		ends: []string{"1 SENT", "1 GONE", "1 SEND_FAILED"},
	},
	"restore": {
		steps: []func(*world){func(w *world) { w.take(orders(1, restoreWish(2))) }},
		last:  orders(1, restoreWish(2)),
		ends:  []string{"2 RECEIVED", "2 FAILED"},
	},
	"restore and resume": {
		steps: []func(*world){
			func(w *world) { w.take(orders(1, restoreWish(2))) },
			func(w *world) { w.take(orders(2, wish(run, 2))) },
		},
		last: orders(2, wish(run, 2)),
		ends: []string{"2 RUNNING", "2 GONE", "2 FAILED"},
	},
	"end": {
		steps: []func(*world){
			func(w *world) { w.take(orders(1, wish(run, 1))) },
			func(w *world) { w.take(orders(2, wish(absent, 1))) },
		},
		last: orders(2, wish(absent, 1)),
		ends: []string{"nothing"},
	},
}

// play plays a scenario up to a number of acts, and returns how many were carried out. If overrun is set, the acts under way
// are carried out as well, but the machine is not told.
func (s scenario) play(w *world, acts int, overrun bool) (played int) {
	for _, step := range s.steps {
		if played == acts {
			break
		}
		step(w)
		for played < acts && w.step() {
			played++
		}
	}
	if overrun {
		for _, a := range w.acts {
			w.do(a)
		}
	}
	return played
}

// A crash between any two acts breaks no rule: an epoch begins at most once, and only after its record is on disk (the world
// checks this). The orders are repeated to the new agent, which completes them.
func TestCrashesBetweenActs(t *testing.T) {
	for name, s := range scenarios {
		all := s.play(newWorld(t), 1000, false)
		for acts := range all + 1 {
			for _, overrun := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s after %d acts, overrun %v", name, acts, overrun), func(t *testing.T) {
					w := newWorld(t)
					s.play(w, acts, overrun)
					w.crash()
					w.run(time.Second)
					if w.domains[guestUID] == domain.Incoming { // its tunnel ended with the agent
						w.becomes(guestUID, domain.Absent)
					}
					w.take(s.last)
					w.run(10 * time.Minute)
					if got := w.condition(guestUID); !slices.Contains(s.ends, got) {
						t.Errorf("reported %s; done %v", got, w.done)
					}
					if o := w.m.Report(w.now); o.Generation != s.last.Generation {
						t.Errorf("generation %d is not taken up", o.Generation)
					}
				})
			}
		}
	}
}

// A report is never contradicted: after GONE, FAILED or SENT of an epoch, no copy of that epoch runs.
func TestAnEndThatWasReportedIsTrue(t *testing.T) {
	for name, s := range scenarios {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			var ended string
			for _, step := range s.steps {
				step(w)
				for w.step() {
					switch got := w.condition(guestUID); got {
					case "1 GONE", "1 FAILED", "1 SENT", "2 GONE", "2 FAILED":
						ended = got
					default:
						if ended != "" && got != "nothing" {
							t.Fatalf("%s after %s", got, ended)
						}
					}
					if state := w.domains[guestUID]; ended != "" && state == domain.Running {
						t.Fatalf("it runs after %s; done %v", ended, w.done)
					}
				}
			}
		})
	}
}
