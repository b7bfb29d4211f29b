package agent

import (
	"context"
	"errors"
	"sync"
)

// domains is what the hypervisor said last of each guest. A listing that was begun before an agent's own act on
// a guest was done does not overrule the act's outcome.
type domains struct {
	hypervisor Hypervisor

	refreshing sync.Mutex // one listing at a time

	mu      sync.Mutex
	clock   uint64            // of listings and acts
	acted   map[string]uint64 // when an act's outcome was entered
	known   map[string]DomainInfo
	reached bool  // the last listing succeeded
	err     error // why it did not
	listed  bool  // any listing ever did
}

func newDomains(h Hypervisor) *domains {
	return &domains{hypervisor: h, acted: map[string]uint64{}, known: map[string]DomainInfo{}}
}

// refresh lists all domains and returns those whose state changed.
func (d *domains) refresh(ctx context.Context) (changed []string, err error) {
	d.refreshing.Lock()
	defer d.refreshing.Unlock()
	d.mu.Lock()
	d.clock++
	begun := d.clock
	d.mu.Unlock()
	list, err := d.hypervisor.List(ctx)
	d.mu.Lock()
	defer d.mu.Unlock()
	was := d.reached
	d.reached, d.err = err == nil, err
	if err != nil {
		if was {
			changed = d.uids()
		}
		return changed, err
	}
	d.listed = true
	next := map[string]DomainInfo{}
	for _, info := range list {
		next[info.UID] = info
	}
	for uid, at := range d.acted {
		if at <= begun {
			delete(d.acted, uid)
			continue
		}
		if info, ok := d.known[uid]; ok {
			next[uid] = info
		} else {
			delete(next, uid)
		}
	}
	for uid, info := range next {
		if d.known[uid].State != info.State || !was {
			changed = append(changed, uid)
		}
	}
	for uid := range d.known {
		if _, ok := next[uid]; !ok {
			changed = append(changed, uid)
		}
	}
	d.known = next
	return changed, nil
}

// lost: the hypervisor cannot be asked until a listing succeeds again.
func (d *domains) lost() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.reached, d.err = false, errLost
}

var errLost = errors.New("the connection was lost")

func (d *domains) uids() []string {
	var uids []string
	for uid := range d.known {
		uids = append(uids, uid)
	}
	return uids
}

// set enters the outcome of an act.
func (d *domains) set(uid, name string, state Domain) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.clock++
	d.acted[uid] = d.clock
	if state == DomainAbsent {
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
func (d *domains) get(uid string) (info DomainInfo, current bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	info, ok := d.known[uid]
	if !ok {
		info = DomainInfo{UID: uid, State: DomainAbsent}
		if !d.listed {
			info.State = DomainUnknown
		}
	}
	return info, d.reached
}

// all are the domains known.
func (d *domains) all() []DomainInfo {
	d.mu.Lock()
	defer d.mu.Unlock()
	list := make([]DomainInfo, 0, len(d.known))
	for _, info := range d.known {
		list = append(list, info)
	}
	return list
}

// heard: the hypervisor has listed its domains at least once.
func (d *domains) heard() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.listed
}

// problem says why the hypervisor cannot be asked.
func (d *domains) problem() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.err
}
