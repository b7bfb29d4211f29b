package main

// lan.go - finds the host's address on its LAN, opens the overlay there, and follows the address.

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"watari/internal/lan"
	"watari/overlay"
)

// findLAN finds the host's address on its LAN if the options give neither the address nor the interface. An agent that is started again
// keeps the address that the last one has found, if the host still has it: a default route may lead through a VPN for a while.
func (o *options) findLAN() {
	if o.lanAddress != "" || o.lanInterface != "" {
		return
	}
	o.followsLAN = true
	if kept, err := readOptions(o.run); err == nil && kept.followsLAN && !kept.guessedLAN {
		if address, err := netip.ParseAddr(kept.lanAddress); err == nil && lan.Has(address) {
			o.lanAddress = kept.lanAddress
			return
		}
	}
	address, guessed := lan.Find()
	o.lanAddress, o.guessedLAN = address.String(), guessed
}

func openNetwork(o options, log *slog.Logger, changed func()) (network, error) {
	self, err := os.Executable()
	if err != nil {
		return network{}, fmt.Errorf("find the agent's own program: %w", err)
	}
	config := overlay.Config{StateDir: o.state, RunDir: o.run, HostName: o.name, LANInterface: o.lanInterface, LANGuessed: o.guessedLAN,
		WireGuardPort: int(o.wireguardPort), TunnelPort: int(o.tunnelPort), RelayPort: int(o.relayPort), Changed: changed, AgentBinary: self, Logger: log}
	if o.followsLAN {
		config.HomeFile = filepath.Join(o.state, "lan-interface")
	}
	if o.lanAddress != "" {
		if config.LANAddress, err = netip.ParseAddr(o.lanAddress); err != nil {
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

// lanChanged reports whether the host's address on its LAN may be another one than before, or on another interface. now is the address of
// the default route, if there is one. An address that the host still has is not replaced, unless it was only a guess.
func lanChanged(before, now netip.Addr, routed, guessed bool, has func(netip.Addr) bool) bool {
	return routed && (now == before || guessed || !has(before))
}

// followLAN follows the host's address on its LAN until ctx ends, and calls changed with a new one, and with the MTU of its interface.
// DHCP may give the host another address, or the host may be connected by another interface.
func followLAN(ctx context.Context, o options, network network, changed func(address string, mtu int), log *slog.Logger) {
	told, toldMTU := network.LAN()
	failure := ""
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
		if !lanChanged(before, now, routed, o.guessedLAN, lan.Has) {
			continue
		}
		o.guessedLAN = false
		if err := network.MoveLAN(ctx, now); err != nil {
			if failure != err.Error() {
				failure = err.Error()
				log.Warn("the network does not follow the host's address", "before", before, "now", now, "error", err)
			}
		} else {
			failure = ""
		}
		address, mtu := network.LAN()
		if address == told && mtu == toldMTU {
			continue
		}
		log.Warn("the host's address on its LAN has changed", "before", told, "now", address, "MTU", mtu)
		told, toldMTU, o.lanAddress = address, mtu, address.String()
		if err := keepOptions(o); err != nil {
			log.Warn("the host's new address is not kept for the next agent", "error", err)
		}
		changed(o.lanAddress, mtu)
	}
}
