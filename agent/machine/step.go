package machine

// step.go - decides the next actions for one guest.

import (
	"fmt"

	"watari/agent/domain"
	v1 "watari/api/watariv1"
)

// Operation is the long operation on a guest that is under way. There is at most one.
type Operation string

const (
	OperationNone      Operation = ""
	OperationPreparing Operation = "preparing" // image, template, memory, tap
	OperationStarting  Operation = "starting"
	OperationSending   Operation = "sending"
	OperationRestoring Operation = "restoring"
)

// Failure is how the last operation on a guest failed.
type Failure struct {
	Epoch uint64
	// NeverRan: certainly no instruction of the guest was executed.
	NeverRan bool
	// Final: another attempt with this epoch is useless or forbidden.
	Final bool
	// Refused: this host lacks something that another host may have, or this one later. It is also final.
	Refused bool
	// Broken: the guest could never continue, because of an internal error of QEMU or KVM.
	Broken  bool
	Message string
}

// Observed is all that the next step for a guest depends on.
type Observed struct {
	Host      string          // this host's name
	Wanted    *v1.GuestWanted // nil: not mentioned
	Record    *Record         // nil: none
	Damaged   bool            // there was a record, which was damaged and has been moved away
	Domain    domain.State
	Stale     bool // the hypervisor does not answer; Domain is the last known state, or unknown
	Operation Operation
	Prepared  uint64  // the epoch for which Prepare succeeded
	Failure   Failure // since the agent started; a zero epoch: none
	Backoff   bool    // an attempt failed, and the pause after it has not passed
	Tunnel    bool    // a tunnel of the record's incoming migration is open
	SendDone  bool    // libvirt has confirmed the transfer
	Resumed   bool    // the guest went on here after it had stopped for the transfer
	// EarlierBoot: the record's epoch began in an earlier boot of the host, so its domain no longer runs.
	EarlierBoot bool
	// Lapsed: the record's epoch needs a lease, and has none that lasts: it has ended, or none is known. Unleased: the same
	// of the epoch of the orders.
	Lapsed, Unleased bool
	Unread           error // why the existing record cannot be read now
}

// occupied reports whether an operation is under way that may create or end the guest's domain.
func (o Observed) occupied() bool {
	return o.Operation == OperationStarting || o.Operation == OperationSending || o.Operation == OperationRestoring
}

// ActionKind is what an agent can do about a guest.
type ActionKind string

const (
	ActionRecord    ActionKind = "record"    // write Action.Record; if that fails, the following actions are dropped
	ActionPrepare   ActionKind = "prepare"   // begin to prepare image, template, memory and tap for the wanted epoch
	ActionStart     ActionKind = "start"     // begin to create the domain
	ActionResume    ActionKind = "resume"    // let the paused domain run
	ActionDestroy   ActionKind = "destroy"   // end the domain
	ActionSend      ActionKind = "send"      // begin the transfer
	ActionRestore   ActionKind = "restore"   // begin to create the paused domain from a checkpoint
	ActionInterrupt ActionKind = "interrupt" // cancel the operation under way and wait for its end
	ActionForget    ActionKind = "forget"    // remove tap, sockets and reservation
	ActionConfirm   ActionKind = "confirm"   // make sure that the guest has no process
)

// Action is one action. Every action may be repeated.
type Action struct {
	Kind   ActionKind
	Record *Record
}

// Decision is the outcome of a step.
type Decision struct {
	Actions []Action
	// Problem is why the agent does not follow the orders.
	Problem string
}

// Step decides the next actions for one guest. It is pure. It keeps these invariants (docs/design/lifecycle.md). This
// host starts or resumes an epoch at most once, only under RUN for that epoch, and only after a record of it is on
// disk. It ends a copy of an older epoch before it starts a newer epoch.
func Step(o Observed) Decision {
	if o.Domain == domain.Unknown || o.Domain == domain.Starting || o.Domain == domain.Ending || o.Unread != nil {
		return Decision{}
	}
	if d, settled := settle(o); settled {
		return d
	}
	if o.Wanted == nil {
		return Decision{}
	}
	if o.Record != nil && o.Wanted.Epoch < o.Record.Epoch {
		if o.Wanted.Role == v1.GuestRole_GUEST_ROLE_ABSENT {
			return Decision{} // ABSENT concerns only its own epoch and earlier ones
		}
		return refuse("guest %s: %s for epoch %d is not followed: epoch %d is known here",
			o.Wanted.Name, RoleName(o.Wanted.Role), o.Wanted.Epoch, o.Record.Epoch)
	}
	switch o.Wanted.Role {
	case v1.GuestRole_GUEST_ROLE_RUN:
		return withFacts(o, stepRun(o))
	case v1.GuestRole_GUEST_ROLE_ABSENT:
		return stepAbsent(o)
	case v1.GuestRole_GUEST_ROLE_INCOMING:
		return stepIncoming(o)
	case v1.GuestRole_GUEST_ROLE_OUTGOING:
		return stepOutgoing(o)
	}
	return Decision{}
}

// lapsed is the message for a guest whose lease had ended.
const lapsed = "it ended with its lease, which the manager did not renew"

// settle updates the record after events that no action caused: a domain ended, or a transfer completed.
func settle(o Observed) (Decision, bool) {
	r := o.Record
	if r != nil && o.Lapsed && o.Domain != domain.Absent && (r.Phase == PhaseStarted || r.Phase == PhaseSending) {
		if o.occupied() {
			return act(Action{Kind: ActionInterrupt}), true
		}
		ended := end(r, OutcomeGone, lapsed)
		ended.Record.RanOn = ended.Record.RanOn || sendFailed(o)
		return act(Action{Kind: ActionDestroy}, Action{Kind: ActionConfirm}, ended), true
	}
	if r == nil || o.occupied() {
		return Decision{}, false
	}
	if r.Phase == PhaseEnded {
		if o.Domain == domain.Absent {
			return Decision{}, false
		}
		// The domain appeared after its end was established: the hypervisor carried out a request late.
		return act(Action{Kind: ActionDestroy}), true
	}
	if o.Domain == domain.Absent {
		if o.EarlierBoot {
			return confirmEnd(o, OutcomeGone, "the host has rebooted"), true
		}
		switch r.Phase {
		case PhaseStarted:
			if o.Failure.Epoch == r.Epoch && o.Failure.NeverRan {
				return confirmEnd(o, OutcomeFailed, o.Failure.Message), true
			}
			message := "it ended"
			if o.Lapsed {
				message = lapsed
			}
			if o.Failure.Epoch == r.Epoch && o.Failure.Message != "" {
				message = o.Failure.Message
			}
			return confirmEnd(o, OutcomeGone, message), true
		case PhaseSending:
			if o.SendDone {
				return confirmEnd(o, OutcomeSent, ""), true
			}
			if o.Resumed { // it ran on, and then ended before a listing showed it
				ranOn := *r
				ranOn.RanOn, o.Record = true, &ranOn
			}
			return confirmEnd(o, OutcomeGone, "it ended while it was being sent"), true
		case PhaseReceived:
			return confirmEnd(o, OutcomeGone, "its received copy ended"), true
		case PhaseReceiving:
			if !o.Tunnel {
				return confirmEnd(o, OutcomeGone, "the transfer broke off"), true
			}
		}
		return Decision{}, false
	}
	if w := o.Wanted; sendFailed(o) && !r.RanOn && (w == nil || w.Role == v1.GuestRole_GUEST_ROLE_OUTGOING) {
		// If this host dies before the manager hears of the failure, the target's copy must not be taken for the guest.
		ranOn := *r
		ranOn.RanOn = true
		if o.Failure.Epoch == r.Epoch {
			ranOn.Message = o.Failure.Message
		}
		return act(Action{Kind: ActionRecord, Record: &ranOn}), true
	}
	if o.Domain == domain.Paused && (r.Phase == PhaseReceiving || r.Phase == PhaseReserved) {
		return act(record(r, PhaseReceived)), true
	}
	if o.Domain != domain.Absent && r.Phase == PhaseReserved {
		return act(record(r, PhaseReceiving)), true
	}
	if o.Domain == domain.Running && (r.Phase == PhaseReserved || r.Phase == PhaseReceiving || r.Phase == PhaseReceived) {
		if w := o.Wanted; w != nil && w.Role == v1.GuestRole_GUEST_ROLE_RUN && w.Epoch == r.Epoch {
			return act(record(r, PhaseStarted)), true
		}
		// No grant lets this copy run. The source's copy may be running, too.
		return act(Action{Kind: ActionDestroy}), true
	}
	return Decision{}, false
}

func stepRun(o Observed) Decision {
	r, w := o.Record, o.Wanted
	if r == nil || w.Epoch > r.Epoch {
		return stepStart(o)
	}
	switch r.Phase {
	case PhaseReserved:
		if o.Domain == domain.Absent {
			return act(end(r, OutcomeFailed, "the grant came before anything was received"))
		}
	case PhaseReceived:
		if o.Domain == domain.Paused && !o.Unleased {
			return act(record(r, PhaseStarted), Action{Kind: ActionResume})
		}
	case PhaseStarted:
		if o.Operation == OperationNone && o.Domain == domain.Paused {
			return act(Action{Kind: ActionResume})
		}
	case PhaseSending:
		if o.Operation == OperationSending {
			return act(Action{Kind: ActionInterrupt})
		}
		if o.Operation == OperationNone && o.Domain == domain.Paused {
			return act(record(r, PhaseStarted), Action{Kind: ActionResume})
		}
		if o.Operation == OperationNone && o.Domain == domain.Running {
			return act(record(r, PhaseStarted))
		}
	}
	return Decision{}
}

// stepStart starts a guest that is absent, or that is here with an older epoch.
func stepStart(o Observed) Decision {
	w := o.Wanted
	if o.occupied() {
		return act(Action{Kind: ActionInterrupt}) // of an older epoch
	}
	if d, stale := endStale(o); stale {
		return d
	}
	if o.Damaged && o.Record == nil {
		return act(end(newRecord(w, PhaseEnded), OutcomeGone, "the host's record of it was damaged; whether it was started here is not known"))
	}
	if o.Failure.Epoch == w.Epoch && o.Failure.Final {
		return fail(o)
	}
	if o.Prepared != w.Epoch {
		if o.Operation == OperationPreparing || o.Backoff {
			return Decision{}
		}
		return act(Action{Kind: ActionPrepare})
	}
	if o.Unleased {
		return Decision{}
	}
	return act(Action{Kind: ActionRecord, Record: newRecord(w, PhaseStarted)}, Action{Kind: ActionStart})
}

// fail ends an epoch that could not begin. The record is on disk before a report tells of it. After that report the
// manager grants the guest to another host, and a restarted agent must not begin this epoch by a repeated order.
func fail(o Observed) Decision {
	return act(end(newRecord(o.Wanted, PhaseEnded), OutcomeFailed, o.Failure.Message))
}

// endStale ends a domain whose epoch is not the wanted one.
func endStale(o Observed) (Decision, bool) {
	if o.Domain == domain.Absent {
		return Decision{}, false
	}
	if o.Record == nil {
		// The domain's epoch is unknown. It may be an old copy, so it must end. It may also be the wanted epoch, so
		// that epoch must not be started again.
		return act(Action{Kind: ActionDestroy},
			end(newRecord(o.Wanted, PhaseEnded), OutcomeGone, "a copy that the host had no record of was ended")), true
	}
	return act(Action{Kind: ActionDestroy}), true
}

func stepAbsent(o Observed) Decision {
	if o.Operation != OperationNone {
		return act(Action{Kind: ActionInterrupt})
	}
	var actions []Action
	if o.Domain != domain.Absent {
		actions = append(actions, Action{Kind: ActionDestroy})
	}
	if o.Record == nil || o.Record.Outcome == OutcomeForgotten {
		if o.Prepared != 0 {
			actions = append(actions, Action{Kind: ActionForget})
		}
		return act(actions...)
	}
	actions = append(actions, Action{Kind: ActionConfirm}, Action{Kind: ActionForget}, end(o.Record, OutcomeForgotten, ""))
	return act(actions...)
}

func stepIncoming(o Observed) Decision {
	r, w := o.Record, o.Wanted
	if w.Restore != nil {
		return stepRestore(o)
	}
	if w.Migration == nil {
		return refuse("guest %s: asked to receive it without a migration", w.Name)
	}
	if w.Migration.SourceHost == o.Host {
		return refuse("guest %s: asked to receive it from this very host", w.Name)
	}
	if r != nil && r.Epoch == w.Epoch {
		if r.Phase == PhaseEnded {
			return Decision{}
		}
		if r.Migration != w.Migration.Id {
			return refuse("guest %s: asked to receive epoch %d by migration %s, but that epoch is %s by migration %q",
				w.Name, w.Epoch, w.Migration.Id, r.Phase, r.Migration)
		}
		if r.Phase == PhaseStarted || r.Phase == PhaseSending {
			return refuse("guest %s: asked to receive epoch %d, which already runs here", w.Name, w.Epoch)
		}
		return Decision{}
	}
	if d, ready := makeReady(o); !ready {
		return d
	}
	reserved := newRecord(w, PhaseReserved)
	reserved.Migration, reserved.Source = w.Migration.Id, w.Migration.SourceHost
	return act(Action{Kind: ActionRecord, Record: reserved})
}

// makeReady prepares for a guest under a new epoch; ready: everything is prepared.
func makeReady(o Observed) (d Decision, ready bool) {
	w := o.Wanted
	if o.occupied() {
		return act(Action{Kind: ActionInterrupt}), false // of an older epoch
	}
	if d, stale := endStale(o); stale {
		return d, false
	}
	switch {
	case o.Failure.Epoch == w.Epoch && o.Failure.Final:
		return fail(o), false
	case w.Migration.GetCancel():
		return Decision{}, false
	case o.Prepared == w.Epoch:
		return Decision{}, true
	case o.Operation == OperationPreparing || o.Backoff:
		return Decision{}, false
	}
	return act(Action{Kind: ActionPrepare}), false
}

// stepRestore restores a guest from a checkpoint, and leaves it paused. RUN resumes it.
func stepRestore(o Observed) Decision {
	r, w := o.Record, o.Wanted
	if r != nil && r.Epoch == w.Epoch {
		switch {
		case r.Phase == PhaseEnded:
			return Decision{}
		case r.Restore != w.Restore.Id:
			return refuse("guest %s: asked to restore epoch %d by restore %s, but that epoch is %s by restore %q", w.Name, w.Epoch, w.Restore.Id, r.Phase, r.Restore)
		case r.Phase == PhaseStarted || r.Phase == PhaseSending:
			return refuse("guest %s: asked to restore epoch %d, which already runs here", w.Name, w.Epoch)
		case r.Phase != PhaseReserved || o.Domain != domain.Absent || o.Operation != OperationNone || o.Backoff:
			return Decision{}
		case o.Failure.Epoch == w.Epoch && o.Failure.Final:
			return confirmEnd(o, OutcomeFailed, o.Failure.Message)
		}
		if o.Prepared != w.Epoch { // an earlier agent prepared it
			return act(Action{Kind: ActionPrepare})
		}
		return act(Action{Kind: ActionRestore})
	}
	if d, ready := makeReady(o); !ready {
		return d
	}
	reserved := newRecord(w, PhaseReserved)
	reserved.Restore = w.Restore.Id
	return act(Action{Kind: ActionRecord, Record: reserved}, Action{Kind: ActionRestore})
}

func stepOutgoing(o Observed) Decision {
	r, w := o.Record, o.Wanted
	if w.Migration == nil {
		return refuse("guest %s: asked to send it without a migration", w.Name)
	}
	if r == nil {
		if o.Domain != domain.Absent {
			d, _ := endStale(o)
			return d
		}
		return act(end(newRecord(w, PhaseEnded), OutcomeGone, "asked to send it, but there is no record of it here"))
	}
	if w.Epoch > r.Epoch {
		return refuse("guest %s: asked to send epoch %d, but only epoch %d is known here", w.Name, w.Epoch, r.Epoch)
	}
	switch r.Phase {
	case PhaseStarted:
		if o.Operation != OperationNone || w.Migration.Cancel {
			return Decision{}
		}
		if o.Domain == domain.Paused {
			return act(Action{Kind: ActionResume})
		}
		if o.Domain == domain.Running {
			return act(sending(r, w), Action{Kind: ActionSend})
		}
	case PhaseSending:
		another := r.Migration != w.Migration.Id
		if o.Operation == OperationSending && (w.Migration.Cancel || another) {
			return act(Action{Kind: ActionInterrupt})
		}
		if o.Operation == OperationNone && another && !w.Migration.Cancel && o.Domain == domain.Running {
			return act(sending(r, w), Action{Kind: ActionSend})
		}
	case PhaseEnded:
		return Decision{}
	default:
		return refuse("guest %s: asked to send epoch %d, which is only %s here", w.Name, w.Epoch, r.Phase)
	}
	return Decision{}
}

func act(actions ...Action) Decision { return Decision{Actions: actions} }

func refuse(format string, a ...any) Decision { return Decision{Problem: fmt.Sprintf(format, a...)} }

// confirmEnd records an end after it made sure that the guest has no process: the hypervisor may have lost sight of
// one. If the orders want the guest absent, such a process is killed; otherwise it runs on.
func confirmEnd(o Observed, outcome Outcome, message string) Decision {
	actions := []Action{{Kind: ActionConfirm}, end(o.Record, outcome, message)}
	if w := o.Wanted; w != nil && w.Role == v1.GuestRole_GUEST_ROLE_ABSENT && w.Epoch >= o.Record.Epoch {
		actions = append([]Action{{Kind: ActionDestroy}}, actions...)
	}
	return act(actions...)
}

// RoleName returns the name of a role for people.
func RoleName(role v1.GuestRole) string {
	switch role {
	case v1.GuestRole_GUEST_ROLE_RUN:
		return "RUN"
	case v1.GuestRole_GUEST_ROLE_ABSENT:
		return "ABSENT"
	case v1.GuestRole_GUEST_ROLE_INCOMING:
		return "INCOMING"
	case v1.GuestRole_GUEST_ROLE_OUTGOING:
		return "OUTGOING"
	}
	return "UNSPECIFIED"
}
