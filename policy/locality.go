package policy

// locality.go - the policy that brings guests which talk to each other closer together.

import (
	"time"

	"watari/locality"
)

// Locality brings guests closer to the guests with which they talk.
type Locality struct {
	Bounds
	Distance  locality.Distance
	Weight    float64       // against other policies
	Horizon   time.Duration // over which saved bytes are compared with those of the moves
	LeastGain float64       // part of the cluster's bytes times distance, 0 to 1
	Interval  time.Duration // between two looks at a cluster
}

// Looks reports whether a policy is on that considers guests' use or their traffic, and how often such policies look.
func (p *Policy) Looks() (every time.Duration, is bool) {
	every, is = p.Rebalances()
	if p == nil || p.Locality == nil {
		return every, is
	}
	if !is || p.Locality.Interval < every {
		every = p.Locality.Interval
	}
	return every, true
}

// CanStay reports whether the policy of that name moves guests that could stay, not guests that have to leave a withdrawn
// host.
func CanStay(name string) bool {
	return Rebalancing(name) || name == LocalityName || name == ApportionName
}

type (
	localityText struct {
		Bounds    boundsText           `yaml:",inline"`
		Distance  *entry[distanceText] `yaml:"distance"`
		Weight    *scalar              `yaml:"weight"`
		Horizon   *scalar              `yaml:"horizon"`
		LeastGain *scalar              `yaml:"least_gain"`
		Interval  *scalar              `yaml:"interval"`
	}
	distanceText struct {
		Site *scalar `yaml:"site"`
		WAN  *scalar `yaml:"wan"`
	}
)

// The defaults of policy locality.
const (
	localityCoolDown  = 10 * time.Minute
	localityHorizon   = 10 * time.Minute
	localityLeastGain = 0.1
)

func (r *reader) locality(l *localityText) *Locality {
	made := &Locality{Bounds: r.bounds(l.Bounds, localityCoolDown), Distance: locality.Default, LeastGain: localityLeastGain,
		Weight: r.decimal(l.Weight, "weight", 0.01, 100, 1), Horizon: r.wait(l.Horizon, "horizon", localityHorizon), Interval: r.interval(l.Interval)}
	if r.err == nil && made.Horizon < time.Second {
		r.fail(l.Horizon.errorf("horizon: %s is less than 1s", made.Horizon))
	}
	if l.LeastGain != nil {
		made.LeastGain = r.percent(l.LeastGain, "least_gain", 1) / 100
	}
	if d := l.Distance; d != nil {
		made.Distance.Site = r.decimal(d.value.Site, "site", 0.01, 1e6, made.Distance.Site)
		made.Distance.WAN = r.decimal(d.value.WAN, "wan", 0.01, 1e6, made.Distance.WAN)
		if r.err == nil && made.Distance.WAN < made.Distance.Site {
			r.fail(d.errorf("distance: hosts of a site are farther from each other (%g) than sites (%g)", made.Distance.Site, made.Distance.WAN))
		}
	}
	return made
}
