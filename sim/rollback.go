package sim

// rollback.go - an older copy of the store is put back, and a person recovers.

import (
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "watari/api/watariv1"
	"watari/core"
)

// calm is how long nothing is cut or switched off after an older copy was put back. Otherwise a host that is away for longer
// than core.ExpectedWithin may run guests that the manager starts elsewhere.
const calm = core.ExpectedWithin + 5*time.Second

// putBack ends the manager, puts the backup back, and starts another manager. It does that once.
func (s *Sim) putBack() {
	if s.backup == nil || s.restored {
		return
	}
	s.restored, s.calmUntil = true, s.now.Add(calm)
	s.tell("admin", "puts the store of revision %d back; it is at %d", s.backup.Revision, s.store.objects.Revision)
	if !s.manager.dead {
		s.manager.kill()
	}
	if s.zombie != nil && !s.zombie.dead {
		s.zombie.kill()
	}
	s.cutUntil = map[string]time.Time{}
	for _, name := range s.names {
		h := s.hosts[name]
		h.cut = false
		h.power()
		h.startAgent()
	}
	s.store.objects = s.backup
	s.lead()
}

// held does what the controller does before it decides: it checks the stamps that hosts show.
func (m *manager) held(o *core.Objects, reports core.Captured) bool {
	var shown []core.Shown
	for _, host := range slices.Sorted(maps.Keys(reports)) {
		if seen := reports[host]; seen.Connected && seen.Report.GetStamp() != nil && seen.Report.Stamp.Id != m.began.Id {
			shown = append(shown, core.Shown{Host: host, Stamp: seen.Report.Stamp})
		}
	}
	if m.stale != nil || len(shown) == 0 {
		return o.Held()
	}
	terms := slices.Collect(maps.Values(o.Terms))
	found := core.RolledBack(terms, core.Unanswered(o.Hold(), shown...)...)
	begun := m.keepEvidence(o, found)
	if above := core.HighestTerm(shown...); begun || above >= m.term {
		m.sim.raise = max(m.sim.raise, above, m.term)
		m.kill()
		m.sim.after(100*time.Millisecond, m.sim.replaceManager)
		return true
	}
	return o.Held() || len(found) > 0
}

// keepEvidence records new evidence. It returns whether the manager begins to hold.
func (m *manager) keepEvidence(o *core.Objects, found []core.Evidence) (begun bool) {
	update, fresh := core.Hold(o.Hold(), found)
	for _, e := range fresh {
		m.sim.tell(m.name, "holds: %s", e)
	}
	kind := core.Update
	if o.Hold() == nil {
		kind = core.Create
	}
	if len(fresh) == 0 || m.sim.commit(m.term, core.Change{Ops: []core.Op{{Kind: kind, Object: update}}}) != nil {
		return false
	}
	return !o.Held()
}

// recover does what `watari recover --yes` does, once all hosts have come back.
func (s *Sim) recover() {
	o := s.store.objects
	if !o.Held() || s.manager.dead {
		return
	}
	reports := core.Capture(o, s.manager)
	for name := range o.Hosts {
		if !reports[name].Connected && o.Hosts[name].Meta.Deleting == nil {
			return
		}
	}
	plan := core.Recovery(o, reports.Connected(), core.RecoveryChoices{Keep: newest(reports)})
	if len(plan.Obstacles) > 0 {
		s.tell("admin", "cannot recover yet: %s", plan.Obstacles[0])
		return
	}
	s.tell("admin", "recovers")
	s.recovered = true
	s.recovering = true
	defer func() { s.recovering = false }()
	for _, c := range plan.Clusters {
		change := create(c.Object)
		if c.Known() {
			change.Ops[0].Kind = core.Update
		}
		for _, g := range plan.Guests {
			if g.Object != nil && g.Object.Cluster == c.Cluster && o.Guests[g.Guest] == nil {
				change.Ops = append(change.Ops, core.Op{Kind: core.Create, Object: g.Object})
			}
		}
		s.commit(0, change)
	}
	for _, g := range plan.Guests {
		s.tell("admin", "guest %s: %s on %s: %s", g.Guest, g.Act, g.Host, g.Reason)
		if stored := o.Guests[g.Guest]; g.Object != nil && stored.GetMeta().GetUid() == g.Uid && !proto.Equal(stored, g.Object) {
			s.commit(0, core.Change{Ops: []core.Op{{Kind: core.Update, Object: g.Object}}})
		}
	}
	for _, c := range plan.Checkpoints {
		c.Ended = timestamppb.New(s.now)
		s.commit(0, core.Change{Ops: []core.Op{{Kind: core.Update, Object: c}}})
	}
	for _, move := range plan.Migrations {
		move.Ended = timestamppb.New(s.now)
		s.commit(0, core.Change{Ops: []core.Op{{Kind: core.Update, Object: move}}})
	}
	s.answer(reports)
	s.wake()
	for _, g := range plan.Guests {
		if g.Act == v1.RecoveryAct_RECOVERY_ACT_LEAVE && strings.Contains(g.Reason, "virsh") {
			s.endByHand(g.Uid, g.Host)
		}
	}
}

// endByHand ends a guest with virsh. A recovery leaves such a guest alone, and says that a person may end it.
func (s *Sim) endByHand(uid, host string) {
	h := s.hosts[host]
	if c := h.copies[uid]; c != nil {
		s.tell("admin", "ends guest %s on %s", c.name, host)
		s.endTransferOf(h, uid, "a domain was ended")
		s.died(h, c, "virsh destroy")
		delete(h.copies, uid)
		h.event(uid)
	}
}

// newest chooses the newest copy of each guest that runs more than once, by its uid.
func newest(reports core.Captured) map[string]string {
	keep, epochs, copies := map[string]string{}, map[string]uint64{}, map[string]int{}
	for _, host := range slices.Sorted(maps.Keys(reports)) {
		for _, g := range reports[host].Report.GetGuests() {
			switch g.Condition {
			case v1.GuestCondition_GUEST_CONDITION_RUNNING, v1.GuestCondition_GUEST_CONDITION_PAUSED, v1.GuestCondition_GUEST_CONDITION_SENDING,
				v1.GuestCondition_GUEST_CONDITION_SEND_FAILED:
			default:
				continue
			}
			copies[g.Uid]++
			if g.Epoch > epochs[g.Uid] {
				keep[g.Uid], epochs[g.Uid] = host, g.Epoch
			}
		}
	}
	maps.DeleteFunc(keep, func(uid, _ string) bool { return copies[uid] < 2 })
	return keep
}

// answer ends the hold: it marks what connected hosts show as dealt with.
func (s *Sim) answer(reports core.Captured) {
	o := s.store.objects
	hold := proto.CloneOf(o.Hold())
	hold.Evidence = nil
	var shown []core.Shown
	for _, host := range slices.Sorted(maps.Keys(reports)) {
		if stamp := reports[host].Report.GetStamp(); reports[host].Connected && stamp != nil {
			shown = append(shown, core.Shown{Host: host, Stamp: stamp})
		}
	}
	for _, e := range core.RolledBack(slices.Collect(maps.Values(o.Terms)), shown...) {
		hold.Answered = slices.DeleteFunc(hold.Answered, func(a *v1.ShownStamp) bool { return a.Host == e.Host })
		hold.Answered = append(hold.Answered, &v1.ShownStamp{Host: e.Host, Stamp: e.Stamp})
	}
	s.commit(0, core.Change{Ops: []core.Op{{Kind: core.Update, Object: hold}}})
}
