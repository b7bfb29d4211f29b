package machine

import (
	"testing"
	"time"

	"watari/agent/domain"
	v1 "watari/api/watariv1"
)

// sendingGuest returns a machine whose guest u is being sent.
func sendingGuest(t *testing.T) *Machine {
	t.Helper()
	m := New(time.Unix(1e9, 0), Config{Host: "here", BootID: "boot"}, Loaded{})
	g := m.meet("u", "md-0")
	g.reading = 0
	g.record = &Record{UID: "u", Name: "md-0", Epoch: 4, Phase: PhaseSending, Migration: "move", BootID: "boot"}
	w := &v1.GuestWanted{Uid: "u", Name: "md-0", Role: v1.GuestRole_GUEST_ROLE_OUTGOING, Epoch: 4, Migration: &v1.MigrationOrder{Id: "move"}}
	g.wanted, g.decided = w, w
	m.domains.set("u", "md-0", domain.Running)
	m.beginOperation(g, ActionSend)
	return m
}

func TestAGuestIsHandedOverWhenItsProcessEndsAfterItHasStopped(t *testing.T) {
	now := time.Unix(1e9, 0)
	handedOver := func(m *Machine) bool {
		t.Helper()
		for _, g := range m.Report(now).Guests {
			if g.Uid == "u" {
				return g.HandedOver
			}
		}
		t.Fatal("it is not reported")
		return false
	}
	for name, c := range map[string]struct {
		events int
		before func(m *Machine)
		want   bool
	}{
		"it stopped":                     {1, nil, true},
		"it did not stop":                {0, nil, false},
		"it stopped and went on":         {2, nil, false},
		"the transfer was to be ended":   {1, func(m *Machine) { m.interrupt(m.guests["u"]) }, false},
		"the transfer had failed before": {1, func(m *Machine) { m.sendEnded(m.guests["u"], Result{Err: errLost}) }, false},
	} {
		m := sendingGuest(t)
		for range c.events {
			m.DomainEvent(now, "u", now)
		}
		if handedOver(m) {
			t.Errorf("%s: handed over while its process is there", name)
		}
		if c.before != nil {
			c.before(m)
		}
		m.SenderEnded(now, "u")
		if got := handedOver(m); got != c.want {
			t.Errorf("%s: handed over: %v", name, got)
		}
		if !c.want {
			continue
		}
		// A guest that is handed over is not interrupted. It is no longer handed over when libvirt reports a failure.
		m.interrupt(m.guests["u"])
		if m.guests["u"].op.interrupted {
			t.Errorf("%s: it is interrupted", name)
		}
		m.sendEnded(m.guests["u"], Result{Err: errLost})
		if handedOver(m) {
			t.Errorf("%s: handed over though it failed", name)
		}
	}
	m := sendingGuest(t)
	m.SenderEnded(now, "another")
}
