package core

// locality.go - brings guests that talk to each other closer together, as the policy locality asks.

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/dustin/go-humanize/english"

	v1 "watari/api/watariv1"
	"watari/locality"
	"watari/placement"
	"watari/policy"
)

const (
	// localityEvery is the time between two looks at a cluster.
	localityEvery = 15 * time.Second
	// localityMoves bounds the moves of a cluster that begin together, and localityPlans the clusters that one decision plans.
	localityMoves = 16
	localityPlans = 8
)

// closer plans for one cluster.
type closer struct {
	*Objects
	policy  *policy.Policy
	traffic Traffic
	moves   Moves
	room    *room
	// stays returns why a guest must not be moved now; empty: it may be.
	stays func(g *v1.Guest) string
	most  int // moves that may begin

	cluster *v1.Cluster
	guests  []*v1.Guest
	problem *locality.Problem
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

// distant reports whether guests of a cluster on different hosts talk to each other so much that the least move could pay.
func (c *closer) distant(pairs []locality.Pair) bool {
	cost, least := 0.0, uint64(1<<63)
	for _, t := range pairs {
		a, b := c.guests[t.A], c.guests[t.B]
		if a.Host == b.Host || a.Host == "" || b.Host == "" {
			continue
		}
		cost += t.Rate * c.policy.Locality.Distance.Between(a.Host, c.site(a.Host), b.Host, c.site(b.Host))
		least = min(least, a.Shape.GetMemoryBytes(), b.Shape.GetMemoryBytes())
	}
	return cost*c.policy.Locality.Horizon.Seconds() > float64(least)*c.policy.Locality.Distance.Site
}

func (c *closer) site(host string) string { return c.Hosts[host].GetInfo().GetSite() }

// plan plans for a cluster. why says why nothing is to be moved; empty: the plan has moves.
func (c *closer) plan(cluster *v1.Cluster, guests []*v1.Guest) (plan locality.Plan, why string) {
	c.cluster, c.guests = cluster, slices.Clone(guests)
	slices.SortFunc(c.guests, func(a, b *v1.Guest) int { return cmp.Compare(a.Index, b.Index) })
	for _, g := range c.guests {
		if m := c.moves[g.Meta.Uid]; m != nil {
			return plan, fmt.Sprintf("guest %s is moving", g.Meta.Name)
		}
	}
	pairs := talks(c.guests, c.traffic)
	switch {
	case len(pairs) == 0:
		return plan, "its guests do not talk to each other now"
	case !c.distant(pairs):
		return plan, "its guests send too little between hosts for a move to pay"
	case c.most <= 0:
		return plan, "it has begun as many moves within the last hour as it may"
	}
	c.problem = c.describe(pairs)
	plan = c.problem.Plan()
	switch {
	case len(plan.Moves) > 0:
		return plan, ""
	case plan.Stuck:
		return plan, "a better placement is known, but its hosts have no memory for a guest more while guests change places"
	}
	return plan, fmt.Sprintf("no move or swap saves %.0f %% of the cluster's bytes times distance (%s), with what it sends itself within %s", 100*c.problem.LeastGain,
		rate(plan.Before), c.policy.Locality.Horizon)
}

// describe returns the cluster and the hosts as package locality sees them.
func (c *closer) describe(pairs []locality.Pair) *locality.Problem {
	l := c.policy.Locality
	p := &locality.Problem{Traffic: pairs, Distance: l.Distance, Horizon: l.Horizon.Seconds(), LeastGain: l.LeastGain, Most: min(c.most, localityMoves)}
	switch c.cluster.GetSpec().GetSpread() {
	case v1.Spread_SPREAD_SITE:
		p.Keep = locality.KeepSites
	case v1.Spread_SPREAD_HOST:
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
	for _, g := range c.guests {
		at, known := c.room.at[g.Host]
		if !known {
			at = -1
		}
		p.Guests = append(p.Guests, locality.Guest{Name: g.Meta.Name, Host: at, Memory: g.Shape.GetMemoryBytes(), VCPUs: int(g.Shape.GetVcpus()), Stays: c.stays(g) != ""})
	}
	requests := make([]*placement.Request, len(c.guests))
	p.Allowed = func(guest, host int) bool {
		if requests[guest] == nil {
			requests[guest] = moveRequest(c.Objects, c.guests[guest])
		}
		h := c.room.hosts[host]
		h.MemoryUsed = 0 // package locality counts the memory
		return placement.Check(requests[guest], &h) == ""
	}
	return p
}

// reason says for people what a move of a plan is for.
func (c *closer) reason(plan locality.Plan, move locality.Move) string {
	at := map[int]int{}
	for _, m := range plan.Moves {
		at[m.Guest] = m.To
	}
	place := func(guest int) int {
		if to, moves := at[guest]; moves {
			return to
		}
		return c.problem.Guests[guest].Host
	}
	peer, most := -1, 0.0
	for _, t := range c.problem.Traffic {
		if t.A != move.Guest && t.B != move.Guest {
			continue
		}
		other := t.A + t.B - move.Guest
		if c.problem.Guests[other].Host < 0 {
			continue
		}
		saved := t.Rate * (c.problem.Between(c.problem.Guests[t.A].Host, c.problem.Guests[t.B].Host) - c.problem.Between(place(t.A), place(t.B)))
		if saved > most {
			peer, most = other, saved
		}
	}
	text := "it makes room for guests of its cluster that talk to each other"
	if peer >= 0 {
		exchanged := 0.0
		for _, t := range c.problem.Traffic {
			if t.A == min(peer, move.Guest) && t.B == max(peer, move.Guest) {
				exchanged = t.Rate
			}
		}
		text = fmt.Sprintf("it exchanges %s with %s", rate(exchanged), c.guests[peer].Meta.Name)
	}
	return fmt.Sprintf("%s; %s of cluster %s cut its bytes times distance from %s to %s", text, english.Plural(len(plan.Moves), "move", ""), c.cluster.Meta.Name, rate(plan.Before), rate(plan.After))
}

// rate is a number of bytes in a second, for people.
func rate(bytes float64) string { return humanize.IBytes(uint64(bytes)) + "/s" }

// bringTogether begins moves that bring guests closer to those with which they talk.
func (p *pass) bringTogether() {
	bounds, _ := p.Core.policies.policy.BoundsOf(policy.LocalityName)
	if bounds == nil || p.Traffic == nil {
		return
	}
	looked := p.Core.looked
	planned := 0
	for _, name := range sortedKeys(p.Clusters) {
		if next := looked[name].Add(localityEvery); p.Now.Before(next) && !looked[name].After(p.Now) {
			p.again = earlier(p.again, next)
			continue
		}
		if p.full() || planned == localityPlans {
			p.again = earlier(p.again, p.Now.Add(movePass))
			return
		}
		looked[name] = p.Now
		guests := p.index.guestsOf(name)
		if len(guests) < 2 || p.Clusters[name].Meta.Deleting != nil || slices.ContainsFunc(guests, func(g *v1.Guest) bool { return p.changed(g) }) {
			continue
		}
		if p.room == nil {
			p.room = newRoom(p.Objects, p, p.index.moves)
		}
		c := &closer{Objects: p.Objects, policy: p.Core.policies.policy, traffic: p.Traffic, moves: p.index.moves, room: p.room, most: localityMoves,
			stays: func(g *v1.Guest) string {
				why, _ := localityStays(p.Objects, p, p.Core.policies.policy, bounds, g, p.index.ended[g.Meta.Uid], p.Now)
				return why
			}}
		if bounds.MovesPerHour > 0 {
			c.most = min(c.most, bounds.MovesPerHour-p.begunLately()[policy.LocalityName])
		}
		plan, why := c.plan(p.Clusters[name], guests)
		if c.problem != nil {
			planned++
		}
		if why == "" {
			p.beginPlan(c, plan, bounds)
		}
	}
}

// beginPlan begins the moves of a plan, all or none.
func (p *pass) beginPlan(c *closer, plan locality.Plan, bounds *policy.Bounds) {
	var change Change
	hosts := map[string]bool{}
	for _, m := range plan.Moves {
		g := c.guests[m.Guest]
		move := newMove(p.working.Objects, g, c.problem.Hosts[m.To].Name)
		move.Reason, move.Policy, move.BandwidthBytes = c.reason(plan, m), policy.LocalityName, bounds.Bandwidth
		change.write(Create, move)
		change.write(Expect, g)
		hosts[move.Source], hosts[move.Target] = true, true
	}
	for _, host := range sortedKeys(hosts) {
		if p.changed(p.Hosts[host]) {
			return
		}
		change.write(Expect, p.Hosts[host])
	}
	p.propose("locality/"+c.cluster.Meta.Name, change)
	for _, m := range plan.Moves {
		p.room.take(c.problem.Hosts[m.To].Name, c.guests[m.Guest].Shape)
	}
	p.leaving = nil
	p.begunLately()[policy.LocalityName] += len(plan.Moves)
}

// localityStays says why the policy must not move a guest now; empty: it may.
func localityStays(s *Objects, r Reports, whole *policy.Policy, bounds *policy.Bounds, g *v1.Guest, ended []*v1.Migration, now time.Time) (why string, until time.Time) {
	h := s.Hosts[g.Host]
	report, _, connected := r.Observed(g.Host)
	seen := GuestOn(report, g.Meta.Uid)
	switch {
	case h == nil || h.Draining || len(h.Withdrawn) > 0:
		return "its host is to have no guests", time.Time{}
	case unwanted(s, g) || !connected || seen.GetEpoch() != g.Epoch || seen.GetCondition() != v1.GuestCondition_GUEST_CONDITION_RUNNING:
		return "it does not run", time.Time{}
	case failedLately(ended, now) > 0:
		return "a move of it has failed a moment ago", time.Time{}
	}
	return mustStay(whole, bounds, g, ended, now)
}

// apart says why a waiting move of policy locality is not worth while any more; empty: it is. Guests that move count where they
// move to.
func (p *pass) apart(m *v1.Migration, g *v1.Guest) string {
	l := p.Core.policies.policy.Locality
	if p.Traffic == nil {
		return ""
	}
	guests := p.index.guestsOf(g.Cluster)
	cost := func(host string) (sum float64) {
		for _, other := range guests {
			if other == g {
				continue
			}
			at := other.Host
			if move := p.index.moves[other.Meta.Uid]; move != nil {
				at = move.Target
			}
			if at != "" {
				sum += (p.Traffic(g.Meta.Uid)[other.Meta.Uid] + p.Traffic(other.Meta.Uid)[g.Meta.Uid]) *
					l.Distance.Between(host, p.Hosts[host].GetInfo().GetSite(), at, p.Hosts[at].GetInfo().GetSite())
			}
		}
		return sum
	}
	if cost(m.Target) > cost(m.Source) {
		return "the guests with which it talks are no longer there"
	}
	return ""
}

// explainPeers is the number of peers that an explanation names.
const explainPeers = 3

// talking says with which guests a guest talks, and what policy locality makes of that.
func (e *Explainer) talking(l *lines, whole *policy.Policy, g *v1.Guest) {
	bounds, _ := whole.BoundsOf(policy.LocalityName)
	if bounds == nil || e.Traffic == nil {
		return
	}
	pairs := slices.DeleteFunc(ClusterTraffic(e.Objects, g.Cluster, e.Traffic, whole.Locality.Distance).Pairs, func(p *v1.GuestPair) bool {
		return p.Guest != g.Meta.Name && p.Other != g.Meta.Name
	})
	for _, p := range pairs[:min(len(pairs), explainPeers)] {
		other, host := p.Other, p.OtherHost
		if other == g.Meta.Name {
			other, host = p.Guest, p.Host
		}
		l.add("it exchanges %s with %s on %s, at distance %g", rate(p.Sent+p.Received), other, orElse(host, "no host"), p.Distance)
	}
	moves := ActiveMoves(e.Objects)
	stays := func(g *v1.Guest) string {
		why, _ := localityStays(e.Objects, e.Reports, whole, bounds, g, e.ended(g), e.Now)
		return why
	}
	c := &closer{Objects: e.Objects, policy: whole, traffic: e.Traffic, moves: moves, room: newRoom(e.Objects, e.Reports, moves), stays: stays, most: localityMoves}
	if bounds.MovesPerHour > 0 {
		c.most = min(c.most, bounds.MovesPerHour-begunLately(e.Migrations, e.Now)[policy.LocalityName])
	}
	if why := stays(g); why != "" && moves[g.Meta.Uid] == nil {
		l.add("locality does not move it: %s", why)
	}
	plan, why := c.plan(e.Clusters[g.Cluster], GuestsOf(e.Objects, g.Cluster))
	if why != "" {
		l.add("locality moves no guest of cluster %s: %s", g.Cluster, why)
	} else if i := slices.IndexFunc(plan.Moves, func(m locality.Move) bool { return c.guests[m.Guest] == g }); i >= 0 {
		l.add("locality is about to move it to %s: %s", c.problem.Hosts[plan.Moves[i].To].Name, c.reason(plan, plan.Moves[i]))
	} else {
		l.add("locality is about to move %s: %s", c.guests[plan.Moves[0].Guest].Meta.Name, c.reason(plan, plan.Moves[0]))
	}
	switch e.Clusters[g.Cluster].GetSpec().GetSpread() {
	case v1.Spread_SPREAD_SITE:
		l.add("its cluster is spread over sites: locality keeps it so")
	case v1.Spread_SPREAD_HOST:
		l.add("its cluster is spread over hosts: locality keeps it so")
	}
}
