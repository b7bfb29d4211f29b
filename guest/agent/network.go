package agent

// network.go - the guest's network interface.

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// findInterface finds the guest's network interface: the first that is a device.
func findInterface() (netlink.Link, error) {
	links, err := netlink.LinkList()
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	for _, l := range links {
		if _, err := os.Stat(filepath.Join("/sys/class/net", l.Attrs().Name, "device")); err == nil {
			return l, nil
		}
	}
	return nil, errors.New("the guest has no network interface")
}

// raiseLoopback brings up lo, if there is one.
func raiseLoopback() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return nil
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return fmt.Errorf("bring up lo: %w", err)
	}
	return nil
}

// configureNetwork gives the interface its address, and routes everything through the host, which is at a
// link-local address behind a fixed MAC address. There is no ARP.
func configureNetwork(c checked) error {
	// A connection with unanswered data ends after so many tries: after about 65 minutes, instead of 15. A guest may be unreachable for long.
	if err := os.WriteFile("/proc/sys/net/ipv4/tcp_retries2", []byte("40"), 0); err != nil {
		return fmt.Errorf("let connections outlive an outage: %w", err)
	}
	if err := raiseLoopback(); err != nil {
		return err
	}
	l, err := findInterface()
	if err != nil {
		return err
	}
	name := l.Attrs().Name
	if len(c.mac) > 0 && l.Attrs().HardwareAddr.String() != c.mac.String() {
		if err := netlink.LinkSetDown(l); err != nil {
			return fmt.Errorf("bring down %s: %w", name, err)
		}
		if err := netlink.LinkSetHardwareAddr(l, c.mac); err != nil {
			return fmt.Errorf("set MAC address of %s to %s: %w", name, c.mac, err)
		}
	}
	if c.GetMtu() > 0 {
		if err := netlink.LinkSetMTU(l, int(c.GetMtu())); err != nil {
			return fmt.Errorf("set MTU of %s to %d: %w", name, c.GetMtu(), err)
		}
	}
	if err := netlink.LinkSetUp(l); err != nil {
		return fmt.Errorf("bring up %s: %w", name, err)
	}
	if err := setAddress(l, c.address.AsSlice()); err != nil {
		return err
	}
	if !c.gateway.IsValid() {
		return nil
	}
	return setGateway(l, c.gateway.AsSlice(), c.gatewayMAC)
}

// setAddress makes a /32 the interface's only IPv4 address.
func setAddress(l netlink.Link, address net.IP) error {
	want := &net.IPNet{IP: address, Mask: net.CIDRMask(32, 32)}
	have, err := netlink.AddrList(l, netlink.FAMILY_V4)
	if err != nil {
		return fmt.Errorf("list addresses of %s: %w", l.Attrs().Name, err)
	}
	for _, a := range have {
		if a.IPNet.String() != want.String() {
			if err := netlink.AddrDel(l, &a); err != nil {
				return fmt.Errorf("take %v from %s: %w", a.IPNet, l.Attrs().Name, err)
			}
		}
	}
	if err := netlink.AddrReplace(l, &netlink.Addr{IPNet: want}); err != nil {
		return fmt.Errorf("give %v to %s: %w", want, l.Attrs().Name, err)
	}
	return nil
}

// setGateway routes everything through an address on the link that lies in no prefix of the interface.
func setGateway(l netlink.Link, gateway net.IP, mac net.HardwareAddr) error {
	index := l.Attrs().Index
	if err := netlink.NeighSet(&netlink.Neigh{
		LinkIndex: index, Family: netlink.FAMILY_V4, State: netlink.NUD_PERMANENT, IP: gateway, HardwareAddr: mac,
	}); err != nil {
		return fmt.Errorf("set neighbour %v: %w", gateway, err)
	}
	everything := &net.IPNet{IP: net.IPv4zero.To4(), Mask: net.CIDRMask(0, 32)}
	if err := netlink.RouteReplace(&netlink.Route{
		LinkIndex: index, Dst: everything, Gw: gateway, Flags: unix.RTNH_F_ONLINK,
	}); err != nil {
		return fmt.Errorf("route through %v: %w", gateway, err)
	}
	return nil
}
