package machine

// script.go - a guest's script: the actions of one decision, carried out one after the other. The first failure ends the
// script.

import (
	"fmt"
	"time"

	"watari/agent/domain"
)

// Acts that no step asks for.
const (
	actionPlug             ActionKind = "plug"
	actionAllowIncoming    ActionKind = "allow incoming"
	actionDisallowIncoming ActionKind = "disallow incoming"
)

// doing is the script's action under way.
type doing struct {
	kind    ActionKind
	stage   Kind   // of the act under way; empty: it waits for a listing or for the operation's end
	act     uint64 // 0: none
	listing uint64 // the listing that it waits for; 0: none

	to      *Record // the record to write
	applied bool    // the record is already in force
	admits  bool    // connections wait for the record
	migrate string  // the migration to expect
}

// advance continues the guest's script, and takes steps, until the guest has to wait.
func (m *Machine) advance(g *guest) {
	for g.reading == 0 && g.unread == nil {
		if d := g.doing; d != nil {
			if d.kind != ActionInterrupt || g.op != nil {
				return
			}
			g.doing = nil // the operation is over
			continue
		}
		if len(g.script) > 0 {
			next := g.script[0]
			g.script = g.script[1:]
			m.begin(g, next)
			continue
		}
		if g.ordered {
			g.ordered, g.trouble, g.delay = false, "", 0
		}
		if !m.decide(g) {
			return
		}
	}
}

// decide takes a step; false: there is nothing to do now.
func (m *Machine) decide(g *guest) bool {
	if m.admit(g) {
		return true
	}
	o, _ := m.observe(g)
	if o.Stale {
		o.Domain = domain.Unknown
	}
	d := Step(o)
	if o.Domain != domain.Unknown {
		g.seen = g.wantedAt
	}
	g.refused = d.Problem
	if len(d.Actions) > 0 && !o.Backoff {
		g.script, g.decided, g.ordered = d.Actions, o.Wanted, true
		return true
	}
	return m.expect(g)
}

// dropScript drops the rest of the script without an error. Its cause is already in the guest's state, where the next
// step sees it.
func (g *guest) dropScript() { g.doing, g.script = nil, nil }

// begin begins one action of the script.
func (m *Machine) begin(g *guest, a Action) {
	d := &doing{kind: a.Kind}
	act := func(a Act) {
		g.doing = d
		d.stage, d.act = a.Kind, m.act(g, a)
	}
	switch a.Kind {
	case ActionRecord:
		to := *a.Record
		d.to = &to
		g.doing = d
		m.beginRecord(g)
	case ActionPrepare, ActionStart, ActionSend, ActionRestore:
		m.beginOperation(g, a.Kind)
	case ActionResume:
		act(Act{Kind: Route})
	case ActionDestroy:
		act(Act{Kind: Destroy})
	case ActionConfirm:
		g.doing = d
		d.listing = m.requestList()
	case ActionInterrupt:
		g.doing = d
		m.interrupt(g)
	case ActionForget:
		g.expected = "" // Forget also ends the expectation
		act(Act{Kind: Forget, Record: g.record})
	case actionPlug:
		act(Act{Kind: Plug, Tap: g.tap(), MTU: g.record.MTU})
	case actionAllowIncoming:
		if d.migrate = m.wantedMigration(g); d.migrate == "" {
			return // the manager no longer wants the transfer
		}
		act(Act{Kind: AllowIncoming, Migration: d.migrate, Source: g.record.Source, SourceUID: g.wanted.GetMigration().GetSourceUid(),
			Wanted: g.wanted, Tap: g.tap(), MTU: g.record.MTU})
	case actionDisallowIncoming:
		was := g.expected
		g.expected = ""
		act(Act{Kind: DisallowIncoming, Migration: was})
	}
}

// doingEnded handles the end of the script's act.
func (m *Machine) doingEnded(g *guest, o Result) {
	d := g.doing
	d.act = 0
	switch d.kind {
	case ActionRecord:
		m.recordStageEnded(g, o)
		return
	case ActionResume:
		m.resumeStageEnded(g, o)
		return
	case ActionDestroy:
		if o.Err != nil {
			m.fail(g, fmt.Errorf("end guest %s: %w", g.name, o.Err))
			return
		}
		m.domains.set(g.uid, "", domain.Absent)
	case ActionConfirm:
		if err := m.confirmed(g, o); err != nil {
			m.fail(g, err)
			return
		}
	case ActionForget:
		if o.Unplugged {
			g.plugged, g.prepared, g.failure = false, 0, Failure{}
		}
		if o.Err != nil {
			m.fail(g, o.Err)
			return
		}
	case actionPlug:
		if o.Err != nil {
			g.note("plug its tap anew: %v", o.Err)
		}
	case actionAllowIncoming:
		if o.Err != nil {
			m.fail(g, o.Err)
			return
		}
		g.expected = d.migrate
	}
	g.doing = nil
}

// confirmed returns an error if the guest may still exist, after a listing without its domain.
func (m *Machine) confirmed(g *guest, o Result) error {
	if o.Err != nil {
		return fmt.Errorf("make sure that guest %s is gone: %w", g.name, o.Err)
	}
	if len(o.PIDs) > 0 {
		return fmt.Errorf("make sure that guest %s is gone: the hypervisor does not know it, but its process %d is there", g.name, o.PIDs[0])
	}
	return nil
}

// doingListed continues a confirmation after the listing for which it waited.
func (m *Machine) doingListed(g *guest, err error) {
	d := g.doing
	d.listing = 0
	if err != nil {
		m.fail(g, fmt.Errorf("make sure that guest %s is gone: %w", g.name, err))
		return
	}
	if info, current := m.domains.get(g.uid); !current || info.State != domain.Absent {
		g.dropScript()
		return
	}
	d.stage, d.act = Confirm, m.act(g, Act{Kind: Confirm})
}

func (m *Machine) resumeStageEnded(g *guest, o Result) {
	d := g.doing
	if d.stage == Route {
		g.resuming, g.resumedAt = true, time.Time{}
		d.stage, d.act = Resume, m.act(g, Act{Kind: Resume})
		return
	}
	g.resuming = false
	if o.Broken { // its memory is of no use to anybody; its end is reported like that of a guest whose QEMU has crashed
		g.failure = Failure{Epoch: g.record.Epoch, Broken: true, Message: o.Err.Error()}
		d.kind, d.stage, d.act = ActionDestroy, "", m.act(g, Act{Kind: Destroy})
		return
	}
	if o.Err != nil {
		m.fail(g, fmt.Errorf("resume guest %s: %w", g.name, o.Err))
		return
	}
	if g.resumedAt.IsZero() {
		g.resumedAt = m.now
	}
	g.doing = nil
	m.entered(g, domain.Running)
}

// entered records that an act has started or resumed the guest. The guest may have ended since, and its event may have come
// before this call. The listing that begins now shows that.
func (m *Machine) entered(g *guest, state domain.State) {
	m.domains.set(g.uid, g.name, state)
	m.requestList()
}

// beginRecord writes a record to disk, and then brings it into force.
func (m *Machine) beginRecord(g *guest) {
	d := g.doing
	from, to := g.record, d.to
	switch {
	case d.stage == "" && to.Phase == PhaseEnded && to.Outcome == OutcomeGone && from != nil &&
		(from.Phase == PhaseStarted || from.Phase == PhaseSending):
		d.stage, d.act = Explain, m.act(g, Act{Kind: Explain, Record: to, Broken: g.broken(to.Epoch)})
		return
	case d.stage == "" && to.Phase == PhaseReceived:
		// Before the transfer has ended, a crash of the hypervisor could still end this copy.
		d.stage, d.act = Busy, m.act(g, Act{Kind: Busy, Patience: UntilDone})
		return
	}
	begins := from == nil || to.Epoch > from.Epoch
	if begins {
		to.BeganAt, to.BootID = m.now.UTC().Format(time.RFC3339), m.config.BootID
	}
	// Two records are in force before they are on disk, because the guest stands still until the manager knows. This is
	// safe: after a crash the agent derives the same records from the domains that exist.
	if to.Phase == PhaseReceived || to.Outcome == OutcomeSent {
		d.applied, g.record = true, to
	}
	// The end of an epoch that never began is vital, too: the manager grants the guest to another host because of it.
	vital := !begins || to.Phase == PhaseEnded
	d.stage, d.act = WriteRecord, m.act(g, Act{Kind: WriteRecord, Record: to, Was: from, Vital: vital})
}

// recordStageEnded continues the writing of a record.
func (m *Machine) recordStageEnded(g *guest, o Result) {
	d := g.doing
	switch d.stage {
	case Explain:
		if o.Err == nil {
			d.to.Message, d.to.LastLines = o.Message, o.LastLines
		}
		m.beginRecord(g)
		return
	case Busy:
		if o.Err != nil {
			m.fail(g, fmt.Errorf("receive guest %s: %w", g.name, o.Err))
		} else if o.Busy {
			m.fail(g, fmt.Errorf("receive guest %s: libvirt does not come to an end with it", g.name))
		} else {
			g.receivedAt = m.now
			m.beginRecord(g)
		}
		return
	}
	begins := !d.applied && (g.record == nil || d.to.Epoch > g.record.Epoch)
	switch {
	case o.Err != nil && d.admits:
		m.answer(g, o.Err)
		g.dropScript()
	case o.Err != nil && begins && d.to.Phase != PhaseEnded:
		g.failure = Failure{Epoch: d.to.Epoch, NeverRan: true, Final: true, Message: o.Err.Error()}
		g.dropScript()
	case o.Err != nil:
		m.fail(g, o.Err)
	default:
		m.applyRecord(g, d.to, begins)
		g.doing = nil
	}
}

// applyRecord brings a record into force. The record is on disk, except as beginRecord says.
func (m *Machine) applyRecord(g *guest, to *Record, begins bool) {
	if begins {
		g.sendDone, g.stoppedAt, g.receivedAt, g.resumedAt, g.progress, g.notes = false, time.Time{}, time.Time{}, time.Time{}, nil, nil
	}
	if to.Phase == PhaseSending {
		g.sendDone, g.stoppedAt, g.progress, g.failure = false, time.Time{}, nil, Failure{}
	}
	g.record = to
}
