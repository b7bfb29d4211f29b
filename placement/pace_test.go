package placement

import (
	"math"
	"math/rand/v2"
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
		"half as fast as measured":       {[]Share{share(2, 2, 4), share(2, 2, 4)}, []float64{0.5, 1}, []float64{8.0 / 3, 4.0 / 3}},
		"explained by the division":      {[]Share{share(4, 4, 4), share(2, 2, 4)}, []float64{0.5, 1}, nil},
		"some waiting cannot be seen":    {[]Share{share(4, 4, 4), share(2, 2, 4)}, []float64{0.8, 1}, nil},
		"no waiting can be seen":         {[]Share{share(4, 4, 4), share(2, 2, 4)}, []float64{1, 1}, nil},
		"within the noise":               {[]Share{share(2, 2, 4), share(2, 2, 4)}, []float64{0.95, 1}, nil},
		"all wait":                       {[]Share{share(2, 2, 4), share(2, 2, 4)}, []float64{0.2, 0.4}, nil},
		"all wait for the network a bit": {[]Share{share(2, 2, 4), share(2, 2, 4)}, []float64{0.4, 0.8}, []float64{8.0 / 3, 4.0 / 3}},
		"free cores do not help a guest": {[]Share{share(8, 8, 4), share(4, 4, 4)}, []float64{1, 1}, nil},
		"a slow core among free ones":    {[]Share{share(8, 8, 4), share(4, 4, 4)}, []float64{1, 0.5}, []float64{6, 6}},
		"one host is known":              {[]Share{share(2, 2, 4), share(2, 2, 4)}, []float64{0.5, 0}, nil},
		"an unknown host":                {[]Share{share(2, 2, 4), share(2, 2, 4), share(2, 2, 4)}, []float64{0.5, 1, 0}, []float64{3, 1.5, 1.5}},
		"an empty host":                  {[]Share{share(2, 2, 4), share(2, 2, 4), share(2, 2, 0)}, []float64{0.5, 1, 0}, []float64{8.0 / 3, 4.0 / 3, 2}},
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
		for range 12 {
			counts := Apportion(n, hosts)
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
				if Learn(hosts, computing) != nil {
					t.Fatalf("seed %d: it learns twice from one measurement", seed)
				}
			}
		}
		counts := Apportion(n, hosts)
		if got, best := Slowest(counts, real), Slowest(Apportion(n, real), real); got > 1.2*best {
			t.Errorf("seed %d: the slowest host needs %.2f, and %.2f with the best division (%v, %.2f of the waiting seen)", seed, got, best, counts, part)
		}
	}
}
