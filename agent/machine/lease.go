package machine

// lease.go - guests with leases. A copy with a lease runs only while the manager renews its lease, because the manager may
// start the guest elsewhere after the lease (docs/design/leases.md).

import (
	"maps"
	"time"

	v1 "watari/api/watariv1"
)

// leaseShare is the part of a lease that a host uses. The rest allows for clocks of different speeds, and for the time
// needed to end a guest.
const leaseShare = 0.9

// lease tells until when a copy of a guest may run, by the host's clock.
type lease struct {
	epoch uint64
	until time.Duration
}

// Clock sets the time since the host's boot, including time in sleep. The machine's owner calls it before each other call.
// Only leases depend on it.
func (m *Machine) Clock(sinceBoot time.Duration) { m.clock = max(m.clock, sinceBoot) }

// Renew renews leases. They count from heard, a time of the host's clock.
func (m *Machine) Renew(now time.Time, heard time.Duration, guests []*v1.LeasedGuest) {
	m.now = now
	if heard > m.clock {
		return // a time of another boot
	}
	for _, g := range guests {
		if until, runs := m.Lease(g.Uid); runs && until <= m.clock {
			continue // the copy is being ended
		}
		length := min(time.Duration(g.LeaseMs)*time.Millisecond, longestLease)
		until := heard + time.Duration(leaseShare*float64(length))
		if known := m.leases[g.Uid]; known.epoch < g.Epoch || known.epoch == g.Epoch && known.until < until {
			m.leases[g.Uid] = lease{g.Epoch, until}
		}
	}
	for uid, l := range m.leases {
		if l.until <= m.clock && m.guests[uid] == nil {
			delete(m.leases, uid)
		}
	}
	m.settle()
}

// longestLease bounds the lease that a manager can ask for.
const longestLease = 30 * 24 * time.Hour

// lasts reports whether a copy of a guest has a lease that has not ended; false, too, if no lease of it is known.
func (m *Machine) lasts(uid string, epoch uint64) bool {
	l := m.leases[uid]
	return l.epoch == epoch && m.clock < l.until
}

// Leased returns until when each guest with a lease may run, by uid, if the guest runs or is going to run.
func (m *Machine) Leased() map[string]time.Duration {
	leased := map[string]time.Duration{}
	maps.Copy(leased, m.inherited)
	for uid, g := range m.guests {
		if until, is := m.leaseOf(g); is {
			leased[uid] = until
		}
	}
	return leased
}

// Lease returns until when a guest may run; false: it needs no lease.
func (m *Machine) Lease(uid string) (time.Duration, bool) {
	if g := m.guests[uid]; g != nil {
		return m.leaseOf(g)
	}
	return 0, false
}

func (m *Machine) leaseOf(g *guest) (time.Duration, bool) {
	r := g.record
	if r == nil || r.LeaseMS == 0 || r.Phase != PhaseStarted && r.Phase != PhaseSending {
		return 0, false
	}
	if l := m.leases[g.uid]; l.epoch == r.Epoch {
		return l.until, true
	}
	return 0, true
}
