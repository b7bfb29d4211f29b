package overlay_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"watari/internal/nethost"
)

// secondLAN connects a host to its site's LAN by another interface, eth1, instead of eth0.
func (w *world) secondLAN(h *nethost.Host, address string) {
	w.t.Helper()
	w.must(h.Script(w.t.Context(), "ip addr flush dev eth0", "ip link set eth0 down"))
	w.must(nethost.Cable(h, "eth1", w.router, "second"))
	w.must(w.router.Script(w.t.Context(), "ip link set second master lana"))
	w.must(h.Script(w.t.Context(), "ip addr add "+address+" dev eth1", "ip link set eth1 mtu 1400", "ip route replace default via 198.18.1.254"))
	h.Address = netip.MustParsePrefix(address).Addr()
}

func (w *world) forwarding(h *nethost.Host, want map[string]string) {
	w.t.Helper()
	for name, value := range want {
		if got, err := h.Run(w.t.Context(), "cat", fmt.Sprintf("/proc/sys/net/ipv4/conf/%s/forwarding", name)); err != nil || strings.TrimSpace(got) != value {
			w.t.Errorf("forwarding of %s is %s, not %s: %v", name, got, value, err)
		}
	}
}

// A host's address changes: on the same interface, and then by another interface. The site's LAN is not trusted.
func TestTheNetworkFollowsAHostsAddress(t *testing.T) {
	w := newWorld(t)
	w.guarded = true
	a, other, far := w.guest(1, 0, "a1"), w.guest(1, 1, "a2"), w.guest(1, 2, "b1")
	w.apply()
	w.reaches(a, other, 56)
	h := w.hosts["a1"]
	follows := func() {
		t.Helper()
		w.apply()
		for _, g := range []*nethost.Guest{other, far} {
			w.reaches(a, g, 1200)
			w.reaches(g, a, 1200)
		}
		if problems, err := h.Check(); err != nil || len(problems) > 0 {
			t.Errorf("problems %q, error %v", problems, err)
		}
	}
	if err := h.MoveLAN(netip.MustParseAddr("198.18.1.7")); err == nil || !strings.Contains(err.Error(), "198.18.1.7 is on no interface") {
		t.Errorf("an address that the host does not have is answered with %v", err)
	}
	w.must(h.Script(t.Context(), "ip addr flush dev eth0", "ip addr add 198.18.1.7/24 dev eth0", "ip route replace default via 198.18.1.254"))
	h.Address = netip.MustParseAddr("198.18.1.7")
	w.must(h.MoveLAN(h.Address))
	follows()

	w.secondLAN(h, "198.18.1.8/24")
	w.must(h.MoveLAN(h.Address))
	follows()
	w.forwarding(h, map[string]string{"eth0": "0", "eth1": "1"})
	for _, set := range []string{"guarded", "opened"} {
		if out, err := h.Run(t.Context(), "nft", "list", "set", "inet", "watari", set); err != nil || !strings.Contains(out, `"eth1"`) || strings.Contains(out, `"eth0"`) {
			t.Errorf("the filter's set %s: %s, %v", set, out, err)
		}
	}
	if out, err := h.Run(t.Context(), "ip", "-o", "link", "show", "watari0"); err != nil || !strings.Contains(out, " mtu 1320 ") {
		t.Errorf("the MTU of WireGuard is %s: %v", out, err)
	}
	_, err := h.StartAgent() // the next agent cleans up
	w.must(err)
	w.must(h.Cleanup())
	w.forwarding(h, map[string]string{"eth0": "0", "eth1": "0"})
}

// The LAN's interface is made again, with the same name and address: the driver was loaded again, or a bridge was configured anew.
func TestTheNetworkFollowsAnInterfaceThatIsMadeAgain(t *testing.T) {
	w := newWorld(t)
	a, other, far := w.guest(1, 0, "a1"), w.guest(1, 1, "a2"), w.guest(1, 2, "b1")
	w.apply()
	h := w.hosts["a1"]
	w.must(h.Script(t.Context(), "ip link del eth0"))
	w.must(nethost.Cable(h, "eth0", w.router, "again"))
	w.must(w.router.Script(t.Context(), "ip link set again master lana"))
	w.must(h.Script(t.Context(), "ip link set eth0 mtu 1400", "ip addr add 198.18.1.1/24 dev eth0", "ip route replace default via 198.18.1.254"))
	w.must(h.MoveLAN(h.Address))
	w.apply()
	for _, g := range []*nethost.Guest{other, far} {
		w.reaches(a, g, 1200)
	}
	if problems, err := h.Check(); err != nil || len(problems) > 0 {
		t.Errorf("problems %q, error %v", problems, err)
	}
	w.forwarding(h, map[string]string{"eth0": "1"})
	for _, g := range []*nethost.Guest{other, far} {
		w.reaches(g, a, 1200)
	}
	if out, err := h.Run(t.Context(), "ip", "-o", "link", "show", "watari0"); err != nil || !strings.Contains(out, " mtu 1320 ") {
		t.Errorf("the MTU of WireGuard is %s: %v", out, err)
	}
}

// A trusted LAN is trusted over the interface that the host had first. Anybody may be on another network.
func TestATrustedLANIsNotTrustedOverAnotherInterface(t *testing.T) {
	w := newWorld(t)
	a, other, far := w.guest(1, 0, "a1"), w.guest(1, 1, "a2"), w.guest(1, 2, "b1")
	w.apply()
	w.reaches(a, other, 56)
	h := w.hosts["a1"]
	w.secondLAN(h, "198.18.1.8/24")
	for _, again := range []bool{false, true} {
		if again {
			_, err := h.StartAgent()
			w.must(err)
		} else {
			w.must(h.MoveLAN(h.Address))
		}
		w.apply()
		w.cannotReach(a, other.Address.String())
		w.cannotReach(other, a.Address.String())
		w.reaches(a, far, 1200)
		if problems, err := h.Check(); err != nil || len(problems) == 0 || !strings.Contains(problems[0], "trusted, but only over eth0, and this host is connected by eth1 now") {
			t.Errorf("problems %q, error %v", problems, err)
		}
	}
	w.must(h.Script(t.Context(), "ip link set eth0 up", "ip addr add 198.18.1.1/24 dev eth0", "ip route replace default via 198.18.1.254 dev eth0"))
	h.Address = netip.MustParseAddr("198.18.1.1")
	w.must(h.MoveLAN(h.Address))
	w.apply()
	w.reaches(a, other, 1200)
	w.reaches(a, far, 1200)
}

// An address that a host has got belonged to a host of its site that is away.
func TestAHostHasTheAddressOfAnother(t *testing.T) {
	w := newWorld(t)
	a, other, far := w.guest(1, 0, "a1"), w.guest(1, 1, "a2"), w.guest(1, 2, "b1")
	h := w.hosts["a1"]
	w.must(h.Script(t.Context(), "ip addr add 198.18.1.2/24 dev eth0"))
	w.hosts["a2"].Kill()
	w.must(h.MoveLAN(netip.MustParseAddr("198.18.1.2")))
	h.Address = netip.MustParseAddr("198.18.1.2")
	w.apply("a1", "b1")
	w.reaches(a, far, 56)
	w.cannotReach(a, other.Address.String())
	if problems, err := h.Check(); err != nil || !strings.Contains(strings.Join(problems, "\n"), "host a2: its LAN address 198.18.1.2 is now this host's") {
		t.Errorf("problems %q, error %v", problems, err)
	}
}
