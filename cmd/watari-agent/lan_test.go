package main

import (
	"net/netip"
	"testing"
)

func TestWhichAddressTheLANHas(t *testing.T) {
	old, other, loopback := netip.MustParseAddr("198.18.1.1"), netip.MustParseAddr("198.18.1.2"), netip.MustParseAddr("127.0.0.1")
	for name, c := range map[string]struct {
		before, now   netip.Addr
		routed, still bool
		want          bool
	}{
		"the same":                 {old, old, true, true, false},
		"another from DHCP":        {old, other, true, false, true},
		"the cable is unplugged":   {old, netip.Addr{}, false, false, false},
		"a VPN has begun":          {old, other, true, true, false},
		"the network is there now": {loopback, other, true, true, true},
		"still no network":         {loopback, netip.Addr{}, false, true, false},
	} {
		if got := lanChanged(c.before, c.now, c.routed, func(a netip.Addr) bool { return a == c.before && c.still }); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
