// plan.go decides, without looking at the kernel, which routes and WireGuard peers a host is to have, and what has
// to change to get there.
package overlay

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"

	v1 "watari/api/watariv1"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
)

// way is how packets for a prefix leave a host.
type way int

const (
	wayNone      way = iota // dropped: a cluster's address that is nowhere
	wayTap                  // to a guest of this host
	wayLAN                  // to a host of this site
	wayWireGuard            // to a host of another site
)

// route is one entry of the routing table. It is comparable.
type route struct {
	prefix  netip.Prefix
	way     way
	tap     string     // wayTap
	gateway netip.Addr // wayLAN
}

// peer is one WireGuard peer as wanted.
type peer struct {
	name      string
	endpoint  netip.AddrPort
	keepalive time.Duration // 0: none
	allowed   map[netip.Prefix]bool
}

// plan is all that a host is to have.
type plan struct {
	routes   map[netip.Prefix]route
	peers    map[wgtypes.Key]*peer
	clusters map[netip.Prefix]bool
	errs     []error // what could not be made sense of, and was left out
}

// keepalive is how often a host behind NAT reminds the NAT of its mapping (wg(8) advises 25 s).
const keepalive = 25 * time.Second

// makePlan turns the manager's word into routes and peers for the host named self, whose LAN address is address.
func makePlan(self string, address netip.Addr, wanted *v1.NetworkWanted, local []Guest) plan {
	p := plan{routes: map[netip.Prefix]route{}, peers: map[wgtypes.Key]*peer{}, clusters: map[netip.Prefix]bool{}}
	hops := p.addPeers(address, wanted.GetPeers())
	// A cluster's addresses that are nowhere (yet) are dropped here, and do not leak to the default route. They
	// are not answered with "unreachable", which would end a connection attempt that a retry would make.
	for _, c := range wanted.GetClusters() {
		prefix, err := netip.ParsePrefix(c.GetPrefix())
		if err != nil || !prefix.Addr().Is4() {
			p.errs = append(p.errs, fmt.Errorf("cluster %s: prefix %q is not IPv4", c.GetName(), c.GetPrefix()))
			continue
		}
		p.clusters[prefix.Masked()] = true
	}
	for prefix := range p.clusters {
		p.routes[prefix] = route{prefix: prefix, way: wayNone}
	}
	for _, r := range wanted.GetRoutes() {
		if r.GetHost() != self {
			p.addRemote(r, hops)
		}
	}
	for _, g := range local {
		p.addLocal(g)
	}
	return p
}

// hop is the next host towards another.
type hop struct {
	lan  netip.Addr  // of the same site: its address
	peer wgtypes.Key // of another site: its key
	same bool
}

// addPeers fills in the WireGuard peers and gives the next hop towards each host that can be reached.
func (p *plan) addPeers(own netip.Addr, peers []*v1.PeerHost) map[string]hop {
	hops := map[string]hop{}
	for _, h := range peers {
		address, err := netip.ParseAddr(h.GetLanAddress())
		if err != nil {
			p.errs = append(p.errs, fmt.Errorf("host %s: LAN address %q: %w", h.GetName(), h.GetLanAddress(), err))
			continue
		}
		if h.GetSameSite() {
			hops[h.GetName()] = hop{lan: address, same: true}
			continue
		}
		key, err := wgtypes.ParseKey(h.GetWireguardPublicKey())
		if err != nil {
			p.errs = append(p.errs, fmt.Errorf("host %s: WireGuard key: %w", h.GetName(), err))
			continue
		}
		w := &peer{name: h.GetName(), allowed: map[netip.Prefix]bool{}}
		w.endpoint = netip.AddrPortFrom(address, uint16(cmp.Or(h.GetWireguardPort(), DefaultWireGuardPort)))
		if behindNAT(own, address) {
			w.keepalive = keepalive
		}
		p.peers[key] = w
		hops[h.GetName()] = hop{peer: key}
	}
	return hops
}

// behindNAT guesses that a host with a private address which speaks to a public one is behind a NAT, whose
// mapping must be kept alive.
func behindNAT(own, other netip.Addr) bool {
	shared := netip.MustParsePrefix("100.64.0.0/10") // RFC 6598
	private := func(a netip.Addr) bool { return a.IsPrivate() || shared.Contains(a) }
	return private(own) && !private(other)
}

func (p *plan) addRemote(r *v1.GuestRoute, hops map[string]hop) {
	address, err := netip.ParseAddr(r.GetAddress())
	if err != nil || !address.Is4() {
		p.errs = append(p.errs, fmt.Errorf("route to %q: not an IPv4 address", r.GetAddress()))
		return
	}
	to, ok := hops[r.GetHost()]
	if !ok {
		p.errs = append(p.errs, fmt.Errorf("route to %s: its host %q cannot be reached", address, r.GetHost()))
		return
	}
	prefix := netip.PrefixFrom(address, 32)
	p.remove(prefix)
	if to.same {
		p.routes[prefix] = route{prefix: prefix, way: wayLAN, gateway: to.lan}
		return
	}
	p.routes[prefix] = route{prefix: prefix, way: wayWireGuard}
	p.peers[to.peer].allowed[prefix] = true
}

func (p *plan) addLocal(g Guest) {
	prefix := netip.PrefixFrom(g.Address, 32)
	p.remove(prefix)
	p.routes[prefix] = route{prefix: prefix, way: wayTap, tap: TapName(g.UID)}
	if cluster := g.Prefix.Masked(); !p.clusters[cluster] {
		p.clusters[cluster] = true
		p.routes[cluster] = route{prefix: cluster, way: wayNone}
	}
}

// remove forgets an earlier word about an address: the last one counts.
func (p *plan) remove(prefix netip.Prefix) {
	if p.routes[prefix].way != wayWireGuard {
		return
	}
	for _, w := range p.peers {
		delete(w.allowed, prefix)
	}
}

// diffRoutes says which routes are to be set (new or replaced in place) and which to be deleted. Guests' routes
// come before clusters' in both, and setting before deleting, so that no packet meets a hole.
func diffRoutes(wanted, actual map[netip.Prefix]route) (set, remove []route) {
	for prefix, r := range wanted {
		if have, ok := actual[prefix]; !ok || have != r {
			set = append(set, r)
		}
	}
	for prefix, r := range actual {
		if _, ok := wanted[prefix]; !ok {
			remove = append(remove, r)
		}
	}
	order := func(a, b route) int {
		if c := cmp.Compare(b.prefix.Bits(), a.prefix.Bits()); c != 0 {
			return c
		}
		return a.prefix.Addr().Compare(b.prefix.Addr())
	}
	slices.SortFunc(set, order)
	slices.SortFunc(remove, order)
	return set, remove
}

// actualPeer is a WireGuard peer as the device has it.
type actualPeer struct {
	endpoint  netip.AddrPort // zero: none
	keepalive time.Duration
	handshake time.Time // the last; zero: none
	allowed   map[netip.Prefix]bool
}

// peerChange is what to tell the device about one peer.
type peerChange struct {
	key       wgtypes.Key
	remove    bool
	endpoint  netip.AddrPort // zero: leave it
	keepalive *time.Duration // nil: leave it
	replace   bool           // allowed replaces the peer's addresses, else it adds to them
	allowed   []netip.Prefix
}

// diffPeers says what to change on a WireGuard device: grow before the routes change, shrink after. An address
// given to a peer is thereby taken from the one that had it (WireGuard's cryptokey routing keeps one owner), so a
// move from peer to peer is one addition, without a gap. Only addresses that no peer is to have need a removal.
// set holds the endpoints that were set before; a peer that has since roamed is left where it was seen.
func diffPeers(wanted map[wgtypes.Key]*peer, actual map[wgtypes.Key]actualPeer, set map[wgtypes.Key]netip.AddrPort, now time.Time) (grow, shrink []peerChange) {
	owner := map[netip.Prefix]bool{}
	for _, w := range wanted {
		for prefix := range w.allowed {
			owner[prefix] = true
		}
	}
	for key, w := range wanted {
		have, exists := actual[key]
		change := peerChange{key: key, allowed: missing(w.allowed, have.allowed)}
		if !exists || have.keepalive != w.keepalive {
			change.keepalive = &w.keepalive
		}
		if !exists || moveEndpoint(w.endpoint, have, set[key], now) {
			change.endpoint = w.endpoint
		}
		if !exists || change.keepalive != nil || change.endpoint.IsValid() || len(change.allowed) > 0 {
			grow = append(grow, change)
		}
	}
	for key, have := range actual {
		w, ok := wanted[key]
		if !ok {
			shrink = append(shrink, peerChange{key: key, remove: true})
			continue
		}
		for prefix := range have.allowed {
			if !owner[prefix] {
				shrink = append(shrink, peerChange{key: key, replace: true, allowed: missing(w.allowed, nil)})
				break
			}
		}
	}
	order := func(a, b peerChange) int { return slices.Compare(a.key[:], b.key[:]) }
	slices.SortFunc(grow, order)
	slices.SortFunc(shrink, order)
	return grow, shrink
}

// moveEndpoint decides whether an existing peer's endpoint is to be set to wanted. WireGuard itself follows a
// peer that roams or sits behind a NAT; only a new word of the manager, or silence, overrules that.
func moveEndpoint(wanted netip.AddrPort, have actualPeer, set netip.AddrPort, now time.Time) bool {
	switch {
	case have.endpoint == wanted:
		return false
	case !have.endpoint.IsValid():
		return true
	case set.IsValid() && set != wanted:
		return true
	}
	return now.Sub(have.handshake) > silence
}

// missing lists, in order, what is in a and not in b.
func missing(a, b map[netip.Prefix]bool) []netip.Prefix {
	var out []netip.Prefix
	for prefix := range a {
		if !b[prefix] {
			out = append(out, prefix)
		}
	}
	slices.SortFunc(out, func(x, y netip.Prefix) int { return x.Addr().Compare(y.Addr()) })
	return out
}
