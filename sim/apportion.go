package sim

// apportion.go - hosts of different speeds, and the invariants of abstract clusters on them.

import (
	"fmt"
	"hash/fnv"
	"maps"
	"time"

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

// pace returns how many times as much the host computes for all programs as its speed says. It changes when the host reboots.
func (h *host) pace() float64 {
	sum := fnv.New32a()
	sum.Write([]byte(h.boot + " pace"))
	return []float64{1, 1, 0.5}[sum.Sum32()%3]
}

// computing returns which part of the time a guest says that it computes; 0: it does not say that. The program of an abstract
// cluster waits for its slowest host. If the guests' load is not steady, the guests of a host say what they like.
func (s *Sim) computing(c *copyOf, at *host) float64 {
	g := s.store.objects.Guests[c.name]
	if !s.store.objects.Clusters[g.GetCluster()].GetSpec().GetAbstract() {
		return 0
	}
	if s.pattern != steady {
		sum := fnv.New32a()
		fmt.Fprint(sum, at.name, s.now.Sub(start)/time.Minute)
		return []float64{0.3, 1}[sum.Sum32()%2]
	}
	needs, slowest := map[string]float64{}, 0.0
	for _, other := range core.GuestsOf(s.store.objects, g.Cluster) {
		if h := s.hosts[other.Host]; h != nil {
			needs[h.name] += 1 / (max(0.5, h.speed()) * h.pace())
			slowest = max(slowest, needs[h.name])
		}
	}
	return needs[at.name] / max(slowest, needs[at.name], 1e-9)
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

// checkPaces checks what was learnt of an abstract cluster's hosts: it is bounded, and the guests have been where they are for long.
func (s *Sim) checkPaces(now *core.Objects, was, c *v1.Cluster) {
	if maps.Equal(was.Paces, c.Paces) || s.restored && !s.recovered {
		return
	}
	s.count("paces are learnt")
	for host, pace := range c.Paces {
		if !(pace >= 0.25 && pace <= 4) {
			s.violate("cluster %s computes %v times as fast on host %s as measured", c.Meta.Name, pace, host)
		}
	}
	for _, g := range core.GuestsOf(now, c.Meta.Name) {
		if ago := s.now.Sub(g.Started.AsTime()); !s.jumped && ago < time.Minute/apportionHurry {
			s.violate("paces of cluster %s are learnt %v after the start of %s", c.Meta.Name, ago, g.Meta.Name)
		}
	}
	for _, m := range now.Migrations {
		if ago := s.now.Sub(m.Ended.AsTime()); m.Ended != nil && now.Guests[m.Guest].GetCluster() == c.Meta.Name && !now.Guests[m.Guest].Stopped && !s.jumped && ago < time.Minute/apportionHurry {
			s.violate("paces of cluster %s are learnt %v after move %s", c.Meta.Name, ago, m.Meta.Name)
		}
	}
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
