// lan.go finds the interface to the other hosts and lets packets be forwarded where guests need it, remembering
// how things were.
package overlay

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
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
		return lan{name: attrs.Name, index: attrs.Index, mtu: attrs.MTU, address: have}, nil
	}
	if !address.IsValid() {
		return lan{}, fmt.Errorf("find LAN interface: no IPv4 address on %s", name)
	}
	return lan{}, fmt.Errorf("find LAN interface: address %s is on no interface %s of this host", address, name)
}

// sysctl is one setting under /proc/sys/net of one interface: path with %s for its name.
type sysctl struct{ path, value string }

var (
	// guestSysctls: forward what comes from guests. The filter checks sources more strictly than rp_filter; no
	// IPv6, no ARP for any address but the gateway's, no redirects.
	guestSysctls = []sysctl{
		{"ipv6/conf/%s/disable_ipv6", "1"},
		{"ipv4/conf/%s/forwarding", "1"},
		{"ipv4/conf/%s/rp_filter", "0"},
		{"ipv4/conf/%s/arp_ignore", "1"},
		{"ipv4/conf/%s/accept_redirects", "0"},
		{"ipv4/conf/%s/send_redirects", "0"},
	}
	// lanSysctls: forward what other hosts send for guests of this host, or for one that has just left it.
	lanSysctls = []sysctl{{"ipv4/conf/%s/forwarding", "1"}}
)

// setInterfaceSysctls sets sysctls of one interface. A kernel without IPv6 is no error.
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

// found is how the LAN interface was before the overlay: kept in RunDir, which lives as long as sysctls do.
type found struct {
	Interface  string `json:"interface"`
	Forwarding string `json:"forwarding"`
}

func (o *Overlay) foundPath() string { return filepath.Join(o.cfg.RunDir, "overlay-found.json") }

// foundLAN reads how the LAN interface was; ok is false if nothing of the overlay was ever set up here.
func (o *Overlay) foundLAN() (f found, ok bool) {
	data, err := os.ReadFile(o.foundPath())
	if err != nil || json.Unmarshal(data, &f) != nil {
		return found{}, false
	}
	return f, f.Interface == o.lan.name
}

// openLAN turns forwarding on for the LAN interface and writes down how it was. Where it was off, the filter
// forwards nothing from there but guests' packets, so that the host becomes nobody else's router.
func (o *Overlay) openLAN() error {
	if _, ok := o.foundLAN(); !ok {
		now, err := os.ReadFile(sysctlPath("ipv4/conf/%s/forwarding", o.lan.name))
		if err != nil {
			return fmt.Errorf("read forwarding of %s: %w", o.lan.name, err)
		}
		data, err := json.Marshal(found{Interface: o.lan.name, Forwarding: strings.TrimSpace(string(now))})
		if err != nil {
			return err
		}
		if err := os.MkdirAll(o.cfg.RunDir, 0o755); err != nil {
			return fmt.Errorf("make run directory: %w", err)
		}
		if err := os.WriteFile(o.foundPath(), data, 0o644); err != nil {
			return fmt.Errorf("write down how %s was: %w", o.lan.name, err)
		}
	}
	return setInterfaceSysctls(o.lan.name, lanSysctls)
}

// closeLAN puts forwarding back as it was.
func (o *Overlay) closeLAN() error {
	f, ok := o.foundLAN()
	if !ok {
		return nil
	}
	if err := setInterfaceSysctls(o.lan.name, []sysctl{{"ipv4/conf/%s/forwarding", f.Forwarding}}); err != nil {
		return err
	}
	return os.Remove(o.foundPath())
}
