package core

// admission_guests.go - starting, stopping and moving guests.

import (
	"google.golang.org/protobuf/proto"

	v1 "watari/api/watariv1"
	"watari/migration"
)

// StartGuest starts a guest that was stopped, or that the manager no longer restarts after failures.
func (a *Admission) StartGuest(name string) (Change, error) {
	return a.changeGuest(name, "to be started", func(g *v1.Guest) bool {
		if !g.Stopped && g.Failure == "" {
			return false
		}
		g.Stopped, g.Failure, g.Restarts = false, "", 0
		return true
	})
}

// StopGuest ends a guest until it is started again.
func (a *Admission) StopGuest(name string) (Change, error) {
	return a.changeGuest(name, "to be stopped", func(g *v1.Guest) bool {
		if g.Stopped {
			return false
		}
		g.Stopped = true
		return true
	})
}

// changeGuest changes the caller's guest. change tells whether there was anything to change.
func (a *Admission) changeGuest(name, what string, change func(*v1.Guest) bool) (c Change, err error) {
	g, err := Find(a.Caller, "guest", name, a.Guests)
	if err != nil {
		return c, err
	}
	if err := beingRemoved(a.Objects, g); err != nil {
		return c, err
	}
	g = proto.CloneOf(g)
	if !change(g) {
		return c, nil
	}
	c.write(Update, g)
	a.audited(&c, "guest", name, "%s", what)
	return c, nil
}

// AdmittedMove is the answer to a request for a move.
type AdmittedMove struct {
	Change
	Name string // of the move, which may be under way already
	// Explanation has a line for each host, unless the move is under way already.
	Explanation []string
}

// MoveGuest makes the record of a guest's move. If a move that fits the request is under way, the change has no
// operations.
func (a *Admission) MoveGuest(r *v1.MigrateRequest) (move AdmittedMove, err error) {
	if r.ToHost != "" && r.ToSite != "" {
		return move, invalid("give a host or a site to move to, not both")
	}
	g, err := a.movable(r)
	if err != nil {
		return move, err
	}
	if m := MoveOf(a.Objects, g.Meta.Uid); m != nil {
		move.Name = m.Meta.Name
		return move, a.sameMove(m, r)
	}
	if why := diskAway(a.Objects, a.Reports, g); why != "" {
		return move, precondition("guest %s cannot be moved: %s; move it when that host is back", r.Guest, why)
	}
	m, explanation, err := PlanMove(a.Objects, a.Reports, g, r.ToHost, r.ToSite)
	if err != nil {
		kind := Precondition
		if len(explanation) > 1 {
			kind = Exhausted // every host was asked
		}
		return move, refuse(kind, "%v", err)
	}
	m.Reason = "user " + a.Caller.Name + " asked for it"
	m.BandwidthBytes = r.BandwidthBytes
	move.Name, move.Explanation = m.Meta.Name, explanation
	move.write(Create, m)
	a.audited(&move.Change, "guest", g.Meta.Name, "to move from %s to %s (%s)", m.Source, m.Target, m.Meta.Name)
	return move, nil
}

// movable finds the guest of a request and checks the target's name.
func (a *Admission) movable(r *v1.MigrateRequest) (*v1.Guest, error) {
	g, err := Find(a.Caller, "guest", r.Guest, a.Guests)
	if err != nil {
		return nil, err
	}
	if r.ToHost != "" && a.Hosts[r.ToHost] == nil {
		return nil, Missing("host", r.ToHost, a.Hosts)
	}
	if known := sites(a.Objects); r.ToSite != "" && !known[r.ToSite] {
		return nil, Missing("site", r.ToSite, known)
	}
	if err := beingRemoved(a.Objects, g); err != nil {
		return nil, err
	}
	if g.Stopped {
		return nil, precondition("guest %s is stopped; start it first", r.Guest)
	}
	return g, nil
}

// sameMove refuses a request that does not fit the guest's move under way.
func (a *Admission) sameMove(m *v1.Migration, r *v1.MigrateRequest) error {
	site := a.Hosts[m.Target].GetInfo().GetSite()
	if !m.Cancel && (r.ToHost == "" || r.ToHost == m.Target) && (r.ToSite == "" || r.ToSite == site) {
		return nil
	}
	return precondition("guest %s is moving to %s (%s, %s); wait for its end, or cancel it", m.Guest, m.Target, m.Meta.Name, StateName(m.State.String()))
}

// CancelMove asks for the cancellation of a move, and returns the move's name. The guest stays on its host, unless the move
// is past the point where that is possible. asked is the name of the move or of its guest.
func (a *Admission) CancelMove(asked string) (change Change, name string, err error) {
	m, err := a.findMove(asked)
	if err != nil {
		return change, "", err
	}
	name = m.Meta.Name
	if migration.Ended(m.State) {
		return change, name, precondition("migration %s has ended: %s", name, StateName(m.State.String()))
	}
	if m.Cancel {
		return change, name, nil
	}
	m = proto.CloneOf(m)
	m.Cancel = true
	change.write(Update, m)
	a.audited(&change, "guest", m.Guest, "move to %s (%s) to be cancelled", m.Target, name)
	return change, name, nil
}

// findMove finds a move by its name or its guest's.
func (a *Admission) findMove(name string) (*v1.Migration, error) {
	if m := a.Migrations[name]; m != nil && a.Caller.Owns(m.Meta) {
		return m, nil
	}
	g, err := Find(a.Caller, "guest", name, a.Guests)
	if err != nil {
		return nil, Missing("migration", name, Own(a.Caller, a.Migrations))
	}
	if m := MoveOf(a.Objects, g.Meta.Uid); m != nil {
		return m, nil
	}
	return nil, precondition("guest %s is not moving", name)
}

// MoveOf returns the move of a guest that has not ended; nil: none.
func MoveOf(s *Objects, guestUID string) *v1.Migration {
	for _, m := range s.Migrations {
		if m.GuestUid == guestUID && !migration.Ended(m.State) {
			return m
		}
	}
	return nil
}
