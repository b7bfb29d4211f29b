package agent

// facts.go - the part of reports from which a manager recovers lost objects of guests.

import (
	"maps"
	"slices"
	"sync"

	v1 "watari/api/watariv1"
)

// trim removes from a report what the manager already knows, if the manager has sent orders in this session: the facts of
// guests that the orders mention, and the epochs.
func trim(o *v1.HostObserved, mentioned func(uid string) bool) {
	for _, g := range o.Guests {
		if mentioned(g.Uid) {
			g.Facts = nil
		}
	}
	o.Epochs = nil
}

// epochs are the epochs of the records on disk, by guest uid.
type epochs struct {
	mu    sync.Mutex
	known map[string]uint64
}

func (e *epochs) note(uid string, epoch uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.known == nil {
		e.known = map[string]uint64{}
	}
	e.known[uid] = max(e.known[uid], epoch)
}

func (e *epochs) forget(uid string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.known, uid)
}

// list returns the epochs for the report, in the order of uids.
func (e *epochs) list() []*v1.KnownEpoch {
	e.mu.Lock()
	defer e.mu.Unlock()
	list := make([]*v1.KnownEpoch, 0, len(e.known))
	for _, uid := range slices.Sorted(maps.Keys(e.known)) {
		list = append(list, &v1.KnownEpoch{Uid: uid, Epoch: e.known[uid]})
	}
	return list
}
