package sharing

// source.go - a host's own choice: where it fetches a blob from now.

import (
	"errors"
	"time"
)

// ErrNoSource says that a host is not told any more where to fetch a blob that only hosts have. It is to see what it is told
// now: to wait for another host's template, perhaps.
var ErrNoSource = errors.New("the manager names no host that has it")

const (
	// AbsentPause is how long a host waits before it asks again a source that had nothing of the blob yet.
	AbsentPause = 250 * time.Millisecond
	// AbsentPatience is how long a host waits for the nearest source to begin before it turns to the next: each host
	// would else fetch from the first that began.
	AbsentPatience = 2 * time.Second
	// FailedPause is the same for a source that could not be reached, or broke off.
	FailedPause = 2 * time.Second
	// Patience is how long a host fetches a blob without getting what counts before it turns to the manager by itself.
	Patience = time.Minute
)

// Plan is what the manager said about a blob.
type Plan struct {
	Told    bool     // it said anything: false for an older manager, or where sharing is off
	Manager bool     // fetch it from the manager
	Sources []string // else from these hosts, in this order
	// HostsOnly: the manager does not have the blob. Plan.Manager is false.
	HostsOnly bool
}

// Source is what a host remembers of one source, for one blob.
type Source struct {
	Damaged bool          // a blob that came from it had the wrong hash
	Absent  bool          // it had nothing of the blob when it was asked last
	Wait    time.Duration // until it may be asked again
}

// SourceKind says what to do.
type SourceKind int

// The kinds.
const (
	FromManager SourceKind = iota + 1
	FromHost
	Pause  // wait, for Choice.Wait at most
	GiveUp // no source is left
)

// Choice is what a host does next to get a blob.
type Choice struct {
	Kind   SourceKind
	Host   string        // FromHost
	Wait   time.Duration // Pause
	Reason string
}

// NextSource decides where a host fetches a blob from. seen has what it remembers of sources; quiet is the time since
// it got bytes of the blob, as many as count.
//
// A blob that only hosts have, and for which no host is named any more, is given up after OrderPatience.
//
// A host whose sources all sent damaged content, or that got nothing for Patience, turns to the manager, whatever it
// was told: no host waits forever.
func NextSource(p Plan, seen map[string]Source, quiet time.Duration) Choice {
	if !p.HostsOnly && (!p.Told || p.Manager) {
		return Choice{Kind: FromManager}
	}
	soonest, sound := Patience, false
	for _, name := range p.Sources {
		s := seen[name]
		if s.Damaged {
			continue
		}
		sound = true
		if s.Wait <= 0 {
			if quiet < Patience {
				return Choice{Kind: FromHost, Host: name}
			}
			continue
		}
		soonest = min(soonest, s.Wait)
		if s.Absent && quiet < AbsentPatience {
			break
		}
	}
	last := FromManager
	if p.HostsOnly {
		last = GiveUp
	}
	switch {
	case p.HostsOnly && len(p.Sources) == 0 && quiet >= OrderPatience:
		return Choice{Kind: GiveUp, Reason: ErrNoSource.Error()}
	case p.HostsOnly && len(p.Sources) == 0:
		return Choice{Kind: Pause, Wait: OrderPatience - quiet}
	case quiet >= Patience:
		return Choice{Kind: last, Reason: "nothing came from other hosts for " + Patience.String()}
	case len(p.Sources) > 0 && !sound:
		return Choice{Kind: last, Reason: "what other hosts sent was damaged"}
	}
	return Choice{Kind: Pause, Wait: min(soonest, Patience-quiet)}
}
