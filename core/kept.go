package core

// kept.go - tells in events which moves policies would make, and why they do not.

import (
	"cmp"
	"slices"
	"time"

	"github.com/dustin/go-humanize/english"

	v1 "watari/api/watariv1"
	"watari/policy"
	"watari/rebalance"
)

const (
	// keptAgain is the time after which people are told again of what still holds.
	keptAgain = time.Hour
	// Each policy may cause keptEvents such events at once, and then one each keptEventEvery: the history has a fixed number of
	// events.
	keptEvents     = 20
	keptEventEvery = time.Minute
)

// kept is something that a policy does not do: about is the uid of a guest or a cluster, or the reason.
type kept struct{ policy, about string }

// keptMemory is what people were told of, and when.
type keptMemory struct {
	told map[kept]time.Time
	left map[string]eventsLeft // by policy
}

// keeps tells that a policy would move a guest, or the guests of a cluster, and does not. kind and meta are of the guest or the
// cluster.
func (p *pass) keeps(of kept, kind string, meta *v1.Meta, text string, args ...any) {
	memory, name := &p.Core.policies.kept, of.policy
	if last, is := memory.told[of]; is && !p.Now.Before(last) && p.Now.Sub(last) < keptAgain {
		return
	}
	left, some := memory.left[name].take(p.Now, keptEvents, keptEventEvery)
	if !some || p.full() {
		return
	}
	if memory.told == nil {
		memory.told, memory.left = map[kept]time.Time{}, map[string]eventsLeft{}
	}
	for other, at := range memory.told {
		if p.Now.Sub(at) >= keptAgain {
			delete(memory.told, other)
		}
	}
	memory.told[of], memory.left[name] = p.Now, left
	if left.n == 0 {
		text += "; other such events of policy " + name + " wait"
	}
	var c Change
	c.event(v1.Severity_SEVERITY_INFO, kind, meta.Name, text, args...)
	p.propose(kind+"/"+meta.Name, c)
}

// stays tells why a guest stays on a host that policies have withdrawn. Of drained hosts, the command that drains tells.
func (p *pass) stays(g *v1.Guest, h *v1.Host) {
	if h.Draining || unwanted(p.Objects, g) || !p.runsUnderGrant(g) {
		return
	}
	for _, w := range h.Withdrawn {
		bounds, _ := p.Core.policies.policy.BoundsOf(w.Policy)
		if bounds == nil {
			continue
		}
		why, _ := mustStay(p.Core.policies.policy, w.Policy, bounds, g, p.index.ended[g.Meta.Uid], p.Now)
		why = cmp.Or(diskAway(p.Objects, p, g), why, p.usedLately().spent(w.Policy, bounds), "no other host can take it; `watari explain guest "+g.Meta.Name+"` tells why")
		p.keeps(kept{w.Policy, g.Meta.Uid}, "guest", g.Meta, "stays on host %s although %s: %s", g.Host, leaveFor(w.Policy), why)
	}
}

// leaveFor says why guests have to leave a host that a policy has withdrawn.
func leaveFor(name string) string {
	if name == policy.HarvestName {
		return "its owner is back"
	}
	return "policy " + name + " wants it to leave"
}

// refused tells which moves that gain policies must not make. Of guests that stay for the same reason, it names the one whose move
// would gain most.
func (p *pass) refused(places *Places, moves []rebalance.Refused) {
	slices.SortStableFunc(moves, func(a, b rebalance.Refused) int { return cmp.Compare(b.Net, a.Net) })
	guests := map[kept]int{}
	for _, m := range moves {
		guests[kept{m.Policy, m.Why}]++
	}
	for _, m := range moves {
		of := kept{m.Policy, m.Why}
		if guests[of] == 0 {
			continue // told
		}
		others := ""
		if n := guests[of] - 1; n > 0 {
			others = ", like " + english.Plural(n, "other guest", "")
		}
		guests[of] = 0
		g := places.guests[m.Guest]
		p.keeps(of, "guest", g.Meta, "stays on host %s%s, although policy %s would move it to host %s and gain %.2f: %s", g.Host, others, m.Policy, places.Hosts[m.To].Name, m.Net, m.Why)
	}
}
