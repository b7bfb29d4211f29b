package rebalance

// load.go - the term of policy balance: the cost of guests that wait for processors, and of clusters that wait for their
// slowest guest.

import (
	"cmp"
	"fmt"
	"slices"
)

// Load is the cost of guests that get less processor time than they would use. A host with capacity C, speed S, and demand D
// of its guests stretches the time of their work by max(1, D/C)/S. The cost of a guest is its demand, times the stretch of
// its host (for one part), and times that of the slowest host of its cluster (for the other part), since the ranks of an MPI
// program wait for the slowest one. A small part of D*D/(C*S) prefers emptier hosts where no guest waits yet.
type Load struct {
	stretch  []float64
	clusters []loadCluster
	on       []counts // clusters with busy guests on each host, by number
	hot      []int    // hosts, by the cost that a leaving guest saves
	cool     []int    // hosts, by the cost that an arriving guest adds
	least    float64  // the least stretch that a host can have
	sorted   bool
	stamp    int
}

// loadCluster is the demand of a cluster's guests, and their hosts.
type loadCluster struct {
	demand float64
	hosts  counts  // of busy guests
	top    [3]slow // the slowest hosts
	seen   int
}

type slow struct {
	host    int // -1: none
	stretch float64
}

const (
	// coupled is the part of the cost that depends on the slowest host of a cluster.
	coupled = 0.5
	// preferEmpty is the weight of D*D/(C*S).
	preferEmpty = 0.02
	// busyFrom is the demand from which a guest counts as busy: its cluster waits for it.
	busyFrom = 0.05
)

func (l *Load) busy(s *State, guest int) bool { return s.Guests[guest].Demand >= busyFrom }

// stretched returns by how much a host stretches time under a demand.
func stretched(h *Host, demand float64) float64 { return max(1, demand/h.Capacity) / h.Speed }

// hostCost returns the part of the cost that depends on the host only.
func hostCost(h *Host, demand float64) float64 {
	demand = max(0, demand)
	return (1-coupled)*demand*stretched(h, demand) + preferEmpty*demand*demand/(h.Capacity*h.Speed)
}

// Begin reads the places before any proposal.
func (l *Load) Begin(s *State) {
	*l = Load{stretch: make([]float64, len(s.Hosts)), clusters: make([]loadCluster, len(s.Clusters)), on: make([]counts, len(s.Hosts)), stamp: l.stamp}
	for i := range s.Hosts {
		l.stretch[i] = stretched(&s.Hosts[i], s.Demand[i])
		if fastest := 1 / s.Hosts[i].Speed; i == 0 || fastest < l.least {
			l.least = fastest
		}
	}
	for g := range s.Guests {
		c := &l.clusters[s.Of[g]]
		c.demand += s.Guests[g].Demand
		if l.busy(s, g) {
			c.hosts.add(s.At[g], 1)
			l.on[s.At[g]].add(s.Of[g], 1)
		}
	}
	for c := range l.clusters {
		l.rank(c)
	}
}

// rank finds the slowest hosts of a cluster.
func (l *Load) rank(cluster int) {
	c := &l.clusters[cluster]
	c.top = [3]slow{{host: -1}, {host: -1}, {host: -1}}
	for _, at := range c.hosts {
		one := slow{at.at, l.stretch[at.at]}
		for i := range c.top {
			if c.top[i].host < 0 || one.stretch > c.top[i].stretch {
				one, c.top[i] = c.top[i], one
				if one.host < 0 {
					break
				}
			}
		}
	}
}

// Cost returns the whole cost.
func (l *Load) Cost(s *State) (cost float64) {
	for i := range s.Hosts {
		cost += hostCost(&s.Hosts[i], s.Demand[i])
	}
	for c := range l.clusters {
		cost += coupled * l.clusters[c].demand * l.clusters[c].top[0].stretch
	}
	return cost
}

// Gain returns by how much the cost falls if a guest moves.
func (l *Load) Gain(s *State, guest, to int) float64 {
	from, d := s.At[guest], s.Guests[guest].Demand
	a, b := &s.Hosts[from], &s.Hosts[to]
	gain := hostCost(a, s.Demand[from]) - hostCost(a, s.Demand[from]-d) + hostCost(b, s.Demand[to]) - hostCost(b, s.Demand[to]+d)
	left, arrived := stretched(a, s.Demand[from]-d), stretched(b, s.Demand[to]+d)
	l.stamp++
	own, busy := s.Of[guest], l.busy(s, guest)
	one := func(cluster int) {
		c := &l.clusters[cluster]
		if c.seen == l.stamp {
			return
		}
		c.seen = l.stamp
		slowest := 0.0
		for _, t := range c.top {
			if t.host >= 0 && t.host != from && t.host != to {
				slowest = t.stretch
				break
			}
		}
		here, there := c.hosts.of(from), c.hosts.of(to)
		if cluster == own && busy {
			here, there = here-1, there+1
		}
		if here > 0 {
			slowest = max(slowest, left)
		}
		if there > 0 {
			slowest = max(slowest, arrived)
		}
		gain += coupled * c.demand * (c.top[0].stretch - slowest)
	}
	one(own)
	if left != l.stretch[from] {
		for _, c := range l.on[from] {
			one(c.at)
		}
	}
	if arrived != l.stretch[to] {
		for _, c := range l.on[to] {
			one(c.at)
		}
	}
	return gain
}

// Moved updates the costs after a move.
func (l *Load) Moved(s *State, guest, from, to int) {
	l.sorted = l.sorted && s.trying
	own := s.Of[guest]
	if l.busy(s, guest) {
		l.clusters[own].hosts.add(from, -1)
		l.clusters[own].hosts.add(to, 1)
		l.on[from].add(own, -1)
		l.on[to].add(own, 1)
	}
	for _, h := range [2]int{from, to} {
		l.stretch[h] = stretched(&s.Hosts[h], s.Demand[h])
		for _, c := range l.on[h] {
			l.rank(c.at)
		}
	}
	l.rank(own)
}

// sort sorts the hosts by how a small change of demand changes the cost.
func (l *Load) sort(s *State) {
	if l.sorted {
		return
	}
	l.sorted = true
	leaving, arriving := make([]float64, len(s.Hosts)), make([]float64, len(s.Hosts))
	for i := range s.Hosts {
		h, d := &s.Hosts[i], s.Demand[i]
		leaving[i] = hostCost(h, d) - hostCost(h, d-0.5)
		arriving[i] = hostCost(h, d+0.5) - hostCost(h, d)
	}
	if l.hot == nil {
		for i := range s.Hosts {
			l.hot, l.cool = append(l.hot, i), append(l.cool, i)
		}
	}
	slices.SortFunc(l.hot, func(a, b int) int { return cmp.Or(cmp.Compare(leaving[b], leaving[a]), a-b) })
	slices.SortFunc(l.cool, func(a, b int) int { return cmp.Or(cmp.Compare(arriving[a], arriving[b]), a-b) })
}

// Guests returns the guests of the hosts that stretch time most, as long as another host could stretch it less.
func (l *Load) Guests(s *State, n int) (guests []int) {
	l.sort(s)
	for _, h := range l.hot {
		if l.stretch[h] <= l.least*1.001 {
			continue
		}
		for _, g := range s.On[h] {
			if s.Guests[g].Demand > 0 && s.begins(g) {
				guests = append(guests, g)
			}
		}
		if len(guests) >= n {
			return guests[:n]
		}
	}
	return guests
}

// Targets returns the hosts, beginning with those on which the guest costs least.
func (l *Load) Targets(s *State, _ int) []int {
	l.sort(s)
	return l.cool
}

// load returns the load of a host under a demand.
func load(h *Host, demand float64) float64 { return max(0, demand) / (h.Capacity * h.Speed) }

// Why says how the loads change.
func (l *Load) Why(s *State, guest, to int) string {
	from, d := s.At[guest], s.Guests[guest].Demand
	a, b := &s.Hosts[from], &s.Hosts[to]
	return fmt.Sprintf("the load of %s falls from %.2f to %.2f, and that of %s grows from %.2f to %.2f", a.Name, load(a, s.Demand[from]), load(a, s.Demand[from]-d),
		b.Name, load(b, s.Demand[to]), load(b, s.Demand[to]+d))
}
