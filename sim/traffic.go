package sim

// traffic.go - guests that talk to each other, and the moves of policy locality.

import (
	"slices"
	"time"

	v1 "watari/api/watariv1"
	"watari/core"
	"watari/locality"
	"watari/policy"
)

// talkFor is how long guests talk to the same others while faults happen.
const talkFor = 20 * time.Second

// peer returns the index of the guest to which a guest of a cluster sends now; -1: it sends to none.
func (s *Sim) peer(index, guests int) int {
	at := min(s.now.Sub(start), chaosFor)
	switch (int(at/talkFor) + s.talking) % 4 {
	case 0:
		return index ^ 1
	case 1:
		return (index + 2) % guests
	case 2:
		return (index + 1) % guests
	}
	return -1
}

// talk adds to a sample what its guests have sent within a second.
func (h *host) talk(sample *v1.HostSample) {
	for _, told := range sample.Guests {
		g := h.sim.guestByUID(told.Uid)
		if g == nil {
			continue
		}
		guests := core.GuestsOf(h.sim.store.objects, g.Cluster)
		index := h.sim.peer(int(g.Index), len(guests))
		for _, other := range guests {
			if int(other.Index) == index && other != g {
				told.Peers = append(told.Peers, &v1.GuestTraffic{Address: other.Address, Sent: 100 << 20})
			}
		}
	}
}

// traffic returns the manager's knowledge of the traffic between guests.
func (m *manager) traffic(now time.Time) core.Traffic {
	if f := m.sim.foresight; f != nil {
		return f.traffic
	}
	return func(uid string) map[string]float64 { return m.matrix.Sent(uid, now) }
}

// checkTogether checks the moves that policy locality has begun by one change. Together they lower the bytes times distance
// of their cluster as the manager sees it, and they spread no cluster less evenly.
func (s *Sim) checkTogether(before, now *core.Objects) {
	clusters := map[string]bool{}
	for name, m := range now.Migrations {
		if m.Policy != policy.LocalityName || before.Migrations[name] != nil {
			continue
		}
		g := now.Guests[m.Guest]
		clusters[g.GetCluster()] = true
	}
	for cluster := range clusters {
		s.checkPlan(before, now, cluster)
	}
}

func (s *Sim) checkPlan(before, now *core.Objects, cluster string) {
	guests := slices.DeleteFunc(core.GuestsOf(now, cluster), func(g *v1.Guest) bool { return g.Stopped || g.Meta.Deleting != nil })
	going := map[string]string{}
	for name, m := range now.Migrations {
		if before.Migrations[name] == nil && m.Policy == policy.LocalityName {
			going[m.GuestUid] = m.Target
		}
	}
	to := func(g *v1.Guest) string {
		if host := going[g.Meta.Uid]; host != "" {
			return host
		}
		return g.Host
	}
	site := func(host string) string { return now.Hosts[host].GetInfo().GetSite() }
	traffic := s.manager.traffic(s.manager.now())
	if u := s.manager.usage; u != nil && u.Traffic != nil {
		traffic = u.Traffic // by which the manager decided; its clock may have jumped since
	}
	was, is := 0.0, 0.0
	spread := map[string][2]int{}
	for _, g := range guests {
		if g.Host == "" {
			continue
		}
		for _, other := range guests {
			rate := traffic(g.Meta.Uid)[other.Meta.Uid]
			if other.Host != "" && rate > 0 {
				was += rate * locality.Default.Between(g.Host, site(g.Host), other.Host, site(other.Host))
				is += rate * locality.Default.Between(to(g), site(to(g)), to(other), site(to(other)))
			}
		}
		group := func(host string) string {
			if spec := now.Clusters[cluster].GetSpec(); spec.GetSpread() == v1.Spread_SPREAD_SITE && !spec.GetAbstract() {
				return site(host)
			}
			return host
		}
		for i, host := range []string{g.Host, to(g)} {
			n := spread[group(host)]
			n[i]++
			spread[group(host)] = n
		}
	}
	if is >= was {
		s.violate("policy locality moves guests of cluster %s, and bytes times distance go from %.0f to %.0f", cluster, was, is)
	}
	spec := now.Clusters[cluster].GetSpec()
	unevenBefore, unevenNow := 0, 0
	for _, n := range spread {
		unevenBefore += n[0] * n[0]
		unevenNow += n[1] * n[1]
		if spec.GetAbstract() && n[0] != n[1] {
			s.violate("policy locality changes how many guests of abstract cluster %s a host has", cluster)
		}
	}
	if spec.GetSpread() != v1.Spread_SPREAD_UNSPECIFIED && unevenNow > unevenBefore {
		s.violate("policy locality spreads cluster %s less evenly", cluster)
	}
}
