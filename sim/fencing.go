package sim

// fencing.go - the command that switches hosts off.

import (
	"time"

	"watari/core"
)

// hasFencing tells whether managers can switch hosts off.
func hasFencing(seed uint64) bool { return seed%5 == 2 }

// fenceAfter is how long a host may be out of reach before it is switched off.
const fenceAfter = 6 * time.Second

// fence switches hosts off, as manager/controller does. The command fails now and then; then the host may be off or not.
func (m *manager) fence(fences []core.Fence) {
	for _, f := range fences {
		if m.fencing[f.Host] {
			continue
		}
		m.fencing[f.Host] = true
		m.sim.after(m.sim.latency(time.Second), func() { m.fenceOne(f) })
	}
}

func (m *manager) fenceOne(f core.Fence) {
	done := func() {
		m.fencing[f.Host] = false
		m.poke()
	}
	if m.dead || m.stale != nil || m.seen[f.Host].Connected {
		done()
		return
	}
	fails := m.sim.chance(20)
	if h := m.sim.hosts[f.Host]; !fails || m.sim.chance(50) {
		m.sim.tell(m.name, "switches host %s off", f.Host)
		h.crash()
		m.sim.after(m.sim.between(time.Second, 20*time.Second), h.power)
	}
	m.sim.after(m.sim.latency(time.Second), func() {
		if !fails && !m.dead && m.stale == nil {
			if change := core.Fenced(m.sim.store.objects, m, f); len(change.Ops) > 0 {
				if m.sim.commit(m.term, change) == nil {
					m.sim.doubt(m.sim.hosts[f.Host])
				}
			}
		}
		done()
	})
}
