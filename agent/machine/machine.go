// Package machine makes all decisions of a host's agent. It is pure: orders, listings of domains, results of acts and
// the time go in; acts and reports come out. It has no clock, no lock, no goroutine and no randomness. The same calls
// in the same order have the same results.
//
// For each guest, Step (step.go) compares orders, record and domain, and returns actions. A script (script.go) carries
// the actions out one after the other; long ones become operations (operation.go), which run beside it. Both ask the
// agent for acts (act.go), such as to write a record, and wait until they have ended.
//
// Its owner calls one method at a time. After each call the owner carries out the acts that Acts returns, concurrently,
// and calls Ended when one ends. It calls Tick at the time that Wake returns, or later.
package machine

import (
	"maps"
	"slices"
	"strings"
	"time"

	"watari/agent/domain"
	v1 "watari/api/watariv1"
)

// Config describes the machine's host.
type Config struct {
	Host   string // its name
	BootID string // changes with each boot of the host; empty: not known

	// LateCreate is the time after which a hypervisor that answers no longer carries out an earlier create request. A
	// daemon that hung reads its sockets as soon as it continues; the time allows for a busy host. 0: 20 s.
	LateCreate time.Duration
	// SendEndWait is how long the machine waits until the hypervisor has ended an interrupted transfer. 0: a minute.
	SendEndWait time.Duration
}

// Loaded is what a new agent finds on disk.
type Loaded struct {
	Term  uint64
	Stamp *v1.Stamp // of the latest orders; nil: they had no stamp
	// TermUnread is why the term could not be read; nil: it was read. The machine reads it again until it succeeds.
	TermUnread error
	Records    map[string]*Record // by uid
	// Leases has until when guests may run, by uid, as the host's watchdog knows it.
	Leases map[string]time.Duration
	// Unread has the errors of records that could not be read, by uid. The machine reads such a record again until it
	// succeeds.
	Unread   map[string]error
	Problems []string // errors of reading, for people
}

// Machine is the state of a host's agent.
type Machine struct {
	config  Config
	now     time.Time // of the latest call
	terms   terms
	domains domains
	guests  map[string]*guest
	clock   time.Duration    // time since the host's boot
	leases  map[string]lease // by guest uid
	// inherited are leases known to an earlier agent, of guests whose records have not been read yet.
	inherited map[string]time.Duration

	taken    mark // the latest orders in force
	full     mark // the latest orders for which every guest has taken a step
	problems []string
	refused  string // why the latest orders, or some of them, are not in force

	acts   []Act
	lastID uint64
}

// mark identifies orders. Marks are ordered by term, then by generation.
type mark struct{ term, generation uint64 }

func (m mark) before(n mark) bool {
	return m.term < n.term || m.term == n.term && m.generation < n.generation
}

// New returns the machine of an agent that has just started.
func New(now time.Time, config Config, loaded Loaded) *Machine {
	if config.LateCreate == 0 {
		config.LateCreate = 20 * time.Second
	}
	if config.SendEndWait == 0 {
		config.SendEndWait = time.Minute
	}
	m := &Machine{config: config, now: now, domains: newDomains(), guests: map[string]*guest{}, leases: map[string]lease{}, inherited: map[string]time.Duration{},
		terms: terms{term: loaded.Term, stamp: loaded.Stamp}, problems: slices.Clone(loaded.Problems)}
	if loaded.TermUnread != nil {
		m.terms.unread, m.terms.readAgain = loaded.TermUnread, now.Add(readAgainEvery)
	}
	m.requestList()
	var uids []string
	for uid, r := range loaded.Records {
		if r.Outcome != OutcomeForgotten {
			uids = append(uids, uid)
		}
	}
	slices.Sort(uids)
	for uid, until := range loaded.Leases {
		if _, unread := loaded.Unread[uid]; unread || slices.Contains(uids, uid) {
			m.inherited[uid] = until
		}
	}
	for _, uid := range uids {
		g := &guest{uid: uid, name: loaded.Records[uid].Name}
		m.guests[uid] = g
		m.adopt(g, loaded.Records[uid])
	}
	for _, uid := range slices.Sorted(maps.Keys(loaded.Unread)) {
		m.guests[uid] = &guest{uid: uid, unread: loaded.Unread[uid], readAgain: now.Add(readAgainEvery)}
	}
	m.settle()
	return m
}

// Tick tells the machine that time has passed.
func (m *Machine) Tick(now time.Time) {
	m.now = now
	m.tickTerm()
	if m.domains.current == nil && !now.Before(m.nextList()) {
		m.requestList()
	}
	for _, g := range m.sorted() {
		m.tickGuest(g)
	}
	m.settle()
}

// HypervisorLost tells the machine that the hypervisor cannot be reached. The machine then requests listings until one
// succeeds.
func (m *Machine) HypervisorLost(now time.Time) {
	m.now = now
	m.domains.reached, m.domains.err = false, errLost
	m.settle()
}

// DomainEvent tells the machine that a domain changed at a time; empty uid: any domain may have changed.
func (m *Machine) DomainEvent(now time.Time, uid string, at time.Time) {
	m.now = now
	if g := m.guests[uid]; g != nil {
		g.noteEvent(at)
	}
	m.requestList()
	m.settle()
}

// SenderEnded tells the machine that the process of a guest that is being sent has ended. The guest is handed over if it
// stopped before and no event of its domain came since. It then did not continue here, so the target has the whole guest, or
// the guest is lost.
func (m *Machine) SenderEnded(now time.Time, uid string) {
	m.now = now
	if g := m.guests[uid]; g != nil && g.op != nil && g.op.kind == OperationSending && g.op.stage == stageAct && !g.op.interrupted {
		g.handedOver = g.events == 1
	}
	m.settle()
}

// Ended gives the machine the result of an act. It ignores acts that Acts has not returned, and acts that have already
// ended.
func (m *Machine) Ended(now time.Time, id uint64, o Result) {
	m.now = now
	switch {
	case m.domains.current != nil && m.domains.current.act == id:
		m.listed(o)
	case m.terms.keeping == id && id != 0:
		m.termKept(o.Err)
	case m.terms.reading == id && id != 0:
		m.termRead(o)
	default:
		for _, g := range m.sorted() {
			if m.guestEnded(g, id, o) {
				break
			}
		}
	}
	m.settle()
}

// Acts returns the acts to carry out now. It returns each act once.
func (m *Machine) Acts() []Act {
	acts := m.acts
	m.acts = nil
	if l := m.domains.current; l != nil && !l.handedOut {
		m.domains.clock++
		l.handedOut, l.begun, l.begunAt = true, m.domains.clock, m.now
		for i := range acts {
			if acts[i].ID == l.act {
				acts[i].Late = m.lateGuests()
			}
		}
	}
	return acts
}

// Wake returns the time of the next Tick; zero: the machine waits for no time.
func (m *Machine) Wake() time.Time {
	var wake time.Time
	at := func(t time.Time) {
		if !t.IsZero() && (wake.IsZero() || t.Before(wake)) {
			wake = t
		}
	}
	at(m.terms.retry)
	at(m.terms.readAgain)
	if m.domains.current == nil {
		at(m.nextList())
	}
	for _, g := range m.guests {
		at(g.backoff)
		at(g.readAgain)
		if until, leased := m.leaseOf(g); leased && until > m.clock {
			at(m.now.Add(until - m.clock))
		}
		if g.op != nil {
			at(g.op.next)
			at(g.op.deadline)
		}
	}
	return wake
}

// act adds an act to be carried out.
func (m *Machine) act(g *guest, a Act) uint64 {
	m.lastID++
	a.ID = m.lastID
	if g != nil {
		a.Guest, a.Name = g.uid, g.name
	}
	m.acts = append(m.acts, a)
	return a.ID
}

// settle lets every guest take the steps that are possible now.
func (m *Machine) settle() {
	guests := m.sorted()
	for _, g := range guests {
		m.advance(g)
	}
	// Orders do not count as carried out before the first listing: until then the host's guests are unknown. A guest
	// whose record cannot be read does not hold this up; it is reported as a problem.
	all := m.domains.listed
	for _, g := range guests {
		all = all && (g.unread != nil || !g.seen.before(m.taken))
	}
	if all && m.full.before(m.taken) {
		m.full = m.taken
	}
}

// sorted returns the guests in the order of their uids.
func (m *Machine) sorted() []*guest {
	guests := make([]*guest, 0, len(m.guests))
	for _, g := range m.guests {
		guests = append(guests, g)
	}
	slices.SortFunc(guests, func(x, y *guest) int { return strings.Compare(x.uid, y.uid) })
	return guests
}

// View is the part of a guest's state that the machine's owner may use.
type View struct {
	UID, Name string
	Wanted    *v1.GuestWanted // nil: not mentioned
	Record    *Record         // nil: none is known
	Plugged   bool            // it has a tap
	Tap       Tap
	// Identity is the identity to tell the guest; nil: the guest does not run, or must not be told now.
	Identity *v1.Identity
}

// Guests returns the guests in the order of their uids.
func (m *Machine) Guests() []View {
	var views []View
	for _, g := range m.sorted() {
		views = append(views, m.view(g))
	}
	return views
}

// Guest returns one guest; false: the machine does not know it.
func (m *Machine) Guest(uid string) (View, bool) {
	g := m.guests[uid]
	if g == nil {
		return View{}, false
	}
	return m.view(g), true
}

func (m *Machine) view(g *guest) View {
	return View{UID: g.uid, Name: g.name, Wanted: g.wanted, Record: g.record, Plugged: g.plugged, Tap: g.tap(), Identity: m.identity(g)}
}

// Domain returns the last known state of a domain. current is false while the hypervisor does not answer.
func (m *Machine) Domain(uid string) (state domain.State, current bool) {
	info, current := m.domains.get(uid)
	return info.State, current
}

// Ordered reports whether any orders are in force.
func (m *Machine) Ordered() bool { return m.taken != mark{} }
