// Package lifecycle decides what becomes of a guest that is not being moved: where it gets a grant, when it is
// started anew, when nothing of it is left. It is pure, like package migration, and keeps the same promise: a
// new grant is given only when the copy of the old one is known not to exist.
package lifecycle

import (
	"fmt"
	"strings"
	"time"

	v1 "watari/api/watariv1"
)

// MaxRestarts is how often a guest that ends by itself is started again before a person has to look.
const MaxRestarts = 3

// WellAfter is how long a copy has to have lived for the ends of those before it to count no more.
const WellAfter = time.Hour

// Restarts is how often a guest has been started after an unwanted end, once it is after that of its present copy,
// which lived for so long.
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
	// Dead: what was started under the grant's boot cannot be running; the host was started anew or fenced.
	Dead bool
	// Fenced: an administrator has vouched that it is off. It is dead, too.
	Fenced bool
	// Alive: its agent sees a process of the guest, so the copy may run whatever else is reported.
	Alive bool
	// Current: what it reports was observed after it took up the present orders.
	Current bool
	// Bound: its agent has taken up orders of this manager's term, and so refuses those of managers before.
	Bound bool
	// Lived is how long ago the present copy was first granted; 0: not known.
	Lived time.Duration
	Guest *v1.GuestObserved
}

// Act is what is to be done about a guest.
type Act int

const (
	Nothing Act = iota
	// Place: no host holds a grant; choose one and give it a new epoch.
	Place
	// Release: the copy is known not to exist; take the grant away, so that the guest may be placed or removed.
	Release
	// Fail: as Release, and do not start it again by itself.
	Fail
	// Remove: it is to be deleted and nothing of it is left.
	Remove
)

// Decision says what to do and why.
type Decision struct {
	Act     Act
	Message string
	// Restarts is the guest's from now on, where it ended though it was wanted; 0: as they were.
	Restarts uint32
	// Avoid: the host could not start it; try another one first.
	Avoid bool
}

// Step decides about one guest. deleting: its cluster is being deleted.
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
		// The host was told to end it; it is gone once the host has taken that up and reports it no more.
		if h.Connected && h.Current && h.Guest == nil {
			return Decision{Act: Release, Message: "stopped"}
		}
		if !h.Connected {
			return Decision{Message: fmt.Sprintf("waits for host %s to be reachable; if it is off for good: watari host remove --lost %s", g.Host, g.Host)}
		}
	}
	return Decision{}
}

// copyGone tells whether the copy under the present grant is known not to exist (any more).
func copyGone(g *v1.Guest, h Host) (bool, string) {
	if !h.Exists {
		return true, fmt.Sprintf("host %s was removed", g.Host)
	}
	switch {
	case h.Dead && h.Fenced:
		return true, fmt.Sprintf("host %s was removed as lost", g.Host)
	case h.Dead:
		return true, fmt.Sprintf("host %s was started anew", g.Host)
	}
	if h.Guest == nil || h.Guest.Epoch != g.Epoch || h.Alive {
		return false, ""
	}
	switch h.Guest.Condition {
	case v1.GuestCondition_GUEST_CONDITION_GONE, v1.GuestCondition_GUEST_CONDITION_SENT:
		return true, ended(h.Guest.Message)
	case v1.GuestCondition_GUEST_CONDITION_FAILED:
		// An agent whose disk is full cannot write down that the start failed. Were it started anew, an earlier manager's
		// order could have it start this epoch after all, unless it is bound to this manager's term.
		return h.Bound, "it could not be started: " + h.Guest.Message
	}
	return false, ""
}

// ended adds what the host says of an end.
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
	failed := h.Guest != nil && h.Guest.Epoch == g.Epoch && h.Guest.Condition == v1.GuestCondition_GUEST_CONDITION_FAILED
	if failed {
		h.Lived = 0 // it never ran, however long it was tried
	}
	restarts := Restarts(g, h.Lived)
	// A host that died is no fault of the guest's.
	if h.Exists && !h.Dead && restarts > MaxRestarts {
		return Decision{Act: Fail, Message: fmt.Sprintf("%s; given up after %d starts; watari guest start %s tries again", why, restarts, g.Meta.GetName())}
	}
	return Decision{Act: Release, Message: why, Restarts: restarts, Avoid: failed}
}
