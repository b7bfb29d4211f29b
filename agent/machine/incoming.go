package machine

// incoming.go - the tunnel's part of a guest that is received: which transfer is admitted, and when.

import (
	"errors"
	"fmt"
	"time"

	v1 "watari/api/watariv1"
)

// admission is a connection that asks to be let in.
type admission struct {
	migration  string
	connection uint64
}

var errUnwanted = errors.New("this transfer is not wanted any more")

// Admit asks whether a connection of a guest's transfer is let in; the caller chooses its number. The answer is an act,
// LetIn. No byte may be let in before: that a domain may exist is on disk by then. A connection that asks counts as open.
func (m *Machine) Admit(now time.Time, uid, migration string, connection uint64) {
	m.now = now
	if g := m.guests[uid]; g != nil {
		g.tunnel = migration
		g.admissions = append(g.admissions, admission{migration, connection})
	} else {
		m.act(nil, Act{Kind: LetIn, Guest: uid, Migration: migration, Connection: connection, Err: errUnwanted})
	}
	m.settle()
}

// Tunnel says whether any connection of a guest's incoming transfer is open.
func (m *Machine) Tunnel(now time.Time, uid, migration string, open bool) {
	m.now = now
	if g := m.guests[uid]; g != nil {
		switch {
		case open:
			g.tunnel = migration
		case g.tunnel == migration:
			g.tunnel = ""
		}
	}
	m.settle()
}

// admit answers the connections that wait; true: their record is being written first.
func (m *Machine) admit(g *guest) bool {
	for len(g.admissions) > 0 {
		a := g.admissions[0]
		r, w := g.record, g.wanted
		var err error
		switch {
		case r == nil || r.Migration != a.migration || w.GetRole() != v1.GuestRole_GUEST_ROLE_INCOMING || w.GetMigration().GetCancel():
			err = errUnwanted
		case r.Phase == PhaseReserved:
			g.doing = &doing{kind: ActionRecord, to: record(r, PhaseReceiving).Record, admits: true}
			m.beginRecord(g)
			return true
		case r.Phase != PhaseReceiving && r.Phase != PhaseReceived:
			err = fmt.Errorf("the guest is %s here already", r.Phase)
		}
		g.admissions = g.admissions[1:]
		m.act(g, Act{Kind: LetIn, Migration: a.migration, Connection: a.connection, Err: err})
	}
	return false
}

// answer refuses all connections that wait.
func (m *Machine) answer(g *guest, err error) {
	for _, a := range g.admissions {
		m.act(g, Act{Kind: LetIn, Migration: a.migration, Connection: a.connection, Err: err})
	}
	g.admissions = nil
}

// wantedMigration is the transfer that the tunnel is to admit; empty: none.
func (m *Machine) wantedMigration(g *guest) string {
	r, w := g.record, g.wanted
	if r != nil && w != nil && w.Role == v1.GuestRole_GUEST_ROLE_INCOMING && !w.Migration.GetCancel() && w.Epoch == r.Epoch &&
		w.Migration.GetId() == r.Migration && (r.Phase == PhaseReserved || r.Phase == PhaseReceiving || r.Phase == PhaseReceived) {
		return r.Migration
	}
	return ""
}

// expect has the tunnel admit the guest's transfer for as long as the manager wants that; false: it does already.
func (m *Machine) expect(g *guest) bool {
	wanted := m.wantedMigration(g)
	if wanted == g.expected {
		return false
	}
	if g.expected != "" {
		g.script = append(g.script, Action{Kind: actionUnexpect})
	}
	if wanted != "" && g.backoff.IsZero() {
		g.script = append(g.script, Action{Kind: actionExpect})
		g.ordered = true
	}
	return len(g.script) > 0
}
