package policy

// rebalancing.go - the policies that decide by what guests use: balance, pack, spread.

import (
	"strconv"
	"time"
)

// Objective says how much the moves of a policy have to gain.
type Objective struct {
	Weight    float64       // against other policies
	LeastGain float64       // of a move, in the policy's unit times its weight
	Interval  time.Duration // between two looks
}

// Balance moves guests away from hosts on which they wait for processors. Its unit of gain is one waiting processor.
type Balance struct {
	Bounds
	Objective
	Guests bool // hosts have the same numbers of busy guests, whatever their size and speed
}

// Pack moves guests together to free hosts. Its unit of gain is a host.
type Pack struct {
	Bounds
	Objective
	MaxLoad float64 // demand relative to processor time; hosts are not filled further
}

// Spread moves the guests of a cluster apart, as its spread asks. Its unit of gain is one guest less with which a guest
// shares a host or a site.
type Spread struct {
	Bounds
	Objective
}

// Rebalances reports whether a policy is on that decides by use, and how often such policies look.
func (p *Policy) Rebalances() (every time.Duration, is bool) {
	look := func(o Objective) {
		if !is || o.Interval < every {
			every = o.Interval
		}
		is = true
	}
	if p == nil {
		return 0, false
	}
	if p.Balance != nil {
		look(p.Balance.Objective)
	}
	if p.Pack != nil {
		look(p.Pack.Objective)
	}
	if p.Spread != nil {
		look(p.Spread.Objective)
	}
	return every, is
}

// Rebalancing reports whether the policy of that name moves guests by their use, not away from hosts.
func Rebalancing(name string) bool {
	return name == BalanceName || name == PackName || name == SpreadName
}

// The defaults of policies that decide by what guests use.
const (
	defaultCoolDown = 5 * time.Minute
	defaultInterval = 10 * time.Second
	leastInterval   = time.Second
	defaultMaxLoad  = 0.8
)

// rebalancing reads the policies that decide by what guests use.
func (r *reader) rebalancing(p *Policy, f *file) {
	if f.Balance != nil && f.Pack != nil {
		r.fail(f.Pack.errorf("pack: it fills hosts, and balance empties the full ones; remove one of the two"))
	}
	if b := f.Balance; b != nil {
		p.Balance = &Balance{Bounds: r.bounds(b.value.Bounds, defaultCoolDown), Objective: r.objective(b.value.Objective, 0.5)}
		if m := b.value.Measure; m != nil {
			p.Balance.Guests = m.text == "guests"
			if m.text != "guests" && m.text != "load" {
				r.fail(m.errorf("measure: %q is not load or guests", m.text))
			}
		}
	}
	if b := f.Pack; b != nil {
		p.Pack = &Pack{Bounds: r.bounds(b.value.Bounds, defaultCoolDown), Objective: r.objective(b.value.Objective, 0.5),
			MaxLoad: r.decimal(b.value.MaxLoad, "max_load", 0.1, 10, defaultMaxLoad)}
	}
	if b := f.Spread; b != nil {
		p.Spread = &Spread{Bounds: r.bounds(b.value.Bounds, defaultCoolDown), Objective: r.objective(b.value.Objective, 0.5)}
	}
}

func (r *reader) objective(o objectiveText, leastGain float64) Objective {
	made := Objective{Weight: r.decimal(o.Weight, "weight", 0.01, 100, 1), LeastGain: r.decimal(o.LeastGain, "least_gain", 0.01, 1000, leastGain),
		Interval: r.interval(o.Interval)}
	return made
}

func (r *reader) interval(s *scalar) time.Duration {
	every := r.wait(s, "interval", defaultInterval)
	if r.err == nil && every < leastInterval {
		r.fail(s.errorf("interval: %s is less than %s", every, leastInterval))
	}
	return every
}

// decimal reads a number that may have a decimal point.
func (r *reader) decimal(s *scalar, key string, low, high, missing float64) float64 {
	if s == nil {
		return missing
	}
	n, err := strconv.ParseFloat(s.text, 64)
	if err != nil || !(n >= low && n <= high) {
		r.fail(s.errorf("%s: %q is not a number from %v to %v", key, s.text, low, high))
	}
	return n
}
