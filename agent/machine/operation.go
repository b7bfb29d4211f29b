package machine

// operation.go - the long operations: preparing, starting, sending. They run concurrently with the guest's script.

import (
	"errors"
	"fmt"
	"time"

	"watari/agent/domain"
	v1 "watari/api/watariv1"
)

// sendEndEvery is how often the machine asks whether the hypervisor has ended a transfer.
const sendEndEvery = 200 * time.Millisecond

// stage is how far an operation has come.
type stage string

const (
	stageAct      stage = ""                 // the operation's own act is under way: Prepare, Start or Send
	stageRoute    stage = "route"            // starting: waits for the route
	stageDestroy  stage = "destroy"          // starting: ends the domain of a fork that failed
	stageGone     stage = "gone"             // starting: makes sure that this domain has ended
	stageStarted  stage = "list after start" // starting has failed: lists the domains
	stageSent     stage = "list after send"  // sending has succeeded: lists the domains
	stageAwaitEnd stage = "await the end"    // sending has failed: the hypervisor may still have the transfer
)

// operation is a guest's operation under way.
type operation struct {
	kind    Operation
	stage   stage
	wanted  *v1.GuestWanted
	act     uint64 // 0: none
	listing uint64 // the listing that the operation waits for; 0: none

	adopted     bool // an earlier agent began it
	interrupted bool
	next        time.Time // when to ask the hypervisor again; zero: never
	deadline    time.Time // when to stop waiting; zero: never
	err         error     // why the operation fails
	uncertain   bool      // after err the domain may exist, or may still appear
}

// over ends the operation.
func (g *guest) over() { g.op, g.step = nil, "" }

// operationAct begins an act of the operation.
func (m *Machine) operationAct(g *guest, s stage, a Act) {
	g.op.stage = s
	g.op.act = m.act(g, a)
}

func (m *Machine) beginOperation(g *guest, kind ActionKind) {
	g.step = ""
	w := g.decided
	g.op = &operation{wanted: w}
	switch kind {
	case ActionPrepare:
		g.op.kind = OperationPreparing
		m.operationAct(g, stageAct, Act{Kind: Prepare, Wanted: w, Record: g.record, Tap: g.tap(), Reserved: m.reserved(g)})
	case ActionStart:
		g.op.kind, g.prepared = OperationStarting, 0
		m.operationAct(g, stageRoute, Act{Kind: Route})
	case ActionRestore:
		g.op.kind = OperationRestoring
		m.operationAct(g, stageAct, Act{Kind: Restore, Wanted: w})
	case ActionSend:
		g.op.kind = OperationSending
		g.events, g.handedOver = 0, false
		m.operationAct(g, stageAct, Act{Kind: Send, Wanted: w})
	}
}

// reserved returns the memory of all other guests that are on their way here.
func (m *Machine) reserved(g *guest) (bytes uint64) {
	for _, other := range m.guests {
		if r := other.record; other != g && r != nil && (r.Phase == PhaseReserved || r.Phase == PhaseReceiving) {
			bytes += r.MemoryBytes
		}
	}
	return bytes
}

// interrupt cancels the operation. The operation ends by itself soon after.
func (m *Machine) interrupt(g *guest) {
	op := g.op
	if op == nil || op.interrupted || op.kind == OperationSending && g.handedOver {
		return // a guest that is handed over ends by itself
	}
	op.interrupted = true
	switch {
	case op.adopted:
		m.finishSend(g)
	case op.stage == stageAwaitEnd:
		op.deadline = m.now.Add(m.config.SendEndWait)
	case op.act != 0:
		m.act(g, Act{Kind: Interrupt, Of: op.act})
	}
}

// operationEnded handles the end of the operation's act.
func (m *Machine) operationEnded(g *guest, o Result) {
	g.op.act = 0
	switch g.op.kind {
	case OperationPreparing:
		m.prepareEnded(g, o)
	case OperationStarting:
		m.startStageEnded(g, o)
	case OperationRestoring:
		m.restoreEnded(g, o)
	case OperationSending:
		if g.op.stage == stageAwaitEnd {
			m.askedBusy(g, o)
		} else {
			m.sendEnded(g, o)
		}
	}
}

// operationListed continues after the listing for which the operation waited.
func (m *Machine) operationListed(g *guest, err error) {
	op := g.op
	op.listing = 0
	info, current := m.domains.get(g.uid)
	absent := err == nil && current && info.State == domain.Absent
	switch op.stage {
	case stageGone:
		if !absent {
			m.startFailed(g, errors.New("whether what was restored is gone is not known"), false)
			return
		}
		m.operationAct(g, stageGone, Act{Kind: Confirm})
	case stageStarted:
		g.failure = Failure{Epoch: op.wanted.Epoch, NeverRan: err == nil && !op.uncertain, Final: true,
			Message: fmt.Sprintf("start guest %s: %v", g.name, op.err)}
		g.late = g.late || op.uncertain
		g.over()
	case stageSent:
		g.over()
	case stageAwaitEnd:
		switch {
		case absent:
			m.finishSend(g)
		case err == nil && current:
			m.operationAct(g, stageAwaitEnd, Act{Kind: Busy})
		default:
			op.next = m.now.Add(sendEndEvery)
		}
	}
}

func (m *Machine) prepareEnded(g *guest, o Result) {
	epoch := g.op.wanted.Epoch
	g.over()
	if o.Unplugged {
		g.plugged, g.prepared = false, 0
	}
	if o.Note != "" {
		g.note("%s", o.Note)
	}
	switch {
	case o.Err == nil:
		g.prepared, g.plugged = epoch, true
		if g.failure.Epoch == epoch && !g.failure.Final {
			g.failure = Failure{}
		}
	case !o.Cut:
		g.failure = Failure{Epoch: epoch, NeverRan: true, Final: o.Final, Refused: o.Final, Message: o.Err.Error()}
		if !o.Final {
			g.delay = min(max(2*g.delay, time.Second), 15*time.Second)
			g.backoff = m.now.Add(g.delay)
		}
	}
}

// startStageEnded continues a start. If a fork failed, the guest boots instead, once the fork's domain has surely
// ended. This does not start the epoch twice: a domain whose restore failed has no identity yet and has done nothing.
func (m *Machine) startStageEnded(g *guest, o Result) {
	op := g.op
	switch op.stage {
	case stageRoute:
		if op.interrupted {
			m.startFailed(g, errors.New("it was not wanted any more"), false)
			return
		}
		m.operationAct(g, stageAct, Act{Kind: Start, Wanted: op.wanted})
	case stageDestroy:
		if o.Err != nil {
			m.startFailed(g, fmt.Errorf("end guest %s: %w", g.name, o.Err), false)
			return
		}
		m.domains.set(g.uid, "", domain.Absent)
		op.stage, op.listing = stageGone, m.requestList()
	case stageGone:
		if err := m.confirmed(g, o); err != nil {
			m.startFailed(g, err, false)
			return
		}
		g.note("booted plainly, for its template could not be restored: %v", op.err)
		m.operationAct(g, stageAct, Act{Kind: Start, Wanted: op.wanted, Plain: true})
	default:
		switch {
		case o.Err == nil:
			g.over()
			m.entered(g, domain.Running)
		case o.Unforked && !o.Uncertain:
			op.err = o.Err
			m.operationAct(g, stageDestroy, Act{Kind: Destroy})
		default:
			m.startFailed(g, o.Err, o.Uncertain)
		}
	}
}

// restoreEnded ends a restore. The domain is paused, so it has done nothing.
func (m *Machine) restoreEnded(g *guest, o Result) {
	if o.Err != nil {
		m.startFailed(g, o.Err, o.Uncertain)
		return
	}
	g.over()
	m.entered(g, domain.Paused)
}

// startFailed requests a listing, because a domain of the guest may exist although the start failed.
func (m *Machine) startFailed(g *guest, err error, uncertain bool) {
	g.op.err, g.op.uncertain = err, uncertain
	g.op.stage, g.op.listing = stageStarted, m.requestList()
}

func (m *Machine) sendEnded(g *guest, o Result) {
	op := g.op
	if o.Err == nil {
		g.sendDone = true
		if g.stoppedAt.IsZero() {
			g.stoppedAt = m.now
		}
		op.stage, op.listing = stageSent, m.requestList()
		return
	}
	op.err, g.handedOver = o.Err, false
	if op.interrupted {
		op.err = fmt.Errorf("the transfer was cancelled (%w)", o.Err)
		op.deadline = m.now.Add(m.config.SendEndWait)
	}
	m.awaitSendEnd(g)
}

// awaitSendEnd waits until the hypervisor has ended the guest's transfer. Only then has the transfer failed, even if
// the hypervisor does not answer for long: it may still find that the target has the guest, and end the guest here.
func (m *Machine) awaitSendEnd(g *guest) {
	g.op.stage, g.op.next, g.op.listing = stageAwaitEnd, time.Time{}, m.requestList()
}

func (m *Machine) askedBusy(g *guest, o Result) {
	if o.Err == nil && !o.Busy {
		m.finishSend(g)
		return
	}
	g.op.next = m.now.Add(sendEndEvery)
}

// finishSend ends a transfer that has failed.
func (m *Machine) finishSend(g *guest) {
	if op := g.op; !op.adopted {
		g.failure = Failure{Epoch: op.wanted.Epoch, Message: op.err.Error()}
		g.stoppedAt = time.Time{}
	}
	g.over()
}
