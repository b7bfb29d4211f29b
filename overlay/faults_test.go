// faults_test.go: moves, crashes and interference by other programs.
package overlay_test

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"watari/internal/nethost"
	"watari/overlay"
)

// eventually retries until f succeeds.
func eventually(t *testing.T, f func() error) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
		<-time.After(20 * time.Millisecond)
	}
}

var answers = regexp.MustCompile(`(\d+) packets transmitted, (\d+) received`)

// lost returns how many pings were not answered, from ping's summary.
func lost(t *testing.T, out string) int {
	t.Helper()
	m := answers.FindStringSubmatch(out)
	if m == nil {
		t.Fatalf("ping says: %s", out)
	}
	sent, _ := strconv.Atoi(m[1])
	received, _ := strconv.Atoi(m[2])
	return sent - received
}

func TestAMoveLosesOnlyWhatComesDuringTheSwitch(t *testing.T) {
	w := newWorld(t)
	mover, near, far := w.guest(1, 0, "a1"), w.guest(1, 1, "a2"), w.guest(1, 2, "b1")
	w.apply()
	w.reaches(near, mover, 56)
	w.reaches(far, mover, 56)
	var slowest float64
	for _, to := range []string{"b1", "a2", "a1", "b1"} {
		from := w.at[mover.UID]
		// The target is prepared while the guest still runs at the source.
		if _, err := w.hosts[to].Plug(mover.Guest, 0); err != nil {
			t.Fatal(err)
		}
		// 150 pings, 10 ms apart, from both other guests.
		address := mover.Address.String()
		nearDone := w.background(near, "ping", "-n", "-q", "-i", "0.01", "-c", "150", "-W", "1", address)
		farDone := w.background(far, "ping", "-n", "-q", "-i", "0.01", "-c", "150", "-W", "1", address)
		before := w.received(mover)
		eventually(t, func() error { // the pings have begun
			if w.received(mover) < before+20 {
				return fmt.Errorf("no pings at %s", address)
			}
			return nil
		})
		began := time.Now()
		mover.Unplug()
		w.at[mover.UID] = to
		slowest = max(slowest, w.apply())
		w.must(mover.Plug(w.hosts[to], overlay.TapName(mover.UID)))
		dark := time.Since(began)
		nearLost, farLost := lost(t, nearDone()), lost(t, farDone())
		t.Logf("%s to %s: dark for %.1f ms; pings lost, 10 ms apart: %d from near, %d from far", from, to, dark.Seconds()*1000, nearLost, farLost)
		allowed := int(dark/(10*time.Millisecond)) + 3
		if nearLost > allowed || farLost > allowed {
			t.Errorf("%s to %s lost more than %d pings", from, to, allowed)
		}
		w.must(w.hosts[from].Unplug(mover.UID))
		w.reaches(near, mover, largest)
		w.reaches(far, mover, largest)
	}
	t.Logf("slowest Apply of a move: %.2f ms", slowest)
}

func TestAMoveDoesNotTouchOtherTraffic(t *testing.T) {
	w := newWorld(t)
	mover, one, other := w.guest(1, 0, "b1"), w.guest(1, 1, "a1"), w.guest(1, 2, "b1")
	w.apply()
	w.reaches(one, other, 56)
	if _, err := w.hosts["a1"].Plug(mover.Guest, 0); err != nil {
		t.Fatal(err)
	}
	done := w.background(one, "ping", "-n", "-q", "-i", "0.002", "-c", "1000", "-W", "1", other.Address.String())
	for i := range 10 {
		w.at[mover.UID] = []string{"a1", "b1"}[i%2]
		w.apply()
	}
	if n := lost(t, done()); n > 0 {
		t.Errorf("%d of 1000 pings between guests that did not move were lost", n)
	}
}

func TestTheWireGuardProcessOutlivesTheAgentAndIsReplacedWhenItDies(t *testing.T) {
	w := newWorld(t)
	a, b := w.guest(1, 0, "a1"), w.guest(1, 1, "b1")
	w.apply()
	w.reaches(a, b, largest)
	h := w.hosts["a1"]
	pid, err := h.Run(t.Context(), "cat", "/run/watari/wireguard.pid")
	if err != nil {
		t.Skip("the kernel has WireGuard: no process to kill")
	}
	// A new agent takes over the running network without packet loss.
	done := w.background(a, "ping", "-n", "-q", "-i", "0.005", "-c", "200", "-W", "1", b.Address.String())
	key, err := h.StartAgent()
	w.must(err)
	if key != w.keys["a1"] {
		t.Error("the key changed with the agent")
	}
	w.apply()
	if n := lost(t, done()); n > 0 {
		t.Errorf("%d pings were lost when the agent was replaced", n)
	}
	if again, _ := h.Run(t.Context(), "cat", "/run/watari/wireguard.pid"); again != pid {
		t.Error("the WireGuard process was replaced with the agent")
	}
	// If it is killed, packets are lost until the next Apply restores everything.
	w.must(h.Script(t.Context(), "kill -9 "+strings.TrimSpace(pid)))
	eventually(t, func() error {
		if _, err := h.Run(t.Context(), "ip", "link", "show", overlay.Device); err == nil {
			return fmt.Errorf("%s is still there", overlay.Device)
		}
		return nil
	})
	w.cannotReach(a, b.Address.String())
	w.apply("a1")
	eventually(t, func() error { return a.Ping(t.Context(), b.Address, 1, largest) })
}

func TestAHostThatComesBackStartsFromNothing(t *testing.T) {
	w := newWorld(t)
	a, b := w.guest(1, 0, "a1"), w.guest(1, 1, "b1")
	w.apply()
	w.reaches(a, b, 56)
	b.Unplug()
	w.hosts["b1"].Kill()
	// The router's end of the cable disappears with the host, but only when the kernel gets to it.
	eventually(t, func() error {
		if _, err := w.router.Run(t.Context(), "ip", "link", "show", "b1"); err == nil {
			return fmt.Errorf("the cable is still there")
		}
		return nil
	})
	w.startHost("b1")
	w.plug(b, "b1")
	w.apply()
	eventually(t, func() error { return a.Ping(t.Context(), b.Address, 1, largest) })
}

func TestLeftoversAreRemovedAndOthersAreLeftAlone(t *testing.T) {
	w := newWorld(t)
	a, b := w.guest(1, 0, "a1"), w.guest(1, 1, "b1")
	w.apply()
	h := w.hosts["a1"]
	w.must(h.Script(t.Context(),
		"ip route add 10.77.9.9/32 via 198.18.1.2 dev eth0 onlink proto 119 metric 119", // left by an agent that crashed
		"ip route add blackhole 10.77.8.0/24 proto 119 metric 119",
		"ip route add 10.78.0.1/32 via 198.18.1.2 dev eth0",   // of another program
		"ip route add 10.77.1.200/32 via 198.18.1.2 dev eth0", // inside a cluster's prefix
	))
	if _, err := h.StartAgent(); err != nil {
		t.Fatal(err)
	}
	delete(w.at, b.UID)
	w.apply()
	routes, err := h.Run(t.Context(), "ip", "-o", "route")
	w.must(err)
	for text, want := range map[string]bool{"10.77.9.9": false, "10.77.8.0": false, "10.78.0.1": true, "10.77.1.200": true,
		a.Address.String() + " ": true, b.Address.String() + " ": false, "blackhole 10.77.1.0/24": true} {
		if strings.Contains(routes, text) != want {
			t.Errorf("%q in the routes: %v, want %v:\n%s", text, !want, want, routes)
		}
	}
}

// An administrator reloads the host's firewall. That removes the packet filter or its rules, or opens it.
func TestAGuestIsKeptApartWhateverIsDoneToThePacketFilter(t *testing.T) {
	w := newWorld(t)
	one, mate, other := w.guest(1, 0, "a1"), w.guest(1, 1, "b1"), w.guest(2, 0, "a1")
	w.apply()
	host := w.hosts["a1"]
	const port = 7201
	w.must(host.Listen(port, port+1))
	w.must(host.OpenStorage(map[string][]uint16{one.UID: {port}}))
	connects := func(g *nethost.Guest, to string, port int, patience string) bool {
		_, err := g.Run(t.Context(), "timeout", patience, "bash", "-c", fmt.Sprintf("</dev/tcp/%s/%d", to, port))
		return err == nil
	}
	apart := func(when string) {
		t.Helper()
		w.reaches(one, mate, largest)
		if !connects(one, overlay.Gateway.String(), port, "10") {
			t.Errorf("%s, a guest does not reach its storage", when)
		}
		var attempts sync.WaitGroup
		attempts.Go(func() { w.cannotReach(one, other.Address.String()) })
		attempts.Go(func() { w.cannotReach(one, "198.18.1.1") })
		attempts.Go(func() {
			if connects(one, overlay.Gateway.String(), port+1, "0.3") || connects(other, overlay.Gateway.String(), port, "0.3") || connects(one, "198.18.1.1", port, "0.3") {
				t.Errorf("%s, a guest reaches more of its host", when)
			}
		})
		attempts.Go(func() {
			if out, err := host.Run(t.Context(), "ping", "-n", "-c", "1", "-W", "1", "-I", "198.18.1.1", one.Address.String()); err == nil {
				t.Errorf("%s, a host reaches a guest: %s", when, out)
			}
		})
		attempts.Wait()
	}
	apart("at first")
	before, err := host.Run(t.Context(), "nft", "--stateless", "list", "table", "inet", "watari")
	w.must(err)
	for _, command := range []string{"nft flush ruleset", "nft flush table inet watari", fmt.Sprintf("nft add element inet watari storage { %s . %s . %d }", overlay.TapName(one.UID), one.Address, port+1),
		"nft add rule inet watari forward accept", "nft insert rule inet watari guest_to_host accept", "nft add table inet watari { flags dormant ; }"} {
		w.must(host.Script(t.Context(), command))
		apart("after " + command)
		if problems, err := host.Check(); err != nil || len(problems) > 0 {
			t.Fatalf("problems %q, error %v", problems, err)
		}
		after, err := host.Run(t.Context(), "nft", "--stateless", "list", "table", "inet", "watari")
		if w.must(err); withoutSent(after) != withoutSent(before) {
			t.Errorf("after %q and a check, the packet filter is\n%s", command, after)
		}
	}
	apart("after all")
	w.must(host.Script(t.Context(), "nft flush ruleset"))
	w.guest(1, 2, "a1") // adding to a removed filter installs it again, too
	if _, err := host.Run(t.Context(), "nft", "list", "chain", "inet", "watari", "from_guest"); err != nil {
		t.Error(err)
	}
}

// An agent that watches hears of each change from the kernel.
func TestAChangedPacketFilterIsMendedAtOnce(t *testing.T) {
	w := newWorld(t)
	w.guest(1, 0, "a1")
	w.apply()
	host := w.hosts["a1"]
	host.RelayPort = relayPort // so that the agent watches
	key, err := host.StartAgent()
	w.must(err)
	w.keys["a1"] = key
	w.apply()
	list := func() string {
		out, err := host.Run(t.Context(), "nft", "--stateless", "list", "table", "inet", "watari")
		if err != nil {
			return ""
		}
		return withoutSent(out)
	}
	before := list()
	for _, command := range []string{"nft flush ruleset", "nft flush table inet watari", "nft insert rule inet watari guest_to_host accept"} {
		var took []time.Duration // a machine that stands still may make one try late
		for len(took) == 0 || took[len(took)-1] > 2*time.Second && len(took) < 5 {
			time.Sleep(100 * time.Millisecond) // the last check has ended
			w.must(host.Script(t.Context(), command))
			begun := time.Now()
			w.eventually(20*time.Second, command+" is undone", func() bool { return list() == before })
			took = append(took, time.Since(begun))
		}
		if t.Logf("%s: mended within %v", command, took); took[len(took)-1] > 2*time.Second {
			t.Errorf("%s: mended within %v", command, took)
		}
	}
}

// The packet filter is removed while no agent is there, and the manager is away when the next one starts. Whether the LAN is trusted
// is not forgotten.
func TestAnAgentWithoutItsFilterGuardsTheLANAsBefore(t *testing.T) {
	w := newWorld(t)
	one := w.guest(1, 0, "a1")
	h := w.hosts["a1"]
	const saved = "/run/watari/overlay-found.json"
	guarded := func(when string, want bool) {
		t.Helper()
		if out, err := h.Run(t.Context(), "nft", "list", "set", "inet", "watari", "guarded"); err != nil || strings.Contains(out, `"eth0"`) != want {
			t.Errorf("%s, the set guarded is not %v: %s, %v", when, want, out, err)
		}
	}
	for _, want := range []bool{true, false} {
		w.guarded = want
		w.apply()
		for _, c := range []struct {
			when, command string
			check, want   bool
		}{
			{"without the filter", "nft flush ruleset", true, want},
			{"without the filter, when a guest comes", "nft flush ruleset", false, want},
			{"without the file", "rm " + saved, true, want},
			{"with the file of an earlier version", "sed -i s/,\"guarded\":[a-z]*// " + saved, true, want},
			{"with neither", "rm -f " + saved + "; nft flush ruleset", true, true},
		} {
			_, err := h.Run(t.Context(), "sh", "-c", c.command)
			w.must(err)
			_, err = h.StartAgent()
			w.must(err)
			if c.check {
				if problems, err := h.Check(); err != nil || len(problems) > 0 {
					t.Errorf("problems %q, error %v", problems, err)
				}
			} else if _, err := h.Plug(one.Guest, 0); err != nil {
				t.Error(err)
			}
			guarded(c.when, c.want)
			w.apply()
			guarded("after orders", want)
		}
	}
	// An order to guard the LAN counts, even if the filter cannot be written at that time.
	w.must(h.Script(t.Context(), "nft flush ruleset", "mount --bind /bin/false /usr/sbin/nft"))
	w.guarded = true
	n, local := w.wanted("a1")
	if _, err := h.Apply(n, local...); err == nil {
		t.Error("the filter was written without nft")
	}
	w.must(h.Script(t.Context(), "umount /usr/sbin/nft", "rm "+saved))
	if problems, err := h.Check(); err != nil || len(problems) > 0 {
		t.Errorf("problems %q, error %v", problems, err)
	}
	guarded("after an order that failed", true)
}

// withoutSent removes set sent from a listing.
func withoutSent(listing string) string {
	return regexp.MustCompile(`(?s)set sent \{.*?\n\t\}\n`).ReplaceAllString(listing, "")
}

// Frames below IP and frames with another guest's address get no further than the guest's tap. The host would not keep or
// answer many of them anyway, so the test counts what is dropped at the tap.
func TestFramesThatNoGuestSendsAreDropped(t *testing.T) {
	w := newWorld(t)
	one, mate := w.guest(1, 0, "a1"), w.guest(1, 1, "a2")
	w.apply()
	host := w.hosts["a1"]
	w.must(host.Script(t.Context(), "nft flush ruleset"))
	w.reaches(one, mate, 56)
	tap := overlay.TapName(one.UID)
	neighbours := func() string {
		out, err := host.Run(t.Context(), "ip", "neigh", "show", "dev", tap)
		w.must(err)
		return out
	}
	guest := func(commands ...string) {
		t.Helper()
		for _, command := range commands {
			_, err := one.Run(t.Context(), "sh", "-c", command)
			w.must(err)
		}
	}
	pings := func(options ...string) { // sends five, and none is answered
		t.Helper()
		out, _ := one.Run(t.Context(), slices.Concat([]string{"ping", "-n", "-c", "5", "-i", "0.1", "-W", "1"}, options, []string{mate.Address.String()})...)
		if !strings.Contains(out, "5 packets transmitted, 0 received") {
			t.Errorf("ping %v: %s", options, out)
		}
	}
	own, gateway := overlay.GuestMAC(one.Address), overlay.Gateway.AsSlice()
	frame := func(kind uint16, payload ...[]byte) string {
		header := binary.BigEndian.AppendUint16(slices.Concat(overlay.GatewayMAC, own), kind)
		return hex.EncodeToString(slices.Concat(append([][]byte{header}, payload...)...))
	}
	var requests, replies, ipv6 []string
	for i := range byte(10) {
		sender := slices.Concat(own, []byte{10, 77, 1, 100 + i})
		for kind, list := range map[byte]*[]string{1: &requests, 2: &replies} {
			*list = append(*list, frame(unix.ETH_P_ARP, []byte{0, 1, 8, 0, 6, 4, 0, kind}, sender, overlay.GatewayMAC, gateway))
		}
		address := netip.MustParseAddr(fmt.Sprintf("fe80::%d", i+1)).AsSlice()
		all := netip.MustParseAddr("ff02::1").AsSlice()
		ipv6 = append(ipv6, frame(unix.ETH_P_IPV6, []byte{0x60, 0, 0, 0, 0, 8, 58, 255}, address, all, []byte{128, 0, 0, 0, 0, 0, 0, 0}))
	}
	const keepGateway = "ip neigh replace 169.254.77.1 lladdr fe:77:61:74:61:72 dev eth0 nud permanent"
	guest("sysctl -qw net.ipv6.conf.eth0.disable_ipv6=1") // so that its kernel sends no frames of its own
	before, received := neighbours(), w.received(mate)
	for _, c := range []struct {
		what  string
		send  func()
		count int
	}{
		{"packets from another address of its cluster", func() {
			guest("ip addr add 10.77.1.99/32 dev eth0")
			pings("-I", "10.77.1.99")
		}, 5},
		{"ARP requests", func() { w.sendFrames(one, requests...) }, 10},
		{"ARP replies", func() { w.sendFrames(one, replies...) }, 10},
		{"IPv6", func() { w.sendFrames(one, ipv6...) }, 10},
		{"frames from another MAC", func() {
			guest("ip link set eth0 address 02:77:0a:4d:01:63", keepGateway)
			pings()
		}, 5},
	} {
		dropped := w.dropped("a1", tap)
		c.send()
		eventually(t, func() error {
			if n := w.dropped("a1", tap) - dropped; n < c.count {
				return fmt.Errorf("%s: %d of %d are dropped at the tap", c.what, n, c.count)
			}
			return nil
		})
		// The host's answers to ARP requests would be dropped, too.
		if after := neighbours(); after != before {
			t.Errorf("after %s, the host's neighbours were\n%sand are\n%s", c.what, before, after)
		}
	}
	if after := w.received(mate); after != received {
		t.Errorf("%d packets of the guest came through", after-received)
	}
	guest("ip link set eth0 address "+own.String(), keepGateway)
	w.reaches(one, mate, 56)
	// Without the tap's programs, the host takes up neighbours: the attack is one.
	w.must(host.Script(t.Context(), "tc qdisc del dev "+tap+" clsact"))
	w.sendFrames(one, requests...)
	eventually(t, func() error {
		if neighbours() == before {
			return fmt.Errorf("without the tap's programs, no ARP request reaches the host")
		}
		return nil
	})
}

// sendFrames sends frames, in hex digits, from a guest's interface.
func (w *world) sendFrames(g *nethost.Guest, frames ...string) {
	w.t.Helper()
	link, err := g.Run(w.t.Context(), "ip", "-o", "link", "show", "eth0")
	w.must(err)
	index, _, _ := strings.Cut(link, ":")
	program := `socket(my $s, 17, 3, 0) or die $!; my $to = pack("S n i S C C a8", 17, 0, shift, 0, 0, 6, ""); ` +
		`for (@ARGV) { send($s, pack("H*", $_), 0, $to) or die $! }`
	_, err = g.Run(w.t.Context(), append([]string{"perl", "-e", program, index}, frames...)...)
	w.must(err)
}

var drops = regexp.MustCompile(`dropped (\d+)`)

// dropped returns how many frames the programs at a tap have dropped.
func (w *world) dropped(host, tap string) int {
	w.t.Helper()
	out, err := w.hosts[host].Run(w.t.Context(), "tc", "-s", "qdisc", "show", "dev", tap, "clsact")
	w.must(err)
	m := drops.FindStringSubmatch(out)
	if m == nil {
		w.t.Fatalf("tc says: %s", out)
	}
	n, err := strconv.Atoi(m[1])
	w.must(err)
	return n
}

func TestAForeignFilterThatDropsIsOvercomeOrNamed(t *testing.T) {
	w := newWorld(t)
	one, mate := w.guest(1, 0, "a1"), w.guest(1, 1, "b1")
	w.apply()
	w.reaches(one, mate, 56)
	h := w.hosts["a1"]
	w.must(h.Script(t.Context(), "iptables -P FORWARD DROP")) // as Docker sets it
	w.cannotReach(one, mate.Address.String())
	if problems, err := h.Check(); err != nil || len(problems) > 0 {
		t.Fatalf("problems %q, error %v", problems, err)
	}
	w.reaches(one, mate, 56)
	w.must(h.Script(t.Context(), "nft add table inet strict",
		"nft add chain inet strict f { type filter hook forward priority 5 ; policy drop ; }"))
	problems, err := h.Check()
	if err != nil || len(problems) != 1 || !strings.Contains(problems[0], "strict") {
		t.Errorf("problems %q, error %v", problems, err)
	}
}

// The kernel deletes a link's routes when the link goes down, as with a switch that restarts.
func TestLostRoutesAndForwardingAreRestored(t *testing.T) {
	w := newWorld(t)
	one, mate := w.guest(1, 0, "a1"), w.guest(1, 1, "a2")
	w.apply()
	w.reaches(one, mate, 56)
	h := w.hosts["a1"]
	w.must(h.Script(t.Context(), "ip link set eth0 down", "ip link set eth0 up", "sysctl -q net.ipv4.ip_forward=1", "sysctl -q net.ipv4.ip_forward=0")) // the last one clears it on all interfaces
	w.cannotReach(one, mate.Address.String())
	if problems, err := h.Check(); err != nil || len(problems) > 0 {
		t.Fatalf("problems %q, error %v", problems, err)
	}
	w.reaches(one, mate, 56)
	one.Unplug()
	if problems, err := h.Check(); err != nil || len(problems) > 0 {
		t.Errorf("after the guest has left: problems %q, error %v", problems, err)
	}
}

// An interface that is set down loses its routes, its neighbours and its IPv6 address, also if it is set up again.
func TestInterfacesThatWereSetDownWorkAgain(t *testing.T) {
	w := newWorld(t)
	one, near, far := w.guest(1, 0, "a1"), w.guest(1, 1, "a2"), w.guest(1, 2, "b1")
	w.apply()
	h, tap := w.hosts["a1"], overlay.TapName(one.UID)
	reaches := func() {
		t.Helper()
		for _, mate := range []*nethost.Guest{near, far} {
			w.reaches(one, mate, 56)
			w.reaches(mate, one, 56)
		}
	}
	reaches()
	for _, name := range []string{tap, overlay.Device} {
		down, up := "ip link set "+name+" down", "ip link set "+name+" up"
		for _, commands := range [][]string{{down}, {down, up}} {
			w.must(h.Script(t.Context(), commands...))
			w.cannotReach(one, far.Address.String())
			if problems, err := h.Check(); err != nil || len(problems) > 0 {
				t.Errorf("%q: problems %q, error %v", commands, problems, err)
			}
			reaches()
		}
	}
	w.must(h.Script(t.Context(), "ip neigh flush dev "+tap+" nud permanent"))
	if out, err := h.Run(t.Context(), "ip", "neigh", "show", "dev", tap); err != nil || strings.Contains(out, "PERMANENT") {
		t.Errorf("the neighbour is still there: %s, %v", out, err)
	}
	if problems, err := h.Check(); err != nil || len(problems) > 0 {
		t.Errorf("problems %q, error %v", problems, err)
	}
	reaches()
}

func TestAHostBecomesNobodyElsesRouter(t *testing.T) {
	w := newWorld(t)
	w.guest(1, 0, "a1")
	w.apply()
	// a2 tries to use a1 as its router to b1.
	w.must(w.hosts["a2"].Script(t.Context(), "ip route add 198.18.2.1/32 via 198.18.1.1 dev eth0",
		"sysctl -qw net.ipv4.conf.all.accept_redirects=0 net.ipv4.conf.eth0.accept_redirects=0")) // a1 would point it to the router
	forwards := func() (string, error) {
		return w.hosts["a2"].Run(t.Context(), "ping", "-n", "-c", "2", "-i", "0.1", "-W", "1", "198.18.2.1")
	}
	if out, err := forwards(); err == nil {
		t.Errorf("a1 forwarded for a2: %s", out)
	}
	w.must(w.hosts["a1"].Script(t.Context(), "sysctl -q net.ipv4.ip_forward=1")) // as Docker sets it
	if problems, err := w.hosts["a1"].Check(); err != nil || len(problems) > 0 {
		t.Fatalf("problems %q, error %v", problems, err)
	}
	if out, err := forwards(); err != nil {
		t.Errorf("a1 has become a router, and does not forward for a2: %s", out)
	}
	// An administrator turns it off again, or Docker is removed: with the same agent, and while there is none.
	for _, again := range []bool{false, true} {
		w.must(w.hosts["a1"].Script(t.Context(), "sysctl -q net.ipv4.ip_forward=1"))
		if problems, err := w.hosts["a1"].Check(); err != nil || len(problems) > 0 {
			t.Fatalf("problems %q, error %v", problems, err)
		}
		w.must(w.hosts["a1"].Script(t.Context(), "sysctl -q net.ipv4.ip_forward=0"))
		if again {
			_, err := w.hosts["a1"].StartAgent()
			w.must(err)
			w.apply("a1")
		} else if problems, err := w.hosts["a1"].Check(); err != nil || len(problems) > 0 {
			t.Fatalf("problems %q, error %v", problems, err)
		}
		w.forwarding(w.hosts["a1"], map[string]string{"eth0": "1"})
		if out, err := forwards(); err == nil {
			t.Errorf("a1 is no longer a router, and forwards for a2: %s", out)
		}
	}
	w.must(w.hosts["a1"].Cleanup())
	w.forwarding(w.hosts["a1"], map[string]string{"eth0": "0"})
}

func TestCleanupLeavesNothing(t *testing.T) {
	w := newWorld(t)
	look := func() string {
		out, err := w.hosts["a1"].Run(t.Context(), "sh", "-c",
			"ip -o link | sed 's/.* \\(wt[^:]*\\|watari0\\|eth0[^:]*\\):.*/\\1/'; ip route; nft list ruleset; cat /proc/sys/net/ipv4/conf/eth0/forwarding; ls /run/wireguard 2>/dev/null; pgrep -f '[w]ireguard --device'; iptables -S FORWARD")
		_ = err // ls and pgrep fail if they find nothing, as they should
		return strings.TrimSpace(out)
	}
	w.hosts["a1"].Run(t.Context(), "iptables", "-P", "FORWARD", "DROP")
	before := look()
	a, b := w.guest(1, 0, "a1"), w.guest(1, 1, "b1")
	w.apply()
	if _, err := w.hosts["a1"].Check(); err != nil {
		t.Fatal(err)
	}
	w.reaches(a, b, 56)
	a.Unplug()
	if look() == before {
		t.Fatal("this test sees nothing")
	}
	for range 2 { // the second call finds nothing, which is not an error
		w.must(w.hosts["a1"].Cleanup())
	}
	eventually(t, func() error {
		if after := look(); after != before {
			return fmt.Errorf("before:\n%s\nafter:\n%s", before, after)
		}
		return nil
	})
}
