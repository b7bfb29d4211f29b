package core

// apportion.go - gives hosts guests of abstract clusters (abstract processors) in proportion to what the hosts compute. The VM
// scheduler's paper calls this heterogeneous distribution, and the moves at run time dynamic load balance.

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	v1 "watari/api/watariv1"
	"watari/placement"
	"watari/policy"
)

const (
	// apportionEvery is the time between two looks at abstract clusters.
	apportionEvery = 10 * time.Second
	// apportionHold is how long another division must be better before guests move.
	apportionHold = 30 * time.Second
	// apportionGain is the fraction by which the slowest host must become faster.
	apportionGain = 0.1
	// emulated is the speed of an emulated guest, relative to a guest under KVM.
	emulated = 0.1
	// leastFree is the fraction of a host's cores that a cluster can count on, whatever else the host does.
	leastFree = 0.1
)

// Bounds of the values that a host reports of its processors.
const (
	leastSpeed, mostSpeed = 0.01, 100
	leastShare            = 0.01
	mostCores             = 1 << 16
)

// speedOf returns the speed of a host's processors. An unmeasured speed counts as 1.
func speedOf(h *v1.HostInfo) float64 {
	if speed := h.GetCoreSpeed(); speed >= leastSpeed { // false if it is not a number
		return min(speed, mostSpeed)
	}
	return 1
}

// coresOf returns the processor time that a host can give, in cores.
func coresOf(h *v1.HostInfo) float64 {
	cores := float64(min(max(1, h.GetCores()), mostCores))
	if share := h.GetCpuShare(); share >= leastShare {
		return min(share, cores)
	}
	return cores
}

// apportioned reports whether a cluster is abstract: its guests are placed in proportion to the hosts' speeds, so policies
// must not rebalance them.
func apportioned(c *v1.Cluster) bool { return c.GetSpec().GetAbstract() }

// UsageEvery returns how often decisions need new usage of hosts and guests; false: never.
func UsageEvery(s *Objects, p *policy.Policy) (time.Duration, bool) {
	every, is := p.Looks()
	for _, c := range s.Clusters {
		if apportioned(c) {
			if is {
				return min(every, apportionEvery), true
			}
			return apportionEvery, true
		}
	}
	return every, is
}

// apportionMemory is what a Core remembers for abstract clusters.
type apportionMemory struct {
	looked time.Time
	// better has the time since which another division has been better, by cluster.
	better map[string]time.Time
	// shown has what guests have shown of hosts, and for how long, by cluster.
	shown map[string]shown
	last  string // cluster whose guests moved
}

func (m apportionMemory) clone() apportionMemory {
	m.better, m.shown = maps.Clone(m.better), maps.Clone(m.shown)
	return m
}

// hurried divides a time by Config.Hurry.
func (p *pass) hurried(d time.Duration) time.Duration { return d / time.Duration(max(1, p.Hurry)) }

// boundsOf returns the bounds of a policy; nil: it is off.
func (p *pass) boundsOf(name string) *policy.Bounds {
	bounds, _ := p.Core.policies.policy.BoundsOf(name)
	if name == policy.ApportionName {
		hurried := *bounds
		hurried.CoolDown = p.hurried(hurried.CoolDown)
		bounds = &hurried
	}
	return bounds
}

// division is how a cluster's guests are divided among hosts.
type division struct {
	shares []placement.Share
	counts []int // wanted, by host
}

// divide divides the guests of an abstract cluster among hosts. hosts are described for a guest of the cluster. guestsAt
// returns the guests with a grant on a host.
func divide(u *Usage, c *v1.Cluster, n int, hosts []placement.Host, guestsAt func(host string) set[*v1.Guest]) division {
	r := request(c)
	r.Shape = c.Spec.Shape
	d := division{shares: make([]placement.Share, len(hosts))}
	for i := range hosts {
		h := &hosts[i]
		share := placement.Share{Host: h.Name, Has: h.ClusterGuests}
		share.Capacity, share.Cores = capacityFor(h, u, c, guestsAt(h.Name))
		switch {
		case !h.Connected: // its guests stay
			share.Least, share.Most = h.ClusterGuests, h.ClusterGuests
		case placement.Check(r, h) == "":
			share.Most = h.ClusterGuests + h.Room(r.Shape)
		case !h.Draining && !h.Spare && h.Withdrawn == "":
			share.Most = h.ClusterGuests
		}
		d.shares[i] = share
	}
	// A host that has guests by its measured speed keeps one, which shows when a program computes there as measured.
	measured := slices.Clone(d.shares)
	for i := range measured {
		measured[i].Capacity /= pace(c, &hosts[i])
	}
	for i, count := range placement.Apportion(n, measured) {
		if s := &d.shares[i]; count > 0 && pace(c, &hosts[i]) < 1 && s.Most > s.Has {
			s.Least = max(s.Least, 1)
		}
	}
	d.counts = placement.Apportion(n, d.shares)
	return d
}

// capacityFor returns what a host computes for a cluster in a second: the free cores, which nothing else uses, but at least
// leastFree of all, times their speed and the host's pace.
func capacityFor(h *placement.Host, u *Usage, c *v1.Cluster, guests set[*v1.Guest]) (capacity, free float64) {
	cores := coresOf(h.Info)
	free = cores
	if u != nil {
		free -= u.Hosts[h.Name].Others
		for g := range guests {
			if g.Cluster != c.Meta.Name {
				free -= u.Guests[g.Meta.Uid].CPU
			}
		}
	}
	free = max(free, leastFree*cores)
	capacity = speedOf(h.Info) * free * pace(c, h)
	if h.Acceleration != v1.AccelerationKind_ACCELERATION_KIND_KVM {
		capacity *= emulated
	}
	return capacity, free
}

// now returns how slow the slowest host is with the present division.
func (d division) now() float64 {
	has := make([]int, len(d.shares))
	for i, s := range d.shares {
		has[i] = s.Has
	}
	return placement.Slowest(has, d.shares)
}

// neediest returns the index of the host that lacks the most guests and can take this guest; -1: there is none.
func (d division) neediest(r *placement.Request, hosts []placement.Host) int {
	best, most := -1, 0
	for i := range hosts {
		if lacks := d.counts[i] - hosts[i].ClusterGuests; lacks > most && placement.Check(r, &hosts[i]) == "" {
			best, most = i, lacks
		}
	}
	return best
}

func (p *pass) divide(c *v1.Cluster, hosts []placement.Host) division {
	return divide(p.Usage, c, p.wantedGuests(c), hosts, func(host string) set[*v1.Guest] { return p.index.onHost[host] })
}

func (p *pass) wantedGuests(c *v1.Cluster) (n int) {
	for _, g := range p.index.guestsOf(c.Meta.Name) {
		if !unwanted(p.Objects, g) {
			n++
		}
	}
	return n
}

// apportion moves guests of abstract clusters when another division has been better for apportionHold.
func (p *pass) apportion() {
	memory := &p.Core.apportionment
	next := memory.looked.Add(p.hurried(apportionEvery))
	if p.Now.Before(next) && !p.Now.Before(memory.looked) { // else the clock was set back
		if len(memory.better)+len(memory.shown) > 0 {
			p.again = earlier(p.again, next)
		}
		return
	}
	memory.looked = p.Now
	for _, m := range p.index.moves {
		if m.Policy == policy.ApportionName {
			memory.better = nil // usage shows hosts' free capacity only some time after the move
			return
		}
	}
	better := map[string]time.Time{}
	if memory.shown == nil {
		memory.shown = map[string]shown{}
	}
	maps.DeleteFunc(memory.shown, func(name string, _ shown) bool { return p.Clusters[name] == nil })
	for _, name := range memory.inTurn(sortedKeys(p.Clusters)) {
		c := p.Clusters[name]
		if !apportioned(c) || c.Meta.Deleting != nil || p.full() {
			continue
		}
		hosts, d := p.divided(c)
		if d == nil || p.learnPaces(c, d) || placement.Slowest(d.counts, d.shares)*(1+apportionGain) > d.now() {
			continue
		}
		since, was := memory.better[name]
		if !was || since.After(p.Now) {
			since = p.Now
		}
		better[name] = since
		if p.Now.Sub(since) >= p.hurried(apportionHold) {
			begun := len(p.changes)
			p.reapportion(c, hosts, *d)
			if len(p.changes) > begun {
				// One cluster at a time: two clusters that see the same free host would both move there, and back.
				memory.last, memory.better = name, nil
				return
			}
		}
	}
	memory.better = better
}

// inTurn rotates names, so that the cluster after the last one that was divided anew comes first.
func (m *apportionMemory) inTurn(names []string) []string {
	after, _ := slices.BinarySearch(names, m.last+"\x00")
	return slices.Concat(names[after:], names[:after])
}

// divided returns the hosts and the best division of a cluster; nil: guests of the cluster are moving.
func (p *pass) divided(c *v1.Cluster) ([]placement.Host, *division) {
	guests := p.index.guestsOf(c.Meta.Name)
	for _, g := range guests {
		if !unwanted(p.Objects, g) && (p.index.moves[g.Meta.Uid] != nil || p.asked[g.Meta.Uid]) {
			return nil, nil
		}
	}
	hosts := p.openRoom().forCluster(p, p.index.moves, guests, c.ImageDigest)
	d := p.divide(c, hosts)
	return hosts, &d
}

// reapportion begins the moves to a division: one for each guest that a host lacks.
func (p *pass) reapportion(c *v1.Cluster, hosts []placement.Host, d division) {
	at := p.room.at
	for _, g := range p.index.guestsOf(c.Meta.Name) {
		from, is := at[g.Host]
		if p.full() {
			return
		}
		if !is || hosts[from].ClusterGuests <= d.counts[from] || p.staysApportioned(g) {
			continue
		}
		to := d.neediest(moveRequest(p.Objects, g), hosts)
		if to < 0 {
			continue
		}
		var change Change
		p.beginMove(&change, g, hosts[to].Name, cause{policy: policy.ApportionName, reason: "guests in proportion to the hosts' speeds: " + d.String()})
		p.propose("guest/"+g.Meta.Name, change)
		p.room.take(hosts[to].Name, g.Shape)
		hosts[to].Place(g.Shape)
		hosts[from].ClusterGuests--
	}
}

// staysApportioned reports whether apportion must not move a guest now.
func (p *pass) staysApportioned(g *v1.Guest) bool {
	ended, h := p.index.ended[g.Meta.Uid], p.Hosts[g.Host]
	if h.Draining || len(h.Withdrawn) > 0 { // another decision moves it
		return true
	}
	if p.changed(g) || p.asked[g.Meta.Uid] || p.changed(h) || unwanted(p.Objects, g) || !p.runsUnderGrant(g) || p.apportionFails(ended) || diskAway(p.Objects, p, g) != "" {
		return true
	}
	why, _ := mustStay(p.Core.policies.policy, policy.ApportionName, p.apportionBounds(ended), g, ended, p.Now)
	return why != ""
}

// apportionBounds returns the bounds for the next move of a guest. The cool-down doubles with each move of the last hour, up to an
// hour: if divisions alternate, whatever makes them look better, their moves become rare.
func (p *pass) apportionBounds(ended []*v1.Migration) *policy.Bounds {
	bounds := *p.boundsOf(policy.ApportionName)
	again := false
	for _, m := range ended {
		if age := p.Now.Sub(m.Ended.AsTime()); m.Policy == policy.ApportionName && m.State == v1.MigrationState_MIGRATION_STATE_DONE && age >= 0 && age < p.hurried(time.Hour) {
			if again {
				bounds.CoolDown = min(2*bounds.CoolDown, p.hurried(time.Hour))
			}
			again = true
		}
	}
	return &bounds
}

// apportionFails reports whether moves of a guest have failed lately. The pause doubles with each failure, up to an hour.
func (p *pass) apportionFails(ended []*v1.Migration) bool {
	pause := retryMove
	var last time.Time
	for _, m := range ended {
		if at := m.Ended.AsTime(); m.State != v1.MigrationState_MIGRATION_STATE_DONE && !at.After(p.Now) && p.Now.Sub(at) < time.Hour {
			pause = min(2*pause, time.Hour)
			if at.After(last) {
				last = at
			}
		}
	}
	return p.Now.Sub(last) < p.hurried(pause)
}

func (d division) String() string {
	var parts []string
	for i, s := range d.shares {
		if d.counts[i] > 0 || s.Has > 0 {
			parts = append(parts, fmt.Sprintf("%s %d", s.Host, d.counts[i]))
		}
	}
	return strings.Join(parts, ", ")
}

// Disproportion returns the fraction by which the slowest host of an abstract cluster would be faster with another division. It
// is 0 if the hosts that may have guests of the cluster have no room for all of them.
func (e *Explainer) Disproportion(c *v1.Cluster) float64 {
	d := e.divide(c)
	places := 0
	for i, s := range d.shares {
		places += d.counts[i] - s.Has
	}
	if places < 0 {
		return 0
	}
	return d.now()/max(placement.Slowest(d.counts, d.shares), math.SmallestNonzeroFloat64) - 1
}

func (e *Explainer) divide(c *v1.Cluster) division {
	guests, moves := GuestsOf(e.Objects, c.Meta.Name), ActiveMoves(e.Objects)
	n := len(slices.DeleteFunc(slices.Clone(guests), func(g *v1.Guest) bool { return unwanted(e.Objects, g) }))
	onHost := map[string]set[*v1.Guest]{}
	for _, g := range e.Guests {
		add(onHost, g.Host, g)
	}
	hosts := newRoom(e.Objects, e.Reports, moves).forCluster(e.Reports, moves, guests, c.ImageDigest)
	return divide(e.Usage, c, n, hosts, func(host string) set[*v1.Guest] { return onHost[host] })
}

// apportion explains how the guests of g's abstract cluster are divided.
func (e *Explainer) apportion(l *lines, g *v1.Guest) {
	c := e.Clusters[g.Cluster]
	if !apportioned(c) {
		return
	}
	d, n, total := e.divide(c), 0, 0.0
	for _, count := range d.counts {
		n += count
	}
	for _, s := range d.shares {
		total += s.Capacity
	}
	l.add("its cluster's %d guests are divided in proportion to the hosts' speeds; they move if that makes the slowest host %.0f %% faster for %.0f s:",
		n, 100*apportionGain, apportionHold.Seconds())
	for i, s := range d.shares {
		if s.Most == 0 && s.Has == 0 {
			continue
		}
		l.add("  %s: has %d, wanted %d; %.2f of the hosts' speed%s%s", s.Host, s.Has, d.counts[i], s.Capacity/math.Max(total, math.SmallestNonzeroFloat64),
			atPace(c, s), bounded(s, d.counts[i]))
	}
}

// atPace tells of a host's pace for a cluster; empty: it is 1.
func atPace(c *v1.Cluster, s placement.Share) string {
	if pace := paceOf(c, s.Host); pace != 1 && s.Has > 0 {
		return fmt.Sprintf(" (its program computes there %.2f times as fast as measured)", pace)
	}
	return ""
}

// bounded says why a host cannot have more guests; empty: it can.
func bounded(s placement.Share, count int) string {
	switch {
	case s.Least == s.Most && s.Has > 0:
		return ", not reachable"
	case count == s.Most:
		return ", no room for more"
	}
	return ""
}
