// Package migration decides how a live move of a guest proceeds. It is pure, without I/O and without a clock. Step gets
// a migration's record and the hosts' reports, and returns the next state and whether the grant passes on.
// docs/design/migration.md lists the states and each host's orders in them.
//
// Two invariants hold whatever fails. At most one host holds the grant for a guest. The target's copy is resumed only
// after the source's copy is known to be gone.
package migration

import (
	"fmt"
	"time"

	v1 "watari/api/watariv1"
)

// RouteWait is how long a switch waits until hosts confirm the guest's new route. A slower host sends its messages to
// the guest by way of the source until it has the route.
const RouteWait = 500 * time.Millisecond

// ReserveWait is the time limit for a connected target to reserve resources, including the transfer of images.
const ReserveWait = 10 * time.Minute

// AwayWait is how long a host may be disconnected before a move without a complete transfer is rolled back.
const AwayWait = 15 * time.Second

// Host is one end of a move, as the manager knows it.
type Host struct {
	Connected bool
	// Away is how long the host has been disconnected.
	Away time.Duration
	// Dead: no guest that started on the host before the migration runs, because the host has rebooted or is fenced.
	Dead bool
	// Fenced: the host is off, or has ended the guest, and will not report how the guest ended. Either a person has vouched
	// for that, or the guest's lease is over. The host is also dead.
	Fenced bool
	// Current: the host has made its report under the present orders.
	Current bool
	// Guest is the host's report of the guest; nil: it reports none.
	Guest *v1.GuestObserved
}

// Observed is the input of a step besides the record.
type Observed struct {
	Source, Target Host
	// InState is how long the record has been in its state.
	InState time.Duration
	// RoutesSet: every connected host of the cluster has the guest's new route in force.
	RoutesSet bool
	// Unwanted: the guest is being deleted or stopped.
	Unwanted bool
	// Turn: the limits on concurrent moves let this one begin.
	Turn bool
}

// Grant says what a step does to the guest's grant.
type Grant int

const (
	GrantStays    Grant = iota // it stays where it is
	GrantToTarget              // it passes to the target, at the target's epoch
	GrantLost                  // both copies are gone; the guest must be started again
)

// Decision is the result of a step. State equals the record's if nothing changes.
type Decision struct {
	State   v1.MigrationState
	Grant   Grant
	Message string
}

// Ended reports whether a state is final.
func Ended(state v1.MigrationState) bool {
	switch state {
	case v1.MigrationState_MIGRATION_STATE_DONE, v1.MigrationState_MIGRATION_STATE_FAILED,
		v1.MigrationState_MIGRATION_STATE_CANCELLED:
		return true
	}
	return false
}

// RoutedToTarget reports whether hosts send the guest's messages to the target.
func RoutedToTarget(state v1.MigrationState) bool {
	switch state {
	case v1.MigrationState_MIGRATION_STATE_SWITCHING, v1.MigrationState_MIGRATION_STATE_RESUMING,
		v1.MigrationState_MIGRATION_STATE_DONE:
		return true
	}
	return false
}

// Roles returns the roles that the two hosts are ordered to take in a state. UNSPECIFIED: no order.
func Roles(state v1.MigrationState) (source, target v1.GuestRole) {
	switch state {
	case v1.MigrationState_MIGRATION_STATE_RESERVING:
		return v1.GuestRole_GUEST_ROLE_RUN, v1.GuestRole_GUEST_ROLE_INCOMING
	case v1.MigrationState_MIGRATION_STATE_TRANSFERRING, v1.MigrationState_MIGRATION_STATE_SWITCHING:
		return v1.GuestRole_GUEST_ROLE_OUTGOING, v1.GuestRole_GUEST_ROLE_INCOMING
	case v1.MigrationState_MIGRATION_STATE_RESUMING, v1.MigrationState_MIGRATION_STATE_DONE:
		return v1.GuestRole_GUEST_ROLE_ABSENT, v1.GuestRole_GUEST_ROLE_RUN
	default:
		return v1.GuestRole_GUEST_ROLE_RUN, v1.GuestRole_GUEST_ROLE_ABSENT
	}
}

// Step decides the next state of a migration.
func Step(m *v1.Migration, o Observed) Decision {
	if o.Unwanted && !Ended(m.State) {
		// Both hosts are ordered to end the guest, and a copy without a grant is never resumed. So there is nothing to
		// wait for.
		return cancelled("the guest is being stopped")
	}
	switch m.State {
	case v1.MigrationState_MIGRATION_STATE_PENDING:
		return pending(m, o)
	case v1.MigrationState_MIGRATION_STATE_RESERVING:
		return reserving(m, o)
	case v1.MigrationState_MIGRATION_STATE_TRANSFERRING:
		return transferring(m, o)
	case v1.MigrationState_MIGRATION_STATE_SWITCHING:
		return switching(m, o)
	case v1.MigrationState_MIGRATION_STATE_RESUMING:
		return resuming(m, o)
	case v1.MigrationState_MIGRATION_STATE_ROLLING_BACK:
		return rollingBack(m, o)
	}
	return stay(m)
}

func stay(m *v1.Migration) Decision { return Decision{State: m.State, Message: m.Message} }

func waitFor(m *v1.Migration, format string, a ...any) Decision {
	return Decision{State: m.State, Message: fmt.Sprintf(format, a...)}
}

func cancelled(message string) Decision {
	return Decision{State: v1.MigrationState_MIGRATION_STATE_CANCELLED, Message: message}
}

func rollBack(format string, a ...any) Decision {
	return Decision{State: v1.MigrationState_MIGRATION_STATE_ROLLING_BACK, Message: fmt.Sprintf(format, a...)}
}

func lost(format string, a ...any) Decision {
	return Decision{State: v1.MigrationState_MIGRATION_STATE_FAILED, Grant: GrantLost, Message: fmt.Sprintf(format, a...)}
}

// at returns the condition of the copy with this epoch; UNSPECIFIED if the host reports none.
func at(h Host, epoch uint64) v1.GuestCondition {
	if h.Guest == nil || h.Guest.Epoch != epoch {
		return v1.GuestCondition_GUEST_CONDITION_UNSPECIFIED
	}
	return h.Guest.Condition
}

// unread reports whether a host has a record of the guest that it cannot read now.
func unread(h Host) bool { return h.Guest != nil && h.Guest.Epoch == 0 }

// gone reports whether the copy with this epoch is gone. A process of the copy is evidence that it is not.
func gone(h Host, epoch uint64) bool {
	return at(h, epoch) == v1.GuestCondition_GUEST_CONDITION_GONE && !h.Guest.GetProcess()
}

func pending(m *v1.Migration, o Observed) Decision {
	switch {
	case m.Cancel:
		return cancelled("cancelled before it began")
	case o.Source.Dead, at(o.Source, m.SourceEpoch) == v1.GuestCondition_GUEST_CONDITION_GONE:
		return Decision{State: v1.MigrationState_MIGRATION_STATE_FAILED, Message: "the guest ended before the move began"}
	case o.Target.Dead || !o.Target.Connected && o.Target.Away > AwayWait:
		return Decision{State: v1.MigrationState_MIGRATION_STATE_FAILED,
			Message: fmt.Sprintf("host %s is not reachable; the guest stays on %s", m.Target, m.Source)}
	case !o.Turn:
		return waitFor(m, "waits for other moves of these hosts")
	case !o.Source.Connected || !o.Target.Connected:
		return waitFor(m, "waits for its hosts to be connected")
	case at(o.Source, m.SourceEpoch) != v1.GuestCondition_GUEST_CONDITION_RUNNING:
		return waitFor(m, "waits for the guest to run")
	}
	return Decision{State: v1.MigrationState_MIGRATION_STATE_RESERVING}
}

func reserving(m *v1.Migration, o Observed) Decision {
	switch condition := at(o.Target, m.TargetEpoch); {
	case m.Cancel:
		return rollBack("cancelled")
	case o.Source.Dead, at(o.Source, m.SourceEpoch) == v1.GuestCondition_GUEST_CONDITION_GONE:
		return rollBack("the guest ended on %s before its memory was sent", m.Source)
	case o.Target.Dead:
		return rollBack("host %s rebooted before it had made room", m.Target)
	case !o.Target.Connected && o.Target.Away > AwayWait:
		return rollBack("host %s is not reachable", m.Target)
	case condition == v1.GuestCondition_GUEST_CONDITION_FAILED && o.Target.Current:
		return rollBack("host %s cannot take it: %s", m.Target, o.Target.Guest.GetMessage())
	case condition == v1.GuestCondition_GUEST_CONDITION_GONE && o.Target.Current:
		return rollBack("host %s has given this move up before: %s", m.Target, o.Target.Guest.GetMessage())
	case o.InState > ReserveWait:
		return rollBack("host %s did not make room within %s", m.Target, ReserveWait)
	case condition == v1.GuestCondition_GUEST_CONDITION_RESERVED:
		if !o.Source.Connected {
			return waitFor(m, "waits for host %s to be connected", m.Source)
		}
		return Decision{State: v1.MigrationState_MIGRATION_STATE_TRANSFERRING}
	}
	if step := o.Target.Guest.GetStep(); step != "" {
		return waitFor(m, "host %s: %s", m.Target, step)
	}
	return stay(m)
}

func transferring(m *v1.Migration, o Observed) Decision {
	received := at(o.Target, m.TargetEpoch) == v1.GuestCondition_GUEST_CONDITION_RECEIVED
	switch at(o.Source, m.SourceEpoch) {
	case v1.GuestCondition_GUEST_CONDITION_SENT:
		// From now on only the target has a copy, so even a cancelled move must be completed.
		return Decision{State: v1.MigrationState_MIGRATION_STATE_SWITCHING}
	case v1.GuestCondition_GUEST_CONDITION_SENDING:
		if received && handedOver(m, o) {
			return Decision{State: v1.MigrationState_MIGRATION_STATE_SWITCHING}
		}
	case v1.GuestCondition_GUEST_CONDITION_SEND_FAILED:
		if m.Cancel {
			return rollBack("cancelled")
		}
		return rollBack("the transfer failed: %s", o.Source.Guest.GetMessage())
	case v1.GuestCondition_GUEST_CONDITION_GONE:
		// The source's QEMU ended without libvirt's confirmation.
		if o.Source.Guest.GetProcess() {
			return waitFor(m, "host %s reports that the guest ended, and has a process of it", m.Source)
		}
		if o.Source.Guest.GetRanOn() && o.Source.Guest.MigrationId == m.GetMeta().GetUid() {
			// Others may have heard from the guest since, so the target's copy must never run.
			return rollBack("the transfer failed, and the guest ended on %s afterwards", m.Source)
		}
		if received {
			return Decision{State: v1.MigrationState_MIGRATION_STATE_SWITCHING}
		}
		if hasNot(m, o) {
			return rollBack("the guest ended on %s during the transfer", m.Source)
		}
		return waitFor(m, "the guest ended on %s; waits for host %s to report whether it has received the complete guest", m.Source, m.Target)
	}
	switch {
	case o.Source.Fenced:
		// Nobody can say any more whether the guest ran on there after the transfer.
		return lost("host %s was lost while the guest's memory was being sent", m.Source)
	case o.Source.Dead && unread(o.Source):
		return waitFor(m, "host %s died and cannot read its record of the guest yet", m.Source)
	case o.Source.Dead && received:
		return Decision{State: v1.MigrationState_MIGRATION_STATE_SWITCHING}
	case o.Source.Dead && hasNot(m, o):
		return lost("host %s died while the guest's memory was being sent", m.Source)
	case o.Source.Dead:
		return waitFor(m, "host %s died; waits for host %s to report whether it has received the complete guest", m.Source, m.Target)
	case !o.Source.Connected:
		return waitFor(m, "host %s is not reachable; the guest runs there, or is whole on %s", m.Source, m.Target)
	case m.Cancel && o.Source.Current && at(o.Source, m.SourceEpoch) == v1.GuestCondition_GUEST_CONDITION_RUNNING:
		return rollBack("cancelled") // the source has the order to cancel and has not begun to send
	}
	return stay(m)
}

// hasNot reports whether the target has no complete copy and will not get one. While the target reports that it is
// receiving, the last bytes may have come without its agent's knowledge.
func hasNot(m *v1.Migration, o Observed) bool {
	if unread(o.Target) && !o.Target.Dead {
		return false
	}
	return o.Target.Dead || o.Target.Connected && o.Target.Current &&
		at(o.Target, m.TargetEpoch) != v1.GuestCondition_GUEST_CONDITION_RECEIVING
}

// handedOver reports whether the source's copy stopped for the transfer, did not go on, and has no process any more. The
// copy may also have died before the target had all of it.
func handedOver(m *v1.Migration, o Observed) bool {
	return o.Source.Connected && at(o.Source, m.SourceEpoch) == v1.GuestCondition_GUEST_CONDITION_SENDING && o.Source.Guest.GetHandedOver() &&
		!o.Source.Guest.GetProcess()
}

// sourceGone reports whether the source's copy is known to be gone.
func sourceGone(m *v1.Migration, o Observed) bool {
	sent := at(o.Source, m.SourceEpoch) == v1.GuestCondition_GUEST_CONDITION_SENT && !o.Source.Guest.GetProcess()
	return o.Source.Dead || sent || gone(o.Source, m.SourceEpoch) || handedOver(m, o)
}

func switching(m *v1.Migration, o Observed) Decision {
	switch condition := at(o.Target, m.TargetEpoch); {
	case o.Target.Dead, gone(o.Target, m.TargetEpoch),
		condition == v1.GuestCondition_GUEST_CONDITION_FAILED && o.Target.Current:
		if !sourceGone(m, o) {
			return rollBack("the guest's copy on %s is gone", m.Target)
		}
		return lost("the guest's only copy was on %s and is gone", m.Target)
	case !sourceGone(m, o):
		return waitFor(m, "waits for host %s to confirm that its copy is gone", m.Source)
	case !o.Target.Connected:
		return waitFor(m, "the guest is whole on %s, which is not reachable", m.Target)
	case condition != v1.GuestCondition_GUEST_CONDITION_RECEIVED:
		return waitFor(m, "waits for host %s to confirm that it has all of the guest", m.Target)
	case !o.RoutesSet && o.InState < RouteWait:
		return stay(m)
	}
	return Decision{State: v1.MigrationState_MIGRATION_STATE_RESUMING, Grant: GrantToTarget}
}

func resuming(m *v1.Migration, o Observed) Decision {
	switch condition := at(o.Target, m.TargetEpoch); {
	case condition == v1.GuestCondition_GUEST_CONDITION_RUNNING:
		return Decision{State: v1.MigrationState_MIGRATION_STATE_DONE}
	case o.Target.Dead, gone(o.Target, m.TargetEpoch),
		condition == v1.GuestCondition_GUEST_CONDITION_FAILED:
		// The target already holds the grant, so the guest ended like any other guest of that host.
		return Decision{State: v1.MigrationState_MIGRATION_STATE_FAILED,
			Message: fmt.Sprintf("the guest arrived on %s and ended there: %s", m.Target, o.Target.Guest.GetMessage())}
	case !o.Target.Connected:
		return waitFor(m, "waits for host %s to be reachable", m.Target)
	}
	return stay(m)
}

func rollingBack(m *v1.Migration, o Observed) Decision {
	end := v1.MigrationState_MIGRATION_STATE_FAILED
	if m.Cancel {
		end = v1.MigrationState_MIGRATION_STATE_CANCELLED
	}
	condition := at(o.Source, m.SourceEpoch)
	switch {
	case sourceGone(m, o):
		return Decision{State: end, Message: m.Message}
	case condition != v1.GuestCondition_GUEST_CONDITION_RUNNING:
		return stay(m)
	case o.Target.Connected && !o.Target.Dead && at(o.Target, m.TargetEpoch) != v1.GuestCondition_GUEST_CONDITION_UNSPECIFIED && o.InState < AwayWait:
		return stay(m) // the target is removing its copy
	}
	return Decision{State: end, Message: fmt.Sprintf("%s; the guest continues on %s", m.Message, m.Source)}
}
