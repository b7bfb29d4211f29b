package vm

// state.go - converts libvirt's states and reasons to Watari's.

import (
	"errors"
	"fmt"

	"libvirt.org/go/libvirt"
)

// pausedReasons are libvirt's words for why a domain does not run.
var pausedReasons = map[libvirt.DomainPausedReason]string{
	libvirt.DOMAIN_PAUSED_USER:            "user",
	libvirt.DOMAIN_PAUSED_MIGRATION:       "migration",
	libvirt.DOMAIN_PAUSED_SAVE:            "save",
	libvirt.DOMAIN_PAUSED_DUMP:            "dump",
	libvirt.DOMAIN_PAUSED_IOERROR:         "ioerror",
	libvirt.DOMAIN_PAUSED_WATCHDOG:        "watchdog",
	libvirt.DOMAIN_PAUSED_FROM_SNAPSHOT:   "from snapshot",
	libvirt.DOMAIN_PAUSED_SHUTTING_DOWN:   "shutting down",
	libvirt.DOMAIN_PAUSED_SNAPSHOT:        "snapshot",
	libvirt.DOMAIN_PAUSED_CRASHED:         "crashed",
	libvirt.DOMAIN_PAUSED_STARTING_UP:     "starting up",
	libvirt.DOMAIN_PAUSED_POSTCOPY:        "post-copy",
	libvirt.DOMAIN_PAUSED_POSTCOPY_FAILED: "post-copy failed",
}

var runningReasons = map[libvirt.DomainRunningReason]string{
	libvirt.DOMAIN_RUNNING_BOOTED:             "booted",
	libvirt.DOMAIN_RUNNING_MIGRATED:           "migrated",
	libvirt.DOMAIN_RUNNING_RESTORED:           "restored",
	libvirt.DOMAIN_RUNNING_UNPAUSED:           "unpaused",
	libvirt.DOMAIN_RUNNING_MIGRATION_CANCELED: "migration canceled",
	libvirt.DOMAIN_RUNNING_SAVE_CANCELED:      "save canceled",
}

// domainState converts libvirt's state and reason.
func domainState(state libvirt.DomainState, reason int) (State, string) {
	switch state {
	case libvirt.DOMAIN_RUNNING, libvirt.DOMAIN_BLOCKED:
		return StateRunning, word(runningReasons, libvirt.DomainRunningReason(reason))
	case libvirt.DOMAIN_PAUSED:
		why := libvirt.DomainPausedReason(reason)
		switch why {
		case libvirt.DOMAIN_PAUSED_STARTING_UP:
			return StateStarting, word(pausedReasons, why)
		case libvirt.DOMAIN_PAUSED_SHUTTING_DOWN:
			return StateEnding, word(pausedReasons, why)
		}
		return StatePaused, word(pausedReasons, why)
	case libvirt.DOMAIN_SHUTDOWN:
		return StateEnding, "shutdown"
	case libvirt.DOMAIN_SHUTOFF:
		return StateGone, "shutoff"
	case libvirt.DOMAIN_CRASHED:
		return StateGone, "crashed"
	case libvirt.DOMAIN_PMSUSPENDED:
		return StatePaused, "suspended by the guest"
	case libvirt.DOMAIN_NOSTATE:
		return StateStarting, "no state"
	}
	return StateUnknown, fmt.Sprintf("state %d, reason %d", state, reason)
}

func word[K ~int | ~uint32](words map[K]string, reason K) string {
	if w := words[reason]; w != "" {
		return w
	}
	return fmt.Sprintf("reason %d", reason)
}

func migrating(state libvirt.DomainState, reason int) bool {
	return state == libvirt.DOMAIN_PAUSED && libvirt.DomainPausedReason(reason) == libvirt.DOMAIN_PAUSED_MIGRATION
}

// receives reports whether a domain that is paused "for migration" is an incomplete target. A guest at the source has
// the same reason between its stop and libvirt's confirmation. libvirt refuses the statistics of a target, which
// distinguishes the two; newer versions name the operation.
func receives(domain *libvirt.Domain) bool {
	info, err := domain.GetJobStats(0)
	var e libvirt.Error
	if errors.As(err, &e) {
		return e.Code == libvirt.ERR_OPERATION_UNSUPPORTED
	}
	return info != nil && info.OperationSet && info.Operation == libvirt.DOMAIN_JOB_OPERATION_MIGRATION_IN
}
