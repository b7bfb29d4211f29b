package machine

// listing.go - when the domains are listed, and what follows from a listing.

import (
	"time"

	"watari/agent/domain"
)

// requestList has the domains listed from now on, and returns the listing's number. Requests share a listing that has not
// begun.
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

// nextList is when the domains are listed though nobody asks for it; zero: they are not.
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

// lateGuests are those of which a create may still come true, by uid.
func (m *Machine) lateGuests() []string {
	var uids []string
	for _, g := range m.sorted() {
		if g.late {
			uids = append(uids, g.uid)
		}
	}
	return uids
}

// listed takes a listing's end up.
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
			// It is late, of a guest that was given up meanwhile, or its record is lost. No orders mention it.
			m.meet(info.UID, info.Name).want(nil, m.taken)
		}
	}
}

// noteLate looks whether a create has come true, or cannot come true any more: the hypervisor has been there for long
// enough without the domain, and is at no request to create it. begun is when the listing began; answered: it succeeded,
// and no create of the guest is under way.
func (m *Machine) noteLate(g *guest, begun time.Time, answered bool) {
	if !g.late {
		return
	}
	info, current := m.domains.get(g.uid)
	switch {
	case current && info.State != domain.Absent:
		g.late = false // it came
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
