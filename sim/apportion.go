package sim

// apportion.go - hosts of different speeds, and the invariants of abstract clusters on them.

import (
	"fmt"
	"hash/fnv"

	v1 "watari/api/watariv1"
	"watari/core"
	"watari/policy"
)

const (
	// apportionHurry divides the times that abstract clusters wait before guests move.
	apportionHurry = 10
	// mostDisproportion is the fraction by which the slowest host may be slower than necessary, once all is calm.
	mostDisproportion = 0.15
)

// speed returns the speed of the host's cores. It changes when the host reboots.
func (h *host) speed() float64 {
	sum := fnv.New32a()
	sum.Write([]byte(h.boot))
	return []float64{0, 0.5, 2}[sum.Sum32()%3]
}

// disproportionate names an abstract cluster whose guests are not divided by the hosts' speeds; empty: there is none.
func (s *Sim) disproportionate() string {
	if s.pattern != steady || s.manager == nil || s.manager.dead {
		return "" // the free capacity of the hosts changes all the time
	}
	e := core.Explainer{Objects: s.store.objects, Reports: s.manager, Usage: s.manager.usage, Now: s.manager.now()}
	for name, c := range s.store.objects.Clusters {
		if c.Spec.GetAbstract() && c.Meta.Deleting == nil && s.placed(name) {
			if by := e.Disproportion(c); by > mostDisproportion {
				return fmt.Sprintf("the slowest host of abstract cluster %s could be %.0f %% faster", name, 100*by)
			}
		}
	}
	return ""
}

// placed reports whether each guest of a cluster has a host, and could move to another one.
func (s *Sim) placed(cluster string) bool {
	if v := s.store.objects.Volumes[s.store.objects.Clusters[cluster].Spec.GetVolume()]; v != nil {
		if _, _, connected := s.manager.Observed(v.Host); !connected {
			return false
		}
	}
	for _, g := range core.GuestsOf(s.store.objects, cluster) {
		if g.Host == "" {
			return false
		}
	}
	return true
}

// checkApportioned checks a move that keeps guests in proportion to the hosts' speeds: only guests of abstract clusters
// move, and no guest moves again within the cool-down.
func (s *Sim) checkApportioned(now *core.Objects, m *v1.Migration) {
	g := now.Guests[m.Guest]
	if !now.Clusters[g.GetCluster()].GetSpec().GetAbstract() {
		s.violate("move %s of policy %s: its guest is of no abstract cluster", m.Meta.Name, m.Policy)
	}
	if s.jumped {
		return // the cool-down is counted by managers' clocks
	}
	for _, before := range now.Migrations {
		if before.GuestUid != m.GuestUid || before.Policy == "" || before.State != v1.MigrationState_MIGRATION_STATE_DONE {
			continue
		}
		if ago := s.now.Sub(before.Ended.AsTime()); ago < policy.Apportion.CoolDown/apportionHurry {
			s.violate("policy %s moves guest %s again %v after its last move, %s", m.Policy, m.Guest, ago, before.Meta.Name)
		}
	}
}
