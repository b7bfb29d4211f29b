package core

// locality.go - brings guests that talk to each other closer together, as the policy locality asks.

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/dustin/go-humanize/english"

	v1 "watari/api/watariv1"
	"watari/locality"
	"watari/placement"
	"watari/policy"
	"watari/rebalance"
)

const (
	// mostTogether bounds the moves of a cluster that begin together.
	mostTogether = 16
	// mostPlans bounds the clusters for which one decision plans.
	mostPlans = 8
)

// closer plans for one cluster.
type closer struct {
	*look
	cluster *v1.Cluster
	guests  []*v1.Guest
	problem *locality.Problem // nil: there was nothing to plan
	exceeds string            // why a guest must not move to some site; empty: no guest was refused so
}

// closer returns the plan of a cluster. why says why no guest is to move; empty: the plan has moves.
func (l *look) closer(cluster *v1.Cluster, guests []*v1.Guest) (c *closer, plan locality.Plan, why string) {
	c = &closer{look: l, cluster: cluster, guests: slices.DeleteFunc(slices.Clone(guests), func(g *v1.Guest) bool { return unwanted(l.Objects, g) })}
	slices.SortFunc(c.guests, func(a, b *v1.Guest) int { return cmp.Compare(a.Index, b.Index) })
	for _, g := range c.guests {
		if l.moves[g.Meta.Uid] != nil {
			return c, plan, fmt.Sprintf("guest %s is moving", g.Meta.Name)
		}
		if g.Host == "" {
			return c, plan, fmt.Sprintf("guest %s is to be started", g.Meta.Name)
		}
	}
	bounds, most := &l.policy.Locality.Bounds, mostTogether
	if bounds.MovesPerHour > 0 {
		most = min(most, bounds.MovesPerHour-l.lately.begun[policy.LocalityName])
	}
	pairs := talks(c.guests, l.usage.Traffic)
	switch {
	case len(pairs) == 0:
		return c, plan, "its guests do not talk to each other now"
	case !c.distant(pairs):
		return c, plan, "its guests send too little between hosts for a move to pay"
	case most <= 0:
		return c, plan, l.lately.spent(policy.LocalityName, bounds)
	}
	c.problem = c.describe(pairs, most)
	plan = c.plan()
	switch {
	case len(plan.Moves) > 0:
		return c, plan, ""
	case c.exceeds != "":
		return c, plan, c.exceeds
	case plan.Stuck:
		return c, plan, "a better placement is known, but its hosts have no memory for a guest more while guests change places"
	}
	return c, plan, fmt.Sprintf("no move or swap saves %.0f %% of the cluster's bytes times distance (%s), with what it sends itself within %s",
		100*c.problem.LeastGain, rate(plan.Before), l.policy.Locality.Horizon)
}

// plan returns the plan for the cluster. It ends before the first move that would send more bytes between two sites than the
// policy's moves may.
func (c *closer) plan() locality.Plan {
	plan, sent := c.problem.Plan(), map[link]uint64{}
	for i, m := range plan.Moves {
		from, to := c.problem.Hosts[m.From].Site, c.problem.Hosts[m.To].Site
		on := linkOf(policy.LocalityName, from, to)
		sent[on] += c.bytes(c.guests[m.Guest])
		why := c.lately.exceeds(policy.LocalityName, &c.policy.Locality.Bounds, from, to, sent[on])
		if why == "" {
			continue
		}
		c.exceeds, c.problem.Most = why, i
		if i == 0 {
			return locality.Plan{Before: plan.Before, After: plan.Before}
		}
		return c.problem.Plan()
	}
	return plan
}

// talks returns the traffic of a cluster's guests with each other.
func talks(guests []*v1.Guest, traffic Traffic) (pairs []locality.Pair) {
	at := map[string]int{}
	for i, g := range guests {
		at[g.Meta.Uid] = i
	}
	rates := map[[2]int]float64{}
	for i, g := range guests {
		for uid, rate := range traffic(g.Meta.Uid) {
			if j, is := at[uid]; is && i != j {
				rates[[2]int{min(i, j), max(i, j)}] += rate
			}
		}
	}
	for pair, rate := range rates {
		pairs = append(pairs, locality.Pair{A: pair[0], B: pair[1], Rate: rate})
	}
	slices.SortFunc(pairs, func(a, b locality.Pair) int { return cmp.Or(a.A-b.A, a.B-b.B) })
	return pairs
}

// distance returns the distance between two hosts.
func (l *look) distance(a, b string) float64 {
	return l.policy.Locality.Distance.Between(a, l.Hosts[a].GetInfo().GetSite(), b, l.Hosts[b].GetInfo().GetSite())
}

// distant reports whether guests on different hosts talk so much that the smallest move could pay.
func (c *closer) distant(pairs []locality.Pair) bool {
	cost, least := 0.0, uint64(1<<63)
	for _, t := range pairs {
		a, b := c.guests[t.A], c.guests[t.B]
		if a.Host != "" && b.Host != "" && a.Host != b.Host {
			cost += t.Rate * c.distance(a.Host, b.Host)
			least = min(least, a.Shape.GetMemoryBytes(), b.Shape.GetMemoryBytes())
		}
	}
	return cost*c.policy.Locality.Horizon.Seconds() > float64(least)*c.policy.Locality.Distance.Site
}

// describe returns the cluster and the hosts as package locality sees them.
func (c *closer) describe(pairs []locality.Pair, most int) *locality.Problem {
	local := c.policy.Locality
	p := &locality.Problem{Traffic: pairs, Distance: local.Distance, Horizon: local.Horizon.Seconds(), LeastGain: local.LeastGain, Most: most}
	switch spread := c.cluster.GetSpec().GetSpread(); {
	case apportioned(c.cluster):
		p.Keep = locality.KeepCounts
	case spread == v1.Spread_SPREAD_SITE:
		p.Keep = locality.KeepSites
	case spread == v1.Spread_SPREAD_HOST:
		p.Keep = locality.KeepHosts
	}
	open := map[int]bool{}
	for _, i := range c.room.takers() {
		open[i] = true
	}
	for i := range c.room.hosts {
		h := &c.room.hosts[i]
		p.Hosts = append(p.Hosts, locality.Host{Name: h.Name, Site: h.Site, Memory: h.MemoryBytes - min(h.MemoryBytes, h.MemoryUsed),
			VCPUs: int(h.Cores) - int(h.VCPUs), Closed: !open[i]})
	}
	beginning := c.beginning()[c.cluster.Meta.Name]
	for _, g := range c.guests {
		at, known := c.room.at[g.Host]
		if !known {
			at = -1
		}
		p.Guests = append(p.Guests, locality.Guest{Name: g.Meta.Name, Host: at, Memory: g.Shape.GetMemoryBytes(), VCPUs: int(g.Shape.GetVcpus()),
			Stays: c.whyNotMoved(g, beginning) != ""})
	}
	requests, links := make([]*placement.Request, len(c.guests)), make([]func(site string) string, len(c.guests))
	p.Allowed = func(guest, host int) bool {
		if requests[guest] == nil {
			requests[guest], links[guest] = moveRequest(c.Objects, c.guests[guest]), c.toSite(c.guests[guest], policy.LocalityName)
		}
		h := c.room.hosts[host]
		if links[guest] != nil {
			if why := links[guest](h.Site); why != "" {
				c.exceeds = why
				return false
			}
		}
		h.MemoryUsed = 0 // package locality counts the memory
		return placement.Check(requests[guest], &h) == ""
	}
	return p
}

// whyNotMoved says why the policy must not move a guest now; empty: it may. beginning: a run of its cluster is being started.
func (l *look) whyNotMoved(g *v1.Guest, beginning bool) string {
	if why := l.whyFixed(g, l.moves[g.Meta.Uid], beginning); why != "" {
		return why
	}
	return l.whyForbidden(g, policy.LocalityName)
}

// reason says for people what a move of a plan is for.
func (c *closer) reason(plan locality.Plan, move locality.Move) string {
	to := make([]int, len(c.guests))
	for i, g := range c.problem.Guests {
		to[i] = g.Host
	}
	for _, m := range plan.Moves {
		to[m.Guest] = m.To
	}
	best, most := locality.Pair{}, 0.0 // the guest's pair that comes closer and gains most
	for _, t := range c.problem.Traffic {
		a, b := c.problem.Guests[t.A].Host, c.problem.Guests[t.B].Host
		if t.A != move.Guest && t.B != move.Guest || a < 0 || b < 0 {
			continue
		}
		if saved := t.Rate * (c.problem.Between(a, b) - c.problem.Between(to[t.A], to[t.B])); saved > most {
			best, most = t, saved
		}
	}
	text := "it makes room for guests of its cluster that talk to each other"
	if most > 0 {
		text = fmt.Sprintf("it exchanges %s with %s", rate(best.Rate), c.guests[best.A+best.B-move.Guest].Meta.Name)
	}
	return fmt.Sprintf("%s; %s of cluster %s cut its bytes times distance from %s to %s", text, english.Plural(len(plan.Moves), "move", ""),
		c.cluster.Meta.Name, rate(plan.Before), rate(plan.After))
}

// rate is a number of bytes in a second, for people.
func rate(bytes float64) string { return humanize.IBytes(uint64(bytes)) + "/s" }

// together returns the traffic as one of the costs by which policies rebalance.
func (l *look) together(p *Places) *rebalance.Together {
	t := &rebalance.Together{Peers: make([][]rebalance.Peer, len(p.guests)),
		Distance: func(a, b int) float64 { return l.distance(p.Hosts[a].Name, p.Hosts[b].Name) }}
	for _, pair := range talks(p.guests, l.usage.Traffic) {
		t.Peers[pair.A] = append(t.Peers[pair.A], rebalance.Peer{Guest: pair.B, Rate: pair.Rate})
		t.Peers[pair.B] = append(t.Peers[pair.B], rebalance.Peer{Guest: pair.A, Rate: pair.Rate})
	}
	return t
}

// pays reports whether a plan gains more than it costs if the policies that decide by use count, too. If so, s then has the
// plan's moves.
func (c *closer) pays(p *Places, s *rebalance.State, plan locality.Plan) bool {
	var moves []rebalance.Move
	for _, m := range plan.Moves {
		moves = append(moves, rebalance.Move{Guest: p.at[c.guests[m.Guest].Meta.Uid], To: m.To})
	}
	return s.Try(moves, c.policy.Locality.Horizon.Seconds())
}

// bringTogether begins moves that bring guests closer to the guests with which they talk.
func (p *pass) bringTogether() {
	whole := p.Core.policies.policy
	if whole == nil || whole.Locality == nil || p.Usage == nil || p.Usage.Traffic == nil {
		return
	}
	looked, planned := p.Core.looked, 0
	maps.DeleteFunc(looked, func(name string, _ time.Time) bool { return p.Clusters[name] == nil })
	var places *Places
	var state *rebalance.State
	for _, name := range sortedKeys(p.Clusters) {
		if next := looked[name].Add(whole.Locality.Interval); p.Now.Before(next) && !p.Now.Before(looked[name]) {
			p.again = earlier(p.again, next)
			continue
		}
		if p.full() || planned == mostPlans {
			p.again = earlier(p.again, p.Now.Add(movePass))
			return
		}
		guests := p.index.guestsOf(name)
		if slices.ContainsFunc(guests, func(g *v1.Guest) bool { return p.changed(g) }) {
			p.again = earlier(p.again, p.Now.Add(movePass)) // their places are changing
			continue
		}
		looked[name] = p.Now
		if len(guests) < 2 || p.Clusters[name].Meta.Deleting != nil {
			continue
		}
		c, plan, why := p.look().closer(p.Clusters[name], guests)
		if c.problem != nil {
			planned++
		}
		if why != "" {
			continue
		}
		if _, is := whole.Rebalances(); is {
			if places == nil {
				places = c.places()
				state = places.State()
			}
			if !c.pays(places, state, plan) {
				p.apart(p.Clusters[name])
				continue
			}
		}
		p.beginPlan(c, plan)
	}
}

// beginPlan begins the moves of a plan, all or none.
func (p *pass) beginPlan(c *closer, plan locality.Plan) {
	var change Change
	for _, m := range plan.Moves {
		p.beginMove(&change, c.guests[m.Guest], c.problem.Hosts[m.To].Name,
			cause{policy: policy.LocalityName, reason: "locality: " + c.reason(plan, m), bandwidth: c.policy.Locality.Bandwidth})
	}
	if p.touches(change) {
		return
	}
	p.propose("locality/"+c.cluster.Meta.Name, change)
	for _, m := range plan.Moves {
		p.room.take(c.problem.Hosts[m.To].Name, c.guests[m.Guest].Shape)
		c.begins(c.guests[m.Guest], policy.LocalityName, c.problem.Hosts[m.To].Name)
	}
}

// noLongerPays says why a waiting move of policy locality no longer pays; empty: it does. A moving guest counts at its target.
func (p *pass) noLongerPays(m *v1.Migration, g *v1.Guest) string {
	if p.Usage == nil || p.Usage.Traffic == nil {
		return ""
	}
	l := p.look()
	sent := p.Usage.Traffic(g.Meta.Uid)
	gain := 0.0
	for _, other := range p.index.guestsOf(g.Cluster) {
		at := other.Host
		if move := p.index.moves[other.Meta.Uid]; move != nil {
			at = move.Target
		}
		if other != g && at != "" {
			rate := sent[other.Meta.Uid] + p.Usage.Traffic(other.Meta.Uid)[g.Meta.Uid]
			gain += rate * (l.distance(m.Source, at) - l.distance(m.Target, at))
		}
	}
	if gain < 0 {
		return "it would be farther from the guests with which it talks now"
	}
	return ""
}

// explainPeers is the number of peers that an explanation names.
const explainPeers = 3

// talking lists the guests with which a guest talks, and explains what policy locality does about them.
func (e *Explainer) talking(l *lines, whole *policy.Policy, g *v1.Guest) {
	if whole == nil || whole.Locality == nil || e.Usage == nil || e.Usage.Traffic == nil {
		return
	}
	pairs := slices.DeleteFunc(ClusterTraffic(e.Objects, g.Cluster, e.Usage.Traffic, whole.Locality.Distance).Pairs, func(p *v1.GuestPair) bool {
		return p.Guest != g.Meta.Name && p.Other != g.Meta.Name
	})
	for _, p := range pairs[:min(len(pairs), explainPeers)] {
		other, host := p.Other, p.OtherHost
		if other == g.Meta.Name {
			other, host = p.Guest, p.Host
		}
		l.add("it exchanges %s with %s on %s, at distance %g", rate(p.Sent+p.Received), other, orElse(host, "no host"), p.Distance)
	}
	cluster := e.Clusters[g.Cluster]
	at := lookAt(e.Objects, e.Reports, e.Usage, whole, e.Now)
	if why := at.whyNotMoved(g, at.beginning()[g.Cluster]); why != "" {
		l.add("locality does not move it: %s", why)
	}
	c, plan, why := at.closer(cluster, GuestsOf(e.Objects, g.Cluster))
	if _, is := whole.Rebalances(); is && why == "" {
		if places := at.places(); !c.pays(places, places.State(), plan) {
			why = "the best plan gains less than it costs hosts and guests otherwise: " + c.reason(plan, plan.Moves[0])
		}
	}
	if why != "" {
		l.add("locality moves no guest of cluster %s: %s", g.Cluster, why)
	} else {
		for _, m := range plan.Moves {
			l.add("locality is about to move %s to %s: %s", c.guests[m.Guest].Meta.Name, c.problem.Hosts[m.To].Name, c.reason(plan, m))
		}
	}
	switch spread := cluster.GetSpec().GetSpread(); {
	case apportioned(cluster):
		l.add("its cluster apportions its guests to hosts: locality swaps guests, and moves none alone")
	case spread == v1.Spread_SPREAD_SITE:
		l.add("its cluster is spread over sites: locality keeps it so")
	case spread == v1.Spread_SPREAD_HOST:
		l.add("its cluster is spread over hosts: locality keeps it so")
	}
}
