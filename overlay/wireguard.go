// wireguard.go configures the host's one WireGuard device. The kernel implements it, or else a separate process
// (process.go) with the same control interface.
package overlay

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"watari/internal/durable"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/wgctrl"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
)

// loadKey reads the host's private key. It makes the key the first time.
func loadKey(stateDir string) (wgtypes.Key, error) {
	path := filepath.Join(stateDir, "wireguard.key")
	data, err := os.ReadFile(path)
	if err == nil {
		key, err := wgtypes.ParseKey(strings.TrimSpace(string(data)))
		if err != nil {
			return key, fmt.Errorf("read WireGuard key %s (delete the file to have a new one made): %w", path, err)
		}
		return key, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return wgtypes.Key{}, fmt.Errorf("read WireGuard key: %w", err)
	}
	key, err := wgtypes.GeneratePrivateKey()
	if err != nil {
		return key, fmt.Errorf("make WireGuard key: %w", err)
	}
	if err := os.MkdirAll(stateDir, 0o755); err != nil {
		return key, fmt.Errorf("make WireGuard key: %w", err)
	}
	if err := durable.WriteFile(path, []byte(key.String()+"\n"), 0o600); err != nil {
		return key, fmt.Errorf("keep WireGuard key: %w", err)
	}
	return key, nil
}

// growWireGuard brings the device up and makes the additions to its peers. It returns the removals for shrinkWireGuard.
// On a host without peers, it does not make a device.
func (o *Overlay) growWireGuard(ctx context.Context, wanted map[wgtypes.Key]*peer) (shrink []peerChange, err error) {
	device, err := o.device()
	if errors.Is(err, errHangs) { // the process may recover, so the device is kept
		return nil, fmt.Errorf("read WireGuard device %s: %w", Device, err)
	}
	if err != nil || !o.wireGuardUp(device) {
		if err != nil && len(wanted) == 0 {
			return nil, nil
		}
		if device, err = o.bringUpWireGuard(ctx); err != nil {
			return nil, fmt.Errorf("bring up WireGuard device %s: %w", Device, err)
		}
	}
	// The process and its device may come from an earlier version, and lack the address.
	if !o.addressed {
		if err := setInterfaceSysctls(Device, deviceSysctls); err != nil {
			return nil, err
		}
		if err := o.addHostAddress(); err != nil {
			o.log.Warn("hosts that only dial out cannot send guests here, nor take any from here", "error", err)
		}
		o.addressed = true
	}
	actual, now := actualPeers(device), time.Now()
	noteLeft(o.left, wanted, actual, now)
	if first := hold(o.key.PublicKey(), wanted, actual, o.endpoints, o.made, now); first > 0 {
		time.AfterFunc(first, o.begin)
	}
	grow, shrink := diffPeers(wanted, o.expelled, actual, o.endpoints, o.left, now)
	if err := o.configurePeers(grow); err != nil {
		return nil, err
	}
	maps.DeleteFunc(o.endpoints, func(key wgtypes.Key, _ netip.AddrPort) bool {
		_, stays := o.left[key]
		return !stays
	})
	for key, w := range wanted {
		o.endpoints[key] = w.endpoint
	}
	return shrink, nil
}

// begin sends keepalives to peers that were held (see hold).
func (o *Overlay) begin() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.peers) == 0 || o.closed.Load() {
		return
	}
	if err := o.applyPeers(context.Background()); err != nil {
		o.log.Warn("keepalives to hosts are not sent yet; this is done with the next orders", "error", err)
	}
}

// applyPeers brings the device in line with the peers of the last NetworkWanted again. The caller holds o.mu.
func (o *Overlay) applyPeers(ctx context.Context) error {
	shrink, err := o.growWireGuard(ctx, o.peers)
	if err != nil {
		return err
	}
	return o.shrinkWireGuard(shrink)
}

// checkDevice brings the device up again, and restores the host's own address. The kernel removes it if the device goes down, or if somebody
// turns IPv6 off everywhere. If the device is gone, Watch calls changed.
func (o *Overlay) checkDevice(ctx context.Context) error {
	link, err := o.handle.LinkByName(Device)
	if err != nil || len(o.peers) == 0 || link.Attrs().Flags&net.FlagUp != 0 && o.hasHostAddress(link) {
		return nil
	}
	o.log.Warn("the WireGuard device was set down, or lost this host's address: restoring it", "device", Device)
	o.addressed = false
	return o.applyPeers(ctx)
}

// hasHostAddress reports whether the device has this host's own address, as far as the kernel has IPv6.
func (o *Overlay) hasHostAddress(link netlink.Link) bool {
	if _, err := os.Stat("/proc/sys/net/ipv6"); err != nil {
		return true
	}
	addresses, err := o.handle.AddrList(link, unix.AF_INET6)
	own := net.IP(hostAddress(o.key.PublicKey()).AsSlice())
	return err != nil || slices.ContainsFunc(addresses, func(a netlink.Addr) bool { return a.IP.Equal(own) })
}

func (o *Overlay) shrinkWireGuard(changes []peerChange) error { return o.configurePeers(changes) }

func (o *Overlay) configurePeers(changes []peerChange) error {
	if len(changes) == 0 {
		return nil
	}
	config := wgtypes.Config{}
	for _, c := range changes {
		p := wgtypes.PeerConfig{
			PublicKey: c.key, Remove: c.remove, PersistentKeepaliveInterval: c.keepalive,
		}
		if c.endpoint.IsValid() {
			p.Endpoint = net.UDPAddrFromAddrPort(c.endpoint)
		}
		for _, prefix := range c.allowed {
			p.AllowedIPs = append(p.AllowedIPs, *ipNet(prefix))
		}
		if c.renew {
			config.Peers = append(config.Peers, wgtypes.PeerConfig{PublicKey: c.key, Remove: true})
		}
		config.Peers = append(config.Peers, p)
	}
	if err := o.configure(config); err != nil {
		return fmt.Errorf("configure %d WireGuard peers of %s: %w", len(changes), Device, err)
	}
	return nil
}

func actualPeers(device *wgtypes.Device) map[wgtypes.Key]actualPeer {
	actual := make(map[wgtypes.Key]actualPeer, len(device.Peers))
	for _, p := range device.Peers {
		a := actualPeer{keepalive: p.PersistentKeepaliveInterval, handshake: p.LastHandshakeTime, allowed: map[netip.Prefix]bool{}}
		if p.Endpoint != nil {
			endpoint := p.Endpoint.AddrPort()
			a.endpoint = netip.AddrPortFrom(endpoint.Addr().Unmap(), endpoint.Port())
		}
		for _, allowed := range p.AllowedIPs {
			address, _ := netip.AddrFromSlice(allowed.IP)
			bits, _ := allowed.Mask.Size()
			a.allowed[netip.PrefixFrom(address.Unmap(), bits)] = true
		}
		actual[p.PublicKey] = a
	}
	return actual
}

// wireGuardUp reports whether the device is fully configured except for its peers.
func (o *Overlay) wireGuardUp(device *wgtypes.Device) bool {
	link, err := o.handle.LinkByName(Device)
	return err == nil && link.Attrs().Flags&net.FlagUp != 0 && link.Attrs().MTU == o.lan.mtu-wireGuardOverhead &&
		device.PrivateKey == o.key && device.ListenPort == o.cfg.WireGuardPort
}

// bringUpWireGuard makes the device if necessary, and configures everything except its peers.
func (o *Overlay) bringUpWireGuard(ctx context.Context) (*wgtypes.Device, error) {
	link, err := o.makeWireGuard(ctx)
	if err != nil {
		return nil, err
	}
	if err := setInterfaceSysctls(Device, deviceSysctls); err != nil {
		return nil, err
	}
	if mtu := o.lan.mtu - wireGuardOverhead; link.Attrs().MTU != mtu {
		if err := o.handle.LinkSetMTU(link, mtu); err != nil {
			return nil, fmt.Errorf("set MTU to %d: %w", mtu, err)
		}
	}
	o.addressed = false
	port := o.cfg.WireGuardPort
	if err := o.configure(wgtypes.Config{PrivateKey: &o.key, ListenPort: &port}); err != nil {
		return nil, fmt.Errorf("set key and port %d: %w", port, err)
	}
	if err := o.handle.LinkSetUp(link); err != nil {
		return nil, fmt.Errorf("set up (is UDP port %d free?): %w", port, err)
	}
	return o.device()
}

// addHostAddress gives the device this host's own address. It needs IPv6 in the kernel, but on no other interface.
func (o *Overlay) addHostAddress() error {
	link, err := o.handle.LinkByName(Device)
	if err != nil {
		return err
	}
	address := ipNet(netip.PrefixFrom(hostAddress(o.key.PublicKey()), hostPrefix.Bits()))
	if err := o.handle.AddrReplace(link, &netlink.Addr{IPNet: address, Flags: unix.IFA_F_NODAD}); err != nil {
		return fmt.Errorf("give %s the address %s: %w", Device, address, err)
	}
	return nil
}

// makeWireGuard returns a device that answers on the control interface.
func (o *Overlay) makeWireGuard(ctx context.Context) (netlink.Link, error) {
	if _, err := o.device(); errors.Is(err, errHangs) {
		return nil, err
	} else if err != nil {
		// A tun device whose process does not answer is useless.
		if err := deleteLink(o.handle, Device); err != nil {
			return nil, fmt.Errorf("delete a leftover: %w", err)
		}
		attrs := netlink.NewLinkAttrs()
		attrs.Name = Device
		err := o.handle.LinkAdd(&netlink.Wireguard{LinkAttrs: attrs})
		if errors.Is(err, unix.EOPNOTSUPP) {
			err = o.startProcess(ctx)
		}
		if err != nil {
			return nil, err
		}
		// A control client made before the kernel loaded its WireGuard module does not see the kernel's devices.
		fresh, err := wgctrl.New()
		if err != nil {
			return nil, fmt.Errorf("open WireGuard control: %w", err)
		}
		o.control.Close()
		o.control = fresh
	}
	return o.handle.LinkByName(Device)
}
