package sim

// manager.go - a manager: the real core in a loop like the controller's, and its sessions with agents.

import (
	"errors"
	"maps"
	"slices"
	"time"

	v1 "watari/api/watariv1"
	"watari/core"
	"watari/locality"
	"watari/policy"
)

// manager is one manager process.
type manager struct {
	sim   *Sim
	name  string
	term  uint64
	began *v1.Term
	core  *core.Core
	dead  bool // killed
	// stale: another manager leads, and this one has not noticed. It sees an old snapshot, and writes nothing.
	stale   *core.Objects
	offset  time.Duration // of its time of day
	hosts   map[string]*connection
	planned bool // a pass is planned
	busy    bool // changes are being written
	wake    time.Time
	seen    map[string]core.Seen
	signals signals
	meter   meter
	metered bool        // meter has seen a sample since usage was made
	usage   *core.Usage // nil: nothing is known
	matrix  locality.Matrix
	ledAt   time.Time
	leases  core.Leases
	heard   map[string]hostTime // of hosts
	fencing map[string]bool     // hosts that are being switched off
}

// lead starts a manager, which leads at once.
func (s *Sim) lead() {
	s.managers++
	m := &manager{sim: s, name: "m" + string(rune('0'+s.managers%10)), hosts: map[string]*connection{}, seen: map[string]core.Seen{}, signals: signals{watcher: policy.NewWatcher()}, meter: s.newMeter(), ledAt: s.now}
	if s.foresight != nil && s.foresight.stale > 0 {
		m.signals.watcher.Stale = s.foresight.stale
	}
	m.began = s.beginTerm(m.name)
	m.term = m.began.Number
	config := core.Config{Term: m.term, Began: m.now(), Identify: identify, Seal: seal,
		Sealed: func(host, uid string, f *v1.VolumeFacts) bool {
			return string(f.GetSeal()) == string(seal(host, uid, f))
		}}
	if m.sim.foresight == nil {
		config.Hurry = apportionHurry
	}
	if s.fencing {
		config.FenceAfter = fenceAfter
	}
	m.core = core.New(config)
	m.leases, m.heard = core.Leases{}, map[string]hostTime{}
	m.fencing = map[string]bool{}
	s.manager = m
	s.tell(m.name, "leads, term %d", m.term)
	m.poke()
	m.renew()
	m.renewLeases()
}

// identify makes identities without certificates.
func identify(_ *v1.Cluster, g *v1.Guest, epoch uint64, _ uint32) (*v1.Identity, time.Time) {
	return &v1.Identity{GuestUid: g.Meta.Uid, Name: g.Meta.Name, Cluster: g.Cluster, Epoch: epoch, Address: g.Address}, time.Time{}
}

func (m *manager) now() time.Time { return m.sim.reading(m.offset, m.clock()) }

// kill ends a manager, and all its connections.
func (m *manager) kill() {
	m.dead = true
	m.sim.tell(m.name, "killed")
	for _, host := range slices.Sorted(maps.Keys(m.hosts)) {
		m.hosts[host].cut("the manager was killed")
	}
}

// poke makes the manager decide soon.
func (m *manager) poke() {
	if m.planned || m.busy || m.dead {
		return
	}
	m.planned = true
	m.sim.after(m.sim.latency(time.Millisecond), func() {
		m.planned = false
		m.pass()
	})
}

// pass decides, sends orders, and writes changes, one after the other.
func (m *manager) pass() {
	if m.dead || m.busy {
		return
	}
	objects := m.sim.store.objects
	if m.stale != nil {
		objects = m.stale
	}
	for _, host := range slices.Sorted(maps.Keys(m.hosts)) {
		if objects.Hosts[host].GetQuarantine().GetCutOff() != nil {
			m.hosts[host].cut("it was cut off")
		}
	}
	reports := core.Capture(objects, m)
	if m.held(objects, reports) {
		return
	}
	m.leases.See(objects, m.clock())
	w := core.World{Objects: objects, Reports: reports, Usage: m.usage, Leases: m.leases.Seen(m.clock()), Now: m.now()}
	w.Signals = m.signals.watcher.All(w.Now)
	d := m.sim.decide(m, w)
	m.sim.checkGone(m, w)
	for _, host := range slices.Sorted(maps.Keys(d.Orders)) {
		w := d.Orders[host]
		if w.Stamp == nil {
			w.Stamp = &v1.Stamp{Term: m.term, Id: m.began.Id, Revision: objects.Revision}
		}
		m.sim.checkLimits(objects, host, w)
		if c := m.hosts[host]; c != nil {
			c.order(w)
		}
	}
	wait := max(d.Again.Sub(w.Now), time.Millisecond)
	wake := m.sim.now.Add(wait)
	if m.wake.Before(m.sim.now.Add(time.Millisecond)) || wake.Before(m.wake) {
		m.wake = wake
		m.sim.at(wake, m.poke)
	}
	m.fence(d.Fences)
	m.write(d.Changes)
}

// write commits the changes in their order. The manager may be killed between any two of them. A write whose answer is lost
// was made or not.
func (m *manager) write(changes []core.Change) {
	if len(changes) == 0 {
		return
	}
	m.busy = true
	m.sim.after(m.sim.latency(2*time.Millisecond), func() {
		if m.dead {
			return
		}
		var err error
		switch {
		case m.stale != nil:
			err = errTimeout // etcd cannot be reached
			if m.sim.chance(50) {
				err = errNotLeader
			}
		case m.sim.faulty && m.sim.chance(1):
			err = errTimeout
			if m.sim.chance(50) {
				m.sim.commit(m.term, changes[0])
			}
		default:
			err = m.sim.commit(m.term, changes[0])
		}
		switch {
		case errors.Is(err, errNotLeader):
			m.kill()
			return
		case err != nil && !errors.Is(err, errConflict):
			m.core.Rest(changes[0].Key, m.now().Add(200*time.Millisecond))
		}
		m.busy = false
		if len(changes) > 1 {
			m.write(changes[1:])
			return
		}
		m.poke()
	})
}
