package sharing

// templates.go - for one template: which host makes it, which wait, and which fetch it.

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// UsualMaking is the expected time to make a template if no host has reported one. It is long, so that the other hosts
// wait until a maker gives up by itself, after 3 minutes. A busy machine without KVM has taken two minutes.
const UsualMaking = 2 * time.Minute

// TemplateState is a host's progress with a template.
type TemplateState int

// The states.
const (
	Wanted TemplateState = iota + 1
	Making
	Held
	Failed // the host could not make it
)

// TemplateHost is Templates' view of a connected host, for one template's key.
type TemplateHost struct {
	Name, Site string
	Group      string // trust group; empty: the host shares with no other
	State      TemplateState
	// For Held: the packed template, and the trust group in which it was fetched; empty: the host made it.
	Digest    string
	Size      uint64 // bytes
	FetchedIn string
	// Maker means that the host was ordered to make the template.
	Maker bool
	// Since is how long the host has been in that state.
	Since time.Duration
	// Took is how long the host took to make this template, or its latest one; 0: unknown.
	Took time.Duration
	// Rate is how fast the host's site gets content from outside, in bytes per second; 0: unknown.
	Rate uint64
}

// TemplateOrder tells a host how to get a template.
type TemplateOrder int

// The orders.
const (
	Make TemplateOrder = iota + 1
	Wait
	Fetch
)

// TemplateRoute is the order for a host that needs a template.
type TemplateRoute struct {
	Order   TemplateOrder
	Digest  string // Fetch
	Size    uint64
	Remote  []string // Fetch: hosts of other sites, if no host of its own site holds it
	Reason  string
	makesIt bool
}

// Templates decides for one template's key, for all hosts that need it. hosts may be in any order. Only hosts of one
// trust group share a template: its maker is in effect root in every guest that is forked from it.
//
// If a host of the same site and group holds the template, a host fetches it. If one of them is making it, the others
// wait, but not much longer than making it is expected to take. If a host of another site holds it, it is fetched from
// there, provided that this is expected to be faster than making it. Otherwise one host of each site and group makes
// it: the one that was ordered before, or the first by name.
func Templates(hosts []TemplateHost) map[string]TemplateRoute {
	sorted := slices.SortedFunc(slices.Values(hosts), func(a, b TemplateHost) int {
		return cmp.Or(-compareBool(a.Maker, b.Maker), cmp.Compare(a.Name, b.Name))
	})
	routes := map[string]TemplateRoute{}
	for _, h := range sorted {
		route := templateRoute(h, sorted, routes)
		// A host that failed to make the template tries again later by itself.
		if h.State == Wanted || h.State == Failed && route.Order == Fetch {
			routes[h.Name] = route
		}
	}
	return routes
}

func templateRoute(h TemplateHost, all []TemplateHost, decided map[string]TemplateRoute) TemplateRoute {
	var near, far []TemplateHost // hosts of its group
	for _, other := range all {
		switch {
		case other.Name == h.Name || h.Group == "" || other.Group != h.Group:
		case other.Site == h.Site:
			near = append(near, other)
		default:
			far = append(far, other)
		}
	}
	if best, ok := mostHeld(near); ok {
		return TemplateRoute{Order: Fetch, Digest: best.Digest, Size: best.Size, Reason: "host " + best.Name + " of its site has it"}
	}
	expected := expectedMaking(slices.Concat([]TemplateHost{h}, near, far))
	for _, other := range near {
		if other.State == Making && other.Since < waitLimit(expected) {
			return TemplateRoute{Order: Wait, Reason: "host " + other.Name + " makes it"}
		}
	}
	if route, ok := remoteRoute(far, h.Rate, expected); ok {
		return route
	}
	for _, other := range near {
		if decided[other.Name].makesIt && other.Since < waitLimit(expected) {
			return TemplateRoute{Order: Wait, Reason: "host " + other.Name + " is to make it"}
		}
	}
	reason := "no other host of its site and trust group has it or makes it"
	if h.Group == "" {
		reason = "the host is in no trust group"
	}
	return TemplateRoute{Order: Make, Reason: reason, makesIt: true}
}

// mostHeld returns the template that most of the hosts hold, so that the hosts of a site end up with the same one. ok
// is false if no host holds a template that may be passed on.
func mostHeld(hosts []TemplateHost) (best TemplateHost, ok bool) {
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

// Offers reports whether the host holds a template for its group. A template that the host fetched while it was in
// another group is not for this group.
func (h TemplateHost) Offers() bool {
	return h.State == Held && h.Digest != "" && (h.FetchedIn == "" || h.FetchedIn == h.Group)
}

// remoteRoute returns the route to a template of another site, if fetching it is expected to take less time than making
// it.
func remoteRoute(far []TemplateHost, rate uint64, expected time.Duration) (TemplateRoute, bool) {
	best, ok := mostHeld(far)
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

// waitLimit is how long a host waits while another makes the template: somewhat longer than making it should take.
func waitLimit(expected time.Duration) time.Duration { return expected * 3 / 2 }

// expectedMaking returns the longest time that any of the hosts took, or UsualMaking.
func expectedMaking(hosts []TemplateHost) time.Duration {
	var longest time.Duration
	for _, h := range hosts {
		longest = max(longest, h.Took)
	}
	return cmp.Or(longest, UsualMaking)
}
