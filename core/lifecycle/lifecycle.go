// Package lifecycle decides when a guest that is not moving is placed, released and removed. It is pure, like package
// migration, and keeps the same invariant: a guest gets a new grant only when the copy under the old grant is known to
// be gone.
package lifecycle

import (
	"fmt"
	"strings"
	"time"

	v1 "watari/api/watariv1"
)

// MaxRestarts is the number of automatic restarts of a guest that ends by itself. After these a person has to act.
const MaxRestarts = 3

// WellAfter is the age of a copy at which the ends of earlier copies no longer count.
const WellAfter = time.Hour

// Restarts returns the guest's new count of restarts when its present copy, which lived for this long, has ended although it
// was wanted.
func Restarts(g *v1.Guest, lived time.Duration) uint32 {
	if lived >= WellAfter {
		return 1
	}
	return g.Restarts + 1
}

// Host is the host that holds the guest's grant, as the manager knows it.
type Host struct {
	Exists    bool
	Connected bool
	// Dead: a copy that started in the grant's boot cannot run, because the host has rebooted or is fenced.
	Dead bool
	// Fenced: an administrator has vouched that the host is off, or the fencing command has switched it off. It is also dead.
	Fenced bool
	// LeaseOver: the copy's lease has ended, so its host has ended the copy.
	LeaseOver bool
	// Current: the host has made its report under the present orders.
	Current bool
	// Bound: its agent has taken orders of this manager's term, so it refuses orders of earlier managers.
	Bound bool
	// Lived is how long ago the present copy was first granted; 0: not known.
	Lived time.Duration
	// Restores: the grant is for a restore from a checkpoint.
	Restores bool
	Guest    *v1.GuestObserved
}

// Act is an act on a guest.
type Act int

const (
	Nothing Act = iota
	// Place: no host holds the grant. Choose a host and give it the grant with a new epoch.
	Place
	// Release: the copy is known to be gone. Remove the grant, so that the guest can be placed or removed.
	Release
	// Fail: as Release, and do not start the guest again automatically.
	Fail
	// Remove: the guest is being deleted and has no copy. Remove its object.
	Remove
)

// Decision says what to do and why.
type Decision struct {
	Act     Act
	Message string
	// Restarts is the guest's new count of restarts if it ended although it was wanted; 0: the count stays.
	Restarts uint32
	// Avoid: the host could not start the guest, or its QEMU or KVM failed under it. Try another host first.
	Avoid bool
	// NeverRan: the host could not start the guest.
	NeverRan bool
	// Refused: the host could not restore the guest now, which does not count as a start. If no other host can, ask again after a
	// pause.
	Refused bool
}

// Step decides about one guest. deleting: the guest or its cluster is being deleted.
func Step(g *v1.Guest, h Host, deleting bool) Decision {
	if g.Host == "" {
		switch {
		case deleting:
			return Decision{Act: Remove}
		case g.Stopped || g.Failure != "":
			return Decision{}
		}
		return Decision{Act: Place}
	}
	if gone, why := copyGone(g, h); gone {
		return release(g, h, why, deleting)
	}
	if deleting || g.Stopped {
		// The host was ordered to end the guest. The guest is gone when the host, under these orders, no longer reports
		// it.
		if h.Connected && h.Current && h.Guest == nil {
			return Decision{Act: Release, Message: "stopped"}
		}
		if !h.Connected {
			return Decision{Message: fmt.Sprintf("waits for host %s to be reachable; if it is off for good: watari host remove --lost %s", g.Host, g.Host)}
		}
	}
	return Decision{}
}

// copyGone reports whether the copy under the present grant is known to be gone, and why.
func copyGone(g *v1.Guest, h Host) (bool, string) {
	if !h.Exists {
		return true, fmt.Sprintf("host %s was removed", g.Host)
	}
	switch {
	case h.Dead && h.Fenced:
		return true, fmt.Sprintf("host %s is known to be off", g.Host)
	case h.Dead:
		return true, fmt.Sprintf("host %s has rebooted", g.Host)
	case h.LeaseOver:
		return true, fmt.Sprintf("host %s was out of reach until the guest's lease ended", g.Host)
	}
	if h.Guest == nil || h.Guest.Epoch != g.Epoch || h.Guest.Process {
		return false, "" // a report with a process proves no end, even if the host has disconnected since
	}
	switch h.Guest.Condition {
	case v1.GuestCondition_GUEST_CONDITION_GONE, v1.GuestCondition_GUEST_CONDITION_SENT:
		return true, ended(h.Guest.Message)
	case v1.GuestCondition_GUEST_CONDITION_FAILED:
		// An agent with a full disk cannot record that the start failed. After a restart, an earlier manager's order
		// could make it start this epoch, unless it is bound to this manager's term.
		return h.Bound, "it could not be started: " + h.Guest.Message
	}
	return false, ""
}

// ended adds the host's message to an end.
func ended(message string) string {
	const what = "its QEMU ended"
	if more, is := strings.CutPrefix(message, "it ended"); is {
		return what + more
	}
	if message != "" {
		return what + ": " + message
	}
	return what
}

func release(g *v1.Guest, h Host, why string, deleting bool) Decision {
	if deleting || g.Stopped {
		return Decision{Act: Release, Message: why}
	}
	observed := h.Guest != nil && h.Guest.Epoch == g.Epoch
	failed := observed && h.Guest.Condition == v1.GuestCondition_GUEST_CONDITION_FAILED
	broken := observed && h.Guest.Condition == v1.GuestCondition_GUEST_CONDITION_GONE && h.Guest.Broken
	if failed {
		h.Lived = 0 // the guest never ran, however long the host tried
	}
	if failed && h.Guest.Refused && h.Restores {
		return Decision{Act: Release, Message: why, Avoid: true, NeverRan: true, Refused: true}
	}
	restarts := Restarts(g, h.Lived)
	// The death of a host is not the guest's fault.
	if h.Exists && !h.Dead && !h.LeaseOver && restarts > MaxRestarts {
		return Decision{Act: Fail, Message: fmt.Sprintf("%s; given up after %d starts; watari guest start %s tries again", why, restarts, g.Meta.GetName())}
	}
	return Decision{Act: Release, Message: why, Restarts: restarts, Avoid: failed || broken, NeverRan: failed}
}
