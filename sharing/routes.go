package sharing

// routes.go - one blob in one site: who fetches it from outside, and who from whom.

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// FanOut is how many hosts fetch a blob from one host at a time.
const FanOut = 2

// StallTime is after how long without a byte the host that fetches a blob from outside is relieved by another.
const StallTime = 20 * time.Second

// Host is a host of a site as Routes sees it: connected, and able to share.
type Host struct {
	Name  string
	Wants bool // it is to have the blob
	Whole bool // it has the blob, verified
	// Outside: it reports that it fetches the blob from outside the site.
	Outside bool
	Have    uint64 // bytes, while it fetches the blob
	// Idle is the time since it last got a byte, or since it was chosen to fetch from outside, whichever is less.
	Idle time.Duration
}

// Route is how one host comes by the blob, and which hosts it passes the blob on to.
type Route struct {
	Outside bool     // it fetches the blob from outside the site
	Sources []string // else: the hosts to fetch it from, in this order
	Readers []string // the hosts that have this one among their sources
	Reason  string   // for people
}

// Routes decides for one blob and the hosts of one site, in any order. last is the host that was chosen to fetch
// from outside before; empty: none. The answer has a route for each host that has the blob or is to have it; root is
// the host that is chosen now, empty where a host of the site has the blob or none wants it.
//
// One host fetches from outside while no host of the site has the blob whole. The hosts that want it form a tree
// below those that have it, or below the chosen one: each fetches from its parent while that still fetches itself.
// Where the parent fails, its ancestors are next.
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
		chosen, reason := choose(seekers, last)
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

// ancestors are the hosts above tree[i], the nearest first, and then the other roots. The first roots of the tree have
// no parent; the others have FanOut children each, in order.
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

// choose says which of the seekers, sorted by name, fetches from outside.
func choose(seekers []Host, last string) (chosen Host, reason string) {
	at := slices.IndexFunc(seekers, func(h Host) bool { return h.Name == last })
	switch {
	case at >= 0 && seekers[at].Idle < StallTime:
		return seekers[at], "fetches it for its site"
	case at >= 0:
		// The next by name, round and round, so that each has its turn.
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
