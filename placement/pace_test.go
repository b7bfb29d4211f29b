package placement

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

func TestLearnFromAProgram(t *testing.T) {
	share := func(capacity, cores float64, has int) Share { return Share{Capacity: capacity, Cores: cores, Has: has} }
	for name, c := range map[string]struct {
		hosts     []Share
		computing []float64
		want      []float64
	}{
		"as measured":                    {[]Share{share(2, 2, 4), share(1, 1, 2)}, []float64{1, 1}, nil},
		"less than measured":             {[]Share{share(2, 2, 4), share(2, 2, 4)}, []float64{0.8, 1}, []float64{2.5 * 4 / 4.5, 2 * 4 / 4.5}},
		"half as fast as measured":       {[]Share{share(2, 2, 4), share(2, 2, 4)}, []float64{0.5, 1}, []float64{2.4, 1.6}},
		"explained by the division":      {[]Share{share(4, 4, 4), share(2, 2, 4)}, []float64{0.5, 1}, nil},
		"some waiting cannot be seen":    {[]Share{share(4, 4, 4), share(2, 2, 4)}, []float64{0.8, 1}, nil},
		"no waiting can be seen":         {[]Share{share(4, 4, 4), share(2, 2, 4)}, []float64{1, 1}, nil},
		"within the noise":               {[]Share{share(2, 2, 4), share(2, 2, 4)}, []float64{0.95, 1}, nil},
		"all wait":                       {[]Share{share(2, 2, 4), share(2, 2, 4)}, []float64{0.2, 0.4}, nil},
		"all wait for the network a bit": {[]Share{share(2, 2, 4), share(2, 2, 4)}, []float64{0.4, 0.8}, []float64{2.4, 1.6}},
		"unused":                         {[]Share{share(2, 2, 4), share(2, 2, 4)}, []float64{0.02, 1}, nil},
		"one rank does something alone":  {[]Share{share(2, 2, 1), share(2, 2, 1)}, []float64{0.5, 1}, nil},
		"a guest that is left alone":     {[]Share{share(0.8, 2, 1), share(3.2, 2, 3)}, []float64{0.67, 1}, []float64{1.2 * 4 / 4.4, 3.2 * 4 / 4.4}},
		"free cores do not help a guest": {[]Share{share(8, 8, 4), share(4, 4, 4)}, []float64{1, 1}, nil},
		"a slow core among free ones":    {[]Share{share(8, 8, 4), share(4, 4, 4)}, []float64{1, 0.5}, []float64{12.0 * 8 / 14, 12.0 * 6 / 14}},
		"an unknown host":                {[]Share{share(2, 2, 4), share(2, 2, 4), share(2, 2, 4)}, []float64{0.5, 1, 0}, nil},
		"not a number":                   {[]Share{share(2, 2, 4), share(2, 2, 4)}, []float64{math.NaN(), 1}, nil},
		"an empty host":                  {[]Share{share(2, 2, 4), share(2, 2, 4), share(2, 2, 0)}, []float64{0.5, 1, 0}, []float64{2.4, 1.6, 2}},
		"no hosts":                       {nil, nil, nil},
	} {
		got := Learn(c.hosts, c.computing)
		same := len(got) == len(c.want)
		for i := range c.want {
			same = same && math.Abs(got[i]-c.want[i]) < 1e-9
		}
		if !same {
			t.Errorf("%s: %v, not %v", name, got, c.want)
		}
	}
}

// Whatever hosts were measured to compute, repeated divisions come near the best one, even if only a part of the waiting is seen.
func TestRepeatedDivisionsFollowTheProgram(t *testing.T) {
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 1))
		part := 0.6 + 0.4*rng.Float64()
		hosts, real := make([]Share, 2+rng.IntN(3)), []Share{}
		n := 40 * len(hosts) // many, so that one guest more or less hardly counts
		for i := range hosts {
			cores := float64(1 + rng.IntN(4))
			hosts[i] = Share{Host: string(rune('a' + i)), Capacity: cores, Cores: cores, Most: n}
			one := hosts[i]
			one.Capacity *= 0.5 + rng.Float64()
			real = append(real, one)
		}
		var last []int
		for round := range 40 {
			counts := Apportion(n, hosts)
			if round > 30 && !slices.Equal(counts, last) {
				t.Errorf("seed %d: round %d changes the division %v to %v", seed, round, last, counts)
			}
			last = counts
			slowest, computing := Slowest(counts, real), make([]float64, len(hosts))
			for i := range hosts {
				hosts[i].Has, real[i].Has = counts[i], counts[i]
				busy := float64(counts[i]) / real[i].Capacity / slowest
				computing[i] = busy + (1-busy)*(1-part)
			}
			if learnt := Learn(hosts, computing); learnt != nil {
				for i := range hosts {
					hosts[i].Capacity = learnt[i]
				}
			}
		}
		counts := Apportion(n, hosts)
		if got, best := Slowest(counts, real), Slowest(Apportion(n, real), real); got > 1.2*best {
			t.Errorf("seed %d: the slowest host needs %.2f, and %.2f with the best division (%v, %.2f of the waiting seen)", seed, got, best, counts, part)
		}
	}
}
