package machine

// guest.go - what the machine knows of one guest.

import (
	"fmt"
	"time"

	"watari/agent/domain"
	v1 "watari/api/watariv1"
)

// readAgainEvery is how often a record, or the term, that could not be read is tried again.
const readAgainEvery = time.Second

// guest is one guest on this host. It carries out one script at a time, and beside it at most one operation.
type guest struct {
	uid, name string
	wanted    *v1.GuestWanted
	wantedAt  mark
	seen      mark // the latest wish that a step was taken for

	record    *Record
	damaged   bool
	reading   uint64    // the act that reads the record; 0: none
	unread    error     // why the record cannot be read now
	readAgain time.Time // when it is tried again; zero: it is not to be

	late      bool      // a create whose outcome is not known may still come true
	lateSince time.Time // the hypervisor answers since then, and does not have the domain; zero: it does not answer

	script  []Action        // still to be carried out, in order
	doing   *doing          // of the script; nil: nothing is under way
	decided *v1.GuestWanted // the wish that the script follows, which may be replaced meanwhile
	ordered bool            // the script is a step's; its success ends the trouble
	op      *operation

	prepared  uint64 // the epoch that everything is prepared for
	plugged   bool
	failure   Failure
	sendDone  bool
	backoff   time.Time // nothing that failed is tried again before; zero: nothing failed
	delay     time.Duration
	refused   string // why the wish is not followed
	trouble   string // why the last act failed
	notes     []string
	step      string
	progress  *v1.MigrationProgress
	stoppedAt time.Time // by a send
	resumedAt time.Time
	resuming  bool

	expected   string // the migration that the tunnel would admit
	tunnel     string // the migration of which a connection is open
	admissions []admission
}

// meet makes a guest that was not known until now, and has its record read: a forgotten one's, for instance.
func (m *Machine) meet(uid, name string) *guest {
	g := &guest{uid: uid, name: name}
	m.guests[uid] = g
	m.read(g)
	return g
}

func (m *Machine) read(g *guest) {
	g.readAgain = time.Time{}
	g.reading = m.act(g, Act{Kind: ReadRecord})
}

// recordRead takes up what was read. Where the record is there and cannot be read now, nothing is done about this guest
// until it can; the others go on.
func (m *Machine) recordRead(g *guest, o Result) {
	g.reading = 0
	if o.Err != nil && !o.Damaged {
		g.unread, g.readAgain = o.Err, m.now.Add(readAgainEvery)
		return
	}
	g.unread, g.damaged = nil, o.Damaged
	if o.Err != nil {
		m.problems = append(m.problems, o.Err.Error())
		return
	}
	m.adopt(g, o.Record)
}

// adopt takes up a record that an earlier agent wrote. What runs is not touched.
func (m *Machine) adopt(g *guest, r *Record) {
	g.record = r
	if r == nil || r.Phase == PhaseEnded {
		return
	}
	g.plugged = true
	g.script = []Action{{Kind: actionPlug}}
	if r.Phase == PhaseStarted && !m.earlierBoot(r) {
		g.late = true // the agent before may have ended while it waited for the hypervisor
	}
	if r.Phase == PhaseSending {
		// The transfer that was under way lost its tunnel with the last agent; libvirt breaks it off by itself.
		g.op = &operation{kind: OperationSending, adopted: true}
		m.awaitSendEnd(g)
	}
}

func (m *Machine) earlierBoot(r *Record) bool {
	return r != nil && r.BootID != "" && m.config.BootID != "" && r.BootID != m.config.BootID
}

// tickGuest does what the guest has waited for.
func (m *Machine) tickGuest(g *guest) {
	due := func(t time.Time) bool { return !t.IsZero() && !m.now.Before(t) }
	if due(g.backoff) {
		g.backoff = time.Time{}
	}
	if due(g.readAgain) {
		m.read(g)
	}
	if g.op != nil && due(g.op.deadline) {
		m.finishSend(g)
	}
	if g.op != nil && due(g.op.next) {
		m.awaitSendEnd(g)
	}
}

// guestEnded takes the end of an act up; false: it is none of the guest's.
func (m *Machine) guestEnded(g *guest, id uint64, o Result) bool {
	switch {
	case id == 0:
		return false
	case g.reading == id:
		m.recordRead(g, o)
	case g.doing != nil && g.doing.act == id:
		m.doingEnded(g, o)
	case g.op != nil && g.op.act == id:
		m.operationEnded(g, o)
	default:
		return false
	}
	return true
}

// observe is what the next step for a guest, and what is reported of it, depend on.
func (m *Machine) observe(g *guest) (Observed, domain.Info) {
	info, current := m.domains.get(g.uid)
	o := Observed{Host: m.config.Host, Wanted: g.wanted, Record: g.record, Damaged: g.damaged, Domain: info.State, Stale: !current,
		Operation: OperationNone, Prepared: g.prepared, Failure: g.failure, Backoff: !g.backoff.IsZero(), SendDone: g.sendDone,
		EarlierBoot: m.earlierBoot(g.record), Unread: g.unread}
	if g.late && o.Domain == domain.Absent {
		o.Domain = domain.Starting
	}
	if g.op != nil {
		o.Operation = g.op.kind
	}
	if r := g.record; r != nil && (r.Phase == PhaseReserved || r.Phase == PhaseReceiving) {
		o.Tunnel = g.tunnel != "" && g.tunnel == r.Migration
	}
	return o, info
}

// idle tells whether the guest need not be known any more: nothing is wanted of it and nothing of it is here.
func (m *Machine) idle(g *guest) bool {
	info, current := m.domains.get(g.uid)
	return current && info.State == domain.Absent && g.wanted == nil && g.op == nil && g.doing == nil && len(g.script) == 0 &&
		!g.plugged && g.unread == nil && g.reading == 0 && len(g.admissions) == 0 &&
		(g.record == nil || g.record.Outcome == OutcomeForgotten)
}

// fail notes why the script's act failed, gives the rest of the script up, and has nothing tried again for a while.
func (m *Machine) fail(g *guest, err error) {
	g.doing, g.script, g.ordered = nil, nil, false
	g.delay = min(max(2*g.delay, 500*time.Millisecond), 10*time.Second)
	g.backoff = m.now.Add(g.delay)
	g.trouble = err.Error()
}

// note adds a line to the host's problems in the place of an earlier one.
func (g *guest) note(format string, a ...any) {
	g.notes = []string{fmt.Sprintf("guest %s: ", g.name) + fmt.Sprintf(format, a...)}
}

// noteEvent keeps when the guest stopped during a transfer, and when it was resumed: the first event of its domain
// is about that. Asking for its state would wait for libvirt.
func (g *guest) noteEvent(at time.Time) {
	if g.op != nil && g.op.kind == OperationSending && g.stoppedAt.IsZero() {
		g.stoppedAt = at
	}
	if g.resuming && g.resumedAt.IsZero() {
		g.resumedAt = at
	}
}

func (g *guest) tap() Tap {
	t := Tap{UID: g.uid}
	if id := g.wanted.GetIdentity(); id != nil {
		t.Cluster, t.Address, t.MAC, t.Prefix = g.wanted.Cluster, id.Address, id.Mac, id.Prefix
	} else if r := g.record; r != nil {
		t.Cluster, t.Address, t.MAC, t.Prefix = r.Cluster, r.Address, r.MAC, r.Prefix
	}
	return t
}

// identity is what the guest should be told now; nil: it does not run, or nothing.
func (m *Machine) identity(g *guest) *v1.Identity {
	info, current := m.domains.get(g.uid)
	w, r := g.wanted, g.record
	if r == nil || info.State != domain.Running && current || r.Phase != PhaseStarted && r.Phase != PhaseSending {
		return nil
	}
	if w == nil || w.Epoch != r.Epoch || g.op != nil && g.op.kind == OperationStarting {
		return nil
	}
	return w.Identity
}
