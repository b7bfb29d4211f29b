package placement

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

func shares(capacities ...float64) (list []Share) {
	for i, c := range capacities {
		list = append(list, Share{Host: fmt.Sprintf("h%d", i), Capacity: c, Most: math.MaxInt32})
	}
	return list
}

// The example of the VM scheduler's paper: 16 abstract processors over three hosts as 7:3:6.
func TestApportionAsThePaper(t *testing.T) {
	if got := Apportion(16, shares(0.7, 0.3, 0.6)); !slices.Equal(got, []int{7, 3, 6}) {
		t.Errorf("%v", got)
	}
	// The measured speeds are not round.
	if got := Apportion(16, shares(0.69, 0.31, 0.58)); !slices.Equal(got, []int{7, 3, 6}) {
		t.Errorf("%v", got)
	}
}

func TestApportionWithinBounds(t *testing.T) {
	for _, c := range []struct {
		n     int
		hosts []Share
		want  []int
	}{
		{4, shares(1, 1), []int{2, 2}},
		{3, shares(1, 1), []int{2, 1}},
		{3, []Share{{Host: "a", Capacity: 1, Most: 9}, {Host: "b", Capacity: 1, Has: 2, Most: 9}}, []int{1, 2}},                               // where it is already
		{8, []Share{{Host: "a", Capacity: 3, Most: 2}, {Host: "b", Capacity: 1, Most: 9}, {Host: "c", Capacity: 1, Most: 9}}, []int{2, 3, 3}}, // no more room
		{4, []Share{{Host: "a", Capacity: 0, Least: 2, Most: 2}, {Host: "b", Capacity: 1, Most: 9}}, []int{2, 2}},                             // cannot leave
		{4, []Share{{Host: "a", Capacity: 1, Most: 1}, {Host: "b", Capacity: 1, Most: 1}}, []int{1, 1}},                                       // not room for all
		{2, shares(0, 0), []int{0, 0}},
		{0, shares(1, 2), []int{0, 0}},
		{1, nil, nil},
	} {
		if got := Apportion(c.n, c.hosts); !slices.Equal(got, c.want) {
			t.Errorf("%d over %+v: %v, want %v", c.n, c.hosts, got, c.want)
		}
	}
}

// In small instances, no division is nearer to the exact shares, and the bounds hold.
func TestApportionIsNearestToTheExactShares(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		n, hosts := random.IntN(9), make([]Share, 1+random.IntN(4))
		room := 0
		for i := range hosts {
			hosts[i] = Share{Host: fmt.Sprint(i), Capacity: float64(1+random.IntN(20)) / 10, Most: random.IntN(9)}
			hosts[i].Least = random.IntN(1 + min(hosts[i].Most, 2))
			room += hosts[i].Most
		}
		exact := exactShares(n, hosts)
		far := func(counts []int) (sum float64) {
			for i, c := range counts {
				sum += math.Abs(float64(c) - exact[i])
			}
			return sum
		}
		got := Apportion(n, hosts)
		total, least := 0, 0
		for i, c := range got {
			if c < hosts[i].Least || c > hosts[i].Most {
				t.Fatalf("%d over %+v: %v", n, hosts, got)
			}
			total, least = total+c, least+hosts[i].Least
		}
		if want := max(least, min(n, room)); total != want {
			t.Fatalf("%d over %+v: %v are %d, want %d", n, hosts, got, total, want)
		}
		best := math.Inf(1)
		each(hosts, total, nil, func(counts []int) { best = min(best, far(counts)) })
		if far(got) > best+1e-6 {
			t.Fatalf("%d over %+v: %v is %v from the exact %v; best is %v", n, hosts, got, far(got), exact, best)
		}
	}
}

// each calls f with all divisions of n within the bounds.
func each(hosts []Share, n int, counts []int, f func([]int)) {
	if len(counts) == len(hosts) {
		if n == 0 {
			f(counts)
		}
		return
	}
	h := hosts[len(counts)]
	for c := h.Least; c <= min(h.Most, n); c++ {
		each(hosts, n-c, append(slices.Clone(counts), c), f)
	}
}

// A host may report any speed.
func TestApportionEndsWithOddCapacities(t *testing.T) {
	for _, c := range []float64{math.Inf(1), math.MaxFloat64, math.NaN(), -1} {
		Apportion(4, shares(c, 1, c))
	}
}
