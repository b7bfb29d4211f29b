package machine

// incoming.go - decides which incoming transfer the tunnel admits, and when.

import (
	"errors"
	"fmt"
	"time"

	v1 "watari/api/watariv1"
)

// admission is a connection that waits for AnswerAdmission.
type admission struct {
	migration  string
	connection uint64
}

var errUnwanted = errors.New("this transfer is not wanted any more")

// Admit asks whether the tunnel may admit a connection of a guest's transfer. The caller chooses the connection's
// number. The answer is the act AnswerAdmission. The tunnel passes no byte before that: a record on disk must say first
// that a domain may exist. A waiting connection counts as open.
func (m *Machine) Admit(now time.Time, uid, migration string, connection uint64) {
	m.now = now
	if g := m.guests[uid]; g != nil {
		g.tunnel = migration
		g.admissions = append(g.admissions, admission{migration, connection})
	} else {
		m.act(nil, Act{Kind: AnswerAdmission, Guest: uid, Migration: migration, Connection: connection, Err: errUnwanted})
	}
	m.settle()
}

// Tunnel says whether a guest's incoming transfer has an open connection.
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

// admit answers the waiting connections; true: they wait until their record is on disk.
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
		m.act(g, Act{Kind: AnswerAdmission, Migration: a.migration, Connection: a.connection, Err: err})
	}
	return false
}

// answer refuses all waiting connections.
func (m *Machine) answer(g *guest, err error) {
	for _, a := range g.admissions {
		m.act(g, Act{Kind: AnswerAdmission, Migration: a.migration, Connection: a.connection, Err: err})
	}
	g.admissions = nil
}

// wantedMigration returns the migration that the tunnel must admit; empty: none.
func (m *Machine) wantedMigration(g *guest) string {
	r, w := g.record, g.wanted
	if r != nil && w != nil && w.Role == v1.GuestRole_GUEST_ROLE_INCOMING && !w.Migration.GetCancel() && w.Epoch == r.Epoch &&
		w.Migration.GetId() == r.Migration && (r.Phase == PhaseReserved || r.Phase == PhaseReceiving || r.Phase == PhaseReceived) {
		return r.Migration
	}
	return ""
}

// expect makes the tunnel admit the guest's transfer while the manager wants it; false: nothing has to change.
func (m *Machine) expect(g *guest) bool {
	wanted := m.wantedMigration(g)
	if wanted == g.expected {
		return false
	}
	if g.expected != "" {
		g.script = append(g.script, Action{Kind: actionDisallowIncoming})
	}
	if wanted != "" && g.backoff.IsZero() {
		g.script = append(g.script, Action{Kind: actionAllowIncoming})
		g.ordered = true
	}
	return len(g.script) > 0
}
