// Package exact compares plans of package rebalance with the exact optimum of small random problems, and with simple ways to
// place guests. It is for tests and benchmarks.
package exact

import (
	"fmt"
	"math"
	"math/rand/v2"

	v1 "watari/api/watariv1"
	"watari/placement"
	"watari/rebalance"
)

const gib = 1 << 30

// Problem makes a small random problem: 2 to 4 hosts of several sizes and speeds, 3 to 7 guests of 3 clusters.
func Problem(seed uint64, policy rebalance.Policy) *rebalance.Problem {
	rng := rand.New(rand.NewPCG(seed, 7))
	p := &rebalance.Problem{Most: 100, Policies: []rebalance.Policy{policy}}
	hosts, guests := 2+rng.IntN(3), 3+rng.IntN(5)
	for h := range hosts {
		p.Hosts = append(p.Hosts, rebalance.Host{Host: placement.Host{Name: fmt.Sprintf("h%d", h), Site: "s", Connected: true, Cores: 8, MemoryBytes: uint64(guests) * gib, Info: &v1.HostInfo{}},
			Capacity: []float64{1, 2, 4}[rng.IntN(3)], Speed: []float64{0.5, 1, 1.5}[rng.IntN(3)], Turns: 100})
	}
	for g := range guests {
		demand := float64(1 + rng.IntN(2))
		if rng.IntN(3) == 0 {
			demand = rng.Float64()
		}
		p.Guests = append(p.Guests, rebalance.Guest{Name: fmt.Sprintf("g%d", g), Cluster: fmt.Sprintf("c%d", rng.IntN(3)), Host: rng.IntN(hosts), Demand: demand,
			Request: &placement.Request{Shape: &v1.GuestShape{Vcpus: 1, MemoryBytes: gib}}})
	}
	return p
}

// Balance is policy balance without bounds.
func Balance() rebalance.Policy {
	return rebalance.Policy{Name: "balance", Term: &rebalance.Load{}, Weight: 1, Horizon: 300, Left: -1}
}

// Pack is policy pack without bounds.
func Pack() rebalance.Policy {
	return rebalance.Policy{Name: "pack", Term: &rebalance.Pack{MaxLoad: 1, FillTo: 1}, Weight: 1, Horizon: 300, Left: -1}
}

// Settle carries out plans until a plan has no moves, and returns the number of moves. Each plan must lower the cost.
func Settle(p *rebalance.Problem) (moves int, err error) {
	for range 50 {
		for i := range p.Hosts {
			p.Hosts[i].MemoryUsed = 0
		}
		for _, g := range p.Guests {
			p.Hosts[g.Host].MemoryUsed += g.Request.Shape.MemoryBytes
		}
		plan, _ := p.Plan()
		if len(plan) == 0 {
			return moves, nil
		}
		before := p.Cost()
		for _, m := range plan {
			p.Guests[m.Guest].Host = m.To
			moves++
		}
		if after := p.Cost(); after >= before {
			return moves, fmt.Errorf("a plan raises the cost from %v to %v: %+v", before, after, plan)
		}
	}
	return moves, fmt.Errorf("the plans do not end: %d moves", moves)
}

// Optimum returns the least cost of all ways to place the guests.
func Optimum(p *rebalance.Problem) float64 {
	best := math.Inf(1)
	var place func(g int)
	place = func(g int) {
		if g == len(p.Guests) {
			best = min(best, p.Cost())
			return
		}
		was := p.Guests[g].Host
		for h := range p.Hosts {
			p.Guests[g].Host = h
			place(g + 1)
		}
		p.Guests[g].Host = was
	}
	place(0)
	return best
}

// placed returns the cost if all guests are placed anew, each on the host that choose returns.
func placed(p *rebalance.Problem, choose func(demand []float64, guests []int, g int) int) float64 {
	demand, guests := make([]float64, len(p.Hosts)), make([]int, len(p.Hosts))
	was := make([]int, len(p.Guests))
	for g := range p.Guests {
		was[g] = p.Guests[g].Host
		h := choose(demand, guests, g)
		p.Guests[g].Host = h
		demand[h] += p.Guests[g].Demand
		guests[h]++
	}
	cost := p.Cost()
	for g := range p.Guests {
		p.Guests[g].Host = was[g]
	}
	return cost
}

// FirstFit returns the cost if each guest is on the first host with enough processors.
func FirstFit(p *rebalance.Problem) float64 {
	return placed(p, func(demand []float64, _ []int, g int) int {
		for h := range p.Hosts {
			if demand[h]+p.Guests[g].Demand <= p.Hosts[h].Capacity*p.Hosts[h].Speed {
				return h
			}
		}
		return g % len(p.Hosts)
	})
}

// FewestGuests returns the cost if each guest is placed on the host with the fewest guests.
func FewestGuests(p *rebalance.Problem) float64 {
	return placed(p, func(_ []float64, guests []int, _ int) (best int) {
		for h := range p.Hosts {
			if guests[h] < guests[best] {
				best = h
			}
		}
		return best
	})
}

// Quality compares plans with the optimum. Costs are averages relative to the optimum.
type Quality struct {
	Problems     int     `json:"problems"`
	Within       float64 `json:"within_5_percent"` // share of the problems
	Worst        float64 `json:"worst"`
	Cost         float64 `json:"cost"`
	FirstFit     float64 `json:"first_fit"`
	FewestGuests float64 `json:"fewest_guests"`
	Moves        float64 `json:"moves"` // on average
}

// Compare compares the plans of a number of problems.
func Compare(problems int, policy func() rebalance.Policy) (q Quality, err error) {
	q = Quality{Problems: problems, Worst: 1}
	n := float64(problems)
	for seed := range uint64(problems) {
		p := Problem(seed, policy())
		least := Optimum(p)
		q.FirstFit += FirstFit(p) / least / n
		q.FewestGuests += FewestGuests(p) / least / n
		moves, err := Settle(p)
		if err != nil {
			return q, fmt.Errorf("problem %d: %w", seed, err)
		}
		cost := p.Cost() / least
		if cost <= 1.05+1e-9 {
			q.Within += 1 / n
		}
		q.Worst, q.Cost, q.Moves = max(q.Worst, cost), q.Cost+cost/n, q.Moves+float64(moves)/n
	}
	return q, nil
}
