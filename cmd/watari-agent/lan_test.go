package main

import (
	"net/netip"
	"testing"
)

func TestWhichAddressTheLANHas(t *testing.T) {
	old, other := netip.MustParseAddr("198.18.1.1"), netip.MustParseAddr("198.18.1.2")
	for name, c := range map[string]struct {
		now            netip.Addr
		routed         bool
		guessed, still bool
		want           bool
	}{
		"another from DHCP":                    {other, true, false, false, true},
		"the cable is unplugged":               {netip.Addr{}, false, false, false, false},
		"a VPN has begun":                      {other, true, false, true, false},
		"a bridge has got the address":         {old, true, false, true, true},
		"docker's was taken, and DHCP is done": {other, true, true, true, true},
		"docker's was taken, and still is":     {netip.Addr{}, false, true, true, false},
	} {
		if got := lanChanged(old, c.now, c.routed, c.guessed, func(netip.Addr) bool { return c.still }); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
