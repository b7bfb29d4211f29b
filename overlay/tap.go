// tap.go makes and removes guests' taps. A tap's alias holds everything that is known of its guest, so that a new agent
// can read it.
package overlay

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// TapName returns the name of a guest's tap, the same on all hosts: "wt" and the first ten hex digits of its UID.
func TapName(uid string) string {
	digits := strings.ReplaceAll(strings.ToLower(uid), "-", "")
	return "wt" + digits[:min(10, len(digits))]
}

// makeTap makes the tap if it does not exist, and applies all settings that are possible while it is down.
func (o *Overlay) makeTap(name string, g Guest, mtu int) (netlink.Link, error) {
	link, err := o.handle.LinkByName(name)
	if isNotFound(err) {
		if err := createTap(name); err != nil {
			return nil, fmt.Errorf("make tap %s: %w", name, err)
		}
		link, err = o.handle.LinkByName(name)
	}
	if err != nil {
		return nil, fmt.Errorf("find tap %s: %w", name, err)
	}
	attrs := link.Attrs()
	if attrs.HardwareAddr.String() != GatewayMAC.String() {
		if err := o.handle.LinkSetHardwareAddr(link, GatewayMAC); err != nil {
			return nil, fmt.Errorf("set MAC of %s: %w", name, err)
		}
	}
	if attrs.MTU != mtu {
		if err := o.handle.LinkSetMTU(link, mtu); err != nil {
			return nil, fmt.Errorf("set MTU of %s to %d: %w", name, mtu, err)
		}
	}
	if attrs.Alias != g.alias() {
		if err := o.handle.LinkSetAlias(link, g.alias()); err != nil {
			return nil, fmt.Errorf("set alias of %s: %w", name, err)
		}
	}
	if err := setInterfaceSysctls(name, guestSysctls); err != nil {
		return nil, err
	}
	return link, nil
}

// bringUpTap brings the tap up and sets the addresses that are lost when an interface goes down.
func (o *Overlay) bringUpTap(link netlink.Link, g Guest) error {
	name := link.Attrs().Name
	if err := o.handle.LinkSetUp(link); err != nil {
		return fmt.Errorf("set %s up: %w", name, err)
	}
	address := &netlink.Addr{IPNet: ipNet(netip.PrefixFrom(Gateway, 32)), Scope: unix.RT_SCOPE_LINK}
	if err := o.handle.AddrReplace(link, address); err != nil {
		return fmt.Errorf("set address %s of %s: %w", Gateway, name, err)
	}
	neighbour := &netlink.Neigh{
		LinkIndex: link.Attrs().Index, Family: unix.AF_INET, State: unix.NUD_PERMANENT,
		IP: g.Address.AsSlice(), HardwareAddr: g.MAC,
	}
	if err := o.handle.NeighSet(neighbour); err != nil {
		return fmt.Errorf("set neighbour %s of %s: %w", g.Address, name, err)
	}
	return nil
}

// checkTaps brings up the taps that were set down, and restores the addresses that they lost then. Without its neighbour, a guest is sent
// nothing: it answers no ARP request.
func (o *Overlay) checkTaps() error {
	if len(o.guests) == 0 {
		return nil
	}
	neighbours, err := o.handle.NeighList(0, unix.AF_INET)
	if err != nil {
		return fmt.Errorf("list neighbours: %w", err)
	}
	var errs []error
	for uid, g := range o.guests {
		link, err := o.handle.LinkByName(TapName(uid))
		if isNotFound(err) {
			continue
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		known := slices.ContainsFunc(neighbours, func(n netlink.Neigh) bool {
			return n.LinkIndex == link.Attrs().Index && n.IP.Equal(g.Address.AsSlice()) && n.State == unix.NUD_PERMANENT && n.HardwareAddr.String() == g.MAC.String()
		})
		if known && link.Attrs().Flags&net.FlagUp != 0 {
			continue
		}
		o.log.Warn("a guest's tap was set down, or lost its neighbour: restoring it", "guest", uid, "tap", link.Attrs().Name)
		errs = append(errs, o.bringUpTap(link, g))
	}
	return errors.Join(errs...)
}

// createTap makes a persistent tap in the form in which QEMU and libvirt (type 'ethernet', managed 'no') open it for a
// virtio device with one queue. Frames carry a virtio header, so that checksums and segmentation are deferred until the
// packet leaves the host. Programs that open it must not ask for IFF_MULTI_QUEUE.
func createTap(name string) error {
	file, err := os.OpenFile("/dev/net/tun", os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer file.Close()
	request, err := unix.NewIfreq(name)
	if err != nil {
		return err
	}
	request.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
	if err := unix.IoctlIfreq(int(file.Fd()), unix.TUNSETIFF, request); err != nil {
		return fmt.Errorf("TUNSETIFF: %w", err)
	}
	if err := unix.IoctlSetInt(int(file.Fd()), unix.TUNSETPERSIST, 1); err != nil {
		return fmt.Errorf("TUNSETPERSIST: %w", err)
	}
	return nil
}

// alias returns the guest's fields for the tap's alias, separated by spaces.
func (g Guest) alias() string {
	return fmt.Sprintf("watari %s %s %s %s %s", g.UID, g.Cluster, g.Address, g.MAC, g.Prefix.Masked())
}

// parseAlias parses an alias; ok is false for other programs' interfaces.
func parseAlias(alias string) (g Guest, ok bool) {
	words := strings.Split(alias, " ")
	if len(words) != 6 || words[0] != "watari" {
		return Guest{}, false
	}
	g.UID, g.Cluster = words[1], words[2]
	var errs [3]error
	g.Address, errs[0] = netip.ParseAddr(words[3])
	g.MAC, errs[1] = net.ParseMAC(words[4])
	g.Prefix, errs[2] = netip.ParsePrefix(words[5])
	return g, errors.Join(errs[:]...) == nil
}

// pluggedGuests returns the guests that have a tap.
func pluggedGuests(handle *netlink.Handle) (map[string]Guest, error) {
	links, err := handle.LinkList()
	if err != nil {
		return nil, err
	}
	guests := map[string]Guest{}
	for _, link := range links {
		if g, ok := parseAlias(link.Attrs().Alias); ok && TapName(g.UID) == link.Attrs().Name {
			guests[g.UID] = g
		}
	}
	return guests, nil
}

// deleteLink deletes an interface. It is not an error if the interface does not exist.
func deleteLink(handle *netlink.Handle, name string) error {
	link, err := handle.LinkByName(name)
	if isNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := handle.LinkDel(link); err != nil && !errors.Is(err, unix.ENODEV) {
		return err
	}
	return nil
}

func isNotFound(err error) bool {
	var notFound netlink.LinkNotFoundError
	return errors.As(err, &notFound)
}

// ipNet converts a prefix for package net.
func ipNet(prefix netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: prefix.Addr().AsSlice(), Mask: net.CIDRMask(prefix.Bits(), prefix.Addr().BitLen())}
}
