package sim

// check.go - the invariants that are checked at every step.

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"watari/agent/domain"
	"watari/agent/machine"
	v1 "watari/api/watariv1"
	"watari/checkpoint"
	"watari/core"
	"watari/migration"
	"watari/policy"
)

// violate records the violation of an invariant. The run ends.
func (s *Sim) violate(format string, a ...any) {
	if s.violation == "" && s.foresight == nil {
		s.violation = fmt.Sprintf(format, a...)
		s.tell("VIOLATED", "%s", s.violation)
	}
}

// begins adds a running copy.
func (s *Sim) begins(h *host, c *copyOf) {
	h.copies[c.uid] = c
	s.runs(h, c)
	h.event(c.uid)
}

// runs lets a copy run, unless it is broken. No other copy of the guest may run then. Hosts that a person has wrongly called lost
// are left out: their copies end once the host is reached (checkEvicted).
func (s *Sim) runs(h *host, c *copyOf) {
	if c.broken {
		return
	}
	if c.stands {
		h.goesOnEarly(c.uid)
	}
	c.state, c.since, c.saved = domain.Running, s.now, false
	s.checkDisks()
	s.tell(h.name, "guest %s runs, epoch %d", c.name, c.epoch)
	if !c.whole {
		s.violate("guest %s runs on %s, where not all of it is, or not what it was last", c.name, h.name)
	}
	if h.late(c) {
		s.checkLate(h, c, lateEnd)
		return
	}
	if h.vouched {
		return
	}
	for _, name := range s.names {
		other := s.hosts[name]
		if o := other.copies[c.uid]; other != h && o != nil && o.state == domain.Running && !other.vouched && !other.late(o) {
			s.violate("guest %s runs twice: on %s at epoch %d, and on %s at epoch %d", c.name, name, o.epoch, h.name, c.epoch)
		}
	}
}

// outdate notes that a host has recorded that a guest went on there after a move's transfer. The copy on the move's target
// is then of no use.
func (s *Sim) outdate(h *host, uid, move string) {
	for _, name := range s.names {
		c, r := s.hosts[name].copies[uid], s.hosts[name].records[uid]
		if c != nil && name != h.name && c.state != domain.Running && r != nil && r.Migration == move {
			c.whole = false
		}
	}
}

// died notes that a copy has ended by a fault.
func (s *Sim) died(h *host, c *copyOf, why string) {
	s.tell(h.name, "guest %s ends: %s", c.name, why)
}

// sent notes that a copy has ended because it is complete on another host.
func (s *Sim) sent(h *host, c *copyOf) { s.tell(h.name, "guest %s was sent", c.name) }

// destroyed checks a copy that the agent ends. It must not be the last whole copy of a wanted guest.
func (s *Sim) destroyed(h *host, c *copyOf) {
	s.tell(h.name, "guest %s is ended by the agent, epoch %d, %s", c.name, c.epoch, c.state)
	if !c.whole || c.doubtful || h.vouched || h.evicted || s.tainted[c.uid] || !s.wanted(c.uid) || c.epoch <= s.stopped[c.uid] {
		return
	}
	if h.late(c) {
		return // it ends with its lease
	}
	if c.saved {
		return // it can be restored again
	}
	if c.broken {
		return // it cannot run again
	}
	if s.restored && c.state == domain.Paused {
		return // orders of the older state may have made the source forget its record; then a recovery takes no risk
	}
	for _, name := range s.names {
		if o := s.hosts[name].copies[c.uid]; o != nil && o != c && o.whole && !s.hosts[name].vouched {
			return
		}
	}
	s.violate("guest %s is lost: host %s ended its only copy, epoch %d", c.name, h.name, c.epoch)
}

// wanted tells whether users want a guest to run.
func (s *Sim) wanted(uid string) bool { return s.intent[uid] }

// checkStart checks a start: the record of its epoch is on disk, and this epoch was started nowhere else.
func (s *Sim) checkStart(h *host, a machine.Act) {
	r := h.records[a.Guest]
	if r == nil || r.Phase != machine.PhaseStarted || r.Epoch != a.Wanted.Epoch {
		s.violate("host %s starts guest %s at epoch %d without a record of it: %+v", h.name, a.Name, a.Wanted.Epoch, r)
	}
	key := fmt.Sprintf("%s/%d", a.Guest, a.Wanted.Epoch)
	if at, was := s.started[key]; was && (at != h.name+"/"+h.boot || !a.Plain) {
		s.violate("epoch %d of guest %s is started on %s, and was started on %s", a.Wanted.Epoch, a.Name, h.name+"/"+h.boot, at)
	}
	s.started[key] = h.name + "/" + h.boot
}

// checkCommit checks the objects after a change.
func (s *Sim) checkCommit(before, now *core.Objects) {
	addresses := map[string]string{}
	for name, g := range now.Guests {
		if other, is := addresses[g.Address]; is {
			s.violate("guests %s and %s have address %s", name, other, g.Address)
		}
		addresses[g.Address] = name
		if was := before.Guests[name]; was != g {
			s.checkGrant(now, was, g)
		}
	}
	moving := map[string]string{}
	for name, m := range now.Migrations {
		if other := moving[m.GuestUid]; !migration.Ended(m.State) && other != "" {
			s.violate("guest %s moves twice at once: %s and %s", m.Guest, min(other, name), max(other, name))
		} else if !migration.Ended(m.State) {
			moving[m.GuestUid] = name
		}
		s.checkMove(now, before.Migrations[name], m)
	}
	s.noteWithdrawals(before, now)
	s.checkLosses(before, now)
	s.checkTogether(before, now)
	s.checkRelays(before, now)
	for name, c := range now.Clusters {
		s.checkPrefix(now, name, c)
		s.checkSize(now, name, c)
		if was := before.Clusters[name]; was != nil && was != c {
			s.checkPaces(now, was, c)
		}
	}
	s.checkCheckpoints(before, now)
	s.checkClaims(now)
	s.checkQuotas(before, now)
	s.checkRoom(now)
}

// checkSize checks that a cluster has as many guests as its size says, besides the guests that are being removed. A recovery
// writes clusters and guests one after the other.
func (s *Sim) checkSize(now *core.Objects, name string, c *v1.Cluster) {
	if c.Meta.Deleting != nil || s.restored {
		return
	}
	for i := range c.Spec.Guests {
		if g := now.Guests[fmt.Sprintf("%s-%d", name, i)]; g == nil || g.Meta.Deleting != nil {
			s.violate("cluster %s has %d guests, and guest %d is not there or is being removed", name, c.Spec.Guests, i)
		}
	}
	for _, g := range core.GuestsOf(now, name) {
		if g.Index >= c.Spec.Guests && g.Meta.Deleting == nil {
			s.violate("cluster %s has %d guests, and guest %s is not being removed", name, c.Spec.Guests, g.Meta.Name)
		}
	}
}

// checkPrefix checks that a cluster shares its prefix with no other.
func (s *Sim) checkPrefix(now *core.Objects, name string, c *v1.Cluster) {
	prefix, err := netip.ParsePrefix(c.Prefix)
	if err != nil || !pool.Overlaps(prefix) || prefix.Bits() < pool.Bits() {
		s.violate("cluster %s has prefix %s, which is not one of %s", name, c.Prefix, pool)
		return
	}
	for other, o := range now.Clusters {
		if p, err := netip.ParsePrefix(o.Prefix); err == nil && other != name && p.Overlaps(prefix) {
			s.violate("clusters %s and %s have prefixes %s and %s", name, other, c.Prefix, o.Prefix)
		}
	}
	for guest, g := range now.Guests {
		if address, err := netip.ParseAddr(g.Address); g.Cluster == name && (err != nil || !prefix.Contains(address)) {
			s.violate("guest %s has address %s, and cluster %s has %s", guest, g.Address, name, c.Prefix)
		}
	}
}

// checkQuotas checks that a change gives no user more guests than the quota permits. A recovery may exceed it: it makes lost
// clusters again, beside clusters that were made since.
func (s *Sim) checkQuotas(before, now *core.Objects) {
	for name, u := range now.Users {
		had, hadMemory := takenBy(before, name)
		vcpus, memory := takenBy(now, name)
		if limit := uint64(u.Quota.GetVcpus()); limit > 0 && vcpus > max(limit, had) && !s.recovering {
			s.violate("user %s has guests of %d vCPUs, and a quota of %d", name, vcpus, limit)
		}
		if limit := u.Quota.GetMemoryBytes(); limit > 0 && memory > max(limit, hadMemory) && !s.recovering {
			s.violate("user %s has guests of %d MiB, and a quota of %d MiB", name, memory>>20, limit>>20)
		}
	}
}

// takenBy returns the resources of a user's guests.
func takenBy(o *core.Objects, user string) (vcpus, memory uint64) {
	for _, g := range o.Guests {
		if g.Meta.Owner == user {
			vcpus += uint64(g.Shape.GetVcpus())
			memory += g.Shape.GetMemoryBytes()
		}
	}
	return vcpus, memory
}

// checkGrant checks a changed guest.
func (s *Sim) checkGrant(now *core.Objects, was, g *v1.Guest) {
	if was != nil && was.Meta.Uid == g.Meta.Uid && g.LastEpoch < was.LastEpoch {
		s.violate("guest %s: its last epoch falls from %d to %d", g.Meta.Name, was.LastEpoch, g.LastEpoch)
	}
	if g.Host != "" {
		key := fmt.Sprintf("%s/%d", g.Meta.Uid, g.Epoch)
		if at, is := s.granted[key]; is && at != g.Host {
			s.violate("guest %s: epoch %d is granted to %s, and was granted to %s", g.Meta.Name, g.Epoch, g.Host, at)
		}
		s.granted[key] = g.Host
	}
	if g.Host != "" && was.GetHost() == "" {
		s.checkSpare(now, g)
	}
	if was == nil || was.Host == "" || was.Host == g.Host && was.Epoch == g.Epoch {
		return
	}
	h := s.hosts[was.Host]
	if h == nil || h.vouched {
		return
	}
	c := h.copies[was.Meta.Uid]
	if c == nil || c.state != domain.Running || c.epoch != was.Epoch || s.restored && !s.intent[was.Meta.Uid] {
		return
	}
	s.violate("guest %s: its grant of epoch %d leaves host %s, where that copy runs", g.Meta.Name, was.Epoch, was.Host)
}

// checkSpare checks a guest that has got a host: a spare takes only guests that were lost elsewhere, or that are restored. A
// recovery takes guests up where they run.
func (s *Sim) checkSpare(now *core.Objects, g *v1.Guest) {
	if !now.Hosts[g.Host].GetSpare() || s.recovering {
		return
	}
	s.count("a spare takes a guest")
	if r := now.Clusters[g.Cluster].GetRestore(); g.Restarts == 0 && (r == nil || r.Ended != nil) {
		s.violate("guest %s was not lost, and is placed on host %s, which is a spare", g.Meta.Name, g.Host)
	}
}

// checkRoom checks that a host was given no more guests than it has memory for. A waiting move takes no memory yet.
func (s *Sim) checkRoom(now *core.Objects) {
	if s.restored {
		return // a recovery takes guests up where they run
	}
	used := map[string]uint64{}
	moves := map[string]*v1.Migration{}
	for _, m := range now.Migrations {
		if !migration.Ended(m.State) && m.State != v1.MigrationState_MIGRATION_STATE_PENDING {
			moves[m.GuestUid] = m
		}
	}
	for _, g := range now.Guests {
		if g.Host != "" {
			used[g.Host] += g.Shape.GetMemoryBytes()
		}
		if m := moves[g.Meta.Uid]; m != nil && m.Target != g.Host {
			used[m.Target] += g.Shape.GetMemoryBytes()
		}
	}
	for name, bytes := range used {
		if h := now.Hosts[name]; h.GetInfo() != nil && bytes > h.Info.MemoryBytes {
			s.violate("host %s was given guests of %d MiB, and has %d MiB", name, bytes>>20, h.Info.MemoryBytes>>20)
		}
	}
}

// decide calls Core.Decide. With s.oracle it compares the decision with that of a fresh core, which decides about
// everything.
func (s *Sim) decide(m *manager, w core.World) core.Decision {
	if !s.oracle {
		d := m.core.Decide(w)
		s.checkGain(m, w, d)
		return d
	}
	whole := m.core.Fresh().Decide(w)
	d := m.core.Decide(w)
	s.checkGain(m, w, d)
	if diff := difference(d, whole); diff != "" {
		s.violate("%s decides otherwise about what has changed than about everything: %s", m.name, diff)
	}
	return d
}

// difference describes how two decisions differ.
func difference(a, b core.Decision) string {
	if len(a.Changes) != len(b.Changes) {
		return fmt.Sprintf("%d changes and %d: %v and %v", len(a.Changes), len(b.Changes), keys(a), keys(b))
	}
	for i := range a.Changes {
		if a.Changes[i].Key != b.Changes[i].Key || len(a.Changes[i].Ops) != len(b.Changes[i].Ops) {
			return fmt.Sprintf("change %d: %s and %s", i, a.Changes[i].Key, b.Changes[i].Key)
		}
		if same := func(a, b *v1.Event) bool { return proto.Equal(a, b) }; !slices.EqualFunc(a.Changes[i].Events, b.Changes[i].Events, same) {
			return fmt.Sprintf("events of %s: %v and %v", a.Changes[i].Key, a.Changes[i].Events, b.Changes[i].Events)
		}
		for k, op := range a.Changes[i].Ops {
			if other := b.Changes[i].Ops[k]; op.Kind != other.Kind || !proto.Equal(op.Object, other.Object) {
				return fmt.Sprintf("%s: %v and %v", a.Changes[i].Key, op.Object, other.Object)
			}
		}
	}
	for host, w := range a.Orders {
		if !proto.Equal(w, b.Orders[host]) {
			return fmt.Sprintf("orders of %s: %v and %v", host, w, b.Orders[host])
		}
	}
	for host, w := range b.Orders {
		if a.Orders[host] == nil {
			return fmt.Sprintf("orders of %s: none, and %v", host, w)
		}
	}
	return ""
}

func keys(d core.Decision) (list []string) {
	for _, c := range d.Changes {
		list = append(list, c.Key)
	}
	return list
}

// unsettled says what has not settled after the last fault; empty: all has settled.
func (s *Sim) unsettled() string {
	o := s.store.objects
	if o.Held() {
		return "the manager holds"
	}
	for name, m := range o.Migrations {
		if !migration.Ended(m.State) {
			return fmt.Sprintf("move %s is %s: %s", name, core.StateName(m.State.String()), m.Message)
		}
	}
	for name, c := range o.Clusters {
		if c.Meta.Deleting != nil {
			return fmt.Sprintf("cluster %s is being deleted", name)
		}
	}
	for name, g := range o.Guests {
		if g.Meta.Deleting != nil {
			return fmt.Sprintf("guest %s is being removed", name)
		}
		if why := s.unsettledGuest(g); why != "" {
			return fmt.Sprintf("guest %s: %s", name, why)
		}
	}
	for name, v := range o.Volumes {
		if why := s.unsettledVolume(v); why != "" {
			return fmt.Sprintf("volume %s: %s", name, why)
		}
	}
	for name, c := range o.Checkpoints {
		if checkpoint.HoldsMoves(c.State) { // a pending checkpoint may wait for a guest that has no room
			return fmt.Sprintf("checkpoint %s is %s: %s", name, core.StateName(c.State.String()), c.Message)
		}
		if file := s.withoutCopies(c); c.State == v1.CheckpointState_CHECKPOINT_STATE_DONE && file != "" && !s.restored && !s.restoring(c.Cluster) {
			return fmt.Sprintf("checkpoint %s has too few copies of %s", name, file)
		}
		if v := c.Verification; c.State == v1.CheckpointState_CHECKPOINT_STATE_DONE && v != nil && v.Ended == nil && !s.restored && !s.restoring(c.Cluster) {
			return fmt.Sprintf("checkpoint %s is being verified: %s", name, v.Message)
		}
	}
	if why := s.disproportionate(); why != "" {
		return why
	}
	for name, h := range o.Hosts {
		if why := policy.Why(h); why != "" {
			return fmt.Sprintf("host %s takes no guests, though its owner is away: %s", name, why)
		}
	}
	if why := s.separated(); why != "" {
		return why
	}
	for _, name := range s.names {
		h := s.hosts[name]
		for _, c := range h.live() {
			g := s.guestByUID(c.uid)
			if h.evicted || g == nil || g.Host != name || g.Epoch != c.epoch {
				return fmt.Sprintf("host %s has a copy of guest %s, epoch %d, %s, which is not granted to it", name, c.name, c.epoch, c.state)
			}
		}
	}
	return ""
}

// restoring tells whether a cluster is being restored. Then verifications of its checkpoints wait.
func (s *Sim) restoring(cluster string) bool {
	r := s.store.objects.Clusters[cluster].GetRestore()
	return r != nil && r.Ended == nil
}

func (s *Sim) unsettledGuest(g *v1.Guest) string {
	switch {
	case g.Stopped && g.Host != "":
		return "it is to be stopped, and has a host"
	case g.Stopped || g.Failure != "":
		return ""
	case g.Host == "":
		if s.withoutRoom(g) || s.restoring(g.Cluster) && slices.ContainsFunc(core.GuestsOf(s.store.objects, g.Cluster), s.withoutRoom) {
			return "" // all guests of a cluster that is restored wait for the one without room
		}
		if v := s.store.objects.Volumes[s.store.objects.Clusters[g.Cluster].GetSpec().GetVolume()]; g.Index == 0 && v != nil &&
			(v.State != v1.VolumeState_VOLUME_STATE_READY || s.claimedByItsHost(v.Meta.Uid)) {
			return "" // its volume was lost with its host, or its host only claims to have it
		}
		return "it has no host: " + g.Message
	}
	h := s.hosts[g.Host]
	if h == nil || h.copies[g.Meta.Uid] == nil || h.copies[g.Meta.Uid].state != domain.Running || h.copies[g.Meta.Uid].epoch != g.Epoch {
		return fmt.Sprintf("it does not run on %s at epoch %d", g.Host, g.Epoch)
	}
	if _, message, ready := core.GuestState(s.manager, nil, g); !ready {
		return "it is not ready: " + message
	}
	return ""
}

// withoutRoom tells whether a guest waits for a host with room. A host that never has room for the files of checkpoints
// refuses a restore each time.
func (s *Sim) withoutRoom(g *v1.Guest) bool {
	is := func(text string) bool { return g.Host == "" && strings.HasPrefix(g.Message, text) }
	cramped := slices.ContainsFunc(s.names, func(name string) bool { return s.hosts[name].cramped })
	return is("no host for guest") || is("there is no host") || cramped && is("hosts have refused it")
}

func (s *Sim) guestByUID(uid string) *v1.Guest {
	for _, g := range s.store.objects.Guests {
		if g.Meta.Uid == uid {
			return g
		}
	}
	return nil
}
