package core

// kept.go - tells in events which moves policies would make, and why they do not.

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	v1 "watari/api/watariv1"
	"watari/policy"
	"watari/rebalance"
)

const (
	// keptFor is how long something has to hold until people are told: hosts reconnect one after the other, and moves wait for
	// each other.
	keptFor = 30 * time.Second
	// keptEach is the longest time between two decisions of which both see the same. Policies that look at guests only now and
	// then have a longer one.
	keptEach = keptFor + 15*time.Second
	// namedWith is how many of the guests that would move with a guest are named.
	namedWith = 3
	// keptAgain is the time after which people are told again of what still holds.
	keptAgain = 6 * time.Hour
	// Each policy may cause keptEvents such events at once, and then one each keptEventEvery: the history has a fixed number of
	// events.
	keptEvents     = 20
	keptEventEvery = time.Minute
)

// kept is a guest on a host, or the guests of a cluster, that a policy would move and does not.
type kept struct{ policy, uid, host string }

// keptTimes says since when something holds, when that was last seen, and when people were last told; zero: never.
type keptTimes struct{ since, seen, told time.Time }

// keptMemory is what a Core remembers of what policies do not do.
type keptMemory struct {
	times map[kept]keptTimes
	left  map[string]eventsLeft // by policy
	swept time.Time             // when old times were last deleted
}

func (m keptMemory) clone() keptMemory {
	return keptMemory{maps.Clone(m.times), maps.Clone(m.left), m.swept}
}

// keeps notes that a policy does not move a guest, or the guests of a cluster. each is the longest time between two looks of the
// policy. keeps reports whether people are to be told now.
func (p *pass) keeps(of kept, each time.Duration) bool {
	memory, name := &p.Core.policies.kept, of.policy
	if memory.times == nil {
		memory.times, memory.left = map[kept]keptTimes{}, map[string]eventsLeft{}
	}
	if since := p.Now.Sub(memory.swept); since < 0 || since > keptFor {
		memory.swept = p.Now
		maps.DeleteFunc(memory.times, func(_ kept, t keptTimes) bool { return p.Now.Sub(t.seen) > keptAgain })
	}
	t := memory.times[of]
	if since := p.Now.Sub(t.seen); t.seen.IsZero() || since < 0 || since > each {
		t.since = p.Now
	}
	t.seen = p.Now
	defer func() { memory.times[of] = t }()
	if due := t.since.Add(keptFor); p.Now.Before(due) {
		p.again = earlier(p.again, due)
		return false
	}
	if told := p.Now.Sub(t.told); !t.told.IsZero() && told >= 0 && told < keptAgain || p.full() {
		return false
	}
	left, some := memory.left[name].take(p.Now, keptEvents, keptEventEvery)
	memory.left[name] = left
	if some {
		t.told = p.Now
	}
	return some
}

// tellKept tells that a policy does not move a guest, or the guests of a cluster: kind and meta are of the guest or the cluster.
func (p *pass) tellKept(kind string, meta *v1.Meta, text string, args ...any) {
	var c Change
	c.event(v1.Severity_SEVERITY_INFO, kind, meta.Name, text, args...)
	p.propose("kept/"+kind+"/"+meta.Name, c)
}

// stays tells why a guest stays on a host that policies have withdrawn. Of drained hosts, the command that drains tells.
func (p *pass) stays(g *v1.Guest, h *v1.Host) {
	if h.Draining {
		return
	}
	for _, w := range h.Withdrawn {
		bounds, _ := p.Core.policies.policy.BoundsOf(w.Policy)
		if bounds == nil || !p.keeps(kept{w.Policy, g.Meta.Uid, g.Host}, keptEach) {
			continue
		}
		why, _ := mustStay(p.Core.policies.policy, w.Policy, bounds, g, p.index.ended[g.Meta.Uid], p.Now)
		why = cmp.Or(diskAway(p.Objects, p, g), why)
		if why == "" && p.viewFor(g).pick(p, g, nil) >= 0 {
			why = cmp.Or(p.usedLately().spent(w.Policy, bounds), p.linkSpent(g, w.Policy))
		}
		why = cmp.Or(why, "no other host can take it; `watari explain guest "+g.Meta.Name+"` tells why")
		p.tellKept("guest", g.Meta, "stays on host %s although %s: %s", g.Host, withdrawnFor(w.Policy), why)
	}
}

// linkSpent says that a policy must not move a guest to some other site because of the bytes that its moves have sent there; empty:
// it may move to each.
func (p *pass) linkSpent(g *v1.Guest, name string) string {
	far := p.look().farSites(g, name)
	for _, site := range sortedKeys(far) {
		return far[site]
	}
	return ""
}

// refused tells of each policy which move would gain most of those that it must not make, alone or with others.
func (p *pass) refused(places *Places, moves []rebalance.Refused) {
	slices.SortStableFunc(moves, func(a, b rebalance.Refused) int { return cmp.Compare(b.Net, a.Net) })
	every, _ := p.Core.policies.policy.Rebalances()
	seen := map[string]bool{}
	for _, m := range moves {
		g := places.guests[m.Guest]
		if seen[m.Policy] || p.asked[g.Meta.Uid] || p.changed(g) {
			continue
		}
		seen[m.Policy] = true
		if p.keeps(kept{m.Policy, g.Meta.Uid, g.Host}, keptEach+2*every) {
			var others []string
			for _, other := range m.With {
				others = append(others, places.Guests[other].Name)
			}
			together := ""
			if n := len(others); n > namedWith {
				others = append(others[:namedWith:namedWith], fmt.Sprintf("%d more", n-namedWith))
			}
			if len(others) > 0 {
				together = " together with " + strings.Join(others, ", ")
			}
			p.tellKept("guest", g.Meta, "stays on host %s, although policy %s would move it to host %s%s and gain %.2f: %s", g.Host, m.Policy, places.Hosts[m.To].Name, together, m.Net, m.Why)
		}
	}
}

// apart tells that policy locality does not bring the guests of a cluster closer to each other because of other policies.
func (p *pass) apart(c *v1.Cluster) {
	if of := (kept{policy: policy.LocalityName, uid: c.Meta.Uid}); !p.changed(c) && p.keeps(of, keptEach+2*p.Core.policies.policy.Locality.Interval) {
		p.tellKept("cluster", c.Meta, "locality does not bring its guests closer to each other: by the other policies, the moves would cost more than they gain")
	}
}
