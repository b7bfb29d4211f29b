package sharing

// routes.go - for one blob in one site: which host fetches it from outside, and which from another host.

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// FanOut is the number of hosts that fetch a blob from one host at a time.
const FanOut = 2

// StallTime is how long the host that fetches a blob from outside may get no byte before another host takes over.
const StallTime = 20 * time.Second

// Host is Routes' view of a host of a site that is connected and able to share.
type Host struct {
	Name  string
	Wants bool // it needs the blob
	Whole bool // it has the whole blob, verified
	// Outside means that the host reports that it fetches the blob from outside the site.
	Outside bool
	Have    uint64 // bytes that it has while it fetches the blob
	// Idle is the time since the host last got a byte, or since it was chosen to fetch from outside, whichever is
	// shorter.
	Idle time.Duration
}

// Route says how one host gets the blob, and which hosts get it from there.
type Route struct {
	Outside bool     // it fetches the blob from outside the site
	Sources []string // otherwise: the hosts to fetch it from, in this order
	Readers []string // the hosts that have this host among their sources
	Reason  string   // for people
}

// Routes decides for one blob and the hosts of one site, in any order. last is the host that was chosen before to fetch
// from outside; empty if there is none. routes has an entry for each host that has or needs the blob. root is the host
// chosen now; it is empty if a host of the site has the blob or if no host needs it.
//
// While no host of the site has the whole blob, one host fetches it from outside. The hosts that need it form a tree
// below the hosts that have it, or below the chosen host. Each fetches from its parent, even while the parent is still
// fetching. If the parent fails, the host turns to its other ancestors.
func Routes(hosts []Host, last string) (routes map[string]Route, root string) {
	var holders, seekers []Host
	for _, h := range hosts {
		switch {
		case h.Whole:
			holders = append(holders, h)
		case h.Wants:
			seekers = append(seekers, h)
		}
	}
	byName := func(a, b Host) int { return cmp.Compare(a.Name, b.Name) }
	slices.SortFunc(holders, byName)
	slices.SortFunc(seekers, byName)
	routes = map[string]Route{}
	for _, h := range holders {
		routes[h.Name] = Route{Reason: "has it"}
	}
	roots := holders
	if len(holders) == 0 && len(seekers) > 0 {
		chosen, reason := chooseFetcher(seekers, last)
		root = chosen.Name
		routes[root] = Route{Outside: true, Reason: reason}
		roots = []Host{chosen}
		seekers = slices.DeleteFunc(seekers, func(h Host) bool { return h.Name == root })
	}
	tree := slices.Concat(roots, seekers)
	for i := len(roots); i < len(tree); i++ {
		sources := ancestors(tree, len(roots), i)
		routes[tree[i].Name] = Route{Sources: sources, Reason: "fetches it from " + sources[0] + ", a host of its site"}
	}
	for _, h := range tree {
		for _, source := range routes[h.Name].Sources {
			r := routes[source]
			r.Readers = append(r.Readers, h.Name)
			routes[source] = r
		}
	}
	return routes, root
}

// ancestors returns the hosts above tree[i], nearest first, followed by the other roots. The tree's first roots entries
// have no parent; all entries have up to FanOut children, in order.
func ancestors(tree []Host, roots, i int) []string {
	var names []string
	for i >= roots {
		i = (i - roots) / FanOut
		names = append(names, tree[i].Name)
	}
	for _, root := range tree[:roots] {
		if !slices.Contains(names, root.Name) {
			names = append(names, root.Name)
		}
	}
	return names
}

// chooseFetcher returns the seeker that fetches from outside. seekers are sorted by name.
func chooseFetcher(seekers []Host, last string) (chosen Host, reason string) {
	at := slices.IndexFunc(seekers, func(h Host) bool { return h.Name == last })
	switch {
	case at >= 0 && seekers[at].Idle < StallTime:
		return seekers[at], "fetches it for its site"
	case at >= 0:
		// Take the next host by name, and start again after the last, so that each gets a turn.
		next := seekers[(at+1)%len(seekers)]
		return next, fmt.Sprintf("fetches it for its site, since %s got nothing for %v", last, StallTime)
	}
	best := slices.MinFunc(seekers, func(a, b Host) int {
		return cmp.Or(-compareBool(a.Outside, b.Outside), -cmp.Compare(a.Have, b.Have), cmp.Compare(a.Name, b.Name))
	})
	return best, "fetches it for its site"
}

func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
}
