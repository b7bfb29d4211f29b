package rebalance

// pack.go - the term of policy pack: the cost of hosts with guests, and of demand above a bound.

import (
	"cmp"
	"fmt"
	"slices"
)

// Pack is the cost of hosts with guests: 1 for each, and much for demand above the bound.
type Pack struct {
	// MaxLoad is the load above which guests leave a host.
	MaxLoad float64
	// FillTo is the load up to which hosts are filled. It is a little less than MaxLoad, so that guests need not leave the
	// host again soon.
	FillTo float64
}

// overload is what a processor's worth of demand above the bound costs.
const overload = 10.0

func (p *Pack) over(h *Host, demand float64) float64 {
	return max(0, demand-p.MaxLoad*h.Capacity*h.Speed)
}

func (p *Pack) hostCost(s *State, host, guests int, demand float64) float64 {
	if guests == 0 {
		return 0
	}
	return 1 + overload*p.over(&s.Hosts[host], demand)
}

// Begin does nothing: State counts the guests.
func (p *Pack) Begin(*State) {}

// Moved does nothing.
func (p *Pack) Moved(*State, int, int, int) {}

// Cost returns the whole cost.
func (p *Pack) Cost(s *State) (cost float64) {
	for i := range s.Hosts {
		cost += p.hostCost(s, i, len(s.On[i]), s.Demand[i])
	}
	return cost
}

// Gain returns by how much the cost falls if a guest moves.
func (p *Pack) Gain(s *State, guest, to int) float64 {
	from, d := s.At[guest], s.Guests[guest].Demand
	return p.hostCost(s, from, len(s.On[from]), s.Demand[from]) - p.hostCost(s, from, len(s.On[from])-1, s.Demand[from]-d) +
		p.hostCost(s, to, len(s.On[to]), s.Demand[to]) - p.hostCost(s, to, len(s.On[to])+1, s.Demand[to]+d)
}

// Guests returns the guests of hosts above the bound.
func (p *Pack) Guests(s *State, n int) (guests []int) {
	for i := range s.Hosts {
		if p.over(&s.Hosts[i], s.Demand[i]) > 0 {
			for _, g := range s.On[i] {
				if s.begins(g) {
					guests = append(guests, g)
				}
			}
		}
		if len(guests) >= n {
			return guests[:n]
		}
	}
	return guests
}

// Targets returns the hosts. First come the hosts that can be filled with the guest, in the order of room. Then come the
// other hosts, by the demand that would exceed the bound, the least first.
func (p *Pack) Targets(s *State, guest int) []int {
	fit := p.room(s, guest, true)
	var others []int
	over := func(h int) float64 { return p.over(&s.Hosts[h], s.Demand[h]+s.Guests[guest].Demand) }
	for i := range s.Hosts {
		if !slices.Contains(fit, i) {
			others = append(others, i)
		}
	}
	slices.SortFunc(others, func(a, b int) int { return cmp.Or(cmp.Compare(over(a), over(b)), a-b) })
	return append(fit, others...)
}

// mostRoom bounds the hosts that room returns.
const mostRoom = 16

// room returns hosts that can be filled with a guest, the fullest first. Hosts without guests come last, or not at all if
// empty is false.
func (p *Pack) room(s *State, guest int, empty bool) []int {
	compare := func(a, b int) int {
		return cmp.Or(min(1, len(s.On[b]))-min(1, len(s.On[a])), cmp.Compare(load(&s.Hosts[b], s.Demand[b]), load(&s.Hosts[a], s.Demand[a])), a-b)
	}
	hosts := make([]int, 0, mostRoom+1)
	for i := range s.Hosts {
		full := len(hosts) == mostRoom
		if i == s.At[guest] || s.Hosts[i].Closed != "" || s.Hosts[i].Measured || !empty && len(s.On[i]) == 0 || full && compare(i, hosts[mostRoom-1]) > 0 ||
			load(&s.Hosts[i], s.Demand[i]+s.Guests[guest].Demand) > p.FillTo+1e-9 || !s.fits(guest, i) {
			continue
		}
		at, _ := slices.BinarySearchFunc(hosts, i, compare)
		hosts = slices.Insert(hosts, at, i)
		hosts = hosts[:min(len(hosts), mostRoom)]
	}
	return hosts
}

// Bounds of the search for a host that can be freed.
const (
	mostLeft  = 32   // hosts to try, one after the other
	mostMoved = 16   // guests to move
	mostTried = 2000 // places of guests to try
	mostOpen  = 4    // empty hosts to try for the guests of two hosts
)

// empty finds a host whose guests all have room on other hosts with guests. It tries hosts with few guests first. If there
// is none, it looks for two hosts whose guests have room elsewhere if one empty host is used.
func (p *Pack) empty(s *State, may func(guest, to int) bool) []step {
	var hosts, open []int
	for i := range s.Hosts {
		if len(s.On[i]) == 0 && s.Hosts[i].Closed == "" {
			open = append(open, i)
		}
		if p.leavable(s, i) {
			hosts = append(hosts, i)
		}
	}
	slices.SortFunc(hosts, func(a, b int) int {
		return cmp.Or(len(s.On[a])-len(s.On[b]), cmp.Compare(s.Demand[a], s.Demand[b]), a-b)
	})
	slices.SortFunc(open, func(a, b int) int {
		return cmp.Or(cmp.Compare(s.Hosts[b].Capacity*s.Hosts[b].Speed, s.Hosts[a].Capacity*s.Hosts[a].Speed), a-b)
	})
	tried := 0
	hosts, open = hosts[:min(len(hosts), mostLeft)], open[:min(len(open), mostOpen)]
	for _, host := range hosts {
		if steps := p.leave(s, []int{host}, -1, &tried, may); steps != nil {
			return steps
		}
	}
	for i, a := range hosts[:min(len(hosts), mostOpen)] {
		for _, b := range hosts[i+1 : min(len(hosts), mostOpen)] {
			for _, to := range open {
				if steps := p.leave(s, []int{a, b}, to, &tried, may); steps != nil {
					return steps
				}
			}
		}
	}
	return nil
}

// leavable reports whether all guests of a host may move now.
func (p *Pack) leavable(s *State, host int) bool {
	movable := s.Hosts[host].Closed == "" && len(s.On[host]) > 0 && len(s.On[host]) <= mostMoved
	for _, g := range s.On[host] {
		movable = movable && s.Guests[g].Stays == "" && !s.moved[g]
	}
	return movable
}

// leave finds a place for each guest of some hosts, the largest guest first; nil: it finds none. opened is a host without
// guests that may be used; -1: none. tried counts the tried places.
func (p *Pack) leave(s *State, hosts []int, opened int, tried *int, may func(guest, to int) bool) (steps []step) {
	var guests []int
	for _, h := range hosts {
		guests = append(guests, s.On[h]...)
	}
	if len(guests) > mostMoved {
		return nil
	}
	slices.SortFunc(guests, func(a, b int) int {
		return cmp.Or(cmp.Compare(s.Guests[b].Demand, s.Guests[a].Demand), a-b)
	})
	s.trying = true
	defer func() { s.trying = false }()
	var place func(i int) bool
	place = func(i int) bool {
		if i == len(guests) {
			return true
		}
		g := guests[i]
		for _, to := range p.room(s, g, opened >= 0) {
			if *tried++; *tried > mostTried {
				return false
			}
			if slices.Contains(hosts, to) || len(s.On[to]) == 0 && to != opened || !may(g, to) {
				continue
			}
			from := s.At[g]
			s.reserve(g, to, 1)
			s.shift(g, to)
			steps = append(steps, step{g, to})
			found := place(i + 1)
			s.shift(g, from)
			s.reserve(g, to, -1)
			if found {
				return true
			}
			steps = steps[:len(steps)-1]
		}
		return false
	}
	if !place(0) {
		return nil
	}
	return steps
}

// Why explains what the move frees.
func (p *Pack) Why(s *State, guest, to int) string {
	from, d := s.At[guest], s.Guests[guest].Demand
	if a := &s.Hosts[from]; p.over(a, s.Demand[from]) > 0 {
		return fmt.Sprintf("host %s has load %.2f, more than %.2f", a.Name, load(a, s.Demand[from]), p.MaxLoad)
	}
	b := &s.Hosts[to]
	return fmt.Sprintf("host %s can be freed, and the load of %s grows from %.2f to %.2f", s.Hosts[from].Name, b.Name, load(b, s.Demand[to]), load(b, s.Demand[to]+d))
}
