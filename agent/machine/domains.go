package machine

// domains.go - what the hypervisor said last of each domain. A listing that was begun before an act on a guest ended does
// not overrule the act's outcome.

import (
	"errors"
	"slices"
	"strings"
	"time"

	"watari/agent/domain"
)

const (
	// listAgainAfter is the pause before the hypervisor, which did not answer, is asked again.
	listAgainAfter = 2 * time.Second
	// listEvery is how often domains are listed though nothing is known to have happened: for their CPU time and memory.
	listEvery = 30 * time.Second
)

var errLost = errors.New("the connection was lost")

// domains is what is known of all domains. Listings are made one at a time.
type domains struct {
	clock   uint64            // of listings and acts
	acted   map[string]uint64 // when an act's outcome was entered, by uid
	known   map[string]domain.Info
	reached bool  // the last listing succeeded, and the hypervisor was not lost since
	err     error // why not
	listed  bool  // any listing ever did

	next    uint64 // number of the next listing
	current *listing
	again   bool // another listing is to follow the current one
	ended   time.Time
}

// listing is one that has not ended.
type listing struct {
	number, act uint64
	handedOut   bool
	begun       uint64 // by domains.clock
	begunAt     time.Time
}

func newDomains() domains {
	return domains{acted: map[string]uint64{}, known: map[string]domain.Info{}, next: 1}
}

// enter takes a listing's outcome up.
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

// set enters the outcome of an act.
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

// get is the last known state; current is false where the hypervisor cannot be asked now.
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

// all are the domains known, by uid.
func (d *domains) all() []domain.Info {
	list := make([]domain.Info, 0, len(d.known))
	for _, info := range d.known {
		list = append(list, info)
	}
	slices.SortFunc(list, func(x, y domain.Info) int { return strings.Compare(x.UID, y.UID) })
	return list
}
