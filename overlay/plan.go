// plan.go computes the routes and WireGuard peers of a host, and the changes that lead there, without access to the
// kernel.
package overlay

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	v1 "watari/api/watariv1"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
)

// egress tells how packets for a prefix leave a host.
type egress int

const (
	egressNone      egress = iota // dropped: an address of a cluster that no guest has
	egressTap                     // to a guest of this host
	egressLAN                     // to a host of this site
	egressWireGuard               // to a host of another site
)

// route is one entry of the routing table. It is comparable.
type route struct {
	prefix  netip.Prefix
	egress  egress
	tap     string     // egressTap
	gateway netip.Addr // egressLAN
}

// peer is a wanted WireGuard peer.
type peer struct {
	name      string
	endpoint  netip.AddrPort // zero: the host only dials out, and WireGuard learns its address
	relay     string         // the host whose relay endpoint is; empty: none
	watched   bool           // both ends keep the path alive, so silence means that it is broken
	dialOnly  bool
	keepalive time.Duration // 0: none
	held      bool          // no keepalive is sent yet, see hold
	allowed   map[netip.Prefix]bool
}

// interval returns the keepalive to set now.
func (w *peer) interval() *time.Duration {
	if w.held {
		return new(time.Duration)
	}
	return &w.keepalive
}

// plan is the wanted state of a host.
type plan struct {
	routes   map[netip.Prefix]route
	peers    map[wgtypes.Key]*peer
	clusters map[netip.Prefix]bool
	expelled map[wgtypes.Key]bool
	errs     []error // parts of NetworkWanted that make no sense and were left out
}

// keepalive is the interval of packets that keep a NAT's mapping for a host behind it (wg(8) recommends 25 s).
const keepalive = 25 * time.Second

// watchedKeepalive is the same for a path whose ends report to the manager whether it works. It is shorter, so that they
// notice a broken path soon.
const watchedKeepalive = 5 * time.Second

// hostPrefix holds the hosts' own addresses inside WireGuard. They are for the tunnel to hosts that cannot be dialled.
var hostPrefix = netip.MustParsePrefix("fd77:6174:6172:6900::/64")

// hostAddress returns a host's own address inside WireGuard. It follows from the key, so nobody has to assign it.
func hostAddress(key wgtypes.Key) netip.Addr {
	sum := sha256.Sum256(key[:])
	address := hostPrefix.Addr().As16()
	copy(address[8:], sum[:8])
	return netip.AddrFrom16(address)
}

// makePlan computes the routes and peers of the host self from the manager's NetworkWanted. own is its LAN address, with the prefix of its
// network.
func makePlan(self string, own netip.Prefix, wanted *v1.NetworkWanted, local []Guest) plan {
	p := plan{routes: map[netip.Prefix]route{}, peers: map[wgtypes.Key]*peer{}, clusters: map[netip.Prefix]bool{}, expelled: map[wgtypes.Key]bool{}}
	hops := p.addPeers(own, wanted.GetPeers())
	for _, text := range wanted.GetExpelled() {
		if key, err := wgtypes.ParseKey(text); err == nil { // otherwise no peer can have it
			p.expelled[key] = true
		}
	}
	// A cluster's addresses that no guest has (yet) are dropped here, so that their packets do not follow the default
	// route. They are not answered with "unreachable": that would end a connection attempt that could succeed on a
	// retry.
	for _, c := range wanted.GetClusters() {
		prefix, err := netip.ParsePrefix(c.GetPrefix())
		if err != nil || !prefix.Addr().Is4() {
			p.errs = append(p.errs, fmt.Errorf("cluster %s: prefix %q is not IPv4", c.GetName(), c.GetPrefix()))
			continue
		}
		p.clusters[prefix.Masked()] = true
	}
	for prefix := range p.clusters {
		p.drop(prefix)
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

// hop is the next hop towards a host.
type hop struct {
	lan  netip.Addr  // of a host on the same site: its address
	peer wgtypes.Key // of a host on another site: its key
	same bool
}

// addPeers adds the WireGuard peers and returns the next hop towards each reachable host.
func (p *plan) addPeers(own netip.Prefix, peers []*v1.PeerHost) map[string]hop {
	hops := map[string]hop{}
	for _, h := range peers {
		address, err := netip.ParseAddr(h.GetLanAddress())
		if err != nil {
			p.errs = append(p.errs, fmt.Errorf("host %s: LAN address %q: %w", h.GetName(), h.GetLanAddress(), err))
			continue
		}
		if h.GetSameSite() && address == own.Addr() {
			p.errs = append(p.errs, fmt.Errorf("host %s: its LAN address %s is now this host's", h.GetName(), address))
			continue
		}
		if h.GetSameSite() && !ofOneHost(address, own) {
			p.errs = append(p.errs, fmt.Errorf("host %s: its LAN address %s is not the IPv4 address of one host", h.GetName(), address))
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
		w := &peer{name: h.GetName(), watched: h.GetKeepalive(), dialOnly: h.GetDialOnly(), relay: h.GetRelay()}
		if !w.dialOnly {
			w.endpoint = netip.AddrPortFrom(address, uint16(cmp.Or(h.GetWireguardPort(), DefaultWireGuardPort)))
		}
		switch {
		case w.watched:
			w.keepalive = watchedKeepalive
		case behindNAT(own.Addr(), address):
			w.keepalive = keepalive
		}
		if w.relay != "" {
			if w.endpoint, err = netip.ParseAddrPort(h.GetRelayAddress()); err != nil {
				p.errs = append(p.errs, fmt.Errorf("host %s: its relay, host %s: %w", h.GetName(), w.relay, err))
				continue
			}
			w.keepalive = watchedKeepalive
		}
		host := hostAddress(key)
		w.allowed = map[netip.Prefix]bool{netip.PrefixFrom(host, host.BitLen()): true}
		p.peers[key] = w
		hops[h.GetName()] = hop{peer: key}
	}
	return hops
}

// ofOneHost reports whether an address can be an IPv4 gateway in a network. The kernel takes no route by another, and one host's bad address
// must not make Apply fail on all others.
func ofOneHost(a netip.Addr, network netip.Prefix) bool {
	thisNetwork := netip.MustParsePrefix("0.0.0.0/8") // RFC 1122
	if !a.Is4() || !a.IsGlobalUnicast() && !a.IsLinkLocalUnicast() || thisNetwork.Contains(a) {
		return false
	}
	if network.Bits() > 30 || !network.Contains(a) {
		return true
	}
	host := ^uint32(0) >> network.Bits()
	part := number(a) & host
	return part != 0 && part != host // not all of them
}

// behindNAT guesses whether a host is behind a NAT whose mapping must be kept alive: its own address is private and the
// peer's is public.
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
		p.routes[prefix] = route{prefix: prefix, egress: egressLAN, gateway: to.lan}
		return
	}
	p.routes[prefix] = route{prefix: prefix, egress: egressWireGuard}
	p.peers[to.peer].allowed[prefix] = true
}

func (p *plan) addLocal(g Guest) {
	prefix := netip.PrefixFrom(g.Address, 32)
	p.remove(prefix)
	p.routes[prefix] = route{prefix: prefix, egress: egressTap, tap: TapName(g.UID)}
	if cluster := g.Prefix.Masked(); !p.clusters[cluster] {
		p.clusters[cluster] = true
		p.drop(cluster)
	}
}

// drop drops packets to the addresses of a prefix that no guest has.
func (p *plan) drop(prefix netip.Prefix) {
	p.routes[prefix] = route{prefix: prefix, egress: egressNone}
}

// remove removes an earlier route to an address: the last route wins.
func (p *plan) remove(prefix netip.Prefix) {
	if p.routes[prefix].egress != egressWireGuard {
		return
	}
	for _, w := range p.peers {
		delete(w.allowed, prefix)
	}
}

// diffRoutes returns the routes to set (new or replaced in place) and those to remove. The caller sets before it
// removes. Both lists have guests' routes before clusters'. So a packet never misses a route on the way to its guest.
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

// actualPeer is a WireGuard peer of the device.
type actualPeer struct {
	endpoint  netip.AddrPort // zero: none
	keepalive time.Duration
	handshake time.Time // the last one; zero: none
	allowed   map[netip.Prefix]bool
}

// peerChange is a change of one peer of the device.
type peerChange struct {
	key       wgtypes.Key
	remove    bool
	renew     bool           // the peer is removed and made again, so that it begins a session at once
	endpoint  netip.AddrPort // zero: unchanged
	keepalive *time.Duration // nil: unchanged
	allowed   []netip.Prefix // added to the peer's addresses
}

// nobody is the key of a peer whose private key does not exist.
var nobody = wgtypes.Key(sha256.Sum256([]byte("watari: nobody")))

// diffPeers returns the changes of a WireGuard device: grow is applied before the routes change, shrink after.
// WireGuard's cryptokey routing keeps one owner for each address, so adding an address to a peer removes it from its
// earlier owner. A move from peer to peer is thus one addition without a gap.
//
// An address that no peer is to have is given to the peer nobody, which is then removed. Replacing a peer's list of
// addresses would also remove the address. But WireGuard then takes all addresses from the peer before it adds the new ones,
// and drops the packets that come in between.
//
// set holds the endpoints that were set before. The endpoint of a peer that has roamed since then is kept.
//
// left says since when peers are not wanted. Such a peer has no addresses, so no packets pass. It stays as long as WireGuard
// keeps a session, because it is often wanted again at once, for example when all guests of a cluster go back to a
// checkpoint. If two hosts made each other again at the same time, both would begin a handshake. Both handshakes may fail,
// and fail again five seconds later. A peer that is expelled does not stay.
func diffPeers(wanted map[wgtypes.Key]*peer, expelled map[wgtypes.Key]bool, actual map[wgtypes.Key]actualPeer, set map[wgtypes.Key]netip.AddrPort, left map[wgtypes.Key]time.Time, now time.Time) (grow, shrink []peerChange) {
	owner := map[netip.Prefix]bool{}
	for _, w := range wanted {
		for prefix := range w.allowed {
			owner[prefix] = true
		}
	}
	for key, w := range wanted {
		have, exists := actual[key]
		if exists && otherPath(w, have, set[key]) {
			grow = append(grow, peerChange{key: key, renew: true, endpoint: w.endpoint, keepalive: w.interval(), allowed: missing(w.allowed, nil, byAddress)})
			continue
		}
		change := peerChange{key: key, allowed: missing(w.allowed, have.allowed, byAddress)}
		if interval := w.interval(); !exists || have.keepalive != *interval {
			change.keepalive = interval
		}
		if !exists || moveEndpoint(w.endpoint, have, set[key], now) {
			change.endpoint = w.endpoint
		}
		if !exists || change.keepalive != nil || change.endpoint.IsValid() || len(change.allowed) > 0 {
			grow = append(grow, change)
		}
	}
	ownerless := map[netip.Prefix]bool{}
	for key, have := range actual {
		if _, ok := wanted[key]; !ok {
			if now.Sub(left[key]) > silence || expelled[key] {
				shrink = append(shrink, peerChange{key: key, remove: true})
				continue
			}
			if have.keepalive != 0 {
				shrink = append(shrink, peerChange{key: key, keepalive: new(time.Duration)})
			}
		}
		for prefix := range have.allowed {
			if !owner[prefix] {
				ownerless[prefix] = true
			}
		}
	}
	order := func(a, b peerChange) int { return slices.Compare(a.key[:], b.key[:]) }
	slices.SortFunc(grow, order)
	slices.SortFunc(shrink, order)
	if len(ownerless) > 0 {
		shrink = append(shrink, peerChange{key: nobody, allowed: missing(ownerless, nil, byAddress)}, peerChange{key: nobody, remove: true})
	}
	return grow, shrink
}

// When two hosts become each other's peers, the host with the lower key sends the first keepalive after beginsFirst. By then
// the other host has probably made it a peer, too. The other host sends a keepalive after beginsSecond if there has been no
// handshake: the first host may not be able to reach it. If both began, their handshakes could cross. Then both fail, and
// WireGuard tries again five seconds later.
const (
	beginsFirst  = 200 * time.Millisecond
	beginsSecond = time.Second
)

// hold marks the peers to which no keepalive is sent yet. It returns how long the first of them is still held; 0: none is
// held. It updates made, the times at which peers were made.
func hold(own wgtypes.Key, wanted map[wgtypes.Key]*peer, actual map[wgtypes.Key]actualPeer, set map[wgtypes.Key]netip.AddrPort, made map[wgtypes.Key]time.Time, now time.Time) (first time.Duration) {
	for key, w := range wanted {
		have, exists := actual[key]
		if !exists || otherPath(w, have, set[key]) {
			made[key], have.handshake = now, time.Time{}
		}
		begins := beginsFirst
		if slices.Compare(own[:], key[:]) > 0 {
			begins = beginsSecond
		}
		left := begins - now.Sub(made[key])
		if w.held = w.watched && have.handshake.IsZero() && left > 0; w.held && (first == 0 || left < first) {
			first = left
		}
	}
	maps.DeleteFunc(made, func(key wgtypes.Key, _ time.Time) bool { return wanted[key] == nil })
	return first
}

// noteLeft updates left, the times since which peers of the device are not wanted.
func noteLeft(left map[wgtypes.Key]time.Time, wanted map[wgtypes.Key]*peer, actual map[wgtypes.Key]actualPeer, now time.Time) {
	for key := range actual {
		if _, known := left[key]; !known && key != nobody {
			left[key] = now
		}
	}
	maps.DeleteFunc(left, func(key wgtypes.Key, _ time.Time) bool {
		_, exists := actual[key]
		return !exists || wanted[key] != nil
	})
}

// otherPath reports whether an existing peer must be reached by another relay than before, or no longer by one. A relay
// passes packets only after a handshake, which WireGuard would begin only after a silence of 15 seconds.
//
// A relay with several addresses may answer from another one than the manager names, and WireGuard follows it there. Its port, which no
// other pair has, shows that it is the same relay.
func otherPath(w *peer, have actualPeer, set netip.AddrPort) bool {
	if w.relay != "" {
		answered := set == w.endpoint && have.endpoint.IsValid() && have.endpoint.Port() == w.endpoint.Port()
		return have.endpoint != w.endpoint && !answered
	}
	return w.watched && set.IsValid() && set != w.endpoint
}

// moveEndpoint reports whether an existing peer's endpoint is to be set to wanted. WireGuard itself follows a peer that
// roams or is behind a NAT. Only a new endpoint from the manager or a silent peer overrules that.
func moveEndpoint(wanted netip.AddrPort, have actualPeer, set netip.AddrPort, now time.Time) bool {
	switch {
	case have.endpoint == wanted, !wanted.IsValid():
		return false
	case !have.endpoint.IsValid():
		return true
	case set.IsValid() && set != wanted:
		return true
	}
	return now.Sub(have.handshake) > silence
}

// byAddress orders prefixes.
func byAddress(x, y netip.Prefix) int {
	return cmp.Or(x.Addr().Compare(y.Addr()), cmp.Compare(x.Bits(), y.Bits()))
}

// missing returns the keys that are in a and not in b, in order.
func missing[K comparable](a, b map[K]bool, compare func(x, y K) int) []K {
	var out []K
	for key := range a {
		if !b[key] {
			out = append(out, key)
		}
	}
	slices.SortFunc(out, compare)
	return out
}
