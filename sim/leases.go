package sim

// leases.go - leases: hosts' watchdogs, clocks of different speeds, and managers that renew. The real core.Leases and
// machines decide.

import (
	"maps"
	"slices"
	"time"

	v1 "watari/api/watariv1"
	"watari/core"
	"watari/policy"
)

const (
	// simLease is the length of the leases of clusters that have them. It is shorter than most faults.
	simLease = 10 * time.Second
	// drift is the largest error of a host's clock, in thousandths.
	drift = 30
	// watchEvery is how often a watchdog checks guests. lateEnd is how long a copy may run that a hypervisor has started
	// after the lease's end.
	watchEvery = 100 * time.Millisecond
	lateEnd    = time.Second
)

// hasLeases tells whether clusters that are made with this pick have leases.
func hasLeases(pick int) bool { return pick/3%3 == 1 }

// clock returns the host's time since its boot, by a monotonic clock that is slightly fast or slow.
func (h *host) clock() time.Duration {
	return h.sim.now.Sub(h.poweredAt) / 1000 * time.Duration(1000+h.drift)
}

// keep tells the host's watchdog all leases, as the agent does.
func (h *host) keep() {
	leased := h.agent.Leased()
	for uid, until := range leased {
		leased[uid] = max(until, h.watched[uid])
	}
	if len(leased) > 0 && len(h.watched) == 0 {
		h.sim.after(watchEvery, h.watch(h.powers))
	}
	h.watched = leased
}

// watch ends the guests whose leases have ended, and repeats itself.
func (h *host) watch(powers int) func() {
	return func() {
		if !h.up || h.powers != powers || len(h.watched) == 0 {
			return
		}
		for _, uid := range slices.Sorted(maps.Keys(h.watched)) {
			if h.clock() >= h.watched[uid] {
				h.kill(uid, "its lease has ended")
			}
		}
		h.sim.after(watchEvery, h.watch(powers))
	}
}

// kill ends a guest's process.
func (h *host) kill(uid, why string) {
	c := h.copies[uid]
	if c == nil {
		return
	}
	h.sim.endTransferOf(h, uid, why)
	h.sim.died(h, c, why)
	delete(h.copies, uid)
	h.event(uid)
}

// killWatchdog ends the watchdog, and with it all processes that it traces. The agent starts another watchdog.
func (h *host) killWatchdog() {
	if !h.up {
		return
	}
	h.sim.tell(h.name, "its watchdog is killed")
	for _, uid := range slices.Sorted(maps.Keys(h.watched)) {
		h.kill(uid, "its watchdog was killed")
	}
	h.watched = nil
}

// allowed tells whether the agent may start or resume a guest now.
func (h *host) allowed(uid string) bool {
	until, leased := h.agent.Lease(uid)
	if leased {
		h.keep()
	}
	return !leased || h.clock() < until
}

// late tells whether a copy's lease has ended on its host. A hypervisor that hung may still start such a copy; the watchdog
// ends it at once. No messages reach the copy, because its address is routed to the host that has the grant, or to none.
func (h *host) late(c *copyOf) bool {
	r, until := h.records[c.uid], h.watched[c.uid]
	if h.agent != nil {
		known, _ := h.agent.Lease(c.uid)
		until = max(until, known)
	}
	return r != nil && r.LeaseMS > 0 && h.clock() >= until
}

// keepOn tells the watchdog all leases every second, because the watchdog may have been killed.
func (h *host) keepOn(life int) {
	h.sim.after(time.Second, func() {
		if h.life == life && h.agent != nil {
			h.keep()
			h.keepOn(life)
		}
	})
}

// checkLate checks that a copy which was started late is soon ended.
func (s *Sim) checkLate(h *host, c *copyOf, within time.Duration) {
	s.after(within, func() {
		switch {
		case h.copies[c.uid] != c || !h.late(c):
		case h.watched[c.uid] == 0 && (h.agent == nil || s.unreadable[h.name+"/"+c.uid] || h.libvirt != libvirtUp):
			s.checkLate(h, c, 5*lateEnd) // its watchdog was killed, too: an agent that can read its record ends it
		default:
			s.violate("guest %s runs on %s at epoch %d, long after its lease has ended", c.name, h.name, c.epoch)
		}
	})
}

// clock returns the manager's time since it began to lead, by a monotonic clock.
func (m *manager) clock() time.Duration { return m.sim.now.Sub(m.ledAt) }

// hostTime is a host's time, and when the manager learnt it.
type hostTime struct {
	boot  string
	clock time.Duration
	at    time.Duration
}

// renewLeases renews leases periodically, as manager/controller does. A renewal counts from a host's time that the manager
// had before it verified that it leads.
func (m *manager) renewLeases() {
	if m.dead {
		return
	}
	m.sim.after(time.Second, m.renewLeases)
	m.leases.See(m.objects(), m.clock())
	if len(m.leases.Seen(m.clock())) == 0 {
		return
	}
	heard := maps.Clone(m.heard)
	m.sim.after(m.sim.latency(2*time.Millisecond), func() {
		if m.dead || m.stale != nil || m.sim.manager != m { // the store says who leads
			return
		}
		m.sim.after(m.sim.latency(2*time.Millisecond), func() {
			for _, name := range m.sim.names {
				m.renewHost(name, heard[name])
			}
		})
	})
}

// renewHost renews a host's leases, and learns its time.
func (m *manager) renewHost(name string, told hostTime) {
	c := m.hosts[name]
	if m.dead || c == nil || !c.heard {
		return
	}
	var guests []*v1.LeasedGuest
	if told.boot != "" {
		guests = m.leases.Renew(name, told.at, m.clock())
	}
	m.sim.at(c.arrival(&c.toHost), func() {
		h := c.host
		if c.broken && m.sim.chance(50) || h.agent == nil || h.life != c.life {
			return
		}
		if told.boot == h.boot {
			now := h.now()
			h.agent.Renew(now, told.clock, guests)
		}
		h.pump()
		answer := hostTime{boot: h.boot, clock: h.clock()}
		m.sim.at(c.arrival(&c.toManager), func() {
			if !c.broken && !m.dead {
				answer.at = m.clock()
				m.heard[name] = answer
			}
		})
	})
}

// checkLosses records the guests that a change ends because of a loss: they go back to a checkpoint, or stop. It also checks
// that a suspended cluster goes back to a checkpoint that was made for its suspension.
func (s *Sim) checkLosses(before, now *core.Objects) {
	for name, c := range now.Clusters {
		was := before.Clusters[name]
		if was == nil {
			continue
		}
		back := c.Restore.GetId() != was.Restore.GetId() && (c.Restore.GetLosses() > 0 || c.Restore.GetPolicy() != "")
		if back && c.Restore.Policy != "" {
			s.count("a cluster is suspended")
			if !s.savedForOwners(now, c) {
				s.violate("policy %s suspends cluster %s, which goes back to %s: that was not made for it", c.Restore.Policy, name, c.Restore.Checkpoint)
			}
		}
		if done := v1.RestoreState_RESTORE_STATE_DONE; c.Restore.GetPolicy() != "" && c.Restore.State == done && was.Restore.GetState() != done {
			s.count("a suspended cluster goes on")
		}
		for _, g := range core.GuestsOf(now, name) {
			old := before.Guests[g.Meta.Name]
			stops := c.Spec.OnHostLoss != v1.OnHostLoss_ON_HOST_LOSS_UNSPECIFIED && old != nil && g.Stopped && !old.Stopped
			if back || stops {
				s.stopped[g.Meta.Uid] = g.LastEpoch
				s.intent[g.Meta.Uid] = s.intent[g.Meta.Uid] && !stops
			}
		}
	}
}

// savedForOwners reports whether a cluster goes back to a checkpoint that was taken after the owner of one of its hosts had
// come back. It compares the real times, because managers' clocks may have jumped.
func (s *Sim) savedForOwners(o *core.Objects, c *v1.Cluster) bool {
	from := o.Checkpoints[c.Restore.Checkpoint]
	if !from.GetSuspends() || s.restored {
		return s.restored
	}
	return slices.ContainsFunc(core.GuestsOf(o, c.Meta.Name), func(g *v1.Guest) bool {
		taken := s.cut(from.Meta.Uid).taken[g.Meta.Uid]
		return policy.Withdrawn(o.Hosts[g.Host], policy.HarvestName) != nil && taken.After(s.withdrawnAt[g.Host])
	})
}
