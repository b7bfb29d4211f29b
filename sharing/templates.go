package sharing

// templates.go - one template: who makes it, who waits, who fetches it.

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// UsualMaking is how long making a template is expected to take where no host has told. It is long: others then wait
// until a maker gives up by itself, after 3 minutes. A busy machine without KVM has taken two.
const UsualMaking = 2 * time.Minute

// TemplateState is how far a host is with a template.
type TemplateState int

// The states.
const (
	Wanted TemplateState = iota + 1
	Making
	Held
	Failed // it could not be made there
)

// TemplateHost is a connected host as Templates sees it, for one template's key.
type TemplateHost struct {
	Name, Site string
	Group      string // trust group; empty: the host trusts no other
	State      TemplateState
	// Held: the packed template, and the group it was fetched in; empty: it was made there.
	Digest    string
	Size      uint64 // bytes
	FetchedIn string
	// Maker: it was told to make the template.
	Maker bool
	// Since is how long it has been in that state.
	Since time.Duration
	// Took is how long making its template took, or the last one it made; 0: not known.
	Took time.Duration
	// Rate is how fast content comes to its site from outside, bytes per second; 0: not known.
	Rate uint64
}

// TemplateOrder says how a host comes by a template.
type TemplateOrder int

// The orders.
const (
	Make TemplateOrder = iota + 1
	Wait
	Fetch
)

// TemplateRoute is what a host that wants a template does.
type TemplateRoute struct {
	Order   TemplateOrder
	Digest  string // Fetch
	Size    uint64
	Remote  []string // Fetch: hosts of other sites, where no host of its own site holds it
	Reason  string
	makesIt bool
}

// Templates decides for one template's key, for all hosts that want it. hosts may be in any order. A template is shared inside a trust group
// alone: who makes it is root in each guest that is forked from it.
//
// A host fetches a template that a host of its site and group holds. Where one of them makes it, the others wait, but
// not much longer than making it is expected to take. Where a host of another site holds it, it is fetched from there
// if that is expected to take less time than making it. Else one host of each site and group makes it: the one that
// was told to, else the first by name of those that want it.
func Templates(hosts []TemplateHost) map[string]TemplateRoute {
	sorted := slices.SortedFunc(slices.Values(hosts), func(a, b TemplateHost) int {
		return cmp.Or(-compareBool(a.Maker, b.Maker), cmp.Compare(a.Name, b.Name))
	})
	routes := map[string]TemplateRoute{}
	for _, h := range sorted {
		route := templateRoute(h, sorted, routes)
		// A host that failed to make the template tries that again later, by itself.
		if h.State == Wanted || h.State == Failed && route.Order == Fetch {
			routes[h.Name] = route
		}
	}
	return routes
}

func templateRoute(h TemplateHost, all []TemplateHost, decided map[string]TemplateRoute) TemplateRoute {
	var near, far []TemplateHost // of its group
	for _, other := range all {
		switch {
		case other.Name == h.Name || h.Group == "" || other.Group != h.Group:
		case other.Site == h.Site:
			near = append(near, other)
		default:
			far = append(far, other)
		}
	}
	if best, ok := offered(near); ok {
		return TemplateRoute{Order: Fetch, Digest: best.Digest, Size: best.Size, Reason: "host " + best.Name + " of its site has it"}
	}
	expected := expectedMaking(slices.Concat([]TemplateHost{h}, near, far))
	for _, other := range near {
		if other.State == Making && other.Since < patience(expected) {
			return TemplateRoute{Order: Wait, Reason: "host " + other.Name + " makes it"}
		}
	}
	if route, ok := fromAfar(far, h.Rate, expected); ok {
		return route
	}
	for _, other := range near {
		if decided[other.Name].makesIt && other.Since < patience(expected) {
			return TemplateRoute{Order: Wait, Reason: "host " + other.Name + " is to make it"}
		}
	}
	reason := "no other host of its site and trust group has it or makes it"
	if h.Group == "" {
		reason = "the host is in no trust group"
	}
	return TemplateRoute{Order: Make, Reason: reason, makesIt: true}
}

// offered is the template to fetch of those that hosts hold: the one that most of them hold, so that the hosts of a
// site come to have the same one. ok is false where none holds one that may be passed on.
func offered(hosts []TemplateHost) (best TemplateHost, ok bool) {
	count := map[string]int{}
	for _, h := range hosts {
		if h.Offers() {
			count[h.Digest]++
		}
	}
	for _, h := range hosts {
		if !h.Offers() {
			continue
		}
		if !ok || count[h.Digest] > count[best.Digest] || count[h.Digest] == count[best.Digest] && h.Digest < best.Digest {
			best, ok = h, true
		}
	}
	return best, ok
}

// Offers tells whether the host holds a template that its group may have: one that was fetched in another group, to
// which the host belonged before, is another's word.
func (h TemplateHost) Offers() bool {
	return h.State == Held && h.Digest != "" && (h.FetchedIn == "" || h.FetchedIn == h.Group)
}

// fromAfar is the route to a template of another site, where that is expected to take less time than making it.
func fromAfar(far []TemplateHost, rate uint64, expected time.Duration) (TemplateRoute, bool) {
	best, ok := offered(far)
	if !ok || rate == 0 {
		return TemplateRoute{}, false
	}
	transfer := time.Duration(float64(best.Size) / float64(rate) * float64(time.Second))
	if transfer >= expected {
		return TemplateRoute{}, false
	}
	var holders []string
	for _, other := range far {
		if other.Offers() && other.Digest == best.Digest {
			holders = append(holders, other.Name)
		}
	}
	return TemplateRoute{Order: Fetch, Digest: best.Digest, Size: best.Size, Remote: holders,
		Reason: fmt.Sprintf("host %s of site %s has it, and fetching it takes about %v, making it %v", best.Name, best.Site,
			transfer.Round(100*time.Millisecond), expected.Round(100*time.Millisecond))}, true
}

// patience is how long a host waits for another's making: somewhat longer than making it alone would take.
func patience(expected time.Duration) time.Duration { return expected * 3 / 2 }

// expectedMaking is the longest that any of the hosts took, or UsualMaking.
func expectedMaking(hosts []TemplateHost) time.Duration {
	var longest time.Duration
	for _, h := range hosts {
		longest = max(longest, h.Took)
	}
	return cmp.Or(longest, UsualMaking)
}
