package machine

import (
	"errors"
	"testing"

	v1 "watari/api/watariv1"
)

// A look at the process table that fails is no evidence about a guest whose end is established.
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
