package core

import (
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "watari/api/watariv1"
	"watari/internal/clocks"
)

// When the manager's clock is set back, its monotonic time goes on. What depends on stored times is decided again all the same.
func TestOrdersFollowAClockThatIsSetBack(t *testing.T) {
	h := newHousehold(t, ownersOfAll+"harvest:\n  throttle: {cpu: 25%, stop_after: 20s}\n", 1)
	day := h.now
	h.now = clocks.Reading(day, time.Hour)
	h.pass(0)
	h.ownersBack(0.1, "a1", "a2", "b1")
	h.pass(time.Second)
	if got := h.pass(20 * time.Second)["a1"].Guests[0].Limits.GetCpuPermille(); got != 5 {
		t.Fatalf("after 20 s the guest gets %d thousandths", got)
	}
	w := World{Objects: h.objects, Now: h.now, Reports: h.reports(), Signals: h.watcher.All(h.now)}
	h.core.Decide(w)
	w.Now = clocks.Reading(day.Add(-10*time.Minute), time.Hour+22*time.Second)
	if orders := h.core.Decide(w).Orders["a1"]; orders == nil || orders.Guests[0].Limits.GetCpuPermille() != 250 {
		t.Errorf("when the clock is set back, the orders are %v", orders)
	}
}

// A checkpoint that was made for another withdrawal, that ended while the clock was ahead, or that was made long before does not have
// the present state of the guests.
func TestACheckpointOfAnEarlierSuspensionIsNotUsedAgain(t *testing.T) {
	for name, c := range map[string]struct {
		ended   time.Duration // after the withdrawal's beginning, by the clock
		another bool          // withdrawal
	}{
		"another withdrawal": {ended: -time.Minute, another: true},
		"another withdrawal, before the clock was set back": {ended: time.Minute, another: true},
		"the clock was set back":                            {ended: 10 * time.Minute},
		"long before":                                       {ended: -10 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHousehold(t, suspending, 1)
			h.objects.Clusters["md"].CheckpointRecipient = "public"
			h.pass(0)
			h.ownersBack(0.1, "a1", "a2", "b1")
			h.pass(time.Second)
			h.saved("md-c1", -c.ended, func(made *v1.Checkpoint) {
				made.Suspends, made.WithdrawnSince = true, h.objects.Hosts["a1"].Withdrawn[0].Since
				if c.another {
					made.WithdrawnSince = timestamppb.New(h.now.Add(-time.Hour))
				}
			})
			h.pass(2 * time.Minute)
			if restore := h.objects.Clusters["md"].Restore; restore != nil {
				t.Errorf("the cluster goes back to %s", restore.Checkpoint)
			}
			if made := h.objects.Checkpoints["md-c2"]; !made.GetSuspends() {
				t.Errorf("it is not saved: %v", made)
			}
		})
	}
}
