package rebalance

// pack.go - the term of policy pack: hosts that have guests, and demand above a bound.

import (
	"cmp"
	"fmt"
	"slices"
)

// Pack is the cost of hosts with guests: 1 for each, and much for demand above the bound.
type Pack struct {
	// MaxLoad is the load up to which hosts are filled. A host is filled to a little less, so that it need not be left again soon.
	MaxLoad float64
}

const (
	// overload is what a processor's worth of demand above the bound costs.
	overload = 10.0
	// fillTo is the part of the bound up to which hosts are filled.
	fillTo = 0.9
)

func (p *Pack) over(h *Host, demand float64) float64 {
	return max(0, demand-p.MaxLoad*h.Capacity*h.Speed)
}

func (p *Pack) hostCost(s *State, host, guests int, demand float64) float64 {
	if guests == 0 {
		return 0
	}
	return 1 + overload*p.over(&s.Hosts[host], demand)
}

// Begin has nothing to do: State counts the guests.
func (p *Pack) Begin(*State) {}

// Moved has nothing to do.
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
			guests = append(guests, s.On[i]...)
		}
		if len(guests) >= n {
			return guests[:n]
		}
	}
	return guests
}

// Targets returns the hosts that stay below the bound with the guest: those with guests first, and the fullest first.
func (p *Pack) Targets(s *State, guest int) []int {
	return p.room(s, guest, s.At[guest], true)
}

// room returns the hosts that can be filled with a guest, the fullest first, and those without guests last, or not at all.
func (p *Pack) room(s *State, guest, not int, empty bool) (hosts []int) {
	for i := range s.Hosts {
		if i != not && s.Hosts[i].Closed == "" && (empty || len(s.On[i]) > 0) && load(&s.Hosts[i], s.Demand[i]+s.Guests[guest].Demand) <= fillTo*p.MaxLoad {
			hosts = append(hosts, i)
		}
	}
	slices.SortFunc(hosts, func(a, b int) int {
		return cmp.Or(min(1, len(s.On[b]))-min(1, len(s.On[a])), cmp.Compare(load(&s.Hosts[b], s.Demand[b]), load(&s.Hosts[a], s.Demand[a])), a-b)
	})
	return hosts
}

// mostEmptied bounds the hosts that are tried, and the guests of each.
const (
	mostEmptied      = 32
	mostEmptiedGuest = 16
)

// empty finds a host all of whose guests have room on other hosts with guests. Hosts with few guests are tried first.
func (p *Pack) empty(s *State, may func(guest, to int) bool) []step {
	var hosts []int
	for i := range s.Hosts {
		movable := s.Hosts[i].Closed == "" && len(s.On[i]) > 0 && len(s.On[i]) <= mostEmptiedGuest
		for _, g := range s.On[i] {
			movable = movable && s.Guests[g].Stays == "" && !s.moved[g]
		}
		if movable {
			hosts = append(hosts, i)
		}
	}
	slices.SortFunc(hosts, func(a, b int) int {
		return cmp.Or(len(s.On[a])-len(s.On[b]), cmp.Compare(s.Demand[a], s.Demand[b]), a-b)
	})
	for _, host := range hosts[:min(len(hosts), mostEmptied)] {
		if steps := p.leave(s, host, may); steps != nil {
			return steps
		}
	}
	return nil
}

// leave finds a place for each guest of a host, the largest first; nil: one has none.
func (p *Pack) leave(s *State, host int, may func(guest, to int) bool) (steps []step) {
	guests := slices.Clone(s.On[host])
	slices.SortFunc(guests, func(a, b int) int {
		return cmp.Or(cmp.Compare(s.Guests[b].Demand, s.Guests[a].Demand), a-b)
	})
	for _, g := range guests {
		found := -1
		for _, to := range p.room(s, g, host, false) {
			if may(g, to) {
				found = to
				break
			}
		}
		if found < 0 {
			steps = append(steps, step{-1, -1})
			break
		}
		steps = append(steps, step{g, found})
		s.reserve(g, found, 1)
		s.shift(g, found)
	}
	whole := true
	for i := len(steps) - 1; i >= 0; i-- {
		if steps[i].guest < 0 {
			whole = false
			continue
		}
		s.reserve(steps[i].guest, steps[i].to, -1)
		s.shift(steps[i].guest, host)
	}
	if !whole {
		return nil
	}
	return steps
}

// Why says what the move frees.
func (p *Pack) Why(s *State, guest, to int) string {
	from, d := s.At[guest], s.Guests[guest].Demand
	if a := &s.Hosts[from]; p.over(a, s.Demand[from]) > 0 {
		return fmt.Sprintf("host %s has load %.2f, more than %.2f", a.Name, load(a, s.Demand[from]), p.MaxLoad)
	}
	b := &s.Hosts[to]
	return fmt.Sprintf("host %s can be freed, and the load of %s grows from %.2f to %.2f", s.Hosts[from].Name, b.Name, load(b, s.Demand[to]), load(b, s.Demand[to]+d))
}
