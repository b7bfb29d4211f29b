package locality

// plan.go - orders the moves that lead to a better placement, so that each has room in its turn.

import (
	"math"
	"slices"
)

// Move is a move of a guest.
type Move struct {
	Guest    int
	From, To int // hosts
	// Ready moves have room now, whatever happens to the moves before them.
	Ready bool
}

// Plan is the moves that improve a placement, in order.
type Plan struct {
	Moves         []Move
	Before, After float64 // bytes times distance, per second
	// Stuck is set if a better placement is known, but its moves do not fit one after the other: hosts whose guests would
	// swap places have no memory for an additional guest.
	Stuck bool
}

// Plan returns the moves that bring the cluster's guests closer together, if they save enough.
func (p *Problem) Plan() Plan {
	s := newSearch(p)
	goal := slices.Clone(s.optimise())
	present := p.present()
	plan := Plan{Before: p.Cost(present)}
	plan.After = plan.Before
	moves, reached := s.order(goal)
	least := plan.Before * (1 - p.LeastGain)
	enough := func(at []int) bool { return p.total(at) < least }
	if !enough(s.placement(reached)) {
		plan.Stuck = enough(s.placement(goal))
		return plan
	}
	plan.Stuck = !slices.Equal(reached, goal)
	plan.Moves, plan.After = moves, p.Cost(s.placement(reached))
	return plan
}

// order returns moves from the present placement towards another one. Each move has room when the moves before it are done.
// The moves end at the best placement on the way that keeps the spread and does not overload hosts.
func (s *search) order(goal []int) (moves []Move, reached []int) {
	s.restore(s.home)
	cores := slices.Clone(s.vcpus)
	claimed := slices.Clone(s.memory) // without the room that moves free
	reached = slices.Clone(s.home)
	sum, best, kept := 0.0, 0.0, 0
	ready := true
	for {
		next, least := -1, math.Inf(1)
		for i, to := range goal {
			if s.at[i] == to || s.memory[to] < s.Guests[i].Memory {
				continue
			}
			if change := s.cost(i, to) - s.cost(i, s.at[i]); change < least {
				next, least = i, change
			}
		}
		if next < 0 || s.Most > 0 && len(moves) == s.Most {
			return moves[:kept], reached
		}
		to, memory := goal[next], s.Guests[next].Memory
		ready = ready && claimed[to] >= memory
		if ready {
			claimed[to] -= memory
		}
		moves = append(moves, Move{Guest: next, From: s.hosts[s.at[next]], To: s.hosts[to], Ready: ready})
		s.put(next, to)
		if sum += least; sum < best && s.keeps(s.home, s.at) && s.fits(cores) {
			best, kept, reached = sum, len(moves), slices.Clone(s.at)
		}
	}
}

// fits reports whether no host has more virtual CPUs than cores, or at least no more than before.
func (s *search) fits(before []int) bool {
	for h, left := range s.vcpus {
		if left < min(0, before[h]) {
			return false
		}
	}
	return true
}

// keeps reports whether placement now is spread as Keep demands, compared with placement before.
func (s *search) keeps(before, now []int) bool {
	sitesBefore, hostsBefore := s.count(before)
	sitesNow, hostsNow := s.count(now)
	switch s.Keep {
	case KeepSites:
		return uneven(sitesNow) <= uneven(sitesBefore)
	case KeepHosts:
		return uneven(hostsNow) <= uneven(hostsBefore)
	case KeepCounts:
		return slices.Equal(hostsBefore, hostsNow)
	}
	return true
}

// uneven returns a measure that is larger for less even numbers of the same sum.
func uneven(counts []int) (sum int) {
	for _, n := range counts {
		sum += n * n
	}
	return sum
}
