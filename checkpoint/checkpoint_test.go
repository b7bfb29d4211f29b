package checkpoint

import (
	"strings"
	"testing"
	"time"

	v1 "watari/api/watariv1"
)

func TestStepSaysWhatItWaitsForAndWhyItFailed(t *testing.T) {
	const (
		pendingState = v1.CheckpointState_CHECKPOINT_STATE_PENDING
		preparing    = v1.CheckpointState_CHECKPOINT_STATE_PREPARING
		stopping     = v1.CheckpointState_CHECKPOINT_STATE_STOPPING
		writing      = v1.CheckpointState_CHECKPOINT_STATE_WRITING
		failedState  = v1.CheckpointState_CHECKPOINT_STATE_FAILED
		cancelled    = v1.CheckpointState_CHECKPOINT_STATE_CANCELLED
	)
	at := func(phase v1.CheckpointPhase) *v1.CheckpointObserved {
		return &v1.CheckpointObserved{Phase: phase, Message: "its disk is full"}
	}
	well := Member{Connected: true, Running: true}
	for name, try := range map[string]struct {
		state   v1.CheckpointState
		second  Member
		change  func(*v1.Checkpoint, *Observed)
		want    v1.CheckpointState
		message string
	}{
		"begins":     {pendingState, well, nil, preparing, ""},
		"moves":      {pendingState, Member{Connected: true, Moving: true}, nil, pendingState, "move of guest md-1"},
		"away":       {pendingState, Member{Running: true}, nil, pendingState, "host b1 to be connected"},
		"one before": {pendingState, Member{Connected: true, Running: true, Saving: true}, nil, pendingState, "earlier checkpoint of guest md-1 has ended"},
		"one before, for long": {pendingState, Member{Connected: true, Running: true, Saving: true}, func(_ *v1.Checkpoint, o *Observed) { o.InState = time.Hour },
			pendingState, "earlier checkpoint of guest md-1 has ended"},
		"not its turn":   {pendingState, well, func(_ *v1.Checkpoint, o *Observed) { o.Turn = false }, pendingState, "other checkpoints"},
		"waits too long": {pendingState, Member{Connected: true}, func(_ *v1.Checkpoint, o *Observed) { o.InState = time.Hour }, failedState, "guest md-1 to run, for more than 10m"},
		"being deleted":  {stopping, well, func(_ *v1.Checkpoint, o *Observed) { o.Unwanted = true }, cancelled, "stopped or moved"},
		"cancelled":      {writing, well, func(c *v1.Checkpoint, _ *Observed) { c.Cancel = true }, cancelled, "cancelled"},
		"guest ended":    {stopping, Member{Connected: true, Ended: true}, nil, failedState, "md-1 ended on b1"},
		"slow":           {stopping, Member{Connected: true, Report: at(1)}, nil, stopping, "waits for host b1 to stop it"},
		"too slow":       {stopping, Member{Connected: true, Report: at(1)}, func(_ *v1.Checkpoint, o *Observed) { o.InState = 3 * time.Second }, failedState, "did not stop it within 2s"},
		"refuses":        {writing, Member{Connected: true, Report: at(5)}, nil, failedState, "host b1, guest md-1: its disk is full"},
		"away, unready":  {preparing, Member{Away: 9 * time.Second}, nil, preparing, "be connected"},
		"away, ready":    {preparing, Member{Away: 9 * time.Second, Report: at(ready)}, nil, preparing, "be connected"},
		"away too long":  {preparing, Member{Away: 11 * time.Second, Report: at(ready)}, nil, failedState, "b1 is not reachable"},
		"cut off":        {stopping, Member{Away: time.Second}, nil, failedState, "b1 is not reachable"},
		"away a moment":  {writing, Member{Away: 10 * time.Second, Report: at(3)}, nil, writing, "write its file"},
	} {
		c := &v1.Checkpoint{State: try.state, Members: []*v1.CheckpointMember{{Guest: "md-0", Host: "a1"}, {Guest: "md-1", Host: "b1"}}}
		first := well
		first.Report = at(v1.CheckpointPhase_CHECKPOINT_PHASE_WRITTEN)
		o := Observed{Turn: true, Members: []Member{first, try.second}}
		if try.change != nil {
			try.change(c, &o)
		}
		d := Step(c, o)
		if d.State != try.want || !strings.Contains(d.Message, try.message) || (d.Message == "") != (try.message == "") {
			t.Errorf("%s: %v, %q", name, d.State, d.Message)
		}
	}
}

// If the manager waited longer for guests to stop than hosts let guests stand, checkpoints would become void.
func TestHostsLetGuestsStandLongerThanTheManagerWaits(t *testing.T) {
	if MaxStop <= StopWait {
		t.Errorf("%v and %v", MaxStop, StopWait)
	}
}
