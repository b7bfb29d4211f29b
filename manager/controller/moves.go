package controller

// moves.go - carries out what package migration decides about moves.

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "watari/api/watariv1"
	"watari/manager/lifecycle"
	"watari/manager/store"
	"watari/manager/view"
	"watari/migration"
)

// MovesPerHost is how many moves a host takes part in at once. More would share its network and, without
// hardware acceleration, its processors, so that each takes longer and dirties more.
const MovesPerHost = 2

// migrations takes each move one step on.
func (c *Controller) migrations(ctx context.Context, s *store.Snapshot) (bool, error) {
	active := slices.Collect(func(yield func(*v1.Migration) bool) {
		for _, m := range s.Migrations {
			if !migration.Ended(m.State) && !yield(m) {
				return
			}
		}
	})
	slices.SortFunc(active, func(a, b *v1.Migration) int {
		return cmp.Or(a.Meta.Created.AsTime().Compare(b.Meta.Created.AsTime()), cmp.Compare(a.Meta.Name, b.Meta.Name))
	})
	strangers := view.Strangers(s, c.Sessions)
	for _, m := range active {
		if _, is := strangers[m.GuestUid]; is {
			continue
		}
		changed, err := c.migration(ctx, s, m, active)
		if err != nil {
			return false, fmt.Errorf("migration %s: %w", m.Meta.Name, err)
		}
		if changed {
			return true, nil
		}
	}
	return false, nil
}

func (c *Controller) migration(ctx context.Context, s *store.Snapshot, m *v1.Migration, active []*v1.Migration) (bool, error) {
	g := s.Guests[m.Guest]
	if g == nil || g.Meta.Uid != m.GuestUid {
		return true, c.endMove(ctx, m, v1.MigrationState_MIGRATION_STATE_CANCELLED, "the guest exists no more")
	}
	o := migration.Observed{
		Source: c.moveHost(s, m, m.Source, m.SourceBootId), Target: c.moveHost(s, m, m.Target, m.TargetBootId),
		InState: c.since(m), RoutesSet: c.routesSet(g.Cluster), Unwanted: unwanted(s, g), Turn: turn(m, active),
	}
	// A grant of another epoch means that the copy this move is about was given up meanwhile.
	if g.Epoch != m.SourceEpoch && (g.Epoch != m.TargetEpoch || m.TargetEpoch == 0) {
		o.Source.Dead = true
	}
	d := migration.Step(m, o)
	if d.State == m.State && d.Message == m.Message {
		return false, nil
	}
	update, grant := c.nextMove(m, g, d, o)
	ops := []store.Op{store.Update(update)}
	if grant != nil {
		ops = append(ops, store.Update(grant))
	}
	if err := c.Store.Txn(ctx, ops...); err != nil {
		return false, err
	}
	if migration.Ended(d.State) {
		delete(c.inState, m.Meta.Uid)
	}
	if d.State != m.State {
		c.Log.Info("migration", "name", m.Meta.Name, "state", view.StateName(d.State.String()), "message", d.Message)
		c.moveEvent(ctx, update)
	}
	return true, nil
}

// nextMove is the record, and where the grant changes the guest, after a decision.
func (c *Controller) nextMove(m *v1.Migration, g *v1.Guest, d migration.Decision, o migration.Observed) (*v1.Migration, *v1.Guest) {
	update := proto.CloneOf(m)
	update.State, update.Message = d.State, d.Message
	var grant *v1.Guest
	now := timestamppb.Now()
	if d.State != m.State {
		switch d.State {
		case v1.MigrationState_MIGRATION_STATE_RESERVING:
			// The target's epoch is set aside in the same write that lets the target hear of it.
			grant = proto.CloneOf(g)
			grant.LastEpoch++
			update.TargetEpoch, update.Started = grant.LastEpoch, now
		case v1.MigrationState_MIGRATION_STATE_SWITCHING:
			update.Switched = now
			update.StoppedUnixNs = o.Source.Guest.GetStoppedUnixNs()
		}
	}
	if p := o.Source.Guest.GetProgress(); p != nil && o.Source.Guest.GetMigrationId() == m.Meta.Uid {
		update.Progress = p
	}
	switch d.Grant {
	case migration.GrantToTarget:
		grant = proto.CloneOf(g)
		grant.Host, grant.Epoch, grant.BootId = m.Target, m.TargetEpoch, m.TargetBootId
	case migration.GrantLost:
		grant = proto.CloneOf(g)
		grant.Host, grant.BootId, grant.Message, grant.Platform = "", "", d.Message, nil
		grant.Restarts = lifecycle.Restarts(g, lived(g))
	}
	if migration.Ended(d.State) {
		closeMove(update, o, now)
	}
	return update, grant
}

func closeMove(m *v1.Migration, o migration.Observed, now *timestamppb.Timestamp) {
	m.Ended = now
	if m.Started != nil {
		m.TotalMs = uint32(now.AsTime().Sub(m.Started.AsTime()).Milliseconds())
	}
	m.DowntimeMs = m.GetProgress().GetDowntimeMs()
	if resumed := o.Target.Guest.GetResumedUnixNs(); m.State == v1.MigrationState_MIGRATION_STATE_DONE && m.StoppedUnixNs != 0 && resumed > m.StoppedUnixNs {
		m.DowntimeMs = uint32((resumed - m.StoppedUnixNs) / int64(time.Millisecond))
	}
}

func (c *Controller) endMove(ctx context.Context, m *v1.Migration, state v1.MigrationState, message string) error {
	update := proto.CloneOf(m)
	update.State, update.Message = state, message
	closeMove(update, migration.Observed{}, timestamppb.Now())
	if err := c.Store.Txn(ctx, store.Update(update)); err != nil {
		return err
	}
	delete(c.inState, m.Meta.Uid)
	c.moveEvent(ctx, update)
	return nil
}

func (c *Controller) moveEvent(ctx context.Context, m *v1.Migration) {
	switch m.State {
	case v1.MigrationState_MIGRATION_STATE_RESERVING:
		c.event(ctx, v1.Severity_SEVERITY_INFO, "guest", m.Guest, "begins to move from %s to %s: %s", m.Source, m.Target, m.Reason)
	case v1.MigrationState_MIGRATION_STATE_DONE:
		c.event(ctx, v1.Severity_SEVERITY_INFO, "guest", m.Guest, "moved from %s to %s in %d ms, stopped for %d ms", m.Source, m.Target, m.TotalMs, m.DowntimeMs)
	case v1.MigrationState_MIGRATION_STATE_FAILED:
		c.event(ctx, v1.Severity_SEVERITY_ERROR, "guest", m.Guest, "did not move from %s to %s: %s", m.Source, m.Target, m.Message)
	case v1.MigrationState_MIGRATION_STATE_CANCELLED, v1.MigrationState_MIGRATION_STATE_ROLLING_BACK:
		c.event(ctx, v1.Severity_SEVERITY_WARNING, "guest", m.Guest, "move from %s to %s, %s: %s", m.Source, m.Target, view.StateName(m.State.String()), m.Message)
	}
}

func (c *Controller) moveHost(s *store.Snapshot, m *v1.Migration, name, boot string) migration.Host {
	h := s.Hosts[name]
	report, since, connected := c.Sessions.Observed(name)
	end := migration.Host{Connected: connected, Dead: h == nil || view.Dead(s, c.Sessions, name, boot, m.GuestUid), Current: c.current(name),
		Guest: view.GuestOn(report, m.GuestUid)}
	if !connected {
		// A manager that has just begun to lead gives the agents time to find it.
		end.Away = min(time.Since(since), time.Since(c.started))
	}
	return end
}

// since is for how long a move has been in its state, as far as this process has seen.
func (c *Controller) since(m *v1.Migration) time.Duration {
	at, found := c.inState[m.Meta.Uid]
	if !found || at.state != m.State {
		at = stateSince{m.State, time.Now()}
		c.inState[m.Meta.Uid] = at
	}
	return time.Since(at.since)
}

// turn: fewer than MovesPerHost moves are under way at either end; older ones go first.
func turn(m *v1.Migration, active []*v1.Migration) bool {
	for _, host := range []string{m.Source, m.Target} {
		n := 0
		for _, other := range active {
			busy := other.State != v1.MigrationState_MIGRATION_STATE_PENDING
			if other != m && busy && (other.Source == host || other.Target == host) {
				n++
			}
		}
		if n >= MovesPerHost {
			return false
		}
	}
	return true
}

// failedLately: a move of the guest failed a moment ago; moving it again at once would fail again.
func (c *Controller) failedLately(s *store.Snapshot, g *v1.Guest) bool {
	for _, m := range s.Migrations {
		if m.GuestUid == g.Meta.Uid && m.Ended != nil && m.State != v1.MigrationState_MIGRATION_STATE_DONE && time.Since(m.Ended.AsTime()) < 10*time.Second {
			return true
		}
	}
	return false
}
