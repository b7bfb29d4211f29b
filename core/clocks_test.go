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

// A checkpoint that was taken while the clock was ahead, and one to which the cluster has gone back, were not taken for the
// present suspension.
func TestACheckpointOfAnEarlierSuspensionIsNotUsedAgain(t *testing.T) {
	for name, c := range map[string]struct {
		ahead    time.Duration
		restored bool
	}{
		"the clock was ahead":                                           {ahead: 10 * time.Minute},
		"the clock was ahead by less than the policy waits":             {ahead: 2 * time.Minute},
		"the clock was a little ahead, and the cluster went back to it": {ahead: time.Minute, restored: true},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHousehold(t, suspending, 1)
			md := h.objects.Clusters["md"]
			md.CheckpointRecipient = "public"
			h.saved("md-c1", -c.ahead, func(c *v1.Checkpoint) {
				c.Suspends, c.Withdrawn, c.Meta.Created = true, timestamppb.New(h.now.Add(-time.Hour)), timestamppb.New(h.now)
			})
			if c.restored {
				md.Restore = &v1.Restore{Checkpoint: "md-c1", CheckpointUid: "uid-md-c1", Policy: "harvest", State: v1.RestoreState_RESTORE_STATE_DONE, Ended: timestamppb.New(h.now)}
			}
			h.pass(0)
			h.ownersBack(0.1, "a1", "a2", "b1")
			h.pass(time.Second)
			h.pass(4 * time.Minute)
			if now := h.objects.Clusters["md"].Restore; now != md.Restore {
				t.Errorf("the cluster goes back to %s", now.Checkpoint)
			}
			if c := h.objects.Checkpoints["md-c2"]; !c.GetSuspends() {
				t.Errorf("it is not saved: %v", c)
			}
		})
	}
}
