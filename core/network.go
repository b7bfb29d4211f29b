package core

// network.go - decides to which host a guest's messages are sent, and makes the network part of each host's orders.

import (
	"cmp"
	"slices"

	"google.golang.org/protobuf/proto"

	v1 "watari/api/watariv1"
	"watari/migration"
)

// clusterNetwork is the part of a cluster's network that is the same in all hosts' orders.
type clusterNetwork struct {
	routes     []*v1.GuestRoute // by address
	peers      map[string]bool  // hosts with a guest or a move of the cluster
	parts      map[string]bool  // hosts that have, or will have, a guest of the cluster
	identities []*v1.Peer       // the guests that stay, for guests' identities, by index
	homeServer string           // address of the guest that serves the shared home
}

// routedTo returns the host to which a guest's messages are sent; empty: none.
func routedTo(g *v1.Guest, m *v1.Migration) string {
	if m != nil && migration.RoutedToTarget(m.State) {
		return m.Target
	}
	return g.Host
}

// detour is what a move changes in its cluster's network.
type detour struct {
	source, target string
	routed         bool // messages are sent to the target
}

// detourOf returns the detour of a move. That of nil, and of an ended move, is empty.
func detourOf(m *v1.Migration) detour {
	if m == nil || migration.Ended(m.State) {
		return detour{}
	}
	return detour{m.Source, m.Target, migration.RoutedToTarget(m.State)}
}

// network returns a cluster's network. It caches the result until the network changes.
func (p *pass) network(cluster string) *clusterNetwork {
	x := p.index
	if n := x.networks[cluster]; n != nil {
		return n
	}
	n := &clusterNetwork{peers: map[string]bool{}, parts: map[string]bool{}}
	guests := x.guestsOf(cluster)
	for _, g := range guests {
		if g.Meta.Deleting == nil {
			n.identities = append(n.identities, &v1.Peer{Name: g.Meta.Name, Address: g.Address, Slots: g.Shape.GetVcpus()})
		}
		m := x.moves[g.Meta.Uid]
		at := routedTo(g, m)
		if at != "" && cutOff(p.Hosts[at]) == nil {
			n.routes = append(n.routes, &v1.GuestRoute{Address: g.Address, Host: at})
			n.peers[at] = true
		}
		for _, host := range []string{g.Host, at} {
			if host != "" {
				n.parts[host] = true
			}
		}
		if m != nil {
			// A source whose guest has just left stays a peer: it forwards messages that are still under way to it.
			n.peers[m.Source], n.peers[m.Target] = true, true
			n.parts[m.Source], n.parts[m.Target] = true, true
		}
	}
	if len(guests) > 0 {
		n.homeServer = guests[0].Address
	}
	slices.SortFunc(n.routes, byAddress)
	n.reuse(x.former[cluster])
	delete(x.former, cluster)
	x.networks[cluster] = n
	return n
}

// reuse takes unchanged lists from the network before, which may be nil. Orders that share a list are compared faster than
// orders with equal lists.
func (n *clusterNetwork) reuse(before *clusterNetwork) {
	if before == nil {
		return
	}
	if slices.EqualFunc(n.routes, before.routes, func(a, b *v1.GuestRoute) bool { return a.Address == b.Address && a.Host == b.Host }) {
		n.routes = before.routes
	}
	if slices.EqualFunc(n.identities, before.identities, func(a, b *v1.Peer) bool {
		return a.Name == b.Name && a.Address == b.Address && a.Slots == b.Slots
	}) {
		n.identities = before.identities
	}
}

// networkOrder returns the network part of a host's orders: all routes of the clusters that have a part on the host,
// and the other hosts of these clusters. guests are the guests with a grant or a move there.
func (p *pass) networkOrder(host string, guests map[string]*v1.Guest) *v1.NetworkWanted {
	w := &v1.NetworkWanted{}
	clusters, peers := map[string]bool{}, map[string]bool{}
	var lists [][]*v1.GuestRoute
	for _, g := range guests {
		if p.network(g.Cluster).parts[host] {
			clusters[g.Cluster] = true
		}
	}
	for _, cluster := range sortedKeys(clusters) {
		n := p.network(cluster)
		if len(n.routes) > 0 {
			lists = append(lists, n.routes)
		}
		for peer := range n.peers {
			if peer != host {
				peers[peer] = true
			}
		}
		if c := p.Clusters[cluster]; c != nil {
			w.Clusters = append(w.Clusters, &v1.ClusterNetwork{Name: cluster, Prefix: c.Prefix, Peers: n.identities, HomeServer: n.homeServer})
			if w.Mtu == 0 || c.Mtu < w.Mtu {
				w.Mtu = c.Mtu
			}
		}
	}
	for _, name := range sortedKeys(peers) {
		if peer := p.peerHost(name, host); peer != nil {
			w.Peers = append(w.Peers, peer)
		}
	}
	slices.SortFunc(lists, func(a, b []*v1.GuestRoute) int { return byAddress(a[0], b[0]) })
	w.Relayed, w.Probes, w.Expelled = p.between[host], p.Core.probes[host], p.expelled()
	w.GuardedLan = !p.TrustedLAN(p.Hosts[host].GetInfo().GetSite())
	w.Routes = slices.Concat(lists...)
	// This takes linear time if the clusters' addresses do not interleave.
	slices.SortFunc(w.Routes, byAddress)
	return w
}

func byAddress(a, b *v1.GuestRoute) int { return cmp.Compare(a.Address, b.Address) }

// peerHosts are the descriptions of a host for other hosts.
type peerHosts struct {
	info      *v1.HostInfo // from which they were made
	trusted   bool         // the LAN of its site was trusted
	near, far *v1.PeerHost // for hosts of its site, and for others
}

// peerHost returns the description of a host for another; nil: nothing is known of it, it was cut off, or it has no key for
// traffic that is to be encrypted.
func (p *pass) peerHost(name, host string) *v1.PeerHost {
	info := p.Hosts[name].GetInfo()
	if info == nil || cutOff(p.Hosts[name]) != nil {
		return nil
	}
	known := p.index.peers[name]
	if trusted := p.TrustedLAN(info.Site); known.info != info || known.trusted != trusted {
		describe := func(sameSite bool) *v1.PeerHost {
			if info.WireguardPublicKey == "" && !(sameSite && trusted) {
				return nil
			}
			return &v1.PeerHost{Name: name, Site: info.Site, LanAddress: info.LanAddress, SameSite: sameSite && trusted,
				WireguardPublicKey: info.WireguardPublicKey, WireguardPort: info.WireguardPort,
				DialOnly: info.DialOnly && (!sameSite || trusted), Keepalive: !sameSite && info.RelayPort != 0}
		}
		known = peerHosts{info, trusted, describe(true), describe(false)}
		p.index.peers[name] = known
	}
	if info.Site == p.Hosts[host].GetInfo().GetSite() {
		return known.near
	}
	far := known.far
	if far.GetKeepalive() && p.Hosts[host].Info.GetRelayPort() == 0 { // the host itself would not keep the path alive
		far = proto.CloneOf(far)
		far.Keepalive = false
	}
	if r := p.kept(p.Relayed(name, host)); r != nil && far != nil {
		far = proto.CloneOf(far)
		far.Relay, far.RelayAddress = r.Relay, portAddress(p.Hosts[r.Relay], r.Port)
	}
	return far
}

// routesSet reports whether every connected host with a part in the cluster's network has the present routes in force.
func (p *pass) routesSet(cluster string) bool {
	for host := range p.network(cluster).parts {
		sent := p.Core.orders.sent[host].wanted
		hasPart := slices.ContainsFunc(sent.GetNetwork().GetClusters(), func(n *v1.ClusterNetwork) bool { return n.Name == cluster })
		report, _, connected := p.Observed(host)
		if hasPart && connected && (report.GetTerm() != p.Core.Term || report.GetNetworkGeneration() < sent.Network.Generation) {
			return false
		}
	}
	return true
}
