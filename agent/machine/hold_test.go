package machine

import (
	"testing"
	"time"

	"watari/agent/domain"
)

func TestAGuestThatIsHeldIsNotResumed(t *testing.T) {
	w := newWorld(t)
	w.take(orders(1, wish(run, 1)))
	w.run(time.Second)
	if w.m.Hold(w.now, guestUID, 2) {
		t.Error("a guest is held under an epoch that it does not have")
	}
	if !w.m.Hold(w.now, guestUID, 1) {
		t.Fatal("a guest that runs is not held")
	}
	w.becomes(guestUID, domain.Paused)
	w.run(time.Minute)
	if w.domains[guestUID] != domain.Paused || w.condition(guestUID) != "1 RUNNING" {
		t.Errorf("it is %s, and reported %s", w.domains[guestUID], w.condition(guestUID))
	}
	w.m.Release(w.now, guestUID)
	w.collect()
	w.run(time.Minute)
	if w.domains[guestUID] != domain.Running {
		t.Errorf("released, it is %s", w.domains[guestUID])
	}
}

// A guest with another action under way is not held: that action could resume it.
func TestAGuestThatDoesNotJustRunIsNotHeld(t *testing.T) {
	for name, s := range scenarios {
		w := newWorld(t)
		all := s.play(newWorld(t), 1000, false)
		s.play(w, all/2, false)
		if g := w.m.guests[guestUID]; g == nil || g.op == nil && g.doing == nil && len(g.script) == 0 {
			continue
		}
		for _, epoch := range []uint64{1, 2} {
			if w.m.Hold(w.now, guestUID, epoch) {
				t.Errorf("%s: it is held in the middle of that", name)
			}
		}
	}
}
