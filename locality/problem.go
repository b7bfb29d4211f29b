package locality

// problem.go - the input: guests of one cluster, their traffic, the hosts, and the cost of each place.

import (
	"cmp"
	"slices"
)

// Distance is the cost of a byte between hosts. Within a host a byte costs nothing.
type Distance struct {
	Site float64 // between hosts of a site
	WAN  float64 // between sites
}

// Default is the distance if the policy sets none.
var Default = Distance{Site: 1, WAN: 10}

// Between returns the distance between two hosts at sites.
func (d Distance) Between(host, site, otherHost, otherSite string) float64 {
	switch {
	case host == otherHost:
		return 0
	case site == otherSite:
		return d.Site
	}
	return d.WAN
}

// Host is a place for guests.
type Host struct {
	Name, Site string
	Memory     uint64 // free, bytes
	VCPUs      int    // free; negative: the host has more virtual CPUs than cores
	// Closed: the host takes no guests.
	Closed bool
}

// Guest is a guest of the cluster.
type Guest struct {
	Name   string
	Host   int // where it is; -1: nowhere
	Memory uint64
	VCPUs  int
	// Stays: the guest must not move.
	Stays bool
}

// Pair is the traffic between two guests, both ways, bytes per second.
type Pair struct {
	A, B int
	Rate float64
}

// Keep says how guests must stay spread. They may always swap places.
type Keep int

// How guests must stay spread.
const (
	KeepNothing Keep = iota
	KeepSites        // over sites, no less evenly than now
	KeepHosts        // over hosts, no less evenly than now
	KeepCounts       // on each host as many as now
)

// Problem is a cluster and the hosts.
type Problem struct {
	Hosts    []Host
	Guests   []Guest
	Traffic  []Pair
	Distance Distance
	Keep     Keep
	// Horizon is the time, in seconds, over which the bytes that a move saves are compared with those that it sends: the
	// guest's memory.
	Horizon float64
	// LeastGain is the fraction of the present cost that a plan has to save.
	LeastGain float64
	// Most bounds the moves of a plan; 0: no bound.
	Most int
	// Allowed reports whether a guest may be on a host, apart from resources; nil: it may.
	Allowed func(guest, host int) bool
}

// Between returns the distance between two hosts.
func (p *Problem) Between(a, b int) float64 {
	x, y := &p.Hosts[a], &p.Hosts[b]
	return p.Distance.Between(x.Name, x.Site, y.Name, y.Site)
}

// Cost returns the bytes times distance per second if guest i is on host at[i].
func (p *Problem) Cost(at []int) (cost float64) {
	for _, t := range p.Traffic {
		if at[t.A] >= 0 && at[t.B] >= 0 {
			cost += t.Rate * p.Between(at[t.A], at[t.B])
		}
	}
	return cost
}

// move returns what a guest's move to a host costs, spread over the horizon.
func (p *Problem) move(guest, host int) float64 {
	g := &p.Guests[guest]
	if g.Host < 0 || p.Horizon <= 0 {
		return 0
	}
	return float64(g.Memory) * p.Between(g.Host, host) / p.Horizon
}

// total returns the cost of a placement and of the moves that lead there.
func (p *Problem) total(at []int) float64 {
	total := p.Cost(at)
	for i := range p.Guests {
		if at[i] >= 0 {
			total += p.move(i, at[i])
		}
	}
	return total
}

// present returns the present placement.
func (p *Problem) present() []int {
	at := make([]int, len(p.Guests))
	for i, g := range p.Guests {
		at[i] = g.Host
	}
	return at
}

const (
	// spare is the number of candidates without a guest of the cluster at each site that has guests of the cluster.
	// elsewhere is their number at all other sites together.
	spare     = 4
	elsewhere = 8
)

// candidates returns the hosts to consider: those of the cluster's guests, and the emptiest of the others.
func (p *Problem) candidates() []int {
	used, sites := map[int]bool{}, map[string]int{}
	for _, g := range p.Guests {
		if g.Host >= 0 {
			used[g.Host] = true
			sites[p.Hosts[g.Host].Site] = spare
		}
	}
	var others []int
	for h := range p.Hosts {
		if !used[h] && !p.Hosts[h].Closed && p.Hosts[h].VCPUs > 0 && p.Hosts[h].Memory > 0 {
			others = append(others, h)
		}
	}
	slices.SortFunc(others, func(a, b int) int {
		return cmp.Or(p.Hosts[b].VCPUs-p.Hosts[a].VCPUs, cmp.Compare(p.Hosts[b].Memory, p.Hosts[a].Memory), a-b)
	})
	left := elsewhere
	for _, h := range others {
		room, ours := sites[p.Hosts[h].Site]
		switch {
		case ours && room > 0:
			sites[p.Hosts[h].Site]--
			used[h] = true
		case !ours && left > 0:
			left--
			used[h] = true
		}
	}
	list := make([]int, 0, len(used))
	for h := range used {
		list = append(list, h)
	}
	slices.Sort(list)
	return list
}
