package machine

// script.go - a guest's script: the acts of one decision, one after the other. The first that fails ends it.

import (
	"fmt"
	"time"

	"watari/agent/domain"
)

// Acts that no step asks for.
const (
	actionPlug     ActionKind = "plug"
	actionExpect   ActionKind = "expect"
	actionUnexpect ActionKind = "unexpect"
)

// doing is the part of the script that is under way.
type doing struct {
	kind    ActionKind
	stage   Kind   // of the act under way; empty: a listing or the operation's end is waited for
	act     uint64 // 0: none
	listing uint64 // that is waited for; 0: none

	to      *Record // to be written
	applied bool    // it is in force already
	admits  bool    // connections wait for it
	migrate string  // the migration to be expected
}

// advance goes on with the guest's script, and takes steps, until something has to be waited for.
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

// settled gives the rest of the script up without an error: what stopped it has been noted, and the next step sees it.
func (g *guest) settled() { g.doing, g.script = nil, nil }

// begin begins one part of the script.
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
	case ActionPrepare, ActionStart, ActionSend:
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
		g.expected = "" // the act ends the expectation, too
		act(Act{Kind: Forget, Record: g.record})
	case actionPlug:
		act(Act{Kind: Plug, Tap: g.tap(), MTU: g.record.MTU})
	case actionExpect:
		if d.migrate = m.wantedMigration(g); d.migrate == "" {
			return // it is not wanted any more
		}
		act(Act{Kind: Expect, Migration: d.migrate, Source: g.record.Source, SourceUID: g.wanted.GetMigration().GetSourceUid()})
	case actionUnexpect:
		was := g.expected
		g.expected = ""
		act(Act{Kind: Unexpect, Migration: was})
	}
}

// doingEnded takes up the end of the script's act.
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
	case actionExpect:
		if o.Err != nil {
			m.fail(g, o.Err)
			return
		}
		g.expected = d.migrate
	}
	g.doing = nil
}

// confirmed says what keeps the guest from being gone, after a listing that has no domain of it.
func (m *Machine) confirmed(g *guest, o Result) error {
	if o.Err != nil {
		return fmt.Errorf("make sure that guest %s is gone: %w", g.name, o.Err)
	}
	if len(o.PIDs) > 0 {
		return fmt.Errorf("make sure that guest %s is gone: the hypervisor does not know it, but its process %d is there", g.name, o.PIDs[0])
	}
	return nil
}

// doingListed goes on with a confirmation after the listing that it waited for.
func (m *Machine) doingListed(g *guest, err error) {
	d := g.doing
	d.listing = 0
	if err != nil {
		m.fail(g, fmt.Errorf("make sure that guest %s is gone: %w", g.name, err))
		return
	}
	if info, current := m.domains.get(g.uid); !current || info.State != domain.Absent {
		g.settled()
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

// entered enters that an act has let the guest run. It may have ended since, and the event of that may have been heard
// before: the listing that begins now sees it.
func (m *Machine) entered(g *guest, state domain.State) {
	m.domains.set(g.uid, g.name, state)
	m.requestList()
}

// beginRecord puts a record on disk and then in force.
func (m *Machine) beginRecord(g *guest) {
	d := g.doing
	from, to := g.record, d.to
	switch {
	case d.stage == "" && to.Phase == PhaseEnded && to.Outcome == OutcomeGone && from != nil &&
		(from.Phase == PhaseStarted || from.Phase == PhaseSending):
		d.stage, d.act = Explain, m.act(g, Act{Kind: Explain, Record: to})
		return
	case d.stage == "" && to.Phase == PhaseReceived:
		// Up to the end of the transfer a crash of the hypervisor could still make it give the guest up.
		d.stage, d.act = Busy, m.act(g, Act{Kind: Busy, Patience: UntilDone})
		return
	}
	begins := from == nil || to.Epoch > from.Epoch
	if begins {
		to.BeganAt, to.BootID = m.now.UTC().Format(time.RFC3339), m.config.BootID
	}
	// Two records are reported before they are on disk, for the guest stands still until the manager knows, and nothing
	// rests on them: after a crash the same is found out again, from what exists.
	if to.Phase == PhaseReceived || to.Outcome == OutcomeSent {
		d.applied, g.record = true, to
	}
	// The end of an epoch that never began is vital, too: the manager gives the grant to another host for it.
	vital := !begins || to.Phase == PhaseEnded
	d.stage, d.act = WriteRecord, m.act(g, Act{Kind: WriteRecord, Record: to, Was: from, Vital: vital})
}

// recordStageEnded goes on with the writing of a record.
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
			m.beginRecord(g)
		}
		return
	}
	begins := !d.applied && (g.record == nil || d.to.Epoch > g.record.Epoch)
	switch {
	case o.Err != nil && d.admits:
		m.answer(g, o.Err)
		g.settled()
	case o.Err != nil && begins && d.to.Phase != PhaseEnded:
		g.failure = Failure{Epoch: d.to.Epoch, NeverRan: true, Final: true, Message: o.Err.Error()}
		g.settled()
	case o.Err != nil:
		m.fail(g, o.Err)
	default:
		m.applyRecord(g, d.to, begins)
		g.doing = nil
	}
}

// applyRecord puts a record in force that is on disk.
func (m *Machine) applyRecord(g *guest, to *Record, begins bool) {
	if begins {
		g.sendDone, g.stoppedAt, g.resumedAt, g.progress, g.notes = false, time.Time{}, time.Time{}, nil, nil
	}
	if to.Phase == PhaseSending {
		g.sendDone, g.stoppedAt, g.progress, g.failure = false, time.Time{}, nil, Failure{}
	}
	g.record = to
}
