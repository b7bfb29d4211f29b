package machine

// condition.go - derives a guest's reported condition.

import (
	"cmp"

	"watari/agent/domain"
	v1 "watari/api/watariv1"
)

// Report is a guest's state as the manager learns it.
type Report struct {
	Epoch     uint64
	Condition v1.GuestCondition
	Message   string
	Migration string
	RanOn     bool // as Record.RanOn
}

// Describe returns the report of a guest; false: nothing of the guest is here. It is pure. If the hypervisor does not
// answer, o.Domain is the last known state.
func Describe(o Observed) (Report, bool) {
	r, w := o.Record, o.Wanted
	if o.Unread != nil {
		return Report{Message: o.Unread.Error()}, true
	}
	if (r == nil || r.Phase == PhaseEnded) && o.Domain != domain.Absent && o.Domain != domain.Unknown {
		report := Report{Condition: v1.GuestCondition_GUEST_CONDITION_PAUSED, Message: "the host has no record of it"}
		if o.Domain == domain.Running {
			report.Condition = v1.GuestCondition_GUEST_CONDITION_RUNNING
		}
		if r != nil {
			report.Epoch, report.Message = r.Epoch, "it exists though this epoch had ended on this host"
		}
		return report, true
	}
	if r == nil || beginsAnew(o) {
		return describeBeginning(o)
	}
	report := Report{Epoch: r.Epoch, Message: r.Message, Migration: r.Migration, RanOn: r.ranOn()}
	if o.EarlierBoot && r.Phase != PhaseEnded && (o.Domain == domain.Absent || o.Domain == domain.Unknown) {
		report.Condition, report.Message = v1.GuestCondition_GUEST_CONDITION_GONE, "the host has rebooted"
		return report, true
	}
	switch r.Phase {
	case PhaseReserved:
		report.Condition = v1.GuestCondition_GUEST_CONDITION_RESERVED
	case PhaseReceiving:
		report.Condition = v1.GuestCondition_GUEST_CONDITION_RECEIVING
	case PhaseReceived:
		report.Condition = v1.GuestCondition_GUEST_CONDITION_RECEIVED
	case PhaseStarted:
		report.Condition, report.Message = describeStarted(o)
	case PhaseSending:
		report.Condition = v1.GuestCondition_GUEST_CONDITION_SENDING
		if sendFailed(o) {
			report.Condition = v1.GuestCondition_GUEST_CONDITION_SEND_FAILED
			report.Message = cmp.Or(r.Message, "the transfer was interrupted")
			if o.Failure.Epoch == r.Epoch && o.Failure.Message != "" {
				report.Message = o.Failure.Message
			}
		}
	case PhaseEnded:
		switch r.Outcome {
		case OutcomeFailed:
			report.Condition = v1.GuestCondition_GUEST_CONDITION_FAILED
		case OutcomeSent:
			report.Condition = v1.GuestCondition_GUEST_CONDITION_SENT
		case OutcomeForgotten:
			if w == nil || w.Role == v1.GuestRole_GUEST_ROLE_ABSENT || w.Epoch != r.Epoch {
				return Report{}, false
			}
			report.Condition = v1.GuestCondition_GUEST_CONDITION_GONE
			report.Message = "this epoch was given up on this host before"
		default:
			report.Condition = v1.GuestCondition_GUEST_CONDITION_GONE
		}
	}
	return report, true
}

// beginsAnew reports whether the host prepares a newer epoch than the record's, and nothing of the older epoch exists.
func beginsAnew(o Observed) bool {
	if o.Wanted == nil || o.Wanted.Epoch <= o.Record.Epoch || o.Domain != domain.Absent || o.occupied() {
		return false
	}
	switch o.Record.Phase {
	case PhaseStarted, PhaseSending, PhaseReceived: // the end is not on disk yet
		return false
	}
	return o.Wanted.Role == v1.GuestRole_GUEST_ROLE_RUN || o.Wanted.Role == v1.GuestRole_GUEST_ROLE_INCOMING
}

func describeBeginning(o Observed) (Report, bool) {
	w := o.Wanted
	if w == nil || w.Role != v1.GuestRole_GUEST_ROLE_RUN && w.Role != v1.GuestRole_GUEST_ROLE_INCOMING {
		return Report{}, false
	}
	report := Report{Epoch: w.Epoch, Condition: v1.GuestCondition_GUEST_CONDITION_STARTING, Migration: w.Migration.GetId()}
	if o.Failure.Epoch == w.Epoch {
		report.Message = o.Failure.Message // the record tells that the guest has failed for good
	}
	return report, true
}

func describeStarted(o Observed) (v1.GuestCondition, string) {
	w := o.Wanted
	if w != nil && w.Role == v1.GuestRole_GUEST_ROLE_OUTGOING && w.Migration.GetCancel() && w.Epoch == o.Record.Epoch &&
		(o.Domain == domain.Running || o.Domain == domain.Paused) {
		return v1.GuestCondition_GUEST_CONDITION_SEND_FAILED, "the transfer was cancelled before it began"
	}
	if o.Operation == OperationStarting {
		return v1.GuestCondition_GUEST_CONDITION_STARTING, ""
	}
	switch o.Domain {
	case domain.Running:
		return v1.GuestCondition_GUEST_CONDITION_RUNNING, ""
	case domain.Paused, domain.Ending:
		return v1.GuestCondition_GUEST_CONDITION_PAUSED, ""
	case domain.Unknown:
		return v1.GuestCondition_GUEST_CONDITION_RUNNING, "it ran when the hypervisor could last be asked"
	}
	return v1.GuestCondition_GUEST_CONDITION_STARTING, ""
}

// sendFailed reports whether a transfer has failed. The manager then ends the target's copy, so it must be known that this
// host has the guest.
func sendFailed(o Observed) bool {
	here := !o.Stale && !o.SendDone && (o.Domain == domain.Running || o.Domain == domain.Paused)
	return o.Record.Phase == PhaseSending && o.Operation != OperationSending && here
}
