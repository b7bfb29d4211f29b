package lifecycle

import (
	"testing"
	"time"

	v1 "watari/api/watariv1"
)

func observed(epoch uint64, condition v1.GuestCondition) *v1.GuestObserved {
	return &v1.GuestObserved{Epoch: epoch, Condition: condition, Message: "no space"}
}

func TestStep(t *testing.T) {
	granted := func() *v1.Guest {
		return &v1.Guest{Meta: &v1.Meta{Name: "md-0"}, Host: "a1", Epoch: 3, BootId: "x"}
	}
	stopped := func() *v1.Guest { g := granted(); g.Stopped = true; return g }
	worn := func() *v1.Guest { g := granted(); g.Restarts = MaxRestarts; return g }
	up := Host{Exists: true, Connected: true, Current: true, Bound: true}
	with := func(h Host, o *v1.GuestObserved) Host { h.Guest = o; return h }
	lived := func(h Host) Host { h.Lived = WellAfter; return h }
	const (
		run    = v1.GuestCondition_GUEST_CONDITION_RUNNING
		gone   = v1.GuestCondition_GUEST_CONDITION_GONE
		failed = v1.GuestCondition_GUEST_CONDITION_FAILED
	)
	for name, c := range map[string]struct {
		guest    *v1.Guest
		host     Host
		deleting bool
		want     Act
		restart  bool
	}{
		"new guest is placed":                    {guest: &v1.Guest{Meta: &v1.Meta{}}, want: Place},
		"failed guest waits for a person":        {guest: &v1.Guest{Meta: &v1.Meta{}, Failure: "x"}, want: Nothing},
		"deleted without a grant is removed":     {guest: &v1.Guest{Meta: &v1.Meta{}}, deleting: true, want: Remove},
		"running is left alone":                  {guest: granted(), host: with(up, observed(3, run)), want: Nothing},
		"not yet reported is left alone":         {guest: granted(), host: up, want: Nothing},
		"unreachable host keeps its grant":       {guest: granted(), host: Host{Exists: true}, want: Nothing},
		"another epoch's end is not this one's":  {guest: granted(), host: with(up, observed(2, gone)), want: Nothing},
		"ended guest is started anew":            {guest: granted(), host: with(up, observed(3, gone)), want: Release, restart: true},
		"guest that keeps ending is given up":    {guest: worn(), host: with(up, observed(3, gone)), want: Fail},
		"failed start is tried elsewhere":        {guest: granted(), host: with(up, observed(3, failed)), want: Release, restart: true},
		"failed start of an unbound agent waits": {guest: granted(), host: Host{Exists: true, Connected: true, Guest: observed(3, failed)}, want: Nothing},
		"guest that ran well is started anew":    {guest: worn(), host: lived(with(up, observed(3, gone))), want: Release, restart: true},
		"a start tried for long counts":          {guest: worn(), host: lived(with(up, observed(3, failed))), want: Fail},
		"rebooted host has lost it":              {guest: worn(), host: Host{Exists: true, Connected: true, Dead: true}, want: Release, restart: true},
		"removed host has lost it":               {guest: granted(), host: Host{}, want: Release, restart: true},
		"stopped and reported no more":           {guest: stopped(), host: up, want: Release},
		"stopped but orders not taken up":        {guest: stopped(), host: Host{Exists: true, Connected: true}, want: Nothing},
		"deleted on unreachable host stays":      {guest: granted(), host: Host{Exists: true}, deleting: true, want: Nothing},
		"deleted and still there stays":          {guest: granted(), host: with(up, observed(3, run)), deleting: true, want: Nothing},
		"deleted and reported no more is let go": {guest: granted(), host: up, deleting: true, want: Release},
	} {
		t.Run(name, func(t *testing.T) {
			d := Step(c.guest, c.host, c.deleting)
			if d.Act != c.want || (d.Restarts > 0) != c.restart {
				t.Errorf("Step = %+v, want act %v, restart %v", d, c.want, c.restart)
			}
		})
	}
}

// A restore waits for a host that can do it: refusals do not use up the guest's starts.
func TestARefusedRestoreDoesNotCount(t *testing.T) {
	g := &v1.Guest{Meta: &v1.Meta{Name: "md-0"}, Host: "a1", Epoch: 3, Restarts: MaxRestarts}
	for _, restores := range []bool{false, true} {
		h := Host{Exists: true, Connected: true, Current: true, Bound: true, Restores: restores, Guest: observed(3, v1.GuestCondition_GUEST_CONDITION_FAILED)}
		h.Guest.Refused = true
		if d := Step(g, h, false); d.Refused != restores || (d.Act == Release) != restores || restores && (d.Restarts != 0 || !d.Avoid) {
			t.Errorf("restores %v: %+v", restores, d)
		}
	}
}

// A guest under which QEMU or KVM failed is started on another host, and its end counts as the end of a copy that ran.
func TestAGuestWhoseHostFailedUnderItIsTriedElsewhere(t *testing.T) {
	g := &v1.Guest{Meta: &v1.Meta{Name: "md-0"}, Host: "a1", Epoch: 3}
	for _, broken := range []bool{false, true} {
		h := Host{Exists: true, Connected: true, Current: true, Guest: observed(3, v1.GuestCondition_GUEST_CONDITION_GONE)}
		h.Guest.Broken = broken
		if d := Step(g, h, false); d.Act != Release || d.Avoid != broken || d.NeverRan || d.Restarts != 1 {
			t.Errorf("broken %v: %+v", broken, d)
		}
	}
}

func TestEndsBeforeALongLifeAreForgotten(t *testing.T) {
	g := &v1.Guest{Meta: &v1.Meta{Name: "md-0"}, Host: "a1", Epoch: 3, Restarts: 2}
	h := Host{Exists: true, Connected: true, Current: true, Guest: observed(3, v1.GuestCondition_GUEST_CONDITION_GONE)}
	for lived, want := range map[time.Duration]uint32{0: 3, WellAfter - 1: 3, WellAfter: 1} {
		h.Lived = lived
		if d := Step(g, h, false); d.Restarts != want {
			t.Errorf("after %v: %d restarts, want %d", lived, d.Restarts, want)
		}
	}
}

func TestAnEndIsToldAsTheHostTellsIt(t *testing.T) {
	g := &v1.Guest{Meta: &v1.Meta{Name: "md-0"}, Host: "a1", Epoch: 3}
	for message, want := range map[string]string{
		"":         "its QEMU ended",
		"it ended": "its QEMU ended",
		"it ended: its QEMU crashed or was killed":        "its QEMU ended: its QEMU crashed or was killed",
		"a copy that the host had no record of was ended": "its QEMU ended: a copy that the host had no record of was ended",
	} {
		h := Host{Exists: true, Connected: true, Current: true, Guest: observed(3, v1.GuestCondition_GUEST_CONDITION_GONE)}
		h.Guest.Message = message
		if d := Step(g, h, false); d.Message != want {
			t.Errorf("%q is told as %q, not %q", message, d.Message, want)
		}
	}
}
