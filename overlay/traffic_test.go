package overlay_test

// traffic_test.go checks the counts of guests' traffic.

import (
	"net/netip"
	"testing"

	"watari/internal/nethost"
	"watari/overlay"
)

// Each guest's host counts only what the guest sends, wherever the other guest is.
func TestTrafficIsCountedOnceAtTheSender(t *testing.T) {
	w := newWorld(t)
	one, here, near, far := w.guest(1, 0, "a1"), w.guest(1, 1, "a1"), w.guest(1, 2, "a2"), w.guest(1, 3, "b1")
	w.apply()
	for _, to := range []*nethost.Guest{here, near, far} {
		w.reaches(one, to, 1000) // three echo requests of 1028 bytes, and their replies
	}
	const bytes = 3 * 1028
	check := func(host string, want map[string]map[netip.Addr]uint64) {
		t.Helper()
		sent, err := w.hosts[host].Sent()
		w.must(err)
		for tap, peers := range want {
			for address, bytes := range peers {
				if got := sent[tap][address]; got != bytes {
					t.Errorf("%s: %s has sent %d bytes to %s, expected %d", host, tap, got, address, bytes)
				}
				delete(sent[tap], address)
			}
			for address, got := range sent[tap] {
				t.Errorf("%s: %s has sent %d bytes to %s, expected none", host, tap, got, address)
			}
			delete(sent, tap)
		}
		for tap := range sent {
			t.Errorf("%s: something was counted for %s", host, tap)
		}
	}
	reply := func(g *nethost.Guest) map[string]map[netip.Addr]uint64 {
		return map[string]map[netip.Addr]uint64{overlay.TapName(g.UID): {one.Address: bytes}}
	}
	a1 := reply(here)
	a1[overlay.TapName(one.UID)] = map[netip.Addr]uint64{here.Address: bytes, near.Address: bytes, far.Address: bytes}
	check("a1", a1)
	check("a2", reply(near))
	check("b1", reply(far))

	// Packets that the filter drops are not counted.
	w.cannotReach(one, "198.18.1.2")
	if sent, err := w.hosts["a1"].Sent(); err != nil || len(sent[overlay.TapName(one.UID)]) != 3 {
		t.Errorf("after packets that were dropped: %v, error %v", sent, err)
	}
}
