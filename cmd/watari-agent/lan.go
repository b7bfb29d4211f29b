package main

// lan.go - opens the overlay on the LAN's interface, and follows the host's address there.

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"time"

	"watari/internal/lan"
	"watari/overlay"
)

func openNetwork(o options, log *slog.Logger, changed func()) (network, error) {
	self, err := os.Executable()
	if err != nil {
		return network{}, fmt.Errorf("find the agent's own program: %w", err)
	}
	config := overlay.Config{StateDir: o.state, RunDir: o.run, HostName: o.name, LANInterface: o.lanInterface,
		WireGuardPort: int(o.wireguardPort), TunnelPort: int(o.tunnelPort), RelayPort: int(o.relayPort), Changed: changed, AgentBinary: self, Logger: log}
	address := o.lanAddress
	if address == "" && o.lanInterface == "" {
		address = lan.Address()
	}
	if address != "" {
		if config.LANAddress, err = netip.ParseAddr(address); err != nil {
			return network{}, fmt.Errorf("--lan-address: %w", err)
		}
	}
	opened, err := overlay.New(config)
	if err != nil {
		return network{}, err
	}
	return network{opened}, nil
}

// lanEvery is the time between two looks at the host's address.
const lanEvery = 5 * time.Second

// lanChanged reports whether the host has another LAN address than before: now is the address of the default route, if there is one.
// An address that the host still has is not replaced: the default route may lead through a VPN for a while.
func lanChanged(before, now netip.Addr, routed bool, has func(netip.Addr) bool) bool {
	return routed && now != before && (before.IsLoopback() || !has(before))
}

// followLAN follows the host's address on its LAN until ctx ends, and calls changed with a new one, and with the MTU of its interface.
// DHCP may give the host another address, or the host may be connected by another interface.
func followLAN(ctx context.Context, network network, changed func(address string, mtu int), log *slog.Logger) {
	tick := time.NewTicker(lanEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		before, _ := network.LAN()
		now, routed := lan.Routed()
		if !lanChanged(before, now, routed, lan.Has) {
			continue
		}
		if err := network.MoveLAN(ctx, now); err != nil {
			log.Warn("the host's address on its LAN has changed, and the network does not follow", "before", before, "now", now, "error", err)
			continue
		}
		address, mtu := network.LAN()
		log.Warn("the host's address on its LAN has changed", "before", before, "now", address)
		changed(address.String(), mtu)
	}
}
