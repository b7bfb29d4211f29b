package rebalance

// state.go - the guests' places while a plan grows.

import (
	"slices"

	v1 "watari/api/watariv1"
	"watari/placement"
)

// State is the guests' places in the problem, with the moves that are already proposed.
type State struct {
	*Problem
	At       []int     // the host of each guest
	On       [][]int   // the guests of each host
	Demand   []float64 // of the guests of each host
	Clusters []Cluster
	Of       []int // the cluster of each guest, an index in Clusters

	memory  []uint64 // of each host, in use by guests that are there, arrive or leave
	vcpus   []uint32
	turns   []int // see Host.Turns
	site    []int // of each host, a number
	moved   []bool
	begun   map[string]int // moves that were taken, by policy
	sent    map[link]uint64
	refused []Refused // see bestMove
	// lax: may forbids nothing. forbidden: it has forbidden something, or would have.
	lax, forbidden bool
	trying         bool // a move is tried, and will be taken back before anything is sorted again
	// Marks of what a search has seen.
	stamp     int
	seenHost  []int
	seenGuest []int
}

// Cluster is the places of a cluster's guests.
type Cluster struct {
	Guests []int
	hosts  counts
	sites  counts
}

// link is a policy and two sites, by their numbers. State.sent has the bytes that the taken moves of the policy send between
// the sites.
type link struct {
	policy string
	a, b   int
}

// link returns the link for a policy's move between two hosts.
func (s *State) link(policy string, from, to int) link {
	return link{policy, min(s.site[from], s.site[to]), max(s.site[from], s.site[to])}
}

// counts are the numbers of guests at some hosts or sites. There are few, so a list is faster than a map.
type counts []struct{ at, n int }

func (c counts) of(at int) int {
	for _, one := range c {
		if one.at == at {
			return one.n
		}
	}
	return 0
}

func (c *counts) add(at, n int) {
	for i := range *c {
		if (*c)[i].at == at {
			if (*c)[i].n += n; (*c)[i].n == 0 {
				*c = slices.Delete(*c, i, i+1)
			}
			return
		}
	}
	*c = append(*c, struct{ at, n int }{at, n})
}

// State returns the places before any proposal.
func (p *Problem) State() *State { return newState(p) }

func newState(p *Problem) *State {
	n := len(p.Hosts)
	s := &State{Problem: p, At: make([]int, len(p.Guests)), On: make([][]int, n), Demand: make([]float64, n), Of: make([]int, len(p.Guests)),
		memory: make([]uint64, n), vcpus: make([]uint32, n), turns: make([]int, n), site: make([]int, n), moved: make([]bool, len(p.Guests)),
		begun: map[string]int{}, sent: map[link]uint64{}, seenHost: make([]int, n), seenGuest: make([]int, len(p.Guests))}
	sites, clusters := map[string]int{}, map[string]int{}
	number := func(of map[string]int, name string) int {
		i, known := of[name]
		if !known {
			i = len(of)
			of[name] = i
		}
		return i
	}
	for i := range p.Hosts {
		h := &p.Hosts[i]
		s.memory[i], s.vcpus[i], s.turns[i], s.site[i] = h.MemoryUsed, h.VCPUs, h.Turns, number(sites, h.Site)
		if h.Closed != "" {
			s.turns[i] = 0
		}
	}
	for g := range p.Guests {
		guest := &p.Guests[g]
		c := number(clusters, guest.Cluster)
		if c == len(s.Clusters) {
			s.Clusters = append(s.Clusters, Cluster{})
		}
		s.At[g], s.Of[g] = guest.Host, c
		s.On[guest.Host] = append(s.On[guest.Host], g)
		s.Demand[guest.Host] += guest.Demand
		cluster := &s.Clusters[c]
		cluster.Guests = append(cluster.Guests, g)
		cluster.hosts.add(guest.Host, 1)
		cluster.sites.add(s.site[guest.Host], 1)
	}
	for i := range p.Policies {
		p.Policies[i].Term.Begin(s)
	}
	return s
}

// host returns a host as placement's filters see it.
func (s *State) host(i int) placement.Host {
	h := s.Hosts[i].Host
	h.MemoryUsed, h.VCPUs = s.memory[i], s.vcpus[i]
	return h
}

// fits reports whether a host has memory for a guest. This check refuses most hosts, and is faster than the filter.
func (s *State) fits(guest, to int) bool {
	return s.memory[to]+s.Guests[guest].Request.Shape.GetMemoryBytes() <= s.Hosts[to].MemoryBytes
}

// shift puts a guest on another host.
func (s *State) shift(guest, to int) {
	from := s.At[guest]
	s.At[guest] = to
	i := slices.Index(s.On[from], guest)
	s.On[from] = slices.Delete(s.On[from], i, i+1)
	s.On[to] = append(s.On[to], guest)
	s.Demand[from] -= s.Guests[guest].Demand
	s.Demand[to] += s.Guests[guest].Demand
	c := &s.Clusters[s.Of[guest]]
	c.hosts.add(from, -1)
	c.hosts.add(to, 1)
	c.sites.add(s.site[from], -1)
	c.sites.add(s.site[to], 1)
	for i := range s.Policies {
		s.Policies[i].Term.Moved(s, guest, from, to)
	}
}

// reserve adds a guest's memory and virtual CPUs to a host's, or takes them away again.
func (s *State) reserve(guest, host, sign int) {
	shape := s.Guests[guest].Request.Shape
	if sign < 0 {
		s.memory[host] -= shape.GetMemoryBytes()
		s.vcpus[host] -= shape.GetVcpus()
		return
	}
	s.memory[host] += shape.GetMemoryBytes()
	s.vcpus[host] += shape.GetVcpus()
}

// turn uses a turn of both hosts of a move, or gives the turns back.
func (s *State) turn(from, to, sign int) {
	s.turns[from] -= sign
	s.turns[to] -= sign
}

// take adds a proposal to the plan. The guest uses resources at both ends until it has moved.
func (s *State) take(p Proposal) {
	s.reserve(p.Guest, p.To, 1)
	s.turn(p.From, p.To, 1)
	s.moved[p.Guest] = true
	s.begun[p.Policy]++
	s.sent[s.link(p.Policy, p.From, p.To)] += s.Guests[p.Guest].Bytes
	s.shift(p.Guest, p.To)
}

// spreadGain returns by how much more evenly a guest's cluster is spread if the guest moves; 0: the cluster asks for no
// spread. The measure is half of the sum of squares of the guests at each site and on each host.
func (s *State) spreadGain(guest, to int) float64 {
	spread := s.Guests[guest].Request.Spread
	if !spreads(spread) {
		return 0
	}
	from, c := s.At[guest], &s.Clusters[s.Of[guest]]
	gain := float64(c.hosts.of(from) - c.hosts.of(to) - 1)
	if a, b := s.site[from], s.site[to]; spread == v1.Spread_SPREAD_SITE && a != b {
		gain += float64(c.sites.of(a) - c.sites.of(b) - 1)
	}
	return gain
}
