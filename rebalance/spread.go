package rebalance

// spread.go - the term of policy spread: the cost of clusters that are spread less evenly over hosts or sites than they ask
// for.

import (
	"fmt"

	v1 "watari/api/watariv1"
)

const spreadSite = v1.Spread_SPREAD_SITE

// Spread is the cost of uneven clusters: half of the sum of squares of each cluster's guests on each host, and at each site
// if the cluster asks for that. A move that makes the cluster more even lowers the cost by at least 1.
type Spread struct{}

// Begin does nothing: State counts the guests.
func (Spread) Begin(*State) {}

// Moved does nothing.
func (Spread) Moved(*State, int, int, int) {}

// Cost returns the whole cost.
func (Spread) Cost(s *State) (cost float64) {
	for _, c := range s.Clusters {
		spread := s.Guests[c.Guests[0]].Request.Spread
		if !spreads(spread) {
			continue
		}
		for _, h := range c.hosts {
			cost += float64(h.n*h.n) / 2
		}
		if spread == spreadSite {
			for _, site := range c.sites {
				cost += float64(site.n*site.n) / 2
			}
		}
	}
	return cost
}

// Gain returns by how much more even the guest's cluster is after a move.
func (Spread) Gain(s *State, guest, to int) float64 { return s.spreadGain(guest, to) }

// Guests returns guests of clusters whose hosts or sites differ by more than one guest.
func (Spread) Guests(s *State, n int) (guests []int) {
	for _, c := range s.Clusters {
		request := s.Guests[c.Guests[0]].Request
		if !spreads(request.Spread) || len(c.Guests) < 2 {
			continue
		}
		// A host with one guest can be left only for another site.
		sites := request.Spread == spreadSite && len(c.sites) > 0
		for _, g := range c.Guests {
			if s.begins(g) && (c.hosts.of(s.At[g]) > 1 || sites && c.sites.of(s.site[s.At[g]]) > 1) {
				guests = append(guests, g)
			}
		}
		if len(guests) >= n {
			return guests[:n]
		}
	}
	return guests
}

// Targets returns the hosts, beginning with those with the fewest guests of the cluster.
func (Spread) Targets(s *State, guest int) []int {
	if !spreads(s.Guests[guest].Request.Spread) {
		return nil
	}
	var empty, others []int
	for to := range s.Hosts {
		switch gain := s.spreadGain(guest, to); {
		case gain < 1:
		case s.Clusters[s.Of[guest]].hosts.of(to) == 0:
			empty = append(empty, to)
		default:
			others = append(others, to)
		}
	}
	return append(empty, others...)
}

// Why explains how the cluster is spread.
func (Spread) Why(s *State, guest, to int) string {
	from, c := s.At[guest], &s.Clusters[s.Of[guest]]
	return fmt.Sprintf("host %s has %d guests of cluster %s, and %s has %d", s.Hosts[from].Name, c.hosts.of(from), s.Guests[guest].Cluster, s.Hosts[to].Name, c.hosts.of(to))
}
