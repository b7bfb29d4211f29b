package main

// lan.go - finds the host's address on its LAN, opens the overlay there, and follows the address.

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"watari/internal/lan"
	"watari/overlay"
)

// homeFile is where the overlay keeps the name of the interface that is the LAN's.
func (o *options) homeFile() string { return filepath.Join(o.state, "lan-interface") }

// findLAN finds the host's address on its LAN if the options give neither the address nor the interface: that of the interface that was the
// LAN's when the first agent began, or else that of the default route.
func (o *options) findLAN() {
	if o.lanAddress != "" || o.lanInterface != "" {
		return
	}
	o.followsLAN = true
	if home, err := os.ReadFile(o.homeFile()); err == nil {
		if address, is := lan.Of(strings.TrimSpace(string(home))); is {
			o.lanAddress = address.String()
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
		config.HomeFile = o.homeFile()
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

// lanAddress returns the address that the host has on its LAN now; false: it is not known to be another one than before. home is the address
// of the LAN's interface, and routed that of the default route; each is invalid if there is none. An address that the host still has is not
// replaced by that of the default route, which may lead through a VPN for a while, unless it was only a guess.
func lanAddress(before, home, routed netip.Addr, guessed bool, has func(netip.Addr) bool) (now netip.Addr, is bool) {
	switch {
	case home.IsValid():
		return home, true
	case routed.IsValid() && (routed == before || guessed || !has(before)):
		return routed, true
	}
	return before, false
}

// givenLAN is lanAddress for an agent whose options give the address or the interface. ofInterface is the address of the given interface.
func (o *options) givenLAN(before, ofInterface netip.Addr, has func(netip.Addr) bool) (now netip.Addr, is bool) {
	if o.lanAddress != "" {
		now, err := netip.ParseAddr(o.lanAddress)
		return now, err == nil
	}
	if has(before) {
		return before, true
	}
	return ofInterface, ofInterface.IsValid()
}

// followLAN follows the host's address on its LAN until ctx ends, and calls changed with a new one, and with the MTU of its interface.
// DHCP may give the host another address, or the host may be connected by another interface. A given address stays, but its interface may be
// made again, or get another MTU.
func followLAN(ctx context.Context, o options, network network, changed func(address string, mtu int), log *slog.Logger) {
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
		var now netip.Addr
		var is bool
		if o.followsLAN {
			home, _ := network.HomeAddress()
			routed, _ := lan.Routed()
			now, is = lanAddress(before, home, routed, o.guessedLAN, lan.Has)
		} else {
			ofInterface, _ := lan.Of(o.lanInterface)
			now, is = o.givenLAN(before, ofInterface, lan.Has)
		}
		if !is {
			continue
		}
		moved, err := network.MoveLAN(ctx, now)
		if err != nil && failure != err.Error() {
			log.Warn("the network does not follow the host's address", "before", before, "now", now, "error", err)
		}
		failure = ""
		if err != nil {
			failure = err.Error()
		} else {
			o.guessedLAN = false
		}
		if !moved {
			continue
		}
		address, mtu := network.LAN()
		log.Warn("the host's LAN has changed", "before", before, "now", address, "MTU", mtu)
		if o.followsLAN {
			o.lanAddress = address.String()
			if err := keepOptions(o); err != nil {
				log.Warn("the host's new address is not kept for cleaning up", "error", err)
			}
		}
		changed(address.String(), mtu)
	}
}
