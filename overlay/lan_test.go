package overlay_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"watari/internal/nethost"
)

// A host's address changes: on the same interface, and then by another interface.
func TestTheNetworkFollowsAHostsAddress(t *testing.T) {
	w := newWorld(t)
	a, other, far := w.guest(1, 0, "a1"), w.guest(1, 1, "a2"), w.guest(1, 2, "b1")
	w.apply()
	w.reaches(a, other, 56)
	h := w.hosts["a1"]
	moves := func(to string) {
		t.Helper()
		address := netip.MustParsePrefix(to)
		w.must(h.MoveLAN(address.Addr()))
		h.Address = address.Addr()
		w.apply()
		for _, g := range []*nethost.Guest{other, far} {
			w.reaches(a, g, largest)
			w.reaches(g, a, largest)
		}
		if problems, err := h.Check(); err != nil || len(problems) > 0 {
			t.Errorf("problems %q, error %v", problems, err)
		}
	}
	if err := h.MoveLAN(netip.MustParseAddr("198.18.1.7")); err == nil || !strings.Contains(err.Error(), "198.18.1.7 is on no interface") {
		t.Errorf("an address that the host does not have is answered with %v", err)
	}
	w.must(h.Script(t.Context(), "ip addr flush dev eth0", "ip addr add 198.18.1.7/24 dev eth0", "ip route replace default via 198.18.1.254"))
	moves("198.18.1.7/24")

	w.must(h.Script(t.Context(), "ip addr flush dev eth0", "ip link set eth0 down"))
	w.must(nethost.Cable(h, "eth1", w.router, "second"))
	w.must(w.router.Script(t.Context(), "ip link set second master lana"))
	w.must(h.Script(t.Context(), "ip addr add 198.18.1.8/24 dev eth1", "ip route replace default via 198.18.1.254"))
	moves("198.18.1.8/24")
	for name, want := range map[string]string{"eth0": "0", "eth1": "1"} {
		if got, err := h.Run(t.Context(), "cat", fmt.Sprintf("/proc/sys/net/ipv4/conf/%s/forwarding", name)); err != nil || strings.TrimSpace(got) != want {
			t.Errorf("forwarding of %s is %s, not %s: %v", name, got, want, err)
		}
	}
	w.must(h.Cleanup())
	if got, err := h.Run(t.Context(), "cat", "/proc/sys/net/ipv4/conf/eth1/forwarding"); err != nil || strings.TrimSpace(got) != "0" {
		t.Errorf("after a cleanup forwarding of eth1 is %s: %v", got, err)
	}
}
