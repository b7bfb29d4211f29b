package sharing

// source.go - a host's choice of the source from which it fetches a blob.

import (
	"errors"
	"time"
)

// ErrNoSource means that the manager no longer names a source for a blob that only hosts have. The host should read its
// current order: perhaps it should wait for another host's template.
var ErrNoSource = errors.New("the manager names no host that has it")

const (
	// AbsentPause is the time before a host asks again a source that had nothing of the blob yet.
	AbsentPause = 250 * time.Millisecond
	// AbsentPatience is how long a host waits for the nearest source to begin before it tries the next. Otherwise all
	// hosts would fetch from the first host that began.
	AbsentPatience = 2 * time.Second
	// FailedPause is the time before a host asks again a source that was unreachable or broke off.
	FailedPause = 2 * time.Second
	// Patience is how long a host fetches a blob without enough progress before it turns to the manager by itself.
	Patience = time.Minute
)

// Plan is the manager's answer about a blob.
type Plan struct {
	Told    bool     // there is an answer; false with an older manager, or if sharing is off
	Manager bool     // fetch it from the manager
	Sources []string // otherwise fetch it from these hosts, in this order
	// HostsOnly means that the manager does not have the blob. Manager is false then.
	HostsOnly bool
}

// Source is what a host knows of one source of one blob.
type Source struct {
	Damaged bool          // a blob from it had the wrong hash
	Absent  bool          // it had nothing of the blob when last asked
	Wait    time.Duration // time until it may be asked again
}

// SourceKind is the kind of a Choice.
type SourceKind int

// The kinds of choices.
const (
	FromManager SourceKind = iota + 1
	FromHost
	Pause  // wait, for Choice.Wait at most
	GiveUp // no source is left
)

// Choice is a host's next step to get a blob.
type Choice struct {
	Kind   SourceKind
	Host   string        // FromHost
	Wait   time.Duration // Pause
	Reason string
}

// NextSource decides where a host fetches a blob from. seen has the host's knowledge of its sources. quiet is the time since
// it last made enough progress with the blob.
//
// If only hosts have the blob and the manager names none, the host gives up after OrderPatience.
//
// If all sources sent damaged content, or if there was no progress for Patience, the host turns to the manager,
// whatever the plan says. So no host waits forever.
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
