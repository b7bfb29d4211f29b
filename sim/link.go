package sim

// link.go - connections of agents to managers. A connection is ordered. It may break at any moment. Messages under way are
// then lost, or arrive late, after a newer connection has begun.

import (
	"time"

	"google.golang.org/protobuf/proto"

	v1 "watari/api/watariv1"
	"watari/core"
	"watari/internal/orders"
	"watari/internal/protocol"
)

// connection is one connection that an agent has dialled.
type connection struct {
	sim     *Sim
	host    *host
	life    int // of the agent that dialled
	manager *manager
	broken  bool
	heard   bool // the manager has got a report on it
	pending *v1.HostWanted
	sent    *v1.HostWanted // the last orders that were sent, complete
	got     *v1.HostWanted // the last orders that came, complete
	sending bool
	// Times before which nothing arrives that is sent later, one for each direction.
	toHost, toManager time.Time
}

// dial connects an agent to the leading manager, or to one that believes that it leads.
func (h *host) dial() {
	s := h.sim
	if !h.up || h.agent == nil {
		return
	}
	life := h.life
	again := func() {
		s.after(s.between(100*time.Millisecond, 2*time.Second), func() {
			if h.life == life {
				h.dial()
			}
		})
	}
	m := s.manager
	if s.zombie != nil && !s.zombie.dead && s.chance(30) {
		m = s.zombie
	}
	if h.prefers != nil && !h.prefers.dead {
		m = h.prefers
	}
	if m == nil || m.dead || h.cut || s.siteCut(h.site) {
		again()
		return
	}
	if stored := m.objects().Hosts[h.name]; stored == nil || stored.Meta.Deleting != nil || stored.Meta.Uid != h.uid {
		if m.objects().Removed[h.uid] != nil {
			s.tell(h.name, "is told that it was removed")
			h.evicted = true
			h.agent.Evict(h.now())
			h.pump()
		}
		again()
		return
	}
	if m.objects().Hosts[h.name].Quarantine.GetCutOff() != nil {
		again()
		return
	}
	if old := m.hosts[h.name]; old != nil {
		old.cut("the agent dials anew")
	}
	if was := m.seen[h.name]; was.Connected {
		m.seen[h.name] = core.Seen{Report: was.Report, Since: m.now()}
	}
	c := &connection{sim: s, host: h, life: life, manager: m}
	m.hosts[h.name] = c
	h.link, h.evicted = c, false
	s.tell(h.name, "connects to %s", m.name)
	h.report()
	h.sample(c)
}

// cutOff cuts a host off from managers, until cut is cleared.
func (h *host) cutOff() {
	h.cut = true
	if h.link != nil {
		h.link.cut("the line is cut")
	}
}

func (m *manager) objects() *core.Objects {
	if m.stale != nil {
		return m.stale
	}
	return m.sim.store.objects
}

// cut breaks a connection. Each end notices after a delay of its own.
func (c *connection) cut(why string) {
	if c.broken {
		return
	}
	s := c.sim
	c.broken = true
	s.tell(c.host.name, "its connection to %s breaks: %s", c.manager.name, why)
	s.after(s.between(0, 3*time.Second), func() {
		if c.manager.hosts[c.host.name] == c {
			delete(c.manager.hosts, c.host.name)
			if was := c.manager.seen[c.host.name]; was.Connected {
				c.manager.seen[c.host.name] = core.Seen{Report: was.Report, Since: c.manager.now()}
				c.manager.poke()
			}
		}
	})
	s.after(s.between(0, 3*time.Second), func() {
		if c.host.link == c && c.host.life == c.life {
			c.host.link = nil
			c.host.dial()
		}
	})
}

// order sends a host its orders. Later orders replace orders that were not sent yet. Nothing is sent before the first
// report.
func (c *connection) order(w *v1.HostWanted) {
	c.pending = w
	if c.broken || c.sending || !c.heard {
		return
	}
	c.sending = true
	s := c.sim
	s.after(s.latency(time.Millisecond), func() {
		c.sending = false
		w := c.pending
		if c.broken && !s.chance(60) || w == nil {
			return
		}
		c.pending = nil
		change := orders.Change(c.sent, w, protocol.Version)
		c.sent = w
		deliver := func() {
			if c.host.life == c.life && c.host.up {
				c.deliver(change, w)
			}
		}
		if c.host.lateNext && ends(w) {
			c.host.lateNext = false
			c.cut("orders are stuck in it")
			s.after(s.between(time.Second, 10*time.Second), deliver)
			return
		}
		s.at(c.arrival(&c.toHost), func() {
			switch {
			case !c.broken:
				deliver()
			case s.chance(50): // the message was in a buffer, and is read late
				s.after(s.between(0, 8*time.Second), deliver)
			}
		})
	})
}

// deliver hands a change to the agent, which must reconstruct the orders that were sent.
func (c *connection) deliver(change, sent *v1.HostWanted) {
	whole, err := orders.Apply(c.got, change)
	if err != nil { // earlier changes were lost with the connection
		c.sim.tell(c.host.name, "cannot follow: %v", err)
		return
	}
	if !proto.Equal(whole, sent) {
		c.sim.violate("host %s was sent %v, and got %v", c.host.name, sent, whole)
	}
	c.got = whole
	c.host.take(whole)
}

// ends tells whether orders end a guest.
func ends(w *v1.HostWanted) bool {
	for _, g := range w.Guests {
		if g.Role == v1.GuestRole_GUEST_ROLE_ABSENT {
			return true
		}
	}
	return false
}

// arrival returns when a message arrives that is sent now, after all earlier messages.
func (c *connection) arrival(last *time.Time) time.Time {
	at := c.sim.now.Add(c.sim.latency(2 * time.Millisecond))
	if at.Before(*last) {
		at = *last
	}
	*last = at
	return at
}

// send carries a report to the manager.
func (c *connection) send(report *v1.HostObserved) {
	if c.broken {
		return
	}
	c.sim.at(c.arrival(&c.toManager), func() {
		m := c.manager
		if c.broken || m.dead || m.hosts[c.host.name] != c {
			return
		}
		seen := m.seen[c.host.name]
		if !c.heard {
			c.heard = true
			seen = core.Seen{Since: m.now(), Connected: true}
		}
		seen.Report, seen.Connected = report, true
		m.seen[c.host.name] = seen
		m.poke()
	})
}
