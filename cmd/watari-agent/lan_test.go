package main

import (
	"net/netip"
	"testing"
)

func TestWhichAddressTheLANHas(t *testing.T) {
	old, other, third := netip.MustParseAddr("198.18.1.1"), netip.MustParseAddr("198.18.1.2"), netip.MustParseAddr("198.18.1.3")
	var none netip.Addr
	for name, c := range map[string]struct {
		home, routed   netip.Addr
		guessed, still bool
		want           netip.Addr
		is             bool
	}{
		"another from DHCP":                    {other, other, false, false, other, true},
		"another from DHCP, under a VPN":       {other, third, false, false, other, true},
		"the cable is unplugged":               {none, none, false, false, old, false},
		"a wireless network instead":           {none, other, false, false, other, true},
		"the cable is back":                    {other, other, false, true, other, true},
		"the cable is back, under a VPN":       {other, third, false, true, other, true},
		"a VPN over the wireless network":      {none, other, false, true, old, false},
		"a VPN has begun":                      {old, other, false, true, old, true},
		"a bridge has got the address":         {none, old, false, true, old, true},
		"docker's was taken, and DHCP is done": {none, other, true, true, other, true},
		"docker's was taken, and still is":     {none, none, true, true, old, false},
	} {
		if got, is := lanAddress(old, c.home, c.routed, c.guessed, func(netip.Addr) bool { return c.still }); got != c.want || is != c.is {
			t.Errorf("%s: %v, %v", name, got, is)
		}
	}
}

// Options give the LAN's address or interface. The interface may get another address.
func TestWhichAddressAGivenLANHas(t *testing.T) {
	old, other := netip.MustParseAddr("198.18.1.1"), netip.MustParseAddr("198.18.1.2")
	var none netip.Addr
	for name, c := range map[string]struct {
		address     string
		ofInterface netip.Addr
		still       bool
		want        netip.Addr
		is          bool
	}{
		"an address":                        {"198.18.1.1", none, true, old, true},
		"an address that is away":           {"198.18.1.1", none, false, old, true},
		"an address and an interface":       {"198.18.1.1", other, true, old, true},
		"an interface":                      {"", old, true, old, true},
		"an interface with a new address":   {"", other, false, other, true},
		"an interface with another address": {"", other, true, old, true},
		"an interface that is away":         {"", none, false, none, false},
	} {
		o := options{lanAddress: c.address}
		if got, is := o.givenLAN(old, c.ofInterface, func(netip.Addr) bool { return c.still }); got != c.want || is != c.is {
			t.Errorf("%s: %v, %v", name, got, is)
		}
	}
}

// Cleaning up may take any interface, and must not note it as the LAN's for later agents.
func TestCleaningUpDoesNotFollowTheLAN(t *testing.T) {
	o := options{name: "a1", run: t.TempDir(), lanAddress: "198.18.1.1", followsLAN: true}
	if err := keepOptions(o); err != nil {
		t.Fatal(err)
	}
	if kept, err := readOptions(o.run); err != nil || kept.lanAddress != o.lanAddress || kept.followsLAN {
		t.Errorf("it has %+v, %v", kept, err)
	}
}
