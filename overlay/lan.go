// lan.go finds the interface to the other hosts, follows it, and enables forwarding where guests need it. It saves the earlier
// setting.
package overlay

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	v1 "watari/api/watariv1"
	"watari/internal/durable"
)

// findLAN finds the interface by its name, its address, or both.
func findLAN(handle *netlink.Handle, name string, address netip.Addr) (lan, error) {
	if name == "" && !address.IsValid() {
		return lan{}, errors.New("find LAN interface: neither its name nor its address is given")
	}
	addresses, err := handle.AddrList(nil, unix.AF_INET)
	if err != nil {
		return lan{}, fmt.Errorf("find LAN interface: list addresses: %w", err)
	}
	for _, a := range addresses {
		have, _ := netip.AddrFromSlice(a.IP.To4())
		if address.IsValid() && have != address {
			continue
		}
		link, err := handle.LinkByIndex(a.LinkIndex)
		if err != nil {
			return lan{}, fmt.Errorf("find LAN interface: interface %d: %w", a.LinkIndex, err)
		}
		attrs := link.Attrs()
		if name != "" && attrs.Name != name {
			continue
		}
		bits, _ := a.Mask.Size()
		return lan{name: attrs.Name, index: attrs.Index, mtu: attrs.MTU, address: have, bits: bits}, nil
	}
	if !address.IsValid() {
		return lan{}, fmt.Errorf("find LAN interface: no IPv4 address on %s", name)
	}
	return lan{}, fmt.Errorf("find LAN interface: address %s is on no interface %s of this host", address, name)
}

// sysctl is a setting of one interface under /proc/sys/net. path has %s in place of the interface's name.
type sysctl struct{ path, value string }

var (
	// guestSysctls enable forwarding of guests' packets. The filter checks sources more strictly than rp_filter. IPv6
	// is off, ARP answers only for the gateway's address, and redirects are off.
	guestSysctls = []sysctl{
		{"ipv6/conf/%s/disable_ipv6", "1"},
		{"ipv4/conf/%s/forwarding", "1"},
		{"ipv4/conf/%s/rp_filter", "0"},
		{"ipv4/conf/%s/arp_ignore", "1"},
		{"ipv4/conf/%s/accept_redirects", "0"},
		{"ipv4/conf/%s/send_redirects", "0"},
	}
	// deviceSysctls are for the WireGuard device, whose only IPv6 address is the host's own.
	deviceSysctls = append([]sysctl{
		{"ipv6/conf/%s/disable_ipv6", "0"},
		{"ipv6/conf/%s/addr_gen_mode", "1"},
		{"ipv6/conf/%s/accept_ra", "0"},
		{"ipv6/conf/%s/forwarding", "0"},
	}, guestSysctls[1:]...)
	// lanSysctls enable forwarding of packets from other hosts to guests of this host, and to guests that have just
	// moved away.
	lanSysctls = []sysctl{{"ipv4/conf/%s/forwarding", "1"}}
)

// setInterfaceSysctls sets sysctls of one interface. It is not an error if the kernel has no IPv6.
func setInterfaceSysctls(name string, settings []sysctl) error {
	for _, s := range settings {
		path := sysctlPath(s.path, name)
		err := os.WriteFile(path, []byte(s.value), 0)
		if errors.Is(err, fs.ErrNotExist) && strings.HasPrefix(s.path, "ipv6/") {
			continue
		}
		if err != nil {
			return fmt.Errorf("set sysctl %s to %s: %w", path, s.value, err)
		}
	}
	return nil
}

func sysctlPath(path, name string) string {
	return filepath.Join("/proc/sys/net", fmt.Sprintf(path, name))
}

// savedLAN is the earlier setting of the LAN interface, and whether the LAN is guarded. It is saved in RunDir, which is emptied at boot,
// like sysctls.
type savedLAN struct {
	Interface  string `json:"interface"`
	Forwarding string `json:"forwarding"`
	Router     string `json:"router"`            // ip_forward, which enables forwarding everywhere
	Guarded    *bool  `json:"guarded,omitempty"` // nil: an earlier version did not save it
}

func (o *Overlay) savedLANPath() string { return filepath.Join(o.cfg.RunDir, "overlay-found.json") }

// readSavedLAN reads the earlier setting of the LAN interface; ok is false if the overlay was never set up on this interface.
func (o *Overlay) readSavedLAN() (f savedLAN, ok bool) {
	data, err := os.ReadFile(o.savedLANPath())
	if err != nil || json.Unmarshal(data, &f) != nil {
		return savedLAN{}, false
	}
	return f, f.Interface == o.lan.name
}

// enableForwarding enables forwarding on the LAN interface and saves the earlier setting. If forwarding was off, the
// filter forwards only guests' packets from there, so that other machines cannot use the host as a router.
func (o *Overlay) enableForwarding() error {
	if f, ok := o.readSavedLAN(); ok {
		if _, err := o.noteRouter(); err != nil {
			return err
		}
	} else {
		if f.Interface != "" { // the LAN was another interface
			if err := o.restoreForwarding(); err != nil {
				return err
			}
		}
		now, err := os.ReadFile(sysctlPath("ipv4/conf/%s/forwarding", o.lan.name))
		if err != nil {
			return fmt.Errorf("read forwarding of %s: %w", o.lan.name, err)
		}
		if err := o.saveLAN(strings.TrimSpace(string(now)), ipForward()); err != nil {
			return err
		}
	}
	return setInterfaceSysctls(o.lan.name, lanSysctls)
}

// ipForward returns the setting ip_forward; "1": the host is a router.
func ipForward() string {
	now, _ := os.ReadFile("/proc/sys/net/ipv4/ip_forward")
	return strings.TrimSpace(string(now))
}

func (o *Overlay) saveLAN(forwarding, router string) error {
	data, err := json.Marshal(savedLAN{Interface: o.lan.name, Forwarding: forwarding, Router: router, Guarded: &o.guarded})
	if err != nil {
		return err
	}
	if err := os.MkdirAll(o.cfg.RunDir, 0o755); err != nil {
		return fmt.Errorf("make run directory: %w", err)
	}
	if err := durable.WriteFile(o.savedLANPath(), data, 0o644); err != nil {
		return fmt.Errorf("save the setting of %s: %w", o.lan.name, err)
	}
	return nil
}

// saveGuarded saves whether the LAN is guarded, for an agent that finds no filter.
func (o *Overlay) saveGuarded() error {
	f, ok := o.readSavedLAN()
	if !ok || f.Guarded != nil && *f.Guarded == o.guarded {
		return nil
	}
	return o.saveLAN(f.Forwarding, f.Router)
}

// wasGuarded reports whether an earlier agent guarded the LAN. If nothing tells of it and there are guests, the LAN counts as
// guarded until Apply, so that nobody there sends as a guest.
func (o *Overlay) wasGuarded(ctx context.Context) bool {
	guarded, known := readGuarded(ctx)
	if f, _ := o.readSavedLAN(); f.Guarded != nil {
		return guarded || *f.Guarded
	}
	return guarded || !known && len(o.guests) > 0
}

// noteRouter saves that the host has become a router after the overlay was set up, or has ceased to be one. Docker and libvirt enable
// forwarding everywhere when they make a network; who disables it again does not want a router.
func (o *Overlay) noteRouter() (changed bool, err error) {
	f, ok := o.readSavedLAN()
	now := ipForward()
	switch {
	case ok && f.Forwarding == "0" && f.Router == "0" && now == "1":
		o.log.Warn("this host has become a router: other packets from the LAN are forwarded, too", "interface", o.lan.name)
	case ok && f.Router == "1" && now == "0":
		o.log.Warn("this host is no longer a router: only guests' packets from the LAN are forwarded", "interface", o.lan.name)
	default:
		return false, nil
	}
	return true, o.saveLAN(now, now)
}

// checkRouter makes the filter forward other packets from the LAN as long as the host is a router.
func (o *Overlay) checkRouter(ctx context.Context) error {
	changed, err := o.noteRouter()
	if err != nil || !changed {
		return err
	}
	o.filterSum = [sha256.Size]byte{} // if the next step fails, it is done again
	return o.installFilter(ctx)
}

// MoveLAN makes the interface with an address the one to the other hosts, because the host's address or interface may have changed. It reports
// whether that changed something. Apply then makes the rest follow: routes to other hosts, and WireGuard's MTU. After an error, MoveLAN is
// to be called again.
func (o *Overlay) MoveLAN(ctx context.Context, address netip.Addr) (changed bool, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	found, err := findLAN(o.handle, o.cfg.LANInterface, address)
	if err != nil {
		return false, err
	}
	o.moving = o.moving || o.prepared && (found.name != o.lan.name || found.index != o.lan.index)
	changed = found != o.lan
	o.lan = found
	o.noteHome(false)
	if !o.moving {
		return changed, nil
	}
	o.guarded = o.guarded || o.strayed() // Apply may undo it
	o.filterSum = [sha256.Size]byte{}
	if err := o.enableForwarding(); err != nil {
		return changed, err
	}
	if err := o.installFilter(ctx); err != nil {
		return changed, err
	}
	o.moving = false
	return true, nil
}

// HomeAddress returns the IPv4 address of the interface that is the LAN's; false: it has none now, or no interface was noted yet.
func (o *Overlay) HomeAddress() (netip.Addr, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.home == "" {
		return netip.Addr{}, false
	}
	home, err := findLAN(o.handle, o.home, netip.Addr{})
	return home.address, err == nil
}

// noteHome reads which interface is the LAN's, or notes the present one if no interface was noted before.
func (o *Overlay) noteHome(guessed bool) {
	if o.cfg.HomeFile == "" || o.home != "" {
		return
	}
	data, err := os.ReadFile(o.cfg.HomeFile)
	if o.home = strings.TrimSpace(string(data)); o.home != "" || guessed {
		return
	}
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		o.home = o.lan.name
		err = durable.WriteFile(o.cfg.HomeFile, []byte(o.home+"\n"), 0o644)
	}
	if err != nil {
		o.log.Warn("the name of the LAN's interface is not kept for the next agent", "file", o.cfg.HomeFile, "error", err)
	}
}

// strayed reports whether the LAN is now another interface than the first one.
func (o *Overlay) strayed() bool { return o.home != "" && o.lan.name != o.home }

// distrust leaves out the hosts that guests would reach over a trusted LAN, if this host's LAN is now another interface than the first one.
// A desk that loses its cable may have its default route through anybody's wireless network.
func (o *Overlay) distrust(wanted *v1.NetworkWanted) (*v1.NetworkWanted, error) {
	if !o.strayed() || wanted.GetGuardedLan() {
		return wanted, nil
	}
	wanted = proto.CloneOf(wanted)
	wanted.GuardedLan = true
	wanted.Peers = slices.DeleteFunc(wanted.Peers, (*v1.PeerHost).GetSameSite)
	return wanted, fmt.Errorf("the site's LAN is trusted, but only over %s, and this host is connected by %s now: guests do not reach other hosts of the site. "+
		"If %[2]s is on that LAN, too, remove %s, and restart the agent", o.home, o.lan.name, o.cfg.HomeFile)
}

// restoreForwarding restores the earlier setting, also of an interface that is no longer the LAN's, or no longer there.
func (o *Overlay) restoreForwarding() error {
	f, _ := o.readSavedLAN()
	if f.Interface == "" {
		return nil
	}
	if err := setInterfaceSysctls(f.Interface, []sysctl{{"ipv4/conf/%s/forwarding", f.Forwarding}}); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.Remove(o.savedLANPath())
}
