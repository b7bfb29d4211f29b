package core

import (
	"testing"
	"time"

	v1 "watari/api/watariv1"
)

func TestARunLosesGuestsThatEndNotThoseThatMove(t *testing.T) {
	guest := func(host string, epoch, started uint64) *Objects {
		return &Objects{Guests: map[string]*v1.Guest{
			"md-0": {Meta: &v1.Meta{Name: "md-0"}, Host: "a1", Epoch: 1, StartedEpoch: 1},
			"md-1": {Meta: &v1.Meta{Name: "md-1"}, Host: host, Epoch: epoch, StartedEpoch: started}}}
	}
	run := &v1.Run{StartedEpochs: map[string]uint64{"md-0": 1, "md-1": 1}}
	for name, c := range map[string]struct {
		objects *Objects
		want    string
	}{
		"unchanged":        {guest("b1", 1, 1), ""},
		"moved":            {guest("a1", 2, 1), ""},
		"started anew":     {guest("b1", 2, 2), "md-1"},
		"has no host":      {guest("", 1, 1), "md-1"},
		"no longer exists": {&Objects{Guests: map[string]*v1.Guest{"md-0": guest("", 1, 1).Guests["md-0"]}}, "md-1"},
	} {
		if got := lostGuest(c.objects, run); got != c.want {
			t.Errorf("%s: lost %q, want %q", name, got, c.want)
		}
	}
}

// A run that is to end gets harsher and harsher signals, with a pause after each.
func TestARunThatIsCancelledIsSentSignals(t *testing.T) {
	run := &v1.Run{Meta: &v1.Meta{Name: "r", Uid: "r"}, State: v1.RunState_RUN_STATE_RUNNING, Cancel: true, Spec: &v1.RunSpec{Cluster: "md"}, Head: "md-0", HeadUid: "u",
		StartedEpochs: map[string]uint64{"md-0": 1}}
	objects := NoObjects()
	objects.Guests["md-0"] = &v1.Guest{Meta: &v1.Meta{Name: "md-0", Uid: "u"}, Host: "a1", Epoch: 1, StartedEpoch: 1}
	objects.Runs["r"] = run
	now := time.Unix(1000, 0)
	c := New(Config{Began: now})
	seen := RunSeen{Started: true}
	var got []int32
	for range 40 { // seconds
		d := c.Decide(World{Objects: objects, Runs: map[string]RunSeen{"r": seen}, Now: now})
		if len(d.Runs) != 1 {
			t.Fatalf("orders %v", d.Runs)
		}
		if order := d.Runs[0]; order.Signal != 0 {
			got = append(got, order.Signal)
			seen.Signals, seen.Signalled = order.Sent, now
		}
		now = now.Add(time.Second)
	}
	want := []int32{2, 15, 9, 9, 9, 9, 9, 9}
	if len(got) != len(want) {
		t.Fatalf("signals %v, want %v", got, want)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Fatalf("signals %v, want %v", got, want)
		}
	}
}
