package machine

// orders.go - what the manager wants.

import (
	"fmt"
	"math"
	"strings"
	"time"

	v1 "watari/api/watariv1"
)

// Take takes up what the manager wants. It refuses orders of an older term, of another term of the same number, and for another
// boot of the host, with ErrStale. It ignores older orders of the same term. Orders of a newer term are in force once that is on
// disk. The caller has verified the stamp.
func (m *Machine) Take(now time.Time, w *v1.HostWanted) error {
	m.now = now
	defer m.settle()
	if err := m.check(w); err != nil {
		return err
	}
	if (mark{w.Term, w.Generation}).before(m.taken) {
		return nil
	}
	if !m.hold(w) {
		m.obey(w)
	}
	return nil
}

// obey puts orders in force.
func (m *Machine) obey(w *v1.HostWanted) {
	m.taken, m.refused = mark{w.Term, w.Generation}, ""
	m.keepStamp(w.Stamp)
	m.act(nil, Act{Kind: Obey, Orders: w})
	mentioned := map[string]bool{}
	for _, wanted := range w.Guests {
		if !ValidUID(wanted.Uid) {
			m.refused = fmt.Sprintf("guest %q: the manager sent a malformed uid", wanted.Name)
			continue
		}
		mentioned[wanted.Uid] = true
		g := m.guests[wanted.Uid]
		if g == nil {
			g = m.meet(wanted.Uid, wanted.Name)
		}
		g.want(wanted, m.taken)
	}
	for _, g := range m.sorted() {
		if mentioned[g.uid] {
			continue
		}
		g.want(nil, m.taken)
		if m.idle(g) {
			delete(m.guests, g.uid)
		}
	}
}

// Refuse reports why orders were refused before they came here.
func (m *Machine) Refuse(now time.Time, why string) {
	m.now, m.refused = now, why
}

// Evict ends all guests: the host was removed, and they may have been started elsewhere. It may be repeated.
func (m *Machine) Evict(now time.Time) {
	m.now = now
	for _, g := range m.guests {
		g.want(&v1.GuestWanted{Uid: g.uid, Name: g.name, Role: v1.GuestRole_GUEST_ROLE_ABSENT, Epoch: math.MaxUint64}, m.taken)
	}
	m.settle()
}

// want replaces the wish.
func (g *guest) want(w *v1.GuestWanted, at mark) {
	if g.wanted.GetEpoch() != w.GetEpoch() || g.wanted.GetRole() != w.GetRole() {
		g.backoff, g.delay = time.Time{}, 0
	}
	g.wanted, g.wantedAt = w, at
	if w.GetRole() == v1.GuestRole_GUEST_ROLE_UNSPECIFIED || w.GetRole() == v1.GuestRole_GUEST_ROLE_ABSENT {
		g.notes = nil // how it was started matters to nobody any more
	}
}

// ValidUID keeps uids from being anything else in a path: hex digits and dashes.
func ValidUID(uid string) bool {
	return len(uid) >= 8 && len(uid) <= 64 && strings.Trim(uid, "0123456789abcdef-") == ""
}
