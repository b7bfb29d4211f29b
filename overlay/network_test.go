// network_test.go runs the overlay on hosts made of network namespaces: a1 and a2 in site a, b1 in site b, joined by a
// router that knows only the hosts' addresses.
package overlay_test

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	v1 "watari/api/watariv1"
	"watari/internal/nethost"
	"watari/overlay"
)

func TestMain(m *testing.M) {
	nethost.Main()
	os.Exit(m.Run())
}

// world holds the state that a manager would know.
type world struct {
	t          *testing.T
	router     *nethost.Host
	hosts      map[string]*nethost.Host
	keys       map[string]string
	generation uint64
	at         map[string]string // guest's UID -> host
	guests     map[string]*nethost.Guest
	guarded    bool // the sites' LANs are not trusted
}

var addresses = map[string]string{"a1": "198.18.1.1/24", "a2": "198.18.1.2/24", "b1": "198.18.2.1/24"}

func site(host string) string { return host[:1] }

func newWorld(t *testing.T) *world {
	t.Helper()
	if missing := nethost.Missing(); missing != "" {
		t.Skipf("hosts in namespaces need %s", missing)
	}
	w := &world{t: t, hosts: map[string]*nethost.Host{}, keys: map[string]string{}, at: map[string]string{},
		guests: map[string]*nethost.Guest{}}
	w.router = w.start("router")
	w.must(w.router.Script(t.Context(),
		"ip link add lana type bridge", "ip link add lanb type bridge", "ip link set lana up", "ip link set lanb up",
		"ip addr add 198.18.1.254/24 dev lana", "ip addr add 198.18.2.254/24 dev lanb", "sysctl -qw net.ipv4.ip_forward=1"))
	for name := range addresses {
		w.startHost(name)
	}
	return w
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) start(name string) *nethost.Host {
	h, err := nethost.Start(name)
	w.must(err)
	w.t.Cleanup(h.Kill)
	return h
}

func (w *world) startHost(name string) {
	w.t.Helper()
	h := w.start(name)
	w.must(nethost.Cable(h, "eth0", w.router, name))
	w.must(w.router.Script(w.t.Context(), "ip link set "+name+" master lan"+site(name)))
	address := netip.MustParsePrefix(addresses[name])
	w.must(h.SetAddress("eth0", address))
	octets := address.Addr().As4()
	w.must(h.Script(w.t.Context(), fmt.Sprintf("ip route add default via 198.18.%d.254", octets[2])))
	key, err := h.StartAgent()
	w.must(err)
	w.hosts[name], w.keys[name] = h, key
}

// prefixes are the prefixes of clusters 1 and 2. The guests of cluster 2 are in different /24s of its prefix.
var prefixes = []string{1: "10.77.1.0/24", 2: "10.77.4.0/22"}

func guestAddress(cluster, number int) netip.Addr {
	if cluster == 2 {
		return netip.AddrFrom4([4]byte{10, 77, byte(4 + number), 10})
	}
	return netip.AddrFrom4([4]byte{10, 77, byte(cluster), byte(10 + number)})
}

// guest makes a guest of a cluster and plugs it in at a host.
func (w *world) guest(cluster, number int, host string) *nethost.Guest {
	w.t.Helper()
	g := overlay.Guest{
		UID:     fmt.Sprintf("%04x%04x-0000-4000-8000-000000000000", cluster, number),
		Cluster: fmt.Sprintf("c%d", cluster),
		Address: guestAddress(cluster, number),
		Prefix:  netip.MustParsePrefix(prefixes[cluster]),
	}
	guest, err := nethost.NewGuest(g, overlay.DefaultMTU)
	w.must(err)
	w.t.Cleanup(guest.Close)
	w.guests[g.UID] = guest
	w.plug(guest, host)
	w.at[g.UID] = host
	return guest
}

func (w *world) plug(g *nethost.Guest, host string) {
	w.t.Helper()
	tap, err := w.hosts[host].Plug(g.Guest, 0)
	w.must(err)
	w.must(g.Plug(w.hosts[host], tap))
}

// wanted returns the manager's NetworkWanted for one host, and the host's local guests.
func (w *world) wanted(host string) (*v1.NetworkWanted, []overlay.Guest) {
	n := &v1.NetworkWanted{Generation: w.generation, Mtu: overlay.DefaultMTU, GuardedLan: w.guarded}
	for c := 1; c <= 2; c++ {
		n.Clusters = append(n.Clusters, &v1.ClusterNetwork{Name: fmt.Sprintf("c%d", c), Prefix: prefixes[c]})
	}
	for name, h := range w.hosts {
		if name != host {
			n.Peers = append(n.Peers, &v1.PeerHost{Name: name, Site: site(name), SameSite: site(name) == site(host) && !w.guarded,
				LanAddress: h.Address.String(), WireguardPublicKey: w.keys[name],
				WireguardPort: overlay.DefaultWireGuardPort})
		}
	}
	var local []overlay.Guest
	for uid, at := range w.at {
		n.Routes = append(n.Routes, &v1.GuestRoute{Address: w.guests[uid].Address.String(), Host: at})
		if at == host {
			local = append(local, w.guests[uid].Guest)
		}
	}
	return n, local
}

// apply sends NetworkWanted to the hosts (to all if none is named), and returns the longest Apply in milliseconds.
func (w *world) apply(hosts ...string) (slowest float64) {
	w.t.Helper()
	w.generation++
	if len(hosts) == 0 {
		for name := range w.hosts {
			hosts = append(hosts, name)
		}
	}
	for _, name := range hosts {
		n, local := w.wanted(name)
		took, err := w.hosts[name].Apply(n, local...)
		if err != nil {
			w.t.Fatalf("apply on %s: %v", name, err)
		}
		slowest = max(slowest, took)
	}
	return slowest
}

func (w *world) reaches(from, to *nethost.Guest, size int) {
	w.t.Helper()
	if err := from.Ping(w.t.Context(), to.Address, 3, size); err != nil {
		for name, h := range w.hosts {
			state, _ := h.Run(w.t.Context(), "sh", "-c", "ip route; ip -s link; wg show; cat /run/watari/wireguard.log")
			w.t.Logf("%s:\n%s", name, state)
		}
		w.t.Fatal(err)
	}
}

// cannotReach tries pings, with a timeout that is long enough for a handshake, and TCP. A port that is closed would refuse.
func (w *world) cannotReach(from *nethost.Guest, to string) {
	w.t.Helper()
	out, err := from.Run(w.t.Context(), "ping", "-n", "-c", "3", "-i", "0.1", "-W", "0.5", to)
	if err == nil || !strings.Contains(out, "0 received") {
		w.t.Errorf("guest %s reaches %s: %s", from.UID, to, out)
	}
	if out, err := from.Run(w.t.Context(), "timeout", "0.3", "bash", "-c", "</dev/tcp/"+to+"/7999"); err == nil || strings.Contains(err.Error(), "refused") {
		w.t.Errorf("guest %s reaches %s by TCP: %s, %v", from.UID, to, out, err)
	}
}

const largest = overlay.DefaultMTU - 28 // bytes of data of the largest ping

func TestGuestsReachEachOtherAcrossHostsAndSites(t *testing.T) {
	w := newWorld(t)
	g := []*nethost.Guest{w.guest(1, 0, "a1"), w.guest(1, 1, "a1"), w.guest(1, 2, "a2"), w.guest(1, 3, "b1")}
	w.apply()
	for i, from := range g {
		for j, to := range g {
			if i != j {
				w.reaches(from, to, 56)
				w.reaches(from, to, largest)
			}
		}
	}
	if _, err := g[0].Run(t.Context(), "ping", "-c", "1", "-M", "do", "-s", fmt.Sprint(largest+1), g[3].Address.String()); err == nil {
		t.Error("a packet larger than the MTU passed unfragmented")
	}
	for name, h := range w.hosts {
		if problems, err := h.Check(); err != nil || len(problems) > 0 {
			t.Errorf("%s: problems %q, error %v", name, problems, err)
		}
	}
	// A route to a host that is missing in NetworkWanted is reported and does not affect the other routes.
	n, local := w.wanted("a1")
	n.Routes = append(n.Routes, &v1.GuestRoute{Address: "10.77.1.77", Host: "ghost"})
	if _, err := w.hosts["a1"].Apply(n, local...); err != nil {
		t.Error(err)
	}
	if problems, err := w.hosts["a1"].Check(); err != nil || len(problems) != 1 || !strings.Contains(problems[0], "ghost") {
		t.Errorf("problems %q, error %v", problems, err)
	}
	took := w.apply()
	for range 4 { // a machine that stands still may make one try late
		took = min(took, w.apply())
	}
	if took > 100 {
		t.Errorf("an Apply that changed nothing took %.1f ms", took)
	} else {
		t.Logf("an Apply that changed nothing took %.2f ms at most", took)
	}
}

func TestClustersAndHostsAreKeptApart(t *testing.T) {
	w := newWorld(t)
	one := w.guest(1, 0, "a1")
	mate := w.guest(1, 1, "b1")
	others := []*nethost.Guest{w.guest(2, 0, "a1"), w.guest(2, 1, "a2"), w.guest(2, 2, "b1")}
	w.apply()
	w.reaches(one, mate, 56)
	for _, other := range others {
		w.cannotReach(one, other.Address.String())
	}
	// Its host, another host and the router, by each of their addresses.
	for _, to := range []string{"198.18.1.1", "198.18.1.2", "198.18.2.1", "198.18.1.254"} {
		w.cannotReach(one, to)
	}
	// Nor by UDP, of which only the receiver tells whether it has arrived.
	a1, a2 := w.hosts["a1"], w.hosts["a2"]
	before := w.unwanted(a1)
	_, err := a2.Run(t.Context(), "bash", "-c", datagram("198.18.1.1"))
	w.must(err)
	w.eventually(5*time.Second, "a host's datagram arrives", func() bool { return w.unwanted(a1) > before })
	before, other := w.unwanted(a1), w.unwanted(a2)
	for _, to := range []string{overlay.Gateway.String(), "198.18.1.1", "198.18.1.2"} {
		one.Run(t.Context(), "bash", "-c", datagram(to)) // it may fail, as nothing answers
	}
	time.Sleep(500 * time.Millisecond)
	if now, there := w.unwanted(a1), w.unwanted(a2); now != before || there != other {
		t.Errorf("%d datagrams of a guest reached its host, and %d another host", now-before, there-other)
	}
	if _, err := one.Run(t.Context(), "ping", "-c", "1", "-W", "2", overlay.Gateway.String()); err != nil {
		t.Errorf("the gateway does not answer: %v", err)
	}
	// Hosts do not reach guests.
	for _, h := range w.hosts {
		if out, err := h.Run(t.Context(), "ping", "-n", "-c", "2", "-i", "0.1", "-W", "1", one.Address.String()); err == nil {
			t.Errorf("host %s reaches a guest: %s", h.Name, out)
		}
	}
}

// A guest reaches the ports of its gateway that were opened for it: not its neighbour, and no other port.
func TestStorageIsOpenedForAGuest(t *testing.T) {
	w := newWorld(t)
	one, other := w.guest(1, 0, "a1"), w.guest(2, 0, "a1")
	w.apply()
	host := w.hosts["a1"]
	const port = 7201
	if err := host.Listen(port, port+1); err != nil {
		t.Fatal(err)
	}
	connects := func(g *nethost.Guest, port int, patience string) bool {
		_, err := g.Run(t.Context(), "timeout", patience, "bash", "-c", fmt.Sprintf("</dev/tcp/%s/%d", overlay.Gateway, port))
		return err == nil
	}
	open := func(ports map[string][]uint16) {
		t.Helper()
		if err := host.OpenStorage(ports); err != nil {
			t.Fatal(err)
		}
	}
	if connects(one, port, "0.5") {
		t.Error("a guest connects to its host")
	}
	open(map[string][]uint16{one.UID: {port}, "00000000-absent": {port}})
	if !connects(one, port, "10") {
		t.Error("the guest does not connect to what was opened for it")
	}
	if connects(other, port, "0.5") || connects(one, port+1, "0.5") {
		t.Error("more was opened")
	}
	// Another program flushes the table, and the agent is a new one.
	if _, err := host.StartAgent(); err != nil {
		t.Fatal(err)
	}
	host.Run(t.Context(), "nft", "delete", "table", "inet", "watari")
	open(map[string][]uint16{one.UID: {port}})
	if !connects(one, port, "10") || connects(other, port, "0.5") {
		t.Error("a new agent does not open it again")
	}
	open(nil)
	if connects(one, port, "0.5") {
		t.Error("it stays open")
	}
}

// A guest that makes a template is in no cluster. No route leads to its prefix, so its packets must not follow the default route.
func TestAGuestInNoClusterSendsNothing(t *testing.T) {
	w := newWorld(t)
	w.guest(1, 0, "a1")
	w.apply()
	h := w.hosts["a1"]
	w.must(w.router.Script(t.Context(), "ip addr add 192.0.2.9/32 dev lana"))
	template := overlay.Guest{UID: "00990000-0000-4000-8000-000000000000", Cluster: "template", Address: netip.MustParseAddr("192.0.2.2"), Prefix: netip.MustParsePrefix("192.0.2.0/24")}
	guest, err := nethost.NewGuest(template, overlay.DefaultMTU)
	w.must(err)
	t.Cleanup(guest.Close)
	dropped := func() bool {
		out, err := h.Run(t.Context(), "ip", "route")
		w.must(err)
		return strings.Contains(out, "blackhole 192.0.2.0/24")
	}
	for _, when := range []string{"at first", "with a new agent", "after orders"} {
		switch when {
		case "with a new agent":
			_, err := h.StartAgent()
			w.must(err)
		case "after orders":
			w.apply()
		}
		w.plug(guest, "a1")
		if when == "after orders" {
			w.apply()
		}
		before, _ := w.router.Run(t.Context(), "nstat", "-asz", "IcmpInEchos")
		guest.Run(t.Context(), "ping", "-n", "-c", "3", "-i", "0.1", "-W", "0.5", "192.0.2.9")
		if after, _ := w.router.Run(t.Context(), "nstat", "-asz", "IcmpInEchos"); after != before {
			t.Errorf("%s, packets of a guest in no cluster reach the LAN", when)
		}
		if problems, err := h.Check(); err != nil || len(problems) > 0 || !dropped() {
			t.Errorf("%s: problems %q, error %v", when, problems, err)
		}
		guest.Unplug()
		w.must(h.Unplug(template.UID))
		if when != "with a new agent" && dropped() {
			t.Errorf("%s, the route stays", when)
		}
	}
	// The route of a cluster stays when its guest leaves.
	last := w.guest(1, 1, "a1")
	last.Unplug()
	w.must(h.Unplug(last.UID))
	if out, err := h.Run(t.Context(), "ip", "route"); err != nil || !strings.Contains(out, "blackhole 10.77.1.0/24") {
		t.Errorf("%s, %v", out, err)
	}
}

// A host accepts packets to any of its addresses from any interface. Nobody on its LAN or at another site uses guests' storage like that.
func TestStorageIsNotReachedFromTheLAN(t *testing.T) {
	w := newWorld(t)
	one := w.guest(1, 0, "a1")
	w.apply()
	host, other := w.hosts["a1"], w.hosts["a2"]
	const port = 7201
	w.must(host.Script(t.Context(), "ip link set lo up"))
	w.must(host.Listen(port))
	w.must(host.OpenStorage(map[string][]uint16{one.UID: {port}}))
	w.must(other.Script(t.Context(), "ip route add "+overlay.Gateway.String()+"/32 via 198.18.1.1 dev eth0"))
	connects := func(h *nethost.Host, to string) bool {
		_, err := h.Run(t.Context(), "timeout", "2", "bash", "-c", fmt.Sprintf("</dev/tcp/%s/%d", to, port))
		return err == nil
	}
	if !connects(other, "198.18.1.1") || !connects(host, overlay.Gateway.String()) {
		t.Error("the port does not answer")
	}
	if connects(other, overlay.Gateway.String()) {
		t.Error("another host reaches guests' storage")
	}
}

func TestSpoofedSourcesAreDropped(t *testing.T) {
	w := newWorld(t)
	one, mate := w.guest(1, 0, "a1"), w.guest(1, 1, "a2")
	third := w.guest(1, 2, "b1")
	w.apply()
	w.reaches(one, mate, 56)
	// Addresses of the guest's cluster that are not the guest's own: of nobody, and of another guest.
	for _, as := range []string{"10.77.1.99", third.Address.String()} {
		if _, err := one.Run(t.Context(), "ip", "addr", "add", as+"/32", "dev", "eth0"); err != nil {
			t.Fatal(err)
		}
		before := w.received(mate)
		one.Run(t.Context(), "ping", "-c", "3", "-i", "0.1", "-W", "1", "-I", as, mate.Address.String())
		if after := w.received(mate); after != before {
			t.Errorf("%d packets that it sent as %s reached the other guest", after-before, as)
		}
	}
	w.reaches(one, mate, 56)
}

// A host's root sends what he likes. What comes from another site, or over a LAN that is not trusted, counts only if a guest of that
// host could have sent it.
func TestAHostSendsOnlyAsItsOwnGuests(t *testing.T) {
	for attacker, third := range map[string]string{"b1": "a2", "a2": "b1"} {
		t.Run("from "+attacker, func(t *testing.T) {
			w := newWorld(t)
			w.guarded = site(attacker) == "a"
			to, mate, own := w.guest(1, 0, "a1"), w.guest(1, 1, third), w.guest(1, 2, attacker)
			w.apply()
			w.reaches(own, to, 56)
			w.must(w.hosts[attacker].Script(t.Context(), "nft delete table inet watari"))
			for _, g := range []*nethost.Guest{own, mate} {
				w.must(w.hosts[attacker].Script(t.Context(), "ip addr add "+g.Address.String()+"/32 dev lo"))
				before := w.received(to)
				w.hosts[attacker].Run(t.Context(), "ping", "-n", "-c", "3", "-i", "0.1", "-W", "1", "-I", g.Address.String(), to.Address.String())
				if after := w.received(to); (after != before) != (g == own) {
					t.Errorf("of packets that the host sends as guest %s, %d arrive", g.UID, after-before)
				}
			}
		})
	}
}

// A container, or a machine on another network of the host, sends as a guest of that host.
func TestNobodySendsAsAGuestThroughItsHost(t *testing.T) {
	w := newWorld(t)
	own, here, near, far := w.guest(1, 0, "a1"), w.guest(1, 1, "a1"), w.guest(1, 2, "a2"), w.guest(1, 3, "b1")
	w.apply()
	h, container := w.hosts["a1"], w.start("container")
	w.must(nethost.Cable(h, "docker0", container, "eth0"))
	w.must(h.Script(t.Context(), "ip addr add 172.17.0.1/24 dev docker0", "sysctl -qw net.ipv4.ip_forward=1",
		"sysctl -qw net.ipv4.conf.all.rp_filter=0", "sysctl -qw net.ipv4.conf.docker0.rp_filter=0"))
	w.must(container.Script(t.Context(), "ip link set lo up", "ip addr add 172.17.0.2/24 dev eth0",
		"ip addr add "+own.Address.String()+"/32 dev lo", "ip route add default via 172.17.0.1"))
	if _, err := container.Run(t.Context(), "ping", "-n", "-c", "1", "-W", "5", "172.17.0.1"); err != nil {
		t.Fatal(err)
	}
	for _, to := range []*nethost.Guest{here, near, far} {
		w.reaches(own, to, 56)
		before := w.received(to)
		container.Run(t.Context(), "ping", "-n", "-c", "3", "-i", "0.1", "-W", "1", "-I", own.Address.String(), to.Address.String())
		if after := w.received(to); after != before {
			t.Errorf("of packets that a container sends as guest %s, %d reach guest %s", own.UID, after-before, to.UID)
		}
	}
}

// datagram is a command that sends a datagram to a port at which nothing listens.
func datagram(to string) string { return "echo x >/dev/udp/" + to + "/7999" }

// unwanted returns how many datagrams a host has got for ports at which nothing listens.
func (w *world) unwanted(h *nethost.Host) int {
	w.t.Helper()
	out, err := h.Run(w.t.Context(), "nstat", "-asz", "UdpNoPorts")
	w.must(err)
	_, rest, _ := strings.Cut(out, "UdpNoPorts")
	var n int
	if _, err := fmt.Sscan(rest, &n); err != nil {
		w.t.Fatalf("no counter in %s: %v", out, err)
	}
	return n
}

// received returns the number of ICMP messages that a guest has received.
func (w *world) received(g *nethost.Guest) int {
	w.t.Helper()
	out, err := g.Run(w.t.Context(), "cat", "/proc/net/snmp")
	w.must(err)
	for _, line := range strings.Split(out, "\n") {
		var n int
		if _, err := fmt.Sscanf(line, "Icmp: %d", &n); err == nil {
			return n
		}
	}
	w.t.Fatalf("no ICMP counters in %s", out)
	return 0
}

// background runs a command in a guest and returns a function that waits for its output.
func (w *world) background(g *nethost.Guest, words ...string) func() string {
	ctx, cancel := context.WithTimeout(w.t.Context(), 30*time.Second)
	result := make(chan string, 1)
	go func() {
		out, _ := g.Run(ctx, words...)
		result <- out
	}()
	return func() string { defer cancel(); return <-result }
}
