package machine

// orders.go - takes the manager's orders.

import (
	"cmp"
	"fmt"
	"math"
	"strings"
	"time"

	v1 "watari/api/watariv1"
)

// Take takes the manager's orders. It refuses, with ErrStale, orders of an older term, of another term with the same
// number, and for another boot of the host. It ignores older orders of the same term. Orders of a newer term come into
// force when the term is on disk. The caller has verified the stamp.
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
		m.applyOrders(w)
	}
	return nil
}

// applyOrders puts orders in force.
func (m *Machine) applyOrders(w *v1.HostWanted) {
	m.taken, m.refused = mark{w.Term, w.Generation}, ""
	m.keepStamp(w.Stamp)
	m.act(nil, Act{Kind: ApplyOrders, Orders: w})
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
		g.name = cmp.Or(g.name, wanted.Name)
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

// Refuse sets the caller's reason for refusing orders, which reports then show.
func (m *Machine) Refuse(now time.Time, why string) {
	m.now, m.refused = now, why
}

// Evict ends all guests: the host was removed, so the manager may have started its guests on other hosts. It may be
// repeated.
func (m *Machine) Evict(now time.Time) {
	m.now = now
	for _, g := range m.guests {
		g.want(&v1.GuestWanted{Uid: g.uid, Name: g.name, Role: v1.GuestRole_GUEST_ROLE_ABSENT, Epoch: math.MaxUint64}, m.taken)
	}
	m.settle()
}

// want replaces the orders for the guest; nil: the orders do not mention the guest.
func (g *guest) want(w *v1.GuestWanted, at mark) {
	if g.wanted.GetEpoch() != w.GetEpoch() || g.wanted.GetRole() != w.GetRole() {
		g.backoff, g.delay = time.Time{}, 0
	}
	g.wanted, g.wantedAt = w, at
	if w.GetRole() == v1.GuestRole_GUEST_ROLE_UNSPECIFIED || w.GetRole() == v1.GuestRole_GUEST_ROLE_ABSENT {
		g.notes = nil // the notes concern a start, which is over
	}
}

// ValidUID reports whether a uid has only hex digits and dashes, so that it is safe in a path.
func ValidUID(uid string) bool {
	return len(uid) >= 8 && len(uid) <= 64 && strings.Trim(uid, "0123456789abcdef-") == ""
}
