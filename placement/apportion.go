package placement

// apportion.go - divides a cluster's equal guests among hosts in proportion to what the hosts compute.

import (
	"cmp"
	"math"
	"slices"
	"strings"
)

// Share describes a host among which a cluster's guests are divided.
type Share struct {
	Host     string
	Capacity float64 // what it computes for the cluster in a second
	Cores    float64 // of the capacity
	Has      int     // guests of the cluster
	// Least and Most bound the guests that it can have.
	Least, Most int
}

// even is the least difference at which two remainders count as different.
const even = 1e-9

// Apportion divides n guests among hosts by the method of the largest remainder: each host gets the whole part of its exact
// share, and the hosts with the largest remainders get one more each. Of all divisions this one has the least sum of
// differences from the exact shares. A host that would get less or more than its bounds gets its bound, and the others share
// the other guests. Of hosts with equal remainders, a host that has the guest already comes first, then the host with more
// capacity. The sum of the result is less than n if the hosts cannot have more.
func Apportion(n int, hosts []Share) []int {
	counts := make([]int, len(hosts))
	exact := exactShares(n, hosts)
	left := n
	var order []int
	for i, q := range exact {
		counts[i] = int(math.Floor(q + even))
		left -= counts[i]
		if q-float64(counts[i]) > even {
			order = append(order, i)
		}
	}
	rest := func(i int) float64 { return exact[i] - float64(counts[i]) }
	had := func(i int) int {
		if hosts[i].Has > counts[i] {
			return 0
		}
		return 1
	}
	slices.SortFunc(order, func(a, b int) int {
		if d := rest(b) - rest(a); math.Abs(d) > even {
			return cmp.Compare(d, 0)
		}
		return cmp.Or(had(a)-had(b), cmp.Compare(hosts[b].Capacity, hosts[a].Capacity), strings.Compare(hosts[a].Host, hosts[b].Host))
	})
	for _, i := range order[:min(max(left, 0), len(order))] {
		counts[i]++
	}
	return counts
}

// exactShares returns the hosts' shares of n in proportion to their capacities, within their bounds.
func exactShares(n int, hosts []Share) []float64 {
	exact, fixed := make([]float64, len(hosts)), make([]bool, len(hosts))
	for range hosts { // each round but the last one fixes a host
		left, capacity := float64(n), 0.0
		for i, h := range hosts {
			if fixed[i] {
				left -= exact[i]
			} else {
				capacity += h.Capacity
			}
		}
		over, under := 0.0, 0.0
		for i, h := range hosts {
			if fixed[i] {
				continue
			}
			exact[i] = 0
			if capacity > 0 && left > 0 {
				exact[i] = left * h.Capacity / capacity
			}
			over += max(0, exact[i]-float64(h.Most))
			under += max(0, float64(h.Least)-exact[i])
		}
		if over <= even && under <= even {
			return exact
		}
		for i, h := range hosts {
			switch {
			case fixed[i]:
			case over >= under && exact[i] > float64(h.Most):
				exact[i], fixed[i] = float64(h.Most), true
			case over < under && exact[i] < float64(h.Least):
				exact[i], fixed[i] = float64(h.Least), true
			}
		}
	}
	return exact
}

// Slowest returns how long the slowest host computes for one unit of work of each of its guests, in seconds.
func Slowest(counts []int, hosts []Share) (longest float64) {
	for i, n := range counts {
		if n > 0 {
			longest = max(longest, float64(n)/max(hosts[i].Capacity, even))
		}
	}
	return longest
}
