package machine

// hold.go - guests that are stopped for a checkpoint. Another part of the agent stops and resumes them.

import (
	"time"

	"watari/agent/domain"
)

// Hold makes the machine leave a guest alone that is going to be stopped for a moment, until Release. It returns false, and
// does nothing, if the guest does not run under this epoch, or is being started, stopped or moved.
func (m *Machine) Hold(now time.Time, uid string, epoch uint64) bool {
	m.now = now
	g := m.guests[uid]
	if g == nil || g.record == nil || g.record.Phase != PhaseStarted || g.record.Epoch != epoch || g.op != nil || g.doing != nil || len(g.script) > 0 {
		return false
	}
	if info, current := m.domains.get(uid); !current || info.State != domain.Running {
		return false
	}
	g.held = true
	return true
}

// Release undoes Hold. The machine then resumes the guest if it is stopped and should run.
func (m *Machine) Release(now time.Time, uid string) {
	m.now = now
	if g := m.guests[uid]; g != nil && g.held {
		g.held = false
		m.requestList()
	}
	m.settle()
}

// domainOf returns the state of a guest's domain. The domain of a held guest counts as running.
func (m *Machine) domainOf(g *guest) (info domain.Info, current bool) {
	info, current = m.domains.get(g.uid)
	if g.held && info.State == domain.Paused {
		info.State = domain.Running
	}
	return info, current
}
