package machine

// listing.go - decides when the domains are listed, and handles the result.

import (
	"time"

	"watari/agent/domain"
)

// requestList requests a listing that begins now or later, and returns its number. Requests share a listing that has
// not begun.
func (m *Machine) requestList() uint64 {
	d := &m.domains
	if d.current != nil && d.current.handedOut {
		d.again = true
		return d.next
	}
	if d.current == nil {
		d.current = &listing{number: d.next, act: m.act(nil, Act{Kind: List})}
		d.next++
	}
	return d.current.number
}

// nextList returns the time of the next periodic listing; zero: none.
func (m *Machine) nextList() time.Time {
	d := &m.domains
	switch {
	case d.err != nil:
		return d.ended.Add(listAgainAfter)
	case len(m.lateGuests()) > 0:
		return d.ended.Add(m.config.LateCreate / 20)
	case len(m.guests) > 0:
		return d.ended.Add(listEvery)
	}
	return time.Time{}
}

// lateGuests returns the uids of guests whose create request the hypervisor may still carry out.
func (m *Machine) lateGuests() []string {
	var uids []string
	for _, g := range m.sorted() {
		if g.late {
			uids = append(uids, g.uid)
		}
	}
	return uids
}

// listed handles the end of a listing.
func (m *Machine) listed(o Result) {
	l := m.domains.current
	m.domains.current = nil
	m.domains.enter(l, m.now, o.Domains, o.Err)
	if m.domains.again {
		m.domains.again = false
		m.requestList()
	}
	creating := map[string]bool{}
	for _, uid := range o.Creating {
		creating[uid] = true
	}
	for _, g := range m.sorted() {
		m.noteLate(g, l.begunAt, o.Err == nil && !creating[g.uid])
		if g.doing != nil && g.doing.listing != 0 && g.doing.listing <= l.number {
			m.doingListed(g, o.Err)
		}
		if g.op != nil && g.op.listing != 0 && g.op.listing <= l.number {
			m.operationListed(g, o.Err)
		}
	}
	if !m.domains.listed {
		return
	}
	for _, info := range m.domains.all() {
		if m.guests[info.UID] == nil && !domain.IsTemplate(info.Name) {
			// The domain appeared late, after its guest was given up, or its record is lost. No orders mention the
			// guest.
			m.meet(info.UID, info.Name).want(nil, m.taken)
		}
	}
}

// noteLate clears late when the domain has appeared or can no longer appear. It can no longer appear once the
// hypervisor has answered for Config.LateCreate without the domain and without a create request for it. begun is the
// time at which the listing began. answered says that the listing succeeded and no create request for the guest is
// under way.
func (m *Machine) noteLate(g *guest, begun time.Time, answered bool) {
	if !g.late {
		return
	}
	info, current := m.domains.get(g.uid)
	switch {
	case current && info.State != domain.Absent:
		g.late = false // the domain has appeared
	case !answered || !current:
		g.lateSince = time.Time{}
	case g.lateSince.IsZero():
		g.lateSince = m.now
	case begun.Sub(g.lateSince) >= m.config.LateCreate:
		g.late = false
	}
	if !g.late {
		g.lateSince = time.Time{}
	}
}
