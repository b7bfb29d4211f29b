// bed.go makes the hosts and the five variants of paths between them.
package main

import (
	"context"
	"fmt"
	"net/netip"

	v1 "watari/api/watariv1"
	"watari/internal/nethost"
	"watari/overlay"
)

// bed is a1 and a2 in one site, joined by a cable, and b1 in another site, behind a router.
type bed struct {
	hosts         []*nethost.Host
	a1, a2, b1    *nethost.Host
	wireGuardKind string
	openVPNKind   string
}

var (
	cluster = netip.MustParsePrefix("10.77.1.0/24")
	guests  = map[string]netip.Addr{
		"a1": netip.MustParseAddr("10.77.1.10"), "a2": netip.MustParseAddr("10.77.1.11"), "b1": netip.MustParseAddr("10.77.1.12"),
	}
	// Addresses inside the tunnels with which Watari is compared.
	bareA, bareB       = netip.MustParsePrefix("10.1.0.1/24"), netip.MustParsePrefix("10.1.0.2/24")
	openVPNA, openVPNB = netip.MustParsePrefix("10.2.0.1/24"), netip.MustParsePrefix("10.2.0.2/24")
)

func build(ctx context.Context, wireguard string) (b *bed, err error) {
	b = &bed{}
	defer func() {
		if err != nil {
			b.end()
		}
	}()
	started := map[string]*nethost.Host{}
	for _, name := range []string{"a1", "a2", "b1", "router"} {
		h, err := nethost.Start(name)
		if err != nil {
			return nil, err
		}
		started[name] = h
		b.hosts = append(b.hosts, h)
	}
	b.a1, b.a2, b.b1 = started["a1"], started["a2"], started["b1"]
	if err := b.cable(ctx, started["router"]); err != nil {
		return nil, err
	}
	if err := b.startOverlay(ctx); err != nil {
		return nil, err
	}
	if b.wireGuardKind, err = startBareWireGuard(ctx, b.a1, b.b1, wireguard); err != nil {
		return nil, err
	}
	if b.openVPNKind, err = startOpenVPN(ctx, b.a1, b.b1); err != nil {
		return nil, err
	}
	return b, nil
}

func (b *bed) end() {
	for _, h := range b.hosts {
		h.Kill()
	}
}

// cable gives a1 the interfaces lan0 (to a2) and wan0 (to the router).
func (b *bed) cable(ctx context.Context, router *nethost.Host) error {
	for _, c := range []struct {
		a    *nethost.Host
		ifA  string
		b    *nethost.Host
		ifB  string
		netA string
		netB string
	}{
		{b.a2, "lan0", b.a1, "lan0", "198.18.1.2/24", "198.18.1.1/24"},
		{b.b1, "wan0", router, "wan1", "198.18.2.2/24", "198.18.2.1/24"},
		{router, "wan0", b.a1, "wan0", "198.18.0.1/24", "198.18.0.2/24"},
	} {
		if err := nethost.Cable(c.a, c.ifA, c.b, c.ifB); err != nil {
			return err
		}
		if err := c.b.SetAddress(c.ifB, netip.MustParsePrefix(c.netB)); err != nil {
			return err
		}
		if err := c.a.SetAddress(c.ifA, netip.MustParsePrefix(c.netA)); err != nil {
			return err
		}
	}
	// The hosts of a site know each other by their LAN addresses. From outside a1 is reached at its LAN address, too.
	if err := b.a1.SetAddress("lan0", netip.MustParsePrefix("198.18.1.1/24")); err != nil {
		return err
	}
	if err := router.Script(ctx, "sysctl -qw net.ipv4.ip_forward=1", "ip route add 198.18.1.0/24 via 198.18.0.2"); err != nil {
		return err
	}
	if err := b.b1.Script(ctx, "ip link set lo up", "ip route add default via 198.18.2.1"); err != nil {
		return err
	}
	if err := b.a2.Script(ctx, "ip link set lo up"); err != nil {
		return err
	}
	return b.a1.Script(ctx, "ip link set lo up", "ip route add default via 198.18.0.1 src 198.18.1.1")
}

// startOverlay plugs in a guest on each host and applies the network. The guest's end of the tap stays open: only the
// path between the hosts is measured, so each host itself uses its guest's address, which the filter must be told to
// allow here.
func (b *bed) startOverlay(ctx context.Context) error {
	hosts := []*nethost.Host{b.a1, b.a2, b.b1}
	keys := map[string]string{}
	for _, h := range hosts {
		key, err := h.StartAgent()
		if err != nil {
			return err
		}
		keys[h.Name] = key
	}
	for _, h := range hosts {
		wanted := &v1.NetworkWanted{Clusters: []*v1.ClusterNetwork{{Name: "bench", Prefix: cluster.String()}}}
		for _, other := range hosts {
			wanted.Routes = append(wanted.Routes, &v1.GuestRoute{Address: guests[other.Name].String(), Host: other.Name})
			if other != h {
				wanted.Peers = append(wanted.Peers, &v1.PeerHost{
					Name: other.Name, LanAddress: other.Address.String(), SameSite: other.Name[0] == h.Name[0],
					WireguardPublicKey: keys[other.Name], WireguardPort: overlay.DefaultWireGuardPort,
				})
			}
		}
		own := guests[h.Name]
		g := overlay.Guest{UID: fmt.Sprintf("%x-bench", own.As4()), Cluster: "bench", Address: own, Prefix: cluster}
		if _, err := h.Plug(g, 0); err != nil {
			return err
		}
		if _, err := h.Apply(wanted, g); err != nil {
			return err
		}
		err := h.Script(ctx, fmt.Sprintf("ip addr add %s/32 dev lo", own),
			fmt.Sprintf("nft insert rule inet watari output ip saddr %s accept", own),
			fmt.Sprintf("nft insert rule inet watari input ip daddr %s accept", own))
		if err != nil {
			return err
		}
	}
	return nil
}

func (b *bed) bareLAN() *variant {
	return &variant{name: "site: bare link", from: b.a1, to: b.a2, source: b.a1.Address, target: b.a2.Address}
}

func (b *bed) overlayLAN() *variant {
	return &variant{name: "site: overlay's route", from: b.a1, to: b.a2, source: guests["a1"], target: guests["a2"]}
}

func (b *bed) overlayWAN() *variant {
	return &variant{name: "sites: Watari's WireGuard", from: b.a1, to: b.b1, source: guests["a1"], target: guests["b1"]}
}

func (b *bed) bareWireGuard() *variant {
	return &variant{name: "sites: WireGuard alone", from: b.a1, to: b.b1, source: bareA.Addr(), target: bareB.Addr()}
}

func (b *bed) openVPN() *variant {
	return &variant{name: "sites: OpenVPN TAP", from: b.a1, to: b.b1, source: openVPNA.Addr(), target: openVPNB.Addr()}
}
