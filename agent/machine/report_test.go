package machine

import (
	"errors"
	"testing"
	"time"

	"watari/agent/domain"
	v1 "watari/api/watariv1"
)

// A failed read of the process table proves nothing about a guest whose end is established.
func TestWhatALookAtProcessesTells(t *testing.T) {
	w := newWorld(t)
	w.take(orders(1, wish(run, 1)))
	w.run(0)
	running := func() *v1.HostObserved { return w.m.Report(w.now) }
	trouble := errors.New("it hangs")
	for _, c := range []struct {
		name string
		pids map[string][]int
		err  error
		want bool
	}{
		{"none is seen", nil, nil, false},
		{"one is seen", map[string][]int{guestUID: {1}}, nil, true},
		{"the look fails", nil, trouble, true},
	} {
		o := running()
		SeeProcesses(o, c.pids, c.err)
		if o.Guests[0].Process != c.want {
			t.Errorf("a guest that runs, %s: %v", c.name, o.Guests[0].Process)
		}
	}
	w.take(orders(2, wish(outgoing, 1)))
	w.run(0)
	if got := w.condition(guestUID); got != "1 SENT" {
		t.Fatal(got)
	}
	o := running()
	SeeProcesses(o, nil, trouble)
	if o.Guests[0].Process || len(o.Problems) == 0 {
		t.Errorf("a guest that was sent: %v", o)
	}
	SeeProcesses(o, map[string][]int{guestUID: {1}}, trouble)
	if !o.Guests[0].Process {
		t.Error("a process that was seen is not told")
	}
}

func TestAGuestWhoseRecordIsReadLateHasItsName(t *testing.T) {
	w := newWorld(t)
	w.take(orders(1, wish(run, 1)))
	w.run(0)
	w.acts = nil
	w.m = New(w.now, Config{Host: "here", BootID: w.boot}, Loaded{Term: w.term, Unread: map[string]error{guestUID: errors.New("too many open files")}})
	if r := w.m.Report(w.now); len(r.Guests) != 1 || r.Guests[0].Epoch != 0 {
		t.Errorf("before: %v", r.Guests)
	}
	w.collect()
	w.run(5 * time.Second)
	if r := w.m.Report(w.now); r.Guests[0].Name != "md-1" || r.Guests[0].Epoch != 1 {
		t.Errorf("after: %v", r.Guests)
	}
}

// An administrator ends a guest in the middle of a move. Only its process tells whether the guest ran on here.
func TestAGuestThatIsEndedByHand(t *testing.T) {
	for _, c := range []struct {
		record Record
		killed bool
		ranOn  bool
	}{
		{Record{Phase: PhaseSending, Migration: "m"}, true, true},
		{Record{Phase: PhaseSending, Migration: "m"}, false, false}, // the guest may have been sent
		{Record{Phase: PhaseSending, Migration: "m", RanOn: true}, false, true},
		{Record{Phase: PhaseStarted}, true, false},
	} {
		if r := c.record.EndByHand(c.killed); r.Phase != PhaseEnded || r.Outcome != OutcomeGone || r.RanOn != c.ranOn {
			t.Errorf("%+v, killed %v: %+v", c.record, c.killed, r)
		}
	}
}

// After a failed transfer, an earlier version set the record back to started and did not record RanOn.
func TestAGuestOfAnEarlierVersionRanOn(t *testing.T) {
	w := newWorld(t)
	w.disk[guestUID] = &Record{UID: guestUID, Name: "md-1", Epoch: 3, Phase: PhaseStarted, Migration: "m", BootID: "b1"}
	w.domains[guestUID] = domain.Running
	w.crash()
	w.run(0)
	w.becomes(guestUID, domain.Absent)
	w.run(0)
	if g := w.m.Report(w.now).Guests[0]; g.MigrationId != "m" || !g.RanOn {
		t.Error(g)
	}
}
