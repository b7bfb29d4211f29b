package api

// unknown.go - hosts that have tried to connect and that the state does not know: they joined after the copy of it was made.

import (
	"maps"
	"slices"
	"sync"

	"watari/ca"
	"watari/manager/store"
)

// maxUnknownHosts bounds what is remembered. The authority has signed a certificate for each of them, so they are few.
const maxUnknownHosts = 10_000

// unknownHosts remembers, by uid, the names of hosts that were refused because the state does not know them. A recovery counts
// them as absent. They are remembered from before a hold on: the first host that connects may be one of them.
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

// accepted forgets the hosts of an accepted host's name: it may be one of them, and has joined again. The others are
// remembered anew when they try again, which takes them seconds.
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
