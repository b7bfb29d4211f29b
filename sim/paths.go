package sim

// paths.go - which hosts reach each other, directly or through a relay, what they observe of it, and the invariants.

import (
	"fmt"
	"math/rand/v2"
	"time"

	"watari/agent/domain"
	v1 "watari/api/watariv1"
	"watari/core"
)

const (
	relayPort = 7073
	// pathTimeout is how long a host waits for a sign of another host before it reports silence.
	pathTimeout = 10 * time.Second
)

// behind is how a host is connected.
type behind struct {
	nat   bool // nothing from other sites reaches the host unless it has asked for it
	said  bool // an administrator has set that the host only dials out
	plain bool // its agent is older than relays
}

// hasNAT reports whether some hosts of a seed are behind NAT.
func hasNAT(seed uint64) bool { return seed%3 == 1 }

// hostsOf returns the number of a seed's hosts. Relays need several.
func hostsOf(seed uint64) int {
	if hasNAT(seed) {
		return 6
	}
	return 2 + rand.New(rand.NewPCG(seed, 2)).IntN(4)
}

// connectHosts decides how the hosts of a seed are connected.
func (s *Sim) connectHosts(seed uint64) {
	if !hasNAT(seed) {
		return
	}
	rng := rand.New(rand.NewPCG(seed, 6))
	for i, name := range s.names {
		b := &s.hosts[name].behind
		b.nat = i < 2 || rng.IntN(100) < 40 // the first hosts of both sites are behind NAT
		b.said = b.nat && rng.IntN(2) == 0
		b.plain = rng.IntN(100) < 7
	}
}

// path is a host's memory of the path to another.
type path struct {
	relay  string
	since  time.Time // when it began to use this path
	worked time.Time // zero: not yet
}

// open reports whether NAT lets packets of another host in.
func (h *host) open(from *host) bool { return h.site == from.site || !h.behind.nat }

// lets reports whether packets pass from one host to another that has not asked for them.
func (s *Sim) lets(from, to *host) bool {
	return from != nil && to != nil && from.up && to.up && !s.apart(from, to) && to.open(from)
}

// connected reports whether two hosts hear each other by WireGuard, under the orders that both have.
func (s *Sim) connected(a, b *host) bool {
	toB, toA := a.peer(b.name), b.peer(a.name)
	if toA == nil || toB == nil || toA.Relay != toB.Relay || toA.RelayAddress != toB.RelayAddress {
		return false
	}
	if toA.Relay == "" {
		return s.lets(a, b) || s.lets(b, a)
	}
	r := s.hosts[toA.Relay]
	if r == nil || r.agent == nil || !s.lets(a, r) || !s.lets(b, r) {
		return false
	}
	for _, pair := range r.net.GetRelayed() {
		if fmt.Sprintf("198.18.0.1:%d", pair.Port) == toA.RelayAddress && pair.APublicKey == min(a.name, b.name) && pair.BPublicKey == max(a.name, b.name) {
			return true
		}
	}
	return false
}

// peer returns a host's orders about another; nil: there are none.
func (h *host) peer(name string) *v1.PeerHost {
	for _, p := range h.net.GetPeers() {
		if p.Name == name {
			return p
		}
	}
	return nil
}

// observePaths returns the host's report of its paths to others.
func (h *host) observePaths() (list []*v1.PathObserved) {
	if h.behind.plain || h.sim.foresight != nil {
		return nil
	}
	s, next := h.sim, map[string]path{}
	for _, p := range h.net.GetPeers() {
		if p.SameSite || !p.Keepalive || s.hosts[p.Name] == nil {
			continue
		}
		was, known := h.paths[p.Name]
		if !known || was.relay != p.Relay {
			was = path{relay: p.Relay, since: s.now}
		}
		seen := &v1.PathObserved{Host: p.Name, Relay: p.Relay}
		if s.connected(h, s.hosts[p.Name]) {
			was.worked = s.now
			seen.State = v1.PathState_PATH_STATE_ANSWERS
		} else if s.now.Sub(was.since) > pathTimeout && s.now.Sub(was.worked) > pathTimeout {
			seen.State = v1.PathState_PATH_STATE_SILENT
		}
		next[p.Name] = was
		list = append(list, seen)
	}
	h.paths = next
	answered := map[string]time.Time{}
	for _, p := range h.net.GetProbes() {
		to := s.hosts[p.Host]
		if to == nil || to.agent == nil || to.behind.plain || !s.lets(h, to) {
			continue
		}
		since, before := h.answered[p.Host]
		if !before {
			since = s.now
		}
		answered[p.Host] = since
		var seen *v1.PathObserved
		for _, o := range list {
			if o.Host == p.Host {
				seen = o
			}
		}
		if seen == nil {
			seen = &v1.PathObserved{Host: p.Host}
			list = append(list, seen)
		}
		seen.Answers, seen.Steady = true, s.now.Sub(since) > 3*time.Second
	}
	h.answered = answered
	return list
}

// checkRelays checks the relays that a change has chosen: each is a third host that both hosts can reach, and each pair has
// its own port there.
func (s *Sim) checkRelays(before, now *core.Objects) {
	taken := map[string]string{}
	for name, o := range now.Hosts {
		for _, r := range o.Relayed {
			pair := name + " and " + r.Peer
			port := fmt.Sprintf("%s:%d", r.Relay, r.Port)
			if other := taken[port]; other != "" {
				s.violate("relay %s has one port for %s and for %s", port, min(other, pair), max(other, pair))
			}
			taken[port] = pair
			was := before.Relayed(name, r.Peer)
			if was != nil && was.Relay == r.Relay {
				continue
			}
			a, b, relay := s.hosts[name], s.hosts[r.Peer], s.hosts[r.Relay]
			if a == nil || b == nil || relay == nil {
				continue
			}
			if relay == a || relay == b || relay.behind.plain || !relay.open(a) || !relay.open(b) {
				s.violate("host %s was chosen to relay between %s, and cannot", r.Relay, pair)
			}
			if was != nil && s.hosts[was.Relay] != nil && now.Hosts[was.Relay] != nil && s.faulty == false && !s.jumped && r.Since.AsTime().Sub(was.Since.AsTime()) < 5*time.Second {
				s.violate("the relay between %s flaps: %s, and then %s", pair, was.Relay, r.Relay)
			}
		}
	}
}

// checkGone checks that a manager does not keep a relay that has been out of reach for long when it knows of another one.
func (s *Sim) checkGone(m *manager, w core.World) {
	if m.stale != nil || s.restored {
		return
	}
	answers := func(host, other string) bool {
		report, _, connected := w.Observed(host)
		for _, p := range report.GetPaths() {
			if p.Host == other && p.Answers && connected {
				return true
			}
		}
		return false
	}
	stuck := map[string]time.Time{}
	for name, h := range w.Hosts {
		for _, r := range h.Relayed {
			if _, since, connected := w.Observed(r.Relay); connected || since.IsZero() || w.Now.Sub(since) < 6*time.Second {
				continue
			}
			for _, other := range s.names {
				_, _, connected := w.Observed(other)
				o := w.Hosts[other]
				if other != r.Relay && connected && !o.Draining && o.Meta.Deleting == nil && o.Info.GetRelayPort() != 0 && !o.Info.GetDialOnly() && answers(name, other) && answers(r.Peer, other) {
					key := name + " " + r.Peer + " " + r.Relay + " " + other
					stuck[key] = s.now
					if was, is := s.stuck[key]; is {
						stuck[key] = was
					}
					if s.now.Sub(stuck[key]) > 1500*time.Millisecond {
						s.violate("hosts %s and %s keep relay %s, which is gone, though host %s answers them", name, r.Peer, r.Relay, other)
					}
				}
			}
		}
	}
	s.stuck = stuck
}

// separated names guests of one cluster that have no path although a relay could join their hosts; empty: there are none.
func (s *Sim) separated() string {
	o := s.store.objects
	needed := map[string]bool{}
	for _, g := range o.Guests {
		for _, other := range o.Guests {
			a, b := s.hosts[g.Host], s.hosts[other.Host]
			if g.Cluster != other.Cluster || a == nil || b == nil || a.name >= b.name {
				continue
			}
			needed[a.name+" "+b.name] = true
			if a.site == b.site || !s.runsOn(a, g) || !s.runsOn(b, other) || s.connected(a, b) || a.behind.plain || b.behind.plain {
				continue
			}
			for _, name := range s.names {
				r := s.hosts[name]
				if stored := o.Hosts[name]; r != a && r != b && r.agent != nil && !r.behind.plain && s.lets(a, r) && s.lets(b, r) && stored != nil && !stored.Draining && stored.Meta.Deleting == nil {
					return fmt.Sprintf("guests %s on %s and %s on %s have no path, and host %s could relay", g.Meta.Name, a.name, other.Meta.Name, b.name, name)
				}
			}
		}
	}
	for name, h := range o.Hosts {
		for _, r := range h.Relayed {
			if !needed[name+" "+r.Peer] {
				return fmt.Sprintf("hosts %s and %s have a relay, and no cluster in common", name, r.Peer)
			}
		}
	}
	return ""
}

func (s *Sim) runsOn(h *host, g *v1.Guest) bool {
	c := h.copies[g.Meta.Uid]
	return c != nil && c.state == domain.Running
}
