package core

// moves.go - turns the decisions of package migration about moves into changes.

import (
	"fmt"
	"math"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "watari/api/watariv1"
	"watari/core/lifecycle"
	"watari/migration"
	"watari/policy"
)

// MovesPerHost is the number of concurrent moves of a host. More moves would share its network and, under emulation,
// its processors. Each would then take longer, and its guest would change more memory meanwhile.
const MovesPerHost = 2

// moves takes one step for each move.
func (p *pass) moves() {
	active := sortedMoves(p.index.moves)
	// Guests that must leave their hosts come before guests that could stay.
	slices.SortStableFunc(active, func(a, b *v1.Migration) int { return optionalRank(a) - optionalRank(b) })
	busy := map[string]int{} // moves under way, by host
	for _, m := range active {
		if m.State != v1.MigrationState_MIGRATION_STATE_PENDING {
			busy[m.Source]++
			busy[m.Target]++
			p.again = earlier(p.again, p.Now.Add(movePass))
		}
	}
	for _, m := range active {
		if s, is := p.index.strangers[m.GuestUid]; is && (!passing(m.State) || s.Host == m.Source || s.Host == m.Target) {
			continue
		}
		if p.full() {
			return
		}
		pending := m.State == v1.MigrationState_MIGRATION_STATE_PENDING
		turn := !pending || busy[m.Source] < MovesPerHost && busy[m.Target] < MovesPerHost && !p.mustWait(m)
		if pending && turn && !p.fits(m) {
			if p.roomComes(m, map[*v1.Migration]bool{}) {
				continue
			}
			p.endMove("migration/"+m.Meta.Name, m, v1.MigrationState_MIGRATION_STATE_FAILED, fmt.Sprintf("host %s has no memory left for the guest", m.Target))
			continue
		}
		if pending && turn {
			if g := p.working.Guests[m.Guest]; g.GetMeta().GetUid() == m.GuestUid && !p.changed(g) {
				if why := p.lapsed(m, g); why != "" {
					p.endMove("migration/"+m.Meta.Name, m, v1.MigrationState_MIGRATION_STATE_CANCELLED, why)
					continue
				}
			}
		}
		if p.move(m, turn) && pending {
			busy[m.Source]++
			busy[m.Target]++
		}
	}
}

// mustWait reports whether a move that waits must not begin yet, because of a checkpoint, a restore, or the
// hand-over of its volume.
func (p *pass) mustWait(m *v1.Migration) bool {
	g := p.working.Guests[m.Guest]
	return g != nil && g.Meta.Uid == m.GuestUid && (restoring(p.Clusters[g.Cluster]) || p.heldByCheckpoint(g) || p.heldByVolume(g))
}

func optionalRank(m *v1.Migration) int {
	if policy.CanStay(m.Policy) {
		return 1
	}
	return 0
}

// beginMove adds the beginning of a guest's move to a change. The change is made only if the guest and both hosts are then as they
// are now.
func (p *pass) beginMove(c *Change, g *v1.Guest, target string, why cause) {
	m := newMove(p.working.Objects, g, target)
	m.Reason, m.Policy, m.BandwidthBytes = why.reason, why.policy, why.bandwidth
	c.write(Create, m)
	for _, o := range []Object{p.Hosts[m.Source], p.Hosts[m.Target], g} {
		if !slices.ContainsFunc(c.Ops, func(op Op) bool { return op.Object == o }) {
			c.write(Expect, o)
		}
	}
}

// fits reports whether the target of a waiting move still has memory for the guest. It may have none: a user's move is
// admitted while grants are decided from a snapshot that lacks the move. Other waiting moves do not count, because each of
// them is checked in its turn.
func (p *pass) fits(m *v1.Migration) bool {
	memory := p.Hosts[m.Target].GetInfo().GetMemoryBytes()
	if memory == 0 {
		return true // the host is gone, or has not told yet: migration.Step decides
	}
	used := p.index.byUID[m.GuestUid].GetShape().GetMemoryBytes()
	for g := range p.index.onHost[m.Target] {
		used += g.Shape.GetMemoryBytes()
	}
	for other := range p.index.movesAt[m.Target] {
		state := p.working.Migrations[other.Meta.Name].GetState()
		begun := state != v1.MigrationState_MIGRATION_STATE_PENDING && !migration.Ended(state)
		g := p.index.byUID[other.GuestUid]
		if other != m && begun && other.Target == m.Target && g.GetHost() != m.Target {
			used += g.GetShape().GetMemoryBytes()
		}
	}
	return used <= memory
}

// roomComes reports whether a guest is about to leave the target of a waiting move, so that the move gets room: guests
// change places one after the other. seen are the moves that wait for this one.
func (p *pass) roomComes(m *v1.Migration, seen map[*v1.Migration]bool) bool {
	if m.Policy != policy.LocalityName {
		return false
	}
	seen[m] = true
	for other := range p.index.movesAt[m.Target] {
		now := p.working.Migrations[other.Meta.Name]
		if other.Source != m.Target || seen[other] || now == nil || migration.Ended(now.State) {
			continue
		}
		if now.State != v1.MigrationState_MIGRATION_STATE_PENDING || p.fits(other) || p.roomComes(other, seen) {
			return true
		}
	}
	return false
}

// passing reports whether a move's guest is paused until the grant has passed on. Then the report of a host outside the move
// must not stop the move.
func passing(state v1.MigrationState) bool {
	return state == v1.MigrationState_MIGRATION_STATE_SWITCHING || state == v1.MigrationState_MIGRATION_STATE_RESUMING
}

// move takes one step for a move. It returns whether the move's state changed.
func (p *pass) move(m *v1.Migration, turn bool) bool {
	key := "migration/" + m.Meta.Name
	g := p.working.Guests[m.Guest]
	if g == nil || g.Meta.Uid != m.GuestUid {
		p.endMove(key, m, v1.MigrationState_MIGRATION_STATE_CANCELLED, "the guest no longer exists")
		return true
	}
	if p.changed(g) {
		return false
	}
	o := migration.Observed{
		Source: p.moveHost(m, g, m.Source, m.SourceBootId), Target: p.moveHost(m, g, m.Target, m.TargetBootId),
		InState: p.since(m.Meta.Uid, int32(m.State)), RoutesSet: p.routesSet(g.Cluster), Unwanted: unwanted(p.Objects, g), Turn: turn,
	}
	// If there is no grant, or one with another epoch, the copy that this move concerns is gone.
	if g.Host == "" || g.Epoch != m.SourceEpoch && (g.Epoch != m.TargetEpoch || m.TargetEpoch == 0) {
		o.Source.Dead = true
	}
	d := migration.Step(m, o)
	if d.State == m.State && d.Message == m.Message {
		return false
	}
	update, grant := p.nextMove(m, g, d, o)
	var c Change
	c.write(Update, update)
	if grant != nil {
		c.write(Update, grant)
	}
	if d.Grant == migration.GrantLost {
		p.handleLoss(&c, grant, d.Message)
	}
	if source := p.Hosts[m.Source]; m.Policy != "" && d.State == v1.MigrationState_MIGRATION_STATE_RESERVING && source != nil {
		c.write(Expect, source) // its withdrawal is the reason of the move
	}
	if d.State != m.State {
		moveEvent(&c, update)
	}
	p.propose(key, c)
	return d.State != m.State
}

// nextMove returns the move's record after a decision, and the guest if its grant changes (else nil).
func (p *pass) nextMove(m *v1.Migration, g *v1.Guest, d migration.Decision, o migration.Observed) (*v1.Migration, *v1.Guest) {
	update := proto.CloneOf(m)
	update.State, update.Message = d.State, d.Message
	var grant *v1.Guest
	now := timestamppb.New(p.Now)
	if d.State != m.State {
		switch d.State {
		case v1.MigrationState_MIGRATION_STATE_RESERVING:
			// The same write takes a new epoch for the target and begins the state in which the target gets its order.
			grant = proto.CloneOf(g)
			grant.LastEpoch++
			update.TargetEpoch, update.Started = grant.LastEpoch, now
		case v1.MigrationState_MIGRATION_STATE_SWITCHING:
			update.Switched = now
			update.StoppedUnixNs = o.Source.Guest.GetStoppedUnixNs()
		}
	}
	if progress := o.Source.Guest.GetProgress(); progress != nil && o.Source.Guest.GetMigrationId() == m.Meta.Uid {
		update.Progress = progress
	}
	switch d.Grant {
	case migration.GrantToTarget:
		grant = proto.CloneOf(g)
		grant.Host, grant.Epoch, grant.BootId = m.Target, m.TargetEpoch, m.TargetBootId
	case migration.GrantLost:
		grant = proto.CloneOf(g)
		grant.Host, grant.BootId, grant.Message, grant.Platform = "", "", d.Message, nil
		grant.Restarts = lifecycle.Restarts(g, p.lived(g))
	}
	if migration.Ended(d.State) {
		closeMove(update, o, now)
	}
	return update, grant
}

func closeMove(m *v1.Migration, o migration.Observed, now *timestamppb.Timestamp) {
	m.Ended = now
	if m.Started != nil {
		// A clock that is set back makes it negative.
		m.TotalMs = uint32(min(max(0, now.AsTime().Sub(m.Started.AsTime()).Milliseconds()), math.MaxUint32))
	}
	m.DowntimeMs = m.GetProgress().GetDowntimeMs()
	resumed := o.Target.Guest.GetResumedUnixNs()
	// The hosts' clocks may be far apart.
	possible := resumed > m.StoppedUnixNs && (resumed-m.StoppedUnixNs)/int64(time.Millisecond) <= int64(m.TotalMs)
	if m.State == v1.MigrationState_MIGRATION_STATE_DONE && m.StoppedUnixNs != 0 && possible {
		m.DowntimeMs = uint32((resumed - m.StoppedUnixNs) / int64(time.Millisecond))
		if received := o.Target.Guest.GetReceivedUnixNs(); received > m.StoppedUnixNs && received < resumed {
			m.SendingMs = uint32((received - m.StoppedUnixNs) / int64(time.Millisecond))
		}
	}
}

// endMove ends a move that has not begun, or whose guest no longer exists.
func (p *pass) endMove(key string, m *v1.Migration, state v1.MigrationState, message string) {
	update := proto.CloneOf(m)
	update.State, update.Message = state, message
	closeMove(update, migration.Observed{}, timestamppb.New(p.Now))
	var c Change
	c.write(Update, update)
	moveEvent(&c, update)
	p.propose(key, c)
}

func moveEvent(c *Change, m *v1.Migration) {
	switch m.State {
	case v1.MigrationState_MIGRATION_STATE_RESERVING:
		c.event(v1.Severity_SEVERITY_INFO, "guest", m.Guest, "begins to move from %s to %s: %s", m.Source, m.Target, m.Reason)
	case v1.MigrationState_MIGRATION_STATE_DONE:
		c.event(v1.Severity_SEVERITY_INFO, "guest", m.Guest, "moved from %s to %s in %d ms, stopped for %d ms", m.Source, m.Target, m.TotalMs, m.DowntimeMs)
	case v1.MigrationState_MIGRATION_STATE_FAILED:
		c.event(v1.Severity_SEVERITY_ERROR, "guest", m.Guest, "did not move from %s to %s: %s", m.Source, m.Target, m.Message)
	case v1.MigrationState_MIGRATION_STATE_CANCELLED, v1.MigrationState_MIGRATION_STATE_ROLLING_BACK:
		c.event(v1.Severity_SEVERITY_WARNING, "guest", m.Guest, "move from %s to %s, %s: %s", m.Source, m.Target, StateName(m.State.String()), m.Message)
	}
}

// moveHost returns one end of a move.
func (p *pass) moveHost(m *v1.Migration, g *v1.Guest, name, boot string) migration.Host {
	report, since, connected := p.Observed(name)
	h := p.Hosts[name]
	end := migration.Host{Connected: connected, Dead: h == nil || Dead(p.Objects, p, name, boot, m.GuestUid),
		Fenced: h == nil || h.FencedBootId != "" && !connected, Current: p.current(name), Guest: GuestOn(report, m.GuestUid)}
	if name == g.Host && p.leaseOver(g) {
		end.Dead, end.Fenced = true, true // the host will not report in time how the guest ended
	}
	if !connected {
		// Agents need time to connect to a manager that has just begun to lead.
		end.Away = min(p.Now.Sub(since), p.Now.Sub(p.Began))
	}
	return end
}

// since returns how long this Core has seen a move or a checkpoint in its state.
func (p *pass) since(uid string, state int32) time.Duration {
	at, found := p.inState[uid]
	if !found || at.state != state {
		at = stateSince{state, p.Now}
		p.inState[uid] = at
	}
	return p.Now.Sub(at.since)
}

const (
	// keepMoves is the number of a guest's ended moves that are kept for `watari migrate list`.
	keepMoves = 10
	// keepGoneMoves is the number of ended moves that are kept for all deleted guests together.
	keepGoneMoves = 100
	// pruneAtOnce bounds the moves that one decision deletes.
	pruneAtOnce = 100
)

// prune deletes the oldest ended moves, and drops ended moves and checkpoints from inState.
func (p *pass) prune() {
	for uid := range p.inState {
		if !p.index.unended[uid] {
			delete(p.inState, uid)
		}
	}
	if !p.index.moved && !p.index.everything {
		return
	}
	p.index.moved = false
	for _, m := range tooOld(p.Objects) {
		var c Change
		c.write(Delete, proto.CloneOf(m))
		p.propose("migration/"+m.Meta.Name, c)
	}
}

// tooOld returns ended moves that exceed keepMoves and keepGoneMoves, at most pruneAtOnce.
func tooOld(s *Objects) (old []*v1.Migration) {
	ended := map[string][]*v1.Migration{} // by guest; "": deleted guests
	for _, name := range sortedKeys(s.Migrations) {
		m := s.Migrations[name]
		if !migration.Ended(m.State) {
			continue
		}
		uid := m.GuestUid
		if s.Guests[m.Guest].GetMeta().GetUid() != uid {
			uid = ""
		}
		ended[uid] = append(ended[uid], m)
	}
	for _, uid := range sortedKeys(ended) {
		keep, list := keepMoves, ended[uid]
		if uid == "" {
			keep = keepGoneMoves
		}
		if len(list) > keep {
			oldestFirst(list)
			old = append(old, list[:len(list)-keep]...)
		}
	}
	return old[:min(len(old), pruneAtOnce)]
}
