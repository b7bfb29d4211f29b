package api

// unknown.go - hosts that have tried to connect and that the state does not know, because they joined after the copy was
// made.

import (
	"maps"
	"slices"
	"sync"

	"watari/ca"
	"watari/manager/store"
)

// maxUnknownHosts bounds the remembered hosts. The authority has signed a certificate for each of them, so there are few.
const maxUnknownHosts = 10_000

// unknownHosts remembers, by uid, the names of hosts that were refused because the state does not know them. A recovery
// counts them as absent. Hosts are remembered even before a hold: the first host that connects may be one of them.
type unknownHosts struct {
	mu    sync.Mutex
	names map[string]string
}

// refused remembers a host, unless it was or is being removed.
func (u *unknownHosts) refused(snap *store.Snapshot, id ca.Identity) {
	if snap.Removed[id.UID] != nil || snap.Hosts[id.Name].GetMeta().GetUid() == id.UID {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.names == nil {
		u.names = map[string]string{}
	}
	if _, known := u.names[id.UID]; known || len(u.names) < maxUnknownHosts {
		u.names[id.UID] = id.Name
	}
}

// accepted forgets all hosts that have the name of an accepted host: it may be one of them that has joined again. The others
// try again within seconds, and are then remembered again.
func (u *unknownHosts) accepted(id ca.Identity) {
	u.mu.Lock()
	defer u.mu.Unlock()
	maps.DeleteFunc(u.names, func(_, name string) bool { return name == id.Name })
}

// list returns the names, sorted.
func (u *unknownHosts) list(snap *store.Snapshot) []string {
	u.mu.Lock()
	defer u.mu.Unlock()
	var names []string
	for uid, name := range u.names {
		if snap.Removed[uid] == nil {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}
