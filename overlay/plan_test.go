package overlay

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "watari/api/watariv1"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
	"pgregory.net/rapid"
)

// key returns a valid key for a host's name.
func key(name string) wgtypes.Key {
	var k wgtypes.Key
	copy(k[:], name+strings.Repeat(".", 32))
	return k
}

func address(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, 77, byte(1 + i/4), byte(10 + i%4)})
}

func clusterOf(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, 24).Masked() }

// drawWanted makes a random NetworkWanted for host h0 of site 0. Hosts are in up to three sites. Guests are anywhere;
// some are routed twice, some are on unknown hosts.
func drawWanted(t *rapid.T) (*v1.NetworkWanted, []Guest) {
	n := &v1.NetworkWanted{}
	hosts := rapid.IntRange(1, 6).Draw(t, "hosts")
	for i := 1; i < hosts; i++ {
		site := rapid.IntRange(0, 2).Draw(t, "site")
		h := &v1.PeerHost{
			Name: fmt.Sprintf("h%d", i), SameSite: site == 0, WireguardPublicKey: key(fmt.Sprint("h", i)).String(),
			LanAddress: fmt.Sprintf("198.18.%d.%d", site, i), WireguardPort: uint32(rapid.SampledFrom([]int{0, 7072, 9000}).Draw(t, "port")),
		}
		n.Peers = append(n.Peers, h)
	}
	for i := range rapid.IntRange(0, 3).Draw(t, "clusters") {
		n.Clusters = append(n.Clusters, &v1.ClusterNetwork{Name: fmt.Sprint("c", i), Prefix: clusterOf(address(4 * i)).String()})
	}
	for range rapid.IntRange(0, 10).Draw(t, "routes") {
		n.Routes = append(n.Routes, &v1.GuestRoute{
			Address: address(rapid.IntRange(0, 11).Draw(t, "address")).String(),
			Host:    fmt.Sprintf("h%d", rapid.IntRange(0, 7).Draw(t, "host")),
		})
	}
	var local []Guest
	for i := range rapid.IntRange(0, 3).Draw(t, "local") {
		a := address(rapid.IntRange(0, 11).Draw(t, "local address"))
		local = append(local, Guest{UID: fmt.Sprintf("%08d-0000", i), Address: a, Prefix: clusterOf(a)})
	}
	return n, local
}

// follow computes in a simple way what happens to a packet for an address: "tap T", "lan A", "wireguard H", "drop", or
// "" for an address outside the overlay.
func follow(n *v1.NetworkWanted, local []Guest, to netip.Addr) string {
	for _, g := range slices.Backward(local) {
		if g.Address == to {
			return "tap " + TapName(g.UID)
		}
	}
	peer := func(name string) *v1.PeerHost {
		i := slices.IndexFunc(n.Peers, func(h *v1.PeerHost) bool { return h.Name == name })
		if i < 0 {
			return nil
		}
		return n.Peers[i]
	}
	for _, r := range slices.Backward(n.Routes) {
		if r.Address != to.String() || r.Host == "h0" {
			continue
		}
		h := peer(r.Host)
		if h == nil {
			continue // unreachable
		}
		if h.SameSite {
			return "lan " + h.LanAddress
		}
		return "wireguard " + h.Name
	}
	known := slices.ContainsFunc(n.Clusters, func(c *v1.ClusterNetwork) bool { return netip.MustParsePrefix(c.Prefix).Contains(to) }) ||
		slices.ContainsFunc(local, func(g Guest) bool { return g.Prefix.Contains(to) })
	if known {
		return "drop"
	}
	return ""
}

// lookup routes a packet with a plan: the longest prefix, then WireGuard's table.
func lookup(p plan, to netip.Addr) string {
	r, ok := p.routes[netip.PrefixFrom(to, 32)]
	if !ok {
		if r, ok = p.routes[clusterOf(to)]; !ok {
			return ""
		}
	}
	switch r.egress {
	case egressTap:
		return "tap " + r.tap
	case egressLAN:
		return "lan " + r.gateway.String()
	case egressWireGuard:
		for _, w := range p.peers {
			if w.allowed[r.prefix] {
				return "wireguard " + w.name
			}
		}
		return "wireguard to nobody"
	}
	return "drop"
}

func TestPlanSendsEveryAddressWhereThePlainReadingDoes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n, local := drawWanted(t)
		p := makePlan("h0", netip.MustParsePrefix("198.18.9.9/24"), n, local) // no other host's address
		owners := map[netip.Prefix]int{}
		for _, w := range p.peers {
			for prefix := range w.allowed {
				owners[prefix]++
			}
		}
		for i := range 12 {
			to := address(i)
			if got, want := lookup(p, to), follow(n, local, to); got != want {
				t.Fatalf("%s: %q, want %q", to, got, want)
			}
			prefix := netip.PrefixFrom(to, 32)
			want := 0
			if p.routes[prefix].egress == egressWireGuard {
				want = 1
			}
			if owners[prefix] != want {
				t.Fatalf("%s is allowed to %d peers, want %d", to, owners[prefix], want)
			}
		}
	})
}

func TestRouteChangesLeadFromAnyStateToThePlan(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		before, after := drawPlan(t), drawPlan(t)
		routes := maps.Clone(before.routes)
		set, remove := diffRoutes(after.routes, routes)
		for _, r := range set {
			if routes[r.prefix] == r {
				t.Fatalf("sets %v, which is there", r)
			}
			routes[r.prefix] = r
		}
		for _, r := range remove {
			if _, wanted := after.routes[r.prefix]; wanted {
				t.Fatalf("removes %v, which is wanted: traffic would meet a hole", r)
			}
			delete(routes, r.prefix)
		}
		if !maps.Equal(routes, after.routes) {
			t.Fatalf("got %v, want %v", routes, after.routes)
		}
	})
}

func drawPlan(t *rapid.T) plan {
	n, local := drawWanted(t)
	return makePlan("h0", netip.MustParsePrefix("198.18.0.1/24"), n, local)
}

// table models WireGuard's table: an address belongs to the peer that got it last. The checks of apply are made after each
// step.
type table map[wgtypes.Key]actualPeer

func (d table) apply(changes []peerChange, checks ...func()) {
	for _, c := range changes {
		if c.remove {
			delete(d, c.key)
			continue
		}
		p, exists := d[c.key]
		if !exists {
			p.allowed = map[netip.Prefix]bool{}
			d[c.key] = p
		}
		for _, prefix := range c.allowed {
			for _, other := range d {
				delete(other.allowed, prefix)
			}
			p.allowed[prefix] = true
			for _, check := range checks {
				check()
			}
		}
		if c.endpoint.IsValid() {
			p.endpoint = c.endpoint
		}
		if c.keepalive != nil {
			p.keepalive = *c.keepalive
		}
		d[c.key] = p
	}
}

func (d table) owner(prefix netip.Prefix) (owner wgtypes.Key) {
	for k, p := range d {
		if p.allowed[prefix] {
			owner = k
		}
	}
	return owner
}

func TestPeerChangesLeadFromAnyStateToThePlanWithoutAGap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		now := time.Unix(1e9, 0)
		before, after := drawPlan(t), drawPlan(t)
		d := table{}
		grow, shrink := diffPeers(before.peers, nil, nil, nil, nil, now)
		d.apply(append(grow, shrink...))
		had := map[netip.Prefix]wgtypes.Key{}
		for i := range 12 {
			prefix := netip.PrefixFrom(address(i), 32)
			had[prefix] = d.owner(prefix)
		}
		grow, shrink = diffPeers(after.peers, nil, d, nil, nil, now)
		d.apply(grow)
		// The routes change between the two steps: an address must have an owner on its path before the change and on
		// its path after it.
		for prefix, owner := range had {
			if after.routes[prefix].egress == egressWireGuard {
				continue
			}
			if before.routes[prefix].egress == egressWireGuard && d.owner(prefix) != owner {
				t.Fatalf("%s is taken from its peer before its route has changed", prefix)
			}
		}
		check := func(when string) {
			for key, w := range after.peers {
				for prefix := range w.allowed {
					if d.owner(prefix) != key {
						t.Fatalf("%s: %s is not with %s", when, prefix, w.name)
					}
				}
			}
		}
		check("after growing")
		d.apply(shrink, func() { check("while shrinking") })
		check("after shrinking")
		checkDevice(t, d, after.peers)
		if grow, shrink = diffPeers(after.peers, nil, d, endpoints(after), nil, now); len(grow)+len(shrink) > 0 {
			t.Fatalf("the same once more is not nothing: %v %v", grow, shrink)
		}
	})
}

func TestAPeerThatComesBackSoonHasKeptItsSession(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		now := time.Unix(1e9, 0)
		before, after := drawPlan(t), drawPlan(t)
		d, left := table{}, map[wgtypes.Key]time.Time{}
		step := func(p plan, set plan) {
			noteLeft(left, p.peers, d, now)
			grow, shrink := diffPeers(p.peers, nil, d, endpoints(set), left, now)
			d.apply(append(grow, shrink...))
			for _, c := range append(grow, shrink...) {
				if _, was := before.peers[c.key]; was && (c.remove || c.renew) {
					t.Fatalf("%s loses its session", before.peers[c.key].name)
				}
			}
		}
		step(before, before)
		now = now.Add(time.Minute)
		step(plan{}, before)
		for _, have := range d {
			if len(have.allowed) > 0 || have.keepalive != 0 {
				t.Fatalf("a peer that is not wanted has %v", have)
			}
		}
		now = now.Add(time.Minute)
		step(after, before)
		// The others are removed later.
		now = now.Add(silence + time.Second)
		noteLeft(left, after.peers, d, now)
		grow, shrink := diffPeers(after.peers, nil, d, endpoints(after), left, now)
		d.apply(append(grow, shrink...))
		checkDevice(t, d, after.peers)
	})
}

func TestOneOfTwoHostsBegins(t *testing.T) {
	now := time.Unix(1e9, 0)
	low, high := key("1"), key("2")
	if slices.Compare(low[:], high[:]) > 0 {
		low, high = high, low
	}
	endpoint := netip.MustParseAddrPort("198.18.2.1:7072")
	wanted := func(key wgtypes.Key) map[wgtypes.Key]*peer {
		return map[wgtypes.Key]*peer{key: {endpoint: endpoint, watched: true, keepalive: watchedKeepalive}}
	}
	step := func(own, other wgtypes.Key, d table, made map[wgtypes.Key]time.Time, set map[wgtypes.Key]netip.AddrPort) (held time.Duration) {
		w := wanted(other)
		held = hold(own, w, d, set, made, now)
		grow, shrink := diffPeers(w, nil, d, set, nil, now)
		d.apply(append(grow, shrink...))
		if sends := d[other].keepalive != 0; sends == (held > 0) {
			t.Fatalf("held for %v, and keepalives are sent: %v", held, sends)
		}
		return held
	}
	for _, c := range []struct {
		own, other wgtypes.Key
		begins     time.Duration
	}{{low, high, beginsFirst}, {high, low, beginsSecond}} {
		d, made, set := table{}, map[wgtypes.Key]time.Time{}, map[wgtypes.Key]netip.AddrPort{c.other: endpoint}
		if held := step(c.own, c.other, d, made, nil); held != c.begins {
			t.Errorf("it waits for %v, not %v", held, c.begins)
		}
		now = now.Add(c.begins / 4)
		if held := step(c.own, c.other, d, made, set); held != c.begins*3/4 {
			t.Errorf("orders that come meanwhile make it wait for %v more", held)
		}
		answered := table{c.other: {endpoint: endpoint, handshake: now, allowed: map[netip.Prefix]bool{}}}
		if step(c.own, c.other, answered, maps.Clone(made), set) != 0 {
			t.Error("it waits though it was reached")
		}
		now = now.Add(c.begins)
		if step(c.own, c.other, d, made, set) != 0 {
			t.Error("it waits for ever")
		}
		if step(c.own, c.other, d, map[wgtypes.Key]time.Time{}, nil) != 0 {
			t.Error("a new agent waits for a peer that it finds")
		}
	}
}

func endpoints(p plan) map[wgtypes.Key]netip.AddrPort {
	out := map[wgtypes.Key]netip.AddrPort{}
	for k, w := range p.peers {
		out[k] = w.endpoint
	}
	return out
}

func checkDevice(t *rapid.T, d table, wanted map[wgtypes.Key]*peer) {
	if len(d) != len(wanted) {
		t.Fatalf("%d peers, want %d", len(d), len(wanted))
	}
	for k, w := range wanted {
		if have := d[k]; !maps.Equal(have.allowed, w.allowed) || have.endpoint != w.endpoint || have.keepalive != w.keepalive {
			t.Fatalf("%s: got %v, want %v", w.name, have, w)
		}
	}
}

func TestARoamingPeerIsLeftWhereItWasSeen(t *testing.T) {
	now := time.Unix(1e9, 0)
	told, moved, seen := netip.MustParseAddrPort("192.0.2.1:7072"), netip.MustParseAddrPort("192.0.2.2:7072"), netip.MustParseAddrPort("203.0.113.9:31000")
	recent, old := now.Add(-time.Minute), now.Add(-time.Hour)
	for _, c := range []struct {
		name      string
		wanted    netip.AddrPort
		have      netip.AddrPort
		handshake time.Time
		set       netip.AddrPort
		want      bool
	}{
		{"as wanted", told, told, recent, told, false},
		{"behind a NAT, speaking", told, seen, recent, told, false},
		{"behind a NAT, silent", told, seen, old, told, true},
		{"the manager says something new", moved, seen, recent, told, true},
		{"a new agent, the peer speaks", told, seen, recent, netip.AddrPort{}, false},
		{"a new agent, never spoken", told, seen, time.Time{}, netip.AddrPort{}, true},
		{"no endpoint at all", told, netip.AddrPort{}, recent, told, true},
	} {
		if got := moveEndpoint(c.wanted, actualPeer{endpoint: c.have, handshake: c.handshake}, c.set, now); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}

func TestBadWordsAreNamedAndTheRestIsDone(t *testing.T) {
	p := makePlan("h0", netip.MustParsePrefix("10.0.0.1/24"), &v1.NetworkWanted{
		Clusters: []*v1.ClusterNetwork{{Name: "c", Prefix: "10.77.1.0/24"}, {Name: "six", Prefix: "fd00::/64"}},
		Peers: []*v1.PeerHost{
			{Name: "good", LanAddress: "192.0.2.1", WireguardPublicKey: key("good").String()},
			{Name: "noaddress", LanAddress: "x"},
			{Name: "nokey", LanAddress: "192.0.2.2", WireguardPublicKey: "x"},
		},
		Routes: []*v1.GuestRoute{
			{Address: "10.77.1.10", Host: "good"}, {Address: "10.77.1.11", Host: "nokey"}, {Address: "x", Host: "good"},
		},
	}, nil)
	var text []string
	for _, err := range p.errs {
		text = append(text, err.Error())
	}
	all := strings.Join(text, "\n")
	for _, want := range []string{"cluster six", "host noaddress", "host nokey", "route to 10.77.1.11", `route to "x"`} {
		if !strings.Contains(all, want) {
			t.Errorf("%q is not named in:\n%s", want, all)
		}
	}
	if len(p.routes) != 2 || len(p.peers) != 1 {
		t.Errorf("routes %v, peers %v", p.routes, p.peers)
	}
	if got := p.peers[key("good")].keepalive; got != keepalive {
		t.Errorf("a host with a private address keeps a public one alive every %v", got)
	}
}

// A host's address comes from the host itself. One that is no gateway must not make Apply fail on the hosts of its site.
func TestAHostWhoseAddressIsNoGatewayIsLeftOut(t *testing.T) {
	n := &v1.NetworkWanted{Clusters: []*v1.ClusterNetwork{{Name: "c", Prefix: "10.77.1.0/24"}}}
	bad := []string{"2001:db8::1", "::ffff:198.18.1.2", "224.0.0.1", "255.255.255.255", "127.0.0.1", "0.0.0.0", "0.1.2.3", "::", "198.18.1.255", "198.18.1.0"}
	for i, text := range append(bad, "198.18.1.2", "169.254.9.9", "198.18.2.255") {
		n.Peers = append(n.Peers, &v1.PeerHost{Name: text, SameSite: true, LanAddress: text})
		n.Routes = append(n.Routes, &v1.GuestRoute{Address: fmt.Sprintf("10.77.1.%d", 10+i), Host: text})
	}
	p := makePlan("h0", netip.MustParsePrefix("198.18.1.1/24"), n, nil)
	for _, text := range bad {
		if !slices.ContainsFunc(p.errs, func(err error) bool { return strings.HasPrefix(err.Error(), "host "+text+": its LAN address") }) {
			t.Errorf("host %s is not named in %v", text, p.errs)
		}
	}
	if len(p.routes) != 4 || len(p.errs) != 2*len(bad) { // the cluster's, and three guests'
		t.Errorf("routes %v, errors %v", p.routes, p.errs)
	}
}

func TestAliasHoldsTheGuest(t *testing.T) {
	a := netip.MustParseAddr("10.77.3.14")
	g := Guest{UID: "0b6e6b1c-1111-4222-8333-444455556666", Cluster: "md", Address: a, MAC: GuestMAC(a), Prefix: netip.MustParsePrefix("10.77.3.0/24")}
	got, ok := parseAlias(g.alias())
	if !ok || fmt.Sprint(got) != fmt.Sprint(g) {
		t.Errorf("got %v %v, want %v", got, ok, g)
	}
	for _, foreign := range []string{"", "watari", "uplink to the lab", "watari a b c d e"} {
		if _, ok := parseAlias(foreign); ok {
			t.Errorf("%q is taken for a guest", foreign)
		}
	}
	if TapName(g.UID) != "wt0b6e6b1c11" || g.MAC.String() != "02:77:0a:4d:03:0e" {
		t.Errorf("%s %s", TapName(g.UID), g.MAC)
	}
}

func TestClustersAreReadFromNftsListing(t *testing.T) {
	data := []byte(`{"nftables": [{"metainfo": {"version": "1.0.6"}}, {"set": {"family": "inet", "name": "clusters", "elem": [{"prefix": {"addr": "10.77.1.0", "len": 24}}, {"prefix": {"addr": "10.77.4.0", "len": 22}}]}}]}`)
	got := parseClusters(data)
	slices.SortFunc(got, func(a, b netip.Prefix) int { return cmp.Compare(a.String(), b.String()) })
	if fmt.Sprint(got) != "[10.77.1.0/24 10.77.4.0/22]" {
		t.Errorf("got %v", got)
	}
	if got := parseClusters([]byte("nonsense")); got != nil {
		t.Errorf("got %v", got)
	}
}

func TestAPeerIsMadeAnewWhenItsRelayChanges(t *testing.T) {
	at := netip.MustParseAddrPort
	direct, first, second := at("198.18.2.1:7072"), at("198.18.3.1:7074"), at("198.18.4.1:7074")
	now := time.Unix(1e6, 0)
	for _, c := range []struct {
		name      string
		wanted    peer
		have, set netip.AddrPort
		renewed   bool
	}{
		{"it gets a relay", peer{relay: "c1", endpoint: first}, direct, direct, true},
		{"it keeps its relay", peer{relay: "c1", endpoint: first}, first, first, false},
		{"its relay answers from another address", peer{relay: "c1", endpoint: first}, netip.MustParseAddrPort("10.9.9.9:7074"), first, false},
		{"it gets its relay at that address", peer{relay: "c1", endpoint: first}, netip.MustParseAddrPort("10.9.9.9:7074"), direct, true},
		{"it has seen the other host itself", peer{relay: "c1", endpoint: first}, direct, first, true},
		{"a new agent finds its relay", peer{relay: "c1", endpoint: first}, first, netip.AddrPort{}, false},
		{"it gets another relay", peer{relay: "d1", endpoint: second}, first, first, true},
		{"it does without", peer{endpoint: direct}, first, first, true},
		{"it only dials out, and does without", peer{dialOnly: true}, first, first, true},
		{"it only dials out", peer{dialOnly: true}, direct, netip.AddrPort{}, false},
		{"it has roamed", peer{endpoint: direct}, second, direct, false},
	} {
		w := c.wanted
		w.watched, w.keepalive = true, watchedKeepalive
		actual := actualPeer{endpoint: c.have, keepalive: watchedKeepalive, handshake: now}
		grow, _ := diffPeers(map[wgtypes.Key]*peer{key("b1"): &w}, nil, map[wgtypes.Key]actualPeer{key("b1"): actual}, map[wgtypes.Key]netip.AddrPort{key("b1"): c.set}, nil, now)
		if renewed := len(grow) == 1 && grow[0].renew && grow[0].endpoint == w.endpoint; renewed != c.renewed || !renewed && len(grow) > 0 {
			t.Errorf("%s: %+v", c.name, grow)
		}
	}
}

func TestASilentPathIsSaidToBe(t *testing.T) {
	now := time.Unix(1e6, 0)
	w := &peer{name: "b1", watched: true, endpoint: netip.MustParseAddrPort("198.18.2.1:7072")}
	p := wgtypes.Peer{}
	var h heard
	is := func(want v1.PathState) {
		t.Helper()
		h = h.hear(w, p, now)
		if state := h.state(p, now); state != want {
			t.Fatalf("%v, want %v", state, want)
		}
	}
	is(v1.PathState_PATH_STATE_UNSPECIFIED)
	now = now.Add(firstHandshake + time.Second)
	is(v1.PathState_PATH_STATE_SILENT)
	p.LastHandshakeTime, p.ReceiveBytes = now, 148
	is(v1.PathState_PATH_STATE_ANSWERS)
	now = now.Add(quiet - time.Second)
	is(v1.PathState_PATH_STATE_ANSWERS)
	now = now.Add(2 * time.Second)
	is(v1.PathState_PATH_STATE_SILENT)
	w.relay, w.endpoint, p = "c1", netip.MustParseAddrPort("198.18.3.1:7074"), wgtypes.Peer{}
	is(v1.PathState_PATH_STATE_UNSPECIFIED)
	now = now.Add(time.Second)
	p.LastHandshakeTime, p.ReceiveBytes = now, 148
	is(v1.PathState_PATH_STATE_ANSWERS)
	now = now.Add(quiet + time.Second)
	is(v1.PathState_PATH_STATE_SILENT)
	h = heard{} // a restarted agent
	is(v1.PathState_PATH_STATE_ANSWERS)
}

func TestAnExpelledPeerDoesNotStay(t *testing.T) {
	now := time.Unix(1e9, 0)
	for _, expelled := range []map[wgtypes.Key]bool{nil, {key("b1"): true}} {
		d := map[wgtypes.Key]actualPeer{key("b1"): {handshake: now}}
		_, shrink := diffPeers(nil, expelled, d, nil, map[wgtypes.Key]time.Time{key("b1"): now}, now)
		if removed := len(shrink) == 1 && shrink[0].remove; removed != (expelled != nil) {
			t.Errorf("expelled %v: %+v", expelled, shrink)
		}
	}
}
