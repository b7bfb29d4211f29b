package machine

// domains.go - the last known state of each domain. A listing that began before an act on a guest ended does not
// overrule the act's result.

import (
	"errors"
	"slices"
	"strings"
	"time"

	"watari/agent/domain"
)

const (
	// listAgainAfter is the pause after a listing that failed.
	listAgainAfter = 2 * time.Second
	// listEvery is the period of listings without an event. They read the domains' CPU time and memory.
	listEvery = 30 * time.Second
)

var errLost = errors.New("the connection was lost")

// domains is the known state of all domains. At most one listing is under way.
type domains struct {
	clock   uint64            // of listings and acts
	acted   map[string]uint64 // by uid: when the result of the last act was entered
	known   map[string]domain.Info
	reached bool  // the last listing succeeded, and the hypervisor was not lost since
	err     error // why the last listing failed
	listed  bool  // at least one listing succeeded

	next    uint64 // number of the next listing
	current *listing
	again   bool // another listing must follow the current one
	ended   time.Time
}

// listing is a listing that has not ended.
type listing struct {
	number, act uint64
	handedOut   bool
	begun       uint64 // by domains.clock
	begunAt     time.Time
}

func newDomains() domains {
	return domains{acted: map[string]uint64{}, known: map[string]domain.Info{}, next: 1}
}

// enter stores the result of a listing.
func (d *domains) enter(l *listing, now time.Time, list []domain.Info, err error) {
	d.ended = now
	d.reached, d.err = err == nil, err
	if err != nil {
		return
	}
	d.listed = true
	next := map[string]domain.Info{}
	for _, info := range list {
		next[info.UID] = info
	}
	for uid, at := range d.acted {
		if at <= l.begun {
			delete(d.acted, uid)
			continue
		}
		if info, ok := d.known[uid]; ok {
			next[uid] = info
		} else {
			delete(next, uid)
		}
	}
	d.known = next
}

// set stores the state that an act has caused.
func (d *domains) set(uid, name string, state domain.State) {
	d.clock++
	d.acted[uid] = d.clock
	if state == domain.Absent {
		delete(d.known, uid)
		return
	}
	info := d.known[uid]
	info.UID, info.State = uid, state
	if name != "" {
		info.Name = name
	}
	d.known[uid] = info
}

// get returns the last known state of a domain. current is false while the hypervisor does not answer.
func (d *domains) get(uid string) (info domain.Info, current bool) {
	info, ok := d.known[uid]
	if !ok {
		info = domain.Info{UID: uid, State: domain.Absent}
		if !d.listed {
			info.State = domain.Unknown
		}
	}
	return info, d.reached
}

// all returns the known domains in the order of their uids.
func (d *domains) all() []domain.Info {
	list := make([]domain.Info, 0, len(d.known))
	for _, info := range d.known {
		list = append(list, info)
	}
	slices.SortFunc(list, func(x, y domain.Info) int { return strings.Compare(x.UID, y.UID) })
	return list
}
