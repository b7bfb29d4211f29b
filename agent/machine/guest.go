package machine

// guest.go - the machine's state of one guest.

import (
	"fmt"
	"time"

	"watari/agent/domain"
	v1 "watari/api/watariv1"
)

// readAgainEvery is the pause before a record, or the term, that could not be read is read again.
const readAgainEvery = time.Second

// guest is one guest on this host. It has at most one script and at most one operation, which run concurrently.
type guest struct {
	uid, name string
	wanted    *v1.GuestWanted
	wantedAt  mark
	seen      mark // of the latest orders for which Step has decided

	record    *Record
	damaged   bool
	reading   uint64    // the act that reads the record; 0: none
	unread    error     // why the record cannot be read now
	readAgain time.Time // when it is read again; zero: never

	late      bool      // the hypervisor may still carry out a create request whose result is unknown
	lateSince time.Time // since when the hypervisor answers and has no such domain; zero: it does not answer

	script  []Action        // actions that have not begun, in order
	doing   *doing          // the script's action under way; nil: none
	decided *v1.GuestWanted // the wish that the script follows; wanted may be newer
	ordered bool            // a step made the script; its success clears trouble
	op      *operation

	prepared  uint64 // the epoch that everything is prepared for
	plugged   bool
	failure   Failure
	sendDone  bool
	backoff   time.Time // no retry before this time; zero: nothing failed
	delay     time.Duration
	refused   string // why the wish is not followed
	trouble   string // why the last act failed
	notes     []string
	step      string
	progress  *v1.MigrationProgress
	stoppedAt time.Time // by a send
	events    int       // events of its domain since the send began
	// handedOver: the guest stopped for the send, and then its process ended.
	handedOver bool
	receivedAt time.Time // when the whole guest was here
	resumedAt  time.Time
	resuming   bool
	held       bool // stopped for a checkpoint

	expected   string // the migration that the tunnel admits
	tunnel     string // the migration with an open connection
	admissions []admission
}

// meet adds a guest that the machine did not know, and requests its record. A forgotten guest may have one.
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

// recordRead stores the record that was read. If a record exists and cannot be read now, the machine does nothing about
// this guest until a later attempt succeeds. Other guests are not affected.
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

// adopt takes over a guest from a record that an earlier agent wrote. A running guest is not disturbed.
func (m *Machine) adopt(g *guest, r *Record) {
	g.record = r
	if r != nil {
		g.name = r.Name // a guest's name is not known while its record cannot be read
	}
	if until, is := m.inherited[g.uid]; is && r != nil {
		m.leases[g.uid] = lease{r.Epoch, until}
	}
	delete(m.inherited, g.uid)
	if r == nil || r.Phase == PhaseEnded {
		return
	}
	g.plugged = true
	g.script = []Action{{Kind: actionPlug}}
	if r.Phase == PhaseStarted && !m.earlierBoot(r) {
		g.late = true // the earlier agent may have ended during a create request
	}
	if r.Phase == PhaseSending {
		// The transfer lost its tunnel when the earlier agent ended. libvirt cancels it by itself.
		g.op = &operation{kind: OperationSending, adopted: true}
		m.awaitSendEnd(g)
	}
}

func (m *Machine) earlierBoot(r *Record) bool {
	return r != nil && r.BootID != "" && m.config.BootID != "" && r.BootID != m.config.BootID
}

// tickGuest handles the guest's timers that have expired.
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

// broken reports whether this host ended an epoch's copy because it could never continue.
func (g *guest) broken(epoch uint64) bool { return g.failure.Broken && g.failure.Epoch == epoch }

// guestEnded handles the end of one of the guest's acts; false: the act is not the guest's.
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

// observe returns the input of the guest's next step and of its report.
func (m *Machine) observe(g *guest) (Observed, domain.Info) {
	info, current := m.domainOf(g)
	o := Observed{Host: m.config.Host, Wanted: g.wanted, Record: g.record, Damaged: g.damaged, Domain: info.State, Stale: !current,
		Operation: OperationNone, Prepared: g.prepared, Failure: g.failure, Backoff: !g.backoff.IsZero(), SendDone: g.sendDone, Resumed: g.events > 1,
		EarlierBoot: m.earlierBoot(g.record), Unread: g.unread}
	if g.late && o.Domain == domain.Absent {
		o.Domain = domain.Starting
	}
	if g.op != nil {
		o.Operation = g.op.kind
	}
	o.Lapsed = g.record != nil && g.record.LeaseMS > 0 && !m.lasts(g.uid, g.record.Epoch)
	o.Unleased = g.wanted.GetLeaseMs() > 0 && !m.lasts(g.uid, g.wanted.GetEpoch())
	if r := g.record; r != nil && (r.Phase == PhaseReserved || r.Phase == PhaseReceiving) {
		o.Tunnel = g.tunnel != "" && g.tunnel == r.Migration
	}
	return o, info
}

// idle reports whether the machine may drop the guest: no order mentions it, and nothing of it is here.
func (m *Machine) idle(g *guest) bool {
	info, current := m.domains.get(g.uid)
	return current && info.State == domain.Absent && g.wanted == nil && g.op == nil && g.doing == nil && len(g.script) == 0 &&
		!g.plugged && g.unread == nil && g.reading == 0 && len(g.admissions) == 0 &&
		(g.record == nil || g.record.Outcome == OutcomeForgotten)
}

// fail keeps the reason why the script failed, drops the rest of the script, and delays the next attempt.
func (m *Machine) fail(g *guest, err error) {
	g.doing, g.script, g.ordered = nil, nil, false
	g.delay = min(max(2*g.delay, 500*time.Millisecond), 10*time.Second)
	g.backoff = m.now.Add(g.delay)
	g.trouble = err.Error()
}

// note sets the guest's line in the host's problems.
func (g *guest) note(format string, a ...any) {
	g.notes = []string{fmt.Sprintf("guest %s: ", g.name) + fmt.Sprintf(format, a...)}
}

// noteEvent keeps the time at which the guest stopped during a transfer, or was resumed. The first event of its domain
// marks that time. The machine uses the event because a query would have to wait for libvirt.
func (g *guest) noteEvent(at time.Time) {
	if g.op != nil && g.op.kind == OperationSending {
		if g.events++; g.events > 1 {
			g.handedOver = false
		}
		if g.stoppedAt.IsZero() {
			g.stoppedAt = at
		}
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

// identity returns the identity to tell the guest now; nil: the guest does not run, or there is nothing to tell.
func (m *Machine) identity(g *guest) *v1.Identity {
	info, current := m.domainOf(g)
	w, r := g.wanted, g.record
	if r == nil || info.State != domain.Running && current || r.Phase != PhaseStarted && r.Phase != PhaseSending {
		return nil
	}
	if w == nil || w.Epoch != r.Epoch || g.op != nil && g.op.kind == OperationStarting {
		return nil
	}
	return w.Identity
}
