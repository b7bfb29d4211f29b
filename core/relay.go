package core

// relay.go - decides which hosts talk to each other through a third host, because they cannot directly. docs/design/relay.md
// has the reasons.

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/dustin/go-humanize/english"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "watari/api/watariv1"
)

const (
	// MaxRelayed is the largest number of pairs of hosts between which a host relays: each pair has a port.
	MaxRelayed = 126
	// maxProbes bounds the hosts that a host is ordered to probe to find a relay, and the peers that it probes.
	maxProbes = 32
	// nearFirst is the number of hosts of each site of a pair that are probed before hosts of other sites.
	nearFirst = 8
	// relayGone is the time after which a relay without a connection is replaced. A restarted agent is back sooner.
	relayGone = 5 * time.Second
	// relayPause is the least time before a relay that is connected but does not help is replaced by another.
	relayPause = time.Minute
	// relaySettle is how long both hosts are connected at least before they get a relay: after an outage, their first reports tell of silence
	// that has just ended.
	relaySettle = 20 * time.Second
	// directAgain is the least time before hosts with a relay go back to the direct path.
	directAgain = 10 * time.Minute
)

// hostPair are two hosts in the order of their names.
type hostPair struct{ a, b string }

func pairOf(a, b string) hostPair { return hostPair{min(a, b), max(a, b)} }

// Relayed returns the relay of two hosts; nil: they have none.
func (o *Objects) Relayed(a, b string) *v1.RelayedPeer {
	pair := pairOf(a, b)
	for _, r := range o.Hosts[pair.a].GetRelayed() {
		if r.Peer == pair.b {
			return r
		}
	}
	return nil
}

// pathTo returns what a host last reported of its path to another; nil: nothing.
func pathTo(r Reports, host, other string) *v1.PathObserved {
	report, _, connected := r.Observed(host)
	if connected {
		for _, path := range report.GetPaths() {
			if path.Host == other {
				return path
			}
		}
	}
	return nil
}

// silent reports whether both hosts of a pair report silence on the path by a relay; "": on the direct path.
func silent(r Reports, pair hostPair, relay string) bool {
	is := func(path *v1.PathObserved) bool {
		return path.GetState() == v1.PathState_PATH_STATE_SILENT && path.Relay == relay
	}
	return is(pathTo(r, pair.a, pair.b)) && is(pathTo(r, pair.b, pair.a))
}

// paths finds the hosts that may need a relay or have one, makes the relays' part of orders, and marks the hosts whose orders
// change by it.
func (p *pass) paths() {
	p.between = map[string][]*v1.Relayed{}
	found := map[hostPair]bool{}
	for name, h := range p.Hosts {
		for _, r := range h.Relayed {
			pair := hostPair{name, r.Peer}
			found[pair] = true
			ours := []string{name, r.Peer, r.Relay}
			if slices.ContainsFunc(ours, func(host string) bool { return p.index.hosts[host] }) {
				for _, host := range ours {
					p.index.hosts[host] = true
				}
			}
			p.between[r.Relay] = append(p.between[r.Relay], &v1.Relayed{Port: r.Port, APublicKey: h.Info.GetWireguardPublicKey(),
				BPublicKey: p.Hosts[r.Peer].GetInfo().GetWireguardPublicKey()})
		}
		p.mayNeed(found, name)
	}
	for _, list := range p.between {
		slices.SortFunc(list, func(a, b *v1.Relayed) int { return cmp.Compare(a.Port, b.Port) })
	}
	p.pairs = slices.SortedFunc(maps.Keys(found), func(x, y hostPair) int {
		return cmp.Or(cmp.Compare(x.a, y.a), cmp.Compare(x.b, y.b))
	})
	p.probe()
}

// mayNeed adds the pairs of a host that may need a relay: pairs for which the host reports silence, and pairs of hosts of
// different sites that share a cluster's network and both only dial out.
func (p *pass) mayNeed(found map[hostPair]bool, host string) {
	report, _, connected := p.Observed(host)
	info := p.Hosts[host].GetInfo()
	if !connected || info.GetRelayPort() == 0 {
		return
	}
	for _, path := range report.GetPaths() {
		if _, _, there := p.Observed(path.Host); there && path.State == v1.PathState_PATH_STATE_SILENT {
			found[pairOf(host, path.Host)] = true
		}
	}
	if !info.DialOnly {
		return
	}
	for cluster := range p.clustersAt(host) {
		for other := range p.network(cluster).peers {
			if o := p.Hosts[other].GetInfo(); o.GetDialOnly() && o.Site != info.Site {
				found[pairOf(host, other)] = true
			}
		}
	}
}

// clustersAt returns the clusters in whose network a host takes part.
func (p *pass) clustersAt(host string) map[string]bool {
	clusters := map[string]bool{}
	for g := range p.index.onHost[host] {
		clusters[g.Cluster] = true
	}
	for m := range p.index.movesAt[host] {
		if g := p.Guests[m.Guest]; g != nil && g.Meta.Uid == m.GuestUid {
			clusters[g.Cluster] = true
		}
	}
	maps.DeleteFunc(clusters, func(cluster string, _ bool) bool { return !p.network(cluster).peers[host] })
	return clusters
}

// shareCluster reports whether two hosts take part in one cluster's network.
func (p *pass) shareCluster(pair hostPair) bool {
	for cluster := range p.clustersAt(pair.a) {
		if p.network(cluster).peers[pair.b] {
			return true
		}
	}
	return false
}

// probe makes the hosts that may need a relay probe each other, and hosts that may become their relay.
func (p *pass) probe() {
	wanted := map[string]map[string]bool{}
	limit := maxProbes
	want := func(host, other string) {
		if host != other && len(wanted[host]) < limit {
			if wanted[host] == nil {
				wanted[host] = map[string]bool{}
			}
			wanted[host][other] = true
		}
	}
	for _, pair := range p.pairs {
		if r := p.Relayed(pair.a, pair.b); r != nil {
			want(pair.a, r.Relay)
			want(pair.b, r.Relay)
		}
	}
	type both struct{ a, b string } // the sites of a pair
	candidates := map[both][]string{}
	given := map[string]map[both]bool{}
	for _, pair := range p.pairs {
		sites := both{p.Hosts[pair.a].GetInfo().GetSite(), p.Hosts[pair.b].GetInfo().GetSite()}
		for _, host := range []string{pair.a, pair.b} {
			if given[host][sites] {
				continue
			}
			if given[host] == nil {
				given[host] = map[both]bool{}
			}
			given[host][sites] = true
			if candidates[sites] == nil {
				candidates[sites] = p.candidates(pair)
			}
			for _, name := range candidates[sites] {
				want(host, name)
			}
		}
	}
	limit = 2 * maxProbes
	for _, pair := range p.pairs {
		want(pair.a, pair.b)
		want(pair.b, pair.a)
	}
	before := p.Core.probes
	p.Core.probes = map[string][]*v1.Probe{}
	for host, others := range wanted {
		var list []*v1.Probe
		for _, other := range sortedKeys(others) {
			if h := p.Hosts[other]; h.GetInfo().GetRelayPort() != 0 {
				list = append(list, &v1.Probe{Host: other, Address: portAddress(h, h.Info.RelayPort), PublicKey: h.Info.WireguardPublicKey})
			}
		}
		p.Core.probes[host] = list
		if !sameList(list, before[host]) {
			p.index.hosts[host] = true
		}
	}
	for host := range before {
		if wanted[host] == nil {
			p.index.hosts[host] = true
		}
	}
}

// near reports whether a host is of the site of one of a pair.
func (p *pass) near(host string, pair hostPair) bool {
	site := p.Hosts[host].GetInfo().GetSite()
	return site == p.Hosts[pair.a].GetInfo().GetSite() || site == p.Hosts[pair.b].GetInfo().GetSite()
}

// candidates returns hosts that may relay for a pair, as far as the manager knows: first up to nearFirst hosts of each of
// the pair's sites, then the first host of each other site, the second of each, and so on.
func (p *pass) candidates(pair hostPair) []string {
	type ranked struct {
		rank int
		name string
	}
	var list []ranked
	ofSite := map[string]int{}
	for _, name := range sortedKeys(p.Hosts) {
		if p.mayRelay(name) {
			site := p.Hosts[name].Info.Site
			rank := ofSite[site] + 1
			if p.near(name, pair) && rank <= nearFirst {
				rank = 0
			}
			list = append(list, ranked{rank, name})
			ofSite[site]++
		}
	}
	slices.SortStableFunc(list, func(a, b ranked) int { return cmp.Compare(a.rank, b.rank) })
	names := []string{}
	for _, r := range list[:min(len(list), maxProbes)] {
		names = append(names, r.name)
	}
	return names
}

// mayRelay reports whether a host may become a relay, if it can be reached.
func (p *pass) mayRelay(host string) bool {
	h := p.Hosts[host]
	_, _, connected := p.Observed(host)
	return connected && h.GetInfo().GetRelayPort() != 0 && !h.Info.DialOnly && !h.Draining && h.Meta.Deleting == nil
}

// relay decides about the relays of the hosts that need one or have one.
func (p *pass) relay() {
	load := map[string]int{}
	for relay, list := range p.between {
		load[relay] = len(list)
	}
	changes := map[string]*Change{}
	updates := map[string]*v1.Host{}
	for _, pair := range p.pairs {
		h := p.Hosts[pair.a]
		if h == nil || p.changed(h) || updates[pair.a] == nil && len(p.changes)+len(changes) >= maxChanges {
			continue
		}
		now := p.Relayed(pair.a, pair.b)
		next, event := p.nextRelay(pair, now, load, updates)
		if next == now {
			continue
		}
		if updates[pair.a] == nil {
			updates[pair.a], changes[pair.a] = proto.CloneOf(h), new(Change)
		}
		update := updates[pair.a]
		update.Relayed = slices.DeleteFunc(update.Relayed, func(r *v1.RelayedPeer) bool { return r.Peer == pair.b })
		if now != nil {
			load[now.Relay]--
		}
		if next != nil {
			load[next.Relay]++
			update.Relayed = append(update.Relayed, next)
			slices.SortFunc(update.Relayed, func(a, b *v1.RelayedPeer) int { return cmp.Compare(a.Peer, b.Peer) })
		}
		if event != "" {
			changes[pair.a].event(v1.Severity_SEVERITY_INFO, "host", pair.a, "%s", event)
		}
	}
	for _, name := range sortedKeys(updates) {
		changes[name].write(Update, updates[name])
		p.propose("host/"+name, *changes[name])
	}
}

// nextRelay decides about one pair, and returns an event for people; empty: none. updates are the hosts that this decision
// changes.
func (p *pass) nextRelay(pair hostPair, now *v1.RelayedPeer, load map[string]int, updates map[string]*v1.Host) (next *v1.RelayedPeer, event string) {
	a, b := p.Hosts[pair.a].GetInfo(), p.Hosts[pair.b].GetInfo()
	if a.GetRelayPort() == 0 || b.GetRelayPort() == 0 || a.Site == b.Site || !p.shareCluster(pair) {
		return nil, ""
	}
	_, aSince, aThere := p.Observed(pair.a)
	_, bSince, bThere := p.Observed(pair.b)
	if !aThere || !bThere {
		return p.kept(now), "" // the other host's report may be a consequence
	}
	dialOnly := a.DialOnly && b.DialOnly
	if now == nil {
		if !dialOnly && !silent(p, pair, "") {
			return nil, ""
		}
		if settled := later(aSince, bSince).Add(p.hurried(relaySettle)); !dialOnly && p.Now.Before(settled) {
			p.again = earlier(p.again, settled)
			return nil, ""
		}
		next = p.chooseRelay(pair, "", load, updates)
		if next == nil {
			return nil, ""
		}
		return next, fmt.Sprintf("does not reach host %s directly: host %s relays between them (%s)", pair.b, next.Relay, next.Reason)
	}
	age := p.Now.Sub(now.Since.AsTime())
	if steady := pathTo(p, pair.a, pair.b).GetSteady() || pathTo(p, pair.b, pair.a).GetSteady(); steady && !dialOnly {
		if wait := p.hurried(directAgain) - age; wait > 0 {
			p.again = earlier(p.again, p.Now.Add(wait))
		} else {
			return nil, fmt.Sprintf("talks to host %s directly again, without relay %s: probes are answered", pair.b, now.Relay)
		}
	}
	why := p.relayFails(pair, now, age)
	if why == "" {
		return now, ""
	}
	next = p.chooseRelay(pair, now.Relay, load, updates)
	if next == nil {
		return p.kept(now), "" // it may help again
	}
	return next, fmt.Sprintf("reaches host %s through host %s instead of host %s, which %s (%s)", pair.b, next.Relay, now.Relay, why, next.Reason)
}

// kept returns the relay that a pair has; nil: it was cut off, and gets no more packets, even if there is no other relay.
func (p *pass) kept(now *v1.RelayedPeer) *v1.RelayedPeer {
	if now == nil || cutOff(p.Hosts[now.Relay]) != nil {
		return nil
	}
	return now
}

// relayFails says why a pair needs another relay; empty: it does not.
func (p *pass) relayFails(pair hostPair, now *v1.RelayedPeer, age time.Duration) string {
	h := p.Hosts[now.Relay]
	_, since, connected := p.Observed(now.Relay)
	switch {
	case h == nil || h.Meta.Deleting != nil:
		return "is removed"
	case cutOff(h) != nil:
		return "was cut off"
	case h.GetInfo().GetRelayPort() == 0:
		return "has an agent that cannot relay"
	case !connected:
		gone := since.Add(relayGone)
		if since.IsZero() {
			gone = p.Began.Add(2 * relayGone)
		}
		if p.Now.Before(gone) {
			p.again = earlier(p.again, gone)
			return ""
		}
		return "is out of reach"
	case h.Draining:
		return "is drained"
	case silent(p, pair, now.Relay):
		if pause := p.hurried(relayPause); age < pause {
			p.again = earlier(p.again, p.Now.Add(pause-age))
			return ""
		}
		return "passes nothing between them"
	}
	return ""
}

// chooseRelay chooses a relay for a pair other than except; nil: no host can be one. Hosts of the pair's sites come first,
// since packets then pass the WAN once. Among them, hosts that are not withdrawn come first, then the hosts that relay
// least.
func (p *pass) chooseRelay(pair hostPair, except string, load map[string]int, updates map[string]*v1.Host) *v1.RelayedPeer {
	var best string
	better := func(x, y string) bool {
		order := cmp.Or(boolOrder(p.near(x, pair), p.near(y, pair)), boolOrder(len(p.Hosts[x].Withdrawn) == 0, len(p.Hosts[y].Withdrawn) == 0),
			cmp.Compare(load[x], load[y]), cmp.Compare(x, y))
		return order < 0
	}
	for _, probe := range p.Core.probes[pair.a] { // only what was probed is known to answer
		x := probe.Host
		if x == except || x == pair.a || x == pair.b || load[x] >= MaxRelayed || !p.mayRelay(x) {
			continue
		}
		if pathTo(p, pair.a, x).GetAnswers() && pathTo(p, pair.b, x).GetAnswers() && (best == "" || better(x, best)) {
			best = x
		}
	}
	if best == "" {
		return nil
	}
	reason := "both reach it"
	if p.near(best, pair) {
		reason += fmt.Sprintf(", and it is of site %s", p.Hosts[best].Info.Site)
	}
	if load[best] > 0 {
		reason += fmt.Sprintf("; it relays for %s already", english.Plural(load[best], "pair", ""))
	}
	return &v1.RelayedPeer{Peer: pair.b, Relay: best, Port: p.freePort(best, updates), Since: timestamppb.New(p.Now), Reason: reason}
}

func boolOrder(x, y bool) int {
	switch {
	case x == y:
		return 0
	case x:
		return -1
	}
	return 1
}

// freePort returns a port of a relay that no pair uses, neither before this decision nor by it.
func (p *pass) freePort(relay string, updates map[string]*v1.Host) uint32 {
	used := map[uint32]bool{}
	for _, r := range p.between[relay] {
		used[r.Port] = true
	}
	for _, h := range updates {
		for _, r := range h.Relayed {
			if r.Relay == relay {
				used[r.Port] = true
			}
		}
	}
	port := p.Hosts[relay].Info.RelayPort + 1
	for used[port] {
		port++
	}
	return port
}

// relays lists for people the relays of a host, and the pairs between which it relays.
func (e *Explainer) relays(l *lines, host string) {
	for _, r := range Relays(e.Objects)[host] {
		since := r.Since.AsTime().UTC().Format("2006-01-02 15:04:05 MST")
		if r.Other != "" {
			l.add("host %s relays between hosts %s and %s since %s: they do not reach each other directly; it cannot read what it forwards", host, r.Peer, r.Other, since)
		} else {
			l.add("host %s reaches host %s through host %s since %s: %s", host, r.Peer, r.Relay, since, r.Reason)
		}
	}
	report, _, _ := e.Reports.Observed(host)
	for _, path := range report.GetPaths() {
		if path.State == v1.PathState_PATH_STATE_SILENT && e.Relayed(host, path.Host) == nil {
			l.add("host %s does not reach host %s, and no other host is known that both reach", host, path.Host)
		}
	}
}

// Relays returns, by host, the relays that it uses, in the order of its peers, and the pairs between which it relays.
func Relays(o *Objects) map[string][]*v1.RelayedPeer {
	relays := map[string][]*v1.RelayedPeer{}
	add := func(host string, r *v1.RelayedPeer, peer, other string) {
		seen := proto.CloneOf(r)
		seen.Peer, seen.Other = peer, other
		relays[host] = append(relays[host], seen)
	}
	for name, h := range o.Hosts {
		for _, r := range h.Relayed {
			add(name, r, r.Peer, "")
			add(r.Peer, r, name, "")
			add(r.Relay, r, name, r.Peer)
		}
	}
	for _, list := range relays {
		slices.SortFunc(list, func(a, b *v1.RelayedPeer) int {
			return cmp.Or(boolOrder(a.Other == "", b.Other == ""), cmp.Compare(a.Peer, b.Peer), cmp.Compare(a.Other, b.Other))
		})
	}
	return relays
}
