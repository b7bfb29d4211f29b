package core

// traffic.go - which guests talk to each other, and how far they are from each other.

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	v1 "watari/api/watariv1"
	"watari/locality"
)

// Traffic returns what a guest sends to others now, bytes per second, by their uids. nil: nothing is measured.
type Traffic func(uid string) map[string]float64

// Talked calls add for the bytes that the guests of a host's sample have sent to guests of their clusters, and removes them
// from the sample. It ignores guests whose grant the host does not hold, and receivers that do not exist.
func Talked(s *Objects, host string, sample *v1.HostSample, add func(from, to string, bytes uint64)) {
	for _, told := range sample.Guests {
		peers := told.Peers
		told.Peers = nil
		g := s.Guests[told.Name]
		if g == nil || g.Meta.Uid != told.Uid || g.Host != host {
			continue
		}
		seen := map[string]bool{}
		for _, p := range peers {
			other := guestAt(s, g.Cluster, p.Address)
			if other == nil || other == g || seen[p.Address] {
				continue
			}
			seen[p.Address] = true
			add(g.Meta.Uid, other.Meta.Uid, min(p.Sent, mostSent))
		}
	}
}

// mostSent bounds what a host can claim that a guest has sent to another between two samples, bytes.
const mostSent = 100 << 30

// guestAt returns the guest of a cluster with an address; nil: there is none.
func guestAt(s *Objects, cluster, address string) *v1.Guest {
	prefix, err := netip.ParsePrefix(s.Clusters[cluster].GetPrefix())
	if err != nil {
		return nil
	}
	at, err := netip.ParseAddr(address)
	if err != nil || !at.Is4() || !prefix.Contains(at) {
		return nil
	}
	index := int64(number(at)) - int64(number(guestAddress(prefix, 0)))
	if g := s.Guests[fmt.Sprintf("%s-%d", cluster, index)]; g.GetAddress() == address {
		return g
	}
	return nil
}

// ClusterTraffic returns which guests of a cluster talk to each other.
func ClusterTraffic(s *Objects, cluster string, traffic Traffic, distance locality.Distance) *v1.ClusterTrafficResponse {
	guests := GuestsOf(s, cluster)
	slices.SortFunc(guests, func(a, b *v1.Guest) int { return cmp.Compare(a.Index, b.Index) })
	sent := map[string]map[string]float64{}
	if traffic != nil {
		for _, g := range guests {
			sent[g.Meta.Uid] = traffic(g.Meta.Uid)
		}
	}
	answer := &v1.ClusterTrafficResponse{}
	for i, g := range guests {
		for _, other := range guests[i+1:] {
			pair := &v1.GuestPair{Guest: g.Meta.Name, Other: other.Meta.Name, Host: g.Host, OtherHost: other.Host,
				Sent: sent[g.Meta.Uid][other.Meta.Uid], Received: sent[other.Meta.Uid][g.Meta.Uid],
				Site: s.Hosts[g.Host].GetInfo().GetSite(), OtherSite: s.Hosts[other.Host].GetInfo().GetSite()}
			if pair.Sent+pair.Received == 0 {
				continue
			}
			if pair.Host != "" && pair.OtherHost != "" {
				pair.Distance = distance.Between(pair.Host, pair.Site, pair.OtherHost, pair.OtherSite)
			}
			answer.Pairs = append(answer.Pairs, pair)
			answer.Cost += cost(pair)
		}
	}
	slices.SortStableFunc(answer.Pairs, func(a, b *v1.GuestPair) int {
		return cmp.Or(cmp.Compare(cost(b), cost(a)), cmp.Compare(b.Sent+b.Received, a.Sent+a.Received))
	})
	return answer
}

func cost(p *v1.GuestPair) float64 { return (p.Sent + p.Received) * p.Distance }
