package core

// rebalance.go - moves guests to hosts that suit them better, as policies ask. It describes the guests' places and their use
// to package rebalance, and makes moves from its proposals.

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	v1 "watari/api/watariv1"
	"watari/migration"
	"watari/placement"
	"watari/policy"
	"watari/rebalance"
)

// Usage is what hosts and guests have used lately: means over UsageWindow. It never changes.
type Usage struct {
	Guests map[string]GuestUsage // by uid
	Hosts  map[string]HostUsage  // by name
	// Traffic is what guests sent to each other when the usage was made; nil: that is not known.
	Traffic Traffic
}

// GuestUsage is what a guest has used.
type GuestUsage struct {
	CPU         float64 // cores
	Wait        float64 // cores for which its virtual CPUs waited for a processor
	MemoryBytes uint64  // resident
	DirtyRate   float64 // bytes per second of memory pages that it changes; 0: none, or not known
	Computing   float64 // as in GuestSample: the part of the last 30 seconds that its programs computed; 0: not known
	Known       time.Duration
}

// HostUsage is what a host has used beside its guests.
type HostUsage struct {
	Others float64 // cores in use by the owner and the system
	Known  time.Duration
}

const (
	// UsageWindow is the time over which usage is averaged.
	UsageWindow = 30 * time.Second
	// leastKnown is the part of the window that measurements must cover at least.
	leastKnown = 20 * time.Second
	// mostProposals bounds the moves that one look begins.
	mostProposals = 64
)

// fillTo is the part of the largest load up to which policy pack fills hosts.
const fillTo = 0.9

// Estimates of what a move costs.
const (
	// usualRate is the assumed rate of a move for which there is no better estimate, in bytes per second.
	usualRate = 100 << 20
	// lastRates is how many moves between two sites tell the rate of the next one, leastForRate how many bytes such a move has at
	// least sent, and leastRate the least rate that is believed, in bytes per second.
	lastRates    = 5
	leastForRate = 64 << 20
	leastRate    = 1 << 20
	// mostDirty bounds the part of a move's rate that a guest's changes use up. QEMU slows a guest down that changes memory faster
	// (auto-converge), after two passes over its memory and then with each pass. So a move takes about five times as long, at most.
	mostDirty = 0.8
	// workLostMoving is the part of a guest's work that is lost while its memory is sent.
	workLostMoving = 0.3
	// pauseAtEnd is how long the whole cluster waits at the end of a move.
	pauseAtEnd = 0.5 // s
)

// Places are the places of all guests as package rebalance sees them.
type Places struct {
	*rebalance.Problem
	guests []*v1.Guest
	at     map[string]int // by uid
	hostAt map[string]int
}

// look is the input of Places.
type look struct {
	*Objects
	reports Reports
	usage   *Usage
	policy  *policy.Policy
	room    *room
	moves   Moves
	ended   func(uid string) []*v1.Migration
	lately  *lately
	now     time.Time
	rate    map[[2]string]float64 // of moves between sites; nil: not yet computed
}

// beginning returns the clusters on which a run is being started.
func (l *look) beginning() map[string]bool {
	clusters := map[string]bool{}
	for _, run := range l.Runs {
		if run.State == v1.RunState_RUN_STATE_STARTING {
			clusters[run.Spec.GetCluster()] = true
		}
	}
	return clusters
}

// places returns the guests' places.
func (l *look) places() *Places {
	p := &Places{Problem: &rebalance.Problem{Most: mostProposals}, at: map[string]int{}, hostAt: l.room.at}
	active := map[string]int{}
	for _, m := range l.moves {
		active[m.Source]++
		active[m.Target]++
	}
	for _, h := range l.room.hosts {
		p.Hosts = append(p.Hosts, l.host(h, MovesPerHost-active[h.Name]))
	}
	beginning := l.beginning()
	for _, name := range sortedKeys(l.Guests) {
		g := l.Guests[name]
		m := l.moves[g.Meta.Uid]
		host := g.Host
		if m != nil && host != "" {
			host = m.Target
		}
		at, is := p.hostAt[host]
		if !is {
			continue
		}
		guest := rebalance.Guest{Name: name, Cluster: g.Cluster, Host: at, Demand: l.demand(g), Request: askedOnce(moveRequest(l.Objects, g))}
		guest.Stays = l.whyStays(g, m, beginning[g.Cluster])
		if apportioned(l.Clusters[g.Cluster]) {
			p.Hosts[at].Measured = true
		}
		if guest.Stays == "" {
			var again float64
			guest.Seconds, again = l.seconds(g, l.Hosts[g.Host].GetInfo().GetSite())
			guest.Bytes, guest.LostAgain = l.bytes(g), workLostMoving*guest.Demand*again
		}
		p.at[g.Meta.Uid] = len(p.Guests)
		p.guests, p.Guests = append(p.guests, g), append(p.Guests, guest)
	}
	demand := map[string]float64{} // by cluster
	for _, g := range p.Guests {
		demand[g.Cluster] += g.Demand
	}
	for i := range p.Guests {
		g := &p.Guests[i]
		g.LostASecond = workLostMoving * g.Demand
		g.Lost = g.LostASecond*g.Seconds + pauseAtEnd*demand[g.Cluster]
	}
	type guestTo struct {
		guest int
		site  string
	}
	longer := map[guestTo]float64{}
	p.Longer = func(guest, to int) float64 {
		at := guestTo{guest, p.Hosts[to].Site}
		if at.site == p.Hosts[p.Guests[guest].Host].Site {
			return 0
		}
		if _, is := longer[at]; !is {
			whole, _ := l.seconds(p.guests[guest], at.site)
			longer[at] = whole - p.Guests[guest].Seconds
		}
		return longer[at]
	}
	p.Policies = l.policies(p)
	p.Forbids = func(guest int, name string) string { return l.whyForbidden(p.guests[guest], name) }
	return p
}

// whyForbidden returns why a policy that moves guests which could stay must not move a guest now; empty: it may.
func (l *look) whyForbidden(g *v1.Guest, name string) string {
	bounds, _ := l.policy.BoundsOf(name)
	ended := l.ended(g.Meta.Uid)
	var failed *v1.Migration
	for _, m := range ended {
		age := l.now.Sub(m.Ended.AsTime())
		if m.State == v1.MigrationState_MIGRATION_STATE_FAILED && policy.CanStay(m.Policy) && age >= 0 && age < bounds.CoolDown && (failed == nil || endedBefore(failed, m)) {
			failed = m
		}
	}
	if failed != nil {
		return "its last move by " + failed.Policy + " failed: " + failed.Message
	}
	longer := *bounds
	longer.CoolDown <<= max(0, rebalancedLately(ended, l.now)-1)
	why, _ := mustStay(l.policy, name, &longer, g, ended, l.now)
	return why
}

// endedBefore reports whether a move ended before another one.
func endedBefore(a, b *v1.Migration) bool {
	return cmp.Or(a.Ended.AsTime().Compare(b.Ended.AsTime()), cmp.Compare(a.Meta.Name, b.Meta.Name)) < 0
}

// askedOnce makes a request remember which hosts are compatible. A look asks for the same hosts many times.
func askedOnce(r *placement.Request) *placement.Request {
	compatible := r.Compatible
	var answers map[*v1.HostInfo]string
	r.Compatible = func(h *v1.HostInfo) string {
		answer, known := answers[h]
		if !known {
			if answers == nil {
				answers = map[*v1.HostInfo]string{}
			}
			answer = compatible(h)
			answers[h] = answer
		}
		return answer
	}
	return r
}

// rebalancedLately returns how often policies have rebalanced a guest with these ended moves within the last hour. Its
// cool-down doubles with each time, so that a guest whose use changes with its moves does not move forever.
func rebalancedLately(ended []*v1.Migration, now time.Time) (n int) {
	for _, m := range ended {
		age := now.Sub(m.Ended.AsTime())
		if policy.CanStay(m.Policy) && m.State == v1.MigrationState_MIGRATION_STATE_DONE && age >= 0 && age < time.Hour {
			n++
		}
	}
	return n
}

// PlacesOf returns the places of all guests under a policy, for explanations and checks.
func PlacesOf(o *Objects, r Reports, u *Usage, p *policy.Policy, now time.Time) *Places {
	return lookAt(o, r, u, p, now).places()
}

// lookAt returns the input of Places, without the memory of a Core.
func lookAt(o *Objects, r Reports, u *Usage, p *policy.Policy, now time.Time) *look {
	moves, ended := ActiveMoves(o), map[string][]*v1.Migration{}
	for _, m := range o.Migrations {
		if migration.Ended(m.State) {
			ended[m.GuestUid] = append(ended[m.GuestUid], m)
		}
	}
	of := func(uid string) []*v1.Migration { return ended[uid] }
	return &look{Objects: o, reports: r, usage: u, policy: p, room: newRoom(o, r, moves), moves: moves, ended: of, lately: usedLately(o, r, u, of, now), now: now}
}

// look returns the input of Places.
func (p *pass) look() *look {
	return &look{Objects: p.Objects, reports: p, usage: p.Usage, policy: p.Core.policies.policy, room: p.openRoom(), moves: p.index.moves,
		ended: func(uid string) []*v1.Migration { return p.index.ended[uid] }, lately: p.usedLately(), now: p.Now}
}

// Move puts a guest on another host, as if it had moved.
func (p *Places) Move(uid, host string) { p.Guests[p.at[uid]].Host = p.hostAt[host] }

// policies returns the policies that are on.
func (l *look) policies(p *Places) (list []rebalance.Policy) {
	add := func(name string, term rebalance.Term, o policy.Objective) {
		bounds, _ := l.policy.BoundsOf(name)
		one := rebalance.Policy{Name: name, Term: term, Weight: o.Weight, LeastGain: o.LeastGain, Horizon: max(time.Minute, bounds.CoolDown).Seconds(), Left: -1}
		if bounds.MovesPerHour > 0 {
			one.Left = max(0, bounds.MovesPerHour-l.lately.begun[name])
		}
		if bounds.PerLink > 0 {
			one.Exceeds = func(from, to string, bytes uint64) string { return l.lately.exceeds(name, bounds, from, to, bytes) }
		}
		list = append(list, one)
	}
	if l.policy.Balance != nil {
		add(policy.BalanceName, &rebalance.Load{}, l.policy.Balance.Objective)
	}
	if l.policy.Pack != nil {
		add(policy.PackName, &rebalance.Pack{MaxLoad: l.policy.Pack.MaxLoad, FillTo: fillTo * l.policy.Pack.MaxLoad}, l.policy.Pack.Objective)
	}
	if l.policy.Spread != nil {
		add(policy.SpreadName, rebalance.Spread{}, l.policy.Spread.Objective)
	}
	if local := l.policy.Locality; local != nil && l.usage.Traffic != nil && len(list) > 0 {
		list = append(list, rebalance.Policy{Name: policy.LocalityName, Term: l.together(p), Weight: local.Weight, Silent: true})
	}
	return list
}

// byNumber reports whether hosts are to have equal numbers of busy guests.
func (l *look) byNumber() bool { return l.policy.Balance != nil && l.policy.Balance.Guests }

// host returns a host with what its guests may use.
func (l *look) host(h placement.Host, turns int) rebalance.Host {
	made := rebalance.Host{Host: h, Turns: turns, Capacity: 1, Speed: 1}
	used := l.usage.Hosts[h.Name]
	if used.Known < leastKnown {
		made.Closed = "too little is known of what host " + h.Name + " uses"
	}
	if !l.byNumber() {
		cores := coresOf(h.Info)
		made.Capacity, made.Speed = max(0.1*cores, cores-used.Others), speedOf(h.Info)
	}
	return made
}

// countedFrom is the demand from which a guest counts if guests are counted, in cores.
const countedFrom = 0.1

// demand returns what a guest would use on an idle host, in cores. A guest of which too little is known counts as busy.
func (l *look) demand(g *v1.Guest) float64 {
	used, vcpus := l.usage.Guests[g.Meta.Uid], float64(max(1, g.Shape.GetVcpus()))
	demand := min(vcpus, used.CPU+used.Wait)
	if used.Known < leastKnown {
		demand = vcpus
	}
	switch {
	case !l.byNumber():
		return demand
	case demand >= countedFrom:
		return 1
	}
	return 0
}

// whyStays returns why no policy may rebalance a guest by its use now; empty: they may. beginning: a run of its cluster is
// being started.
func (l *look) whyStays(g *v1.Guest, m *v1.Migration, beginning bool) string {
	if why := l.whyFixed(g, m, beginning); why != "" {
		return why
	}
	switch {
	case apportioned(l.Clusters[g.Cluster]):
		return "its cluster apportions its guests to hosts by itself"
	case l.usage.Guests[g.Meta.Uid].Known < leastKnown:
		return "too little is known of what it uses"
	}
	return ""
}

// whyFixed returns why no policy may rebalance a guest now, whether by its use or by its traffic; empty: they may.
func (l *look) whyFixed(g *v1.Guest, m *v1.Migration, beginning bool) string {
	h := l.Hosts[g.Host]
	report, _, connected := l.reports.Observed(g.Host)
	seen := GuestOn(report, g.Meta.Uid)
	switch {
	case m != nil:
		return "it is moving"
	case unwanted(l.Objects, g):
		return "it is being stopped, deleted or restored"
	case h.GetDraining() || len(h.GetWithdrawn()) > 0:
		return "it has to leave its host"
	case !connected || seen.GetEpoch() != g.Epoch || seen.GetCondition() != v1.GuestCondition_GUEST_CONDITION_RUNNING || !seen.GetReady():
		return "it does not answer now"
	case beginning:
		return "a run of its cluster is just being started"
	case diskAway(l.Objects, l.reports, g) != "":
		return diskAway(l.Objects, l.reports, g)
	case failedLately(l.ended(g.Meta.Uid), l.now) > 0:
		return "a move of it failed just now"
	}
	return ""
}

// seconds returns how long a guest's move to a site takes, and the part of that time in which it sends memory again that the
// guest has changed. The best estimate is the guest's last move between these sites. again is then 0, because that move does not
// tell the part. Otherwise the rate between two sites is that of other guests' moves.
func (l *look) seconds(g *v1.Guest, site string) (whole, again float64) {
	used := l.usage.Guests[g.Meta.Uid]
	bytes, dirty := float64(cmp.Or(used.MemoryBytes, g.Shape.GetMemoryBytes())), used.DirtyRate
	between := sitePair(l.Hosts[g.Host].GetInfo().GetSite(), site)
	rate, known := l.rates()[between]
	if !known {
		rate = usualRate
	}
	if last := lastMove(l.ended(g.Meta.Uid)); last != nil {
		bytes, dirty = float64(last.Progress.TransferredBytes), 0
		if l.sitesOf(last) == between {
			rate = rateOf(last)
		}
	}
	for _, name := range []string{policy.BalanceName, policy.PackName, policy.SpreadName} {
		if bounds, _ := l.policy.BoundsOf(name); bounds != nil && bounds.Bandwidth > 0 {
			rate = min(rate, float64(bounds.Bandwidth))
		}
	}
	once := bytes / rate
	whole = once * passes(dirty, rate)
	return whole, whole - once
}

// sitePair names two sites, in any order.
func sitePair(a, b string) [2]string { return [2]string{min(a, b), max(a, b)} }

// sitesOf returns the sites between which a guest has moved.
func (l *look) sitesOf(m *v1.Migration) [2]string {
	return sitePair(l.Hosts[m.Source].GetInfo().GetSite(), l.Hosts[m.Target].GetInfo().GetSite())
}

// rateOf returns the bytes that a move has sent in a second.
func rateOf(m *v1.Migration) float64 {
	return float64(m.Progress.TransferredBytes) / (float64(m.TotalMs) / 1000)
}

// rates returns the rates of moves between two sites, in bytes per second: the median of the last lastRates moves of the last day
// that were large and had no limit. They count only within bounds, because the clock may have jumped, or a source may lie.
func (l *look) rates() map[[2]string]float64 {
	if l.rate != nil {
		return l.rate
	}
	latest := map[[2]string][]*v1.Migration{}
	for _, m := range l.Migrations {
		age := l.now.Sub(m.Ended.AsTime())
		if m.State != v1.MigrationState_MIGRATION_STATE_DONE || age < 0 || age > 24*time.Hour || m.BandwidthBytes > 0 || m.TotalMs < 1000 ||
			m.Progress.GetTransferredBytes() < leastForRate {
			continue
		}
		if between := l.sitesOf(m); between[0] != between[1] {
			latest[between] = append(latest[between], m)
		}
	}
	l.rate = map[[2]string]float64{}
	for between, moves := range latest {
		oldestFirst(moves)
		var rates []float64
		for _, m := range moves[max(0, len(moves)-lastRates):] {
			rates = append(rates, min(max(rateOf(m), leastRate), usualRate))
		}
		slices.Sort(rates)
		l.rate[between] = rates[len(rates)/2]
	}
	return l.rate
}

// rebalance begins the proposed moves, once for each usage.
func (p *pass) rebalance() {
	memory := &p.Core.policies
	if _, is := memory.policy.Rebalances(); !is || p.Usage == nil || p.Usage == memory.usage || p.full() {
		return
	}
	memory.usage = p.Usage
	places := p.look().places()
	memory.lapsed = places.lapsed(p.index.moves)
	var c Change
	group := 0
	plan, refused := places.Plan()
	p.refused(places, refused)
	for i, m := range plan {
		if m.Group == 0 || m.Group != group {
			c, group = Change{}, m.Group
		}
		p.begin(&c, places, m)
		if last := i == len(plan)-1 || m.Group == 0 || plan[i+1].Group != m.Group; !last {
			continue
		}
		if p.touches(c) || p.full() {
			return // the next moves were planned with this one, and may gain too little without it
		}
		p.propose("guest/"+places.guests[m.Guest].Meta.Name, c)
		for first := i; first >= 0 && (first == i || m.Group != 0 && plan[first].Group == m.Group); first-- {
			moved, to := places.guests[plan[first].Guest], places.Hosts[plan[first].To].Name
			p.openRoom().take(to, moved.Shape)
			p.look().begins(moved, plan[first].Policy, to)
		}
	}
}

// begin adds a proposed move to a change.
func (p *pass) begin(c *Change, places *Places, m rebalance.Proposal) {
	g := places.guests[m.Guest]
	bounds, _ := p.Core.policies.policy.BoundsOf(m.Policy)
	p.beginMove(c, g, places.Hosts[m.To].Name, cause{policy: m.Policy, bandwidth: bounds.Bandwidth,
		reason: fmt.Sprintf("%s: %s; this gains %.2f and takes about %.0f s", m.Policy, m.Why, m.Net(), max(1, m.Seconds))})
}

// mostOptions bounds the hosts that an explanation lists.
const mostOptions = 5

// rebalance explains how policies that decide by use treat a guest.
func (e *Explainer) rebalance(l *lines, p *policy.Policy, g *v1.Guest) {
	if _, is := p.Rebalances(); !is || apportioned(e.Clusters[g.Cluster]) {
		return
	}
	if e.Usage == nil {
		l.add("what guests use is not known yet")
		return
	}
	look := lookAt(e.Objects, e.Reports, e.Usage, p, e.Now)
	places := look.places()
	at, is := places.at[g.Meta.Uid]
	if !is {
		return
	}
	used, guest := e.Usage.Guests[g.Meta.Uid], places.Guests[at]
	_, again := look.seconds(g, e.Hosts[g.Host].GetInfo().GetSite())
	l.add("it used %.2f cores lately, and waited for %.2f more; a move takes about %.0f s%s", used.CPU, used.Wait, max(1, guest.Seconds), sentAgain(again, used.DirtyRate))
	if guest.Stays != "" {
		l.add("no policy moves it by what it uses: %s", guest.Stays)
		return
	}
	options := places.Consider(at)
	for _, o := range options[:min(mostOptions, len(options))] {
		answer := "this is enough"
		if o.Refuse != "" {
			answer = "refused: " + o.Refuse
		}
		l.add("  %s: %s would gain %.2f: %s", places.Hosts[o.Host].Name, o.Policy, o.Net, answer)
	}
	if left := len(options) - mostOptions; left > 0 {
		l.add("  and %d more hosts", left)
	}
}

// sentAgain says which part of a move's time, in seconds, comes from memory that the guest changes; empty: hardly any.
func sentAgain(again, dirty float64) string {
	if again < 1 {
		return ""
	}
	return fmt.Sprintf(", %.0f s of which for memory that the guest changes meanwhile, %s", again, rate(dirty))
}

// touches reports whether this decision has already changed an object that a change expects unchanged, or already moves a
// guest that the change moves.
func (p *pass) touches(c Change) bool {
	for _, op := range c.Ops {
		m, moves := op.Object.(*v1.Migration)
		if op.Kind == Expect && p.changed(op.Object) || moves && p.asked[m.GuestUid] {
			return true
		}
	}
	return false
}

// lapsed returns the waiting moves that no longer gain anything, by uid.
func (p *Places) lapsed(moves Moves) map[string]bool {
	lapsed := map[string]bool{}
	var s *rebalance.State
	for _, m := range moves {
		if m.State != v1.MigrationState_MIGRATION_STATE_PENDING || !policy.Rebalancing(m.Policy) {
			continue
		}
		if s == nil {
			s = p.State()
		}
		guest, known := p.at[m.GuestUid]
		source, is := p.hostAt[m.Source]
		if known && is && s.Back(guest, source) <= 0 {
			lapsed[m.Meta.Uid] = true
		}
	}
	return lapsed
}
