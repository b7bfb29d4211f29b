package rebalance

// quality_test.go - plans against the exact optimum, and against plain ways to place guests.

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	v1 "watari/api/watariv1"
	"watari/placement"
)

const gib = 1 << 30

// instance makes a small random problem.
func instance(seed uint64) *Problem {
	rng := rand.New(rand.NewPCG(seed, 7))
	p := &Problem{Most: 100, Policies: []Policy{{Name: "balance", Term: &Load{}, Weight: 1, Horizon: 300, Left: -1}}}
	hosts, guests := 2+rng.IntN(3), 3+rng.IntN(5)
	for h := range hosts {
		p.Hosts = append(p.Hosts, Host{Host: placement.Host{Name: fmt.Sprintf("h%d", h), Site: "s", Connected: true, Cores: 8, MemoryBytes: uint64(guests) * gib, Info: &v1.HostInfo{}},
			Capacity: []float64{1, 2, 4}[rng.IntN(3)], Speed: []float64{0.5, 1, 1.5}[rng.IntN(3)], Turns: 100})
	}
	for g := range guests {
		demand := float64(1 + rng.IntN(2))
		if rng.IntN(3) == 0 {
			demand = rng.Float64()
		}
		p.Guests = append(p.Guests, Guest{Name: fmt.Sprintf("g%d", g), Cluster: fmt.Sprintf("c%d", rng.IntN(3)), Host: rng.IntN(hosts), Demand: demand,
			Request: &placement.Request{Shape: &v1.GuestShape{Vcpus: 1, MemoryBytes: gib}}})
	}
	return p
}

// settle carries plans out until there is none, and returns the number of moves.
func settle(t *testing.T, p *Problem) (moves int) {
	t.Helper()
	for range 50 {
		for i := range p.Hosts {
			p.Hosts[i].MemoryUsed = 0
		}
		for _, g := range p.Guests {
			p.Hosts[g.Host].MemoryUsed += g.Request.Shape.MemoryBytes
		}
		plan := p.Plan()
		if len(plan) == 0 {
			return moves
		}
		before := p.Cost()
		for _, m := range plan {
			p.Guests[m.Guest].Host = m.To
			moves++
		}
		if after := p.Cost(); after >= before {
			t.Fatalf("a plan raises the cost from %v to %v: %+v", before, after, plan)
		}
	}
	t.Fatal("the plans do not end")
	return 0
}

// optimum returns the least cost of all ways to place the guests.
func optimum(p *Problem) float64 {
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

// placed returns the cost if the guests were placed anew, each on the host that choose returns.
func placed(p *Problem, choose func(demand []float64, guests []int, g int) int) float64 {
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

func firstFit(p *Problem) float64 {
	return placed(p, func(demand []float64, _ []int, g int) int {
		for h := range p.Hosts {
			if demand[h]+p.Guests[g].Demand <= p.Hosts[h].Capacity {
				return h
			}
		}
		return g % len(p.Hosts)
	})
}

func fewestGuests(p *Problem) float64 {
	return placed(p, func(_ []float64, guests []int, _ int) (best int) {
		for h := range p.Hosts {
			if guests[h] < guests[best] {
				best = h
			}
		}
		return best
	})
}

func TestBalanceIsCloseToTheOptimum(t *testing.T) {
	const instances = 400
	within, worst := 0, 1.0
	var ours, first, fewest, best float64
	for seed := range uint64(instances) {
		p := instance(seed)
		least, f, n := optimum(p), firstFit(p), fewestGuests(p)
		settle(t, p)
		cost := p.Cost()
		if cost <= 1.05*least+1e-9 {
			within++
		}
		worst = max(worst, cost/least)
		ours, first, fewest, best = ours+cost/least, first+f/least, fewest+n/least, best+1
	}
	t.Logf("%d of %d within 5 %%, the worst %.2f times the optimum; on average %.3f, first fit %.3f, fewest guests %.3f", within, instances, worst, ours/best, first/best, fewest/best)
	if within < instances*95/100 {
		t.Errorf("%d of %d are within 5 %% of the optimum", within, instances)
	}
	if ours > first || ours > fewest {
		t.Errorf("on average %.3f times the optimum, first fit %.3f, fewest guests %.3f", ours/best, first/best, fewest/best)
	}
}
