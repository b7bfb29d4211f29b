// The lab's links and routes: a LAN bridge in each site's router, a spoke from each router to the hub, and a link from
// the first site's router to this machine. Everything is routed; NAT is only where it was asked for (nat.go).

package lab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

const mtu = 1500

// end is one end of a link.
type end struct {
	namespace string // path; empty: this machine's own namespace
	name      string
	mac       net.HardwareAddr // nil: any
	address   netip.Prefix     // invalid for a port of a bridge
}

func (l *Lab) setUpNetwork(ctx context.Context) error {
	p := l.state.plan()
	for _, name := range p.namespaces() {
		if err := ctx.Err(); err != nil {
			return err
		}
		made, err := l.ensureNamespace(name)
		if err != nil {
			return err
		}
		if made {
			l.say("network namespace %s", name)
		}
		if err := l.setUpNamespace(name); err != nil {
			return fmt.Errorf("set up network namespace %s: %w", name, err)
		}
	}
	for site := range p.sites {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := l.setUpSite(site); err != nil {
			return fmt.Errorf("set up the network of site %s: %w", siteName(site), err)
		}
	}
	if err := l.setUpRoot(); err != nil {
		return fmt.Errorf("link this machine to site %s: %w", siteName(0), err)
	}
	return l.setUpHubRoutes()
}

// setUpNamespace makes a namespace a plain IPv4 router. The hub's kernel forwards only if no link process does: see
// applyWAN.
func (l *Lab) setUpNamespace(name string) error {
	path := l.namespacePath(name)
	settings := map[string]string{
		"net/ipv4/conf/all/rp_filter":          "0",
		"net/ipv4/conf/default/rp_filter":      "0",
		"net/ipv4/conf/all/send_redirects":     "0",
		"net/ipv4/conf/default/send_redirects": "0",
	}
	if name != hubNamespace {
		settings["net/ipv4/ip_forward"] = "1"
	}
	for key, value := range settings {
		if err := setSysctl(path, key, value); err != nil {
			return err
		}
	}
	for _, conf := range []string{"all", "default"} { // missing if the kernel has no IPv6
		if err := setSysctl(path, "net/ipv6/conf/"+conf+"/disable_ipv6", "1"); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return linkUp(path, "lo")
}

func (l *Lab) setUpSite(site int) error {
	p := l.state.plan()
	router := l.namespacePath(routerNamespace(site))
	if err := ensureBridge(router, linkLAN, p.hardwareAddress(macBridge, site, 0), netip.PrefixFrom(p.router(site), 24)); err != nil {
		return err
	}
	err := ensureLink(
		end{router, linkWAN, p.hardwareAddress(macWAN, site, 0), netip.PrefixFrom(p.spokeSite(site), 30)},
		end{l.namespacePath(hubNamespace), spokeLink(site), p.hardwareAddress(macHub, site, 0), netip.PrefixFrom(p.spokeHub(site), 30)},
	)
	if err != nil {
		return err
	}
	if err := ensureNeighbor(router, linkWAN, p.spokeHub(site), p.hardwareAddress(macHub, site, 0)); err != nil {
		return err
	}
	if err := ensureRoute(router, p.prefix(), p.spokeHub(site)); err != nil {
		return err
	}
	if len(l.state.NAT) == 0 {
		return nil
	}
	return l.applyNAT(site)
}

func (l *Lab) setUpRoot() error {
	p := l.state.plan()
	err := ensureLink(
		end{l.namespacePath(routerNamespace(0)), linkRoot, nil, netip.PrefixFrom(p.rootPeer(), 30)},
		end{"", rootLinkName(l.Name()), nil, netip.PrefixFrom(p.rootEnd(), 30)},
	)
	if err != nil {
		return err
	}
	return ensureRoute("", p.prefix(), p.rootPeer())
}

// setUpHubRoutes routes each site's traffic into its spoke, except for sites that are cut. Packets without a route are
// dropped silently, as in a broken wide-area network.
func (l *Lab) setUpHubRoutes() error {
	p := l.state.plan()
	hub := l.namespacePath(hubNamespace)
	h, err := handle(hub)
	if err != nil {
		return err
	}
	defer h.Close()
	err = h.RouteReplace(&netlink.Route{Dst: ipNet(p.prefix()), Type: unix.RTN_BLACKHOLE})
	if err != nil {
		return fmt.Errorf("add the route that drops other packets: %w", err)
	}
	for site := range p.sites {
		if err := l.connectSite(h, site, !l.isCut(site)); err != nil {
			return fmt.Errorf("spoke of site %s: %w", siteName(site), err)
		}
	}
	return nil
}

// connectSite connects a site's spoke at the hub, or cuts it.
func (l *Lab) connectSite(hub *netlink.Handle, site int, connect bool) error {
	p := l.state.plan()
	link, err := hub.LinkByName(spokeLink(site))
	if err != nil {
		return err
	}
	if !connect {
		return hub.LinkSetDown(link) // this removes its routes, too
	}
	if err := hub.LinkSetUp(link); err != nil {
		return err
	}
	if err := setNeighbor(hub, link, p.spokeSite(site), p.hardwareAddress(macWAN, site, 0)); err != nil {
		return err
	}
	prefixes := []netip.Prefix{p.lan(site)}
	if site == 0 {
		prefixes = append(prefixes, p.rootLink())
	}
	for _, prefix := range prefixes {
		err := hub.RouteReplace(&netlink.Route{Dst: ipNet(prefix), Gw: p.spokeSite(site).AsSlice(), LinkIndex: link.Attrs().Index})
		if err != nil {
			return fmt.Errorf("route to %s: %w", prefix, err)
		}
	}
	return nil
}

// ensureLink joins two namespaces by a veth pair. Both ends are up and have their addresses.
func ensureLink(a, b end) error {
	ha, err := handleOrOwn(a.namespace)
	if err != nil {
		return err
	}
	defer ha.Close()
	hb, err := handleOrOwn(b.namespace)
	if err != nil {
		return err
	}
	defer hb.Close()
	if err := ensurePair(ha, a, hb, b); err != nil {
		return fmt.Errorf("link %s to %s: %w", a.name, b.name, err)
	}
	if err := setUpEnd(ha, a); err != nil {
		return err
	}
	return setUpEnd(hb, b)
}

func ensurePair(ha *netlink.Handle, a end, hb *netlink.Handle, b end) error {
	la, errA := ha.LinkByName(a.name)
	lb, errB := hb.LinkByName(b.name)
	if errA == nil && errB == nil {
		return nil
	}
	// Half a pair can remain while the other end's namespace is being removed.
	if errA == nil {
		_ = ha.LinkDel(la)
	}
	if errB == nil {
		_ = hb.LinkDel(lb)
	}
	veth := &netlink.Veth{
		LinkAttrs:        netlink.LinkAttrs{Name: a.name, MTU: mtu, HardwareAddr: a.mac, TxQLen: -1},
		PeerName:         b.name,
		PeerHardwareAddr: b.mac,
		PeerMTU:          mtu,
	}
	path := b.namespace
	if path == "" {
		path = ownNamespace
	}
	ns, err := netns.GetFromPath(path)
	if err != nil {
		return err
	}
	defer ns.Close()
	veth.PeerNamespace = netlink.NsFd(int(ns))
	return ha.LinkAdd(veth)
}

func setUpEnd(h *netlink.Handle, e end) error {
	link, err := h.LinkByName(e.name)
	if err != nil {
		return fmt.Errorf("link %s: %w", e.name, err)
	}
	if e.address.IsValid() {
		network := ipNet(e.address)
		network.IP = e.address.Addr().AsSlice()
		if err := h.AddrReplace(link, &netlink.Addr{IPNet: network}); err != nil {
			return fmt.Errorf("give link %s the address %s: %w", e.name, e.address, err)
		}
	}
	if err := h.LinkSetUp(link); err != nil {
		return fmt.Errorf("set link %s up: %w", e.name, err)
	}
	return nil
}

func ensureBridge(namespace, name string, mac net.HardwareAddr, address netip.Prefix) error {
	h, err := handle(namespace)
	if err != nil {
		return err
	}
	defer h.Close()
	if _, err := h.LinkByName(name); err != nil {
		// Set the hardware address; otherwise it would change as ports come and go.
		bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: name, MTU: mtu, HardwareAddr: mac, TxQLen: -1}}
		if err := h.LinkAdd(bridge); err != nil {
			return fmt.Errorf("make bridge %s: %w", name, err)
		}
	}
	return setUpEnd(h, end{name: name, address: address})
}

// ensurePort makes a link a port of a bridge.
func ensurePort(namespace, name, bridgeName string) error {
	h, err := handle(namespace)
	if err != nil {
		return err
	}
	defer h.Close()
	port, err := h.LinkByName(name)
	if err != nil {
		return fmt.Errorf("link %s: %w", name, err)
	}
	bridge, err := h.LinkByName(bridgeName)
	if err != nil {
		return fmt.Errorf("bridge %s: %w", bridgeName, err)
	}
	if err := h.LinkSetMaster(port, bridge); err != nil {
		return fmt.Errorf("make link %s a port of bridge %s: %w", name, bridgeName, err)
	}
	return nil
}

// ensureTap makes a tap device for a virtual machine, and sets it up.
func ensureTap(namespace, name string) error {
	h, err := handle(namespace)
	if err != nil {
		return err
	}
	defer h.Close()
	if _, err := h.LinkByName(name); err != nil {
		tap := &netlink.Tuntap{
			LinkAttrs: netlink.LinkAttrs{Name: name}, Mode: netlink.TUNTAP_MODE_TAP,
			Flags: netlink.TUNTAP_ONE_QUEUE | netlink.TUNTAP_VNET_HDR,
		}
		// /dev/net/tun makes the tap in the calling thread's namespace.
		if err := inNamespace(namespace, func() error { return netlink.LinkAdd(tap) }); err != nil {
			return fmt.Errorf("make tap %s: %w", name, err)
		}
	}
	link, err := h.LinkByName(name)
	if err != nil {
		return fmt.Errorf("tap %s: %w", name, err)
	}
	if err := h.LinkSetMTU(link, mtu); err != nil {
		return fmt.Errorf("set the MTU of tap %s: %w", name, err)
	}
	return setUpEnd(h, end{name: name})
}

// removeLink removes a link if it exists.
func removeLink(namespace, name string) error {
	h, err := handle(namespace)
	if err != nil {
		return err
	}
	defer h.Close()
	link, err := h.LinkByName(name)
	if err != nil {
		return nil
	}
	err = h.LinkDel(link)
	var missing netlink.LinkNotFoundError
	if err != nil && !errors.As(err, &missing) && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("remove link %s: %w", name, err)
	}
	return nil
}

func ensureRoute(namespace string, to netip.Prefix, via netip.Addr) error {
	h, err := handleOrOwn(namespace)
	if err != nil {
		return err
	}
	defer h.Close()
	if err := h.RouteReplace(&netlink.Route{Dst: ipNet(to), Gw: via.AsSlice()}); err != nil {
		return fmt.Errorf("route %s via %s: %w", to, via, err)
	}
	return nil
}

// ensureNeighbor sets a permanent neighbour entry for a link's other end. Neighbour discovery would fail over a cut,
// and the kernel would report that to the senders.
func ensureNeighbor(namespace, name string, address netip.Addr, mac net.HardwareAddr) error {
	h, err := handle(namespace)
	if err != nil {
		return err
	}
	defer h.Close()
	link, err := h.LinkByName(name)
	if err != nil {
		return fmt.Errorf("link %s: %w", name, err)
	}
	return setNeighbor(h, link, address, mac)
}

func setNeighbor(h *netlink.Handle, link netlink.Link, address netip.Addr, mac net.HardwareAddr) error {
	err := h.NeighSet(&netlink.Neigh{
		LinkIndex: link.Attrs().Index, Family: unix.AF_INET, State: netlink.NUD_PERMANENT, IP: address.AsSlice(), HardwareAddr: mac,
	})
	if err != nil {
		return fmt.Errorf("set neighbour %s: %w", address, err)
	}
	return nil
}

func linkUp(namespace, name string) error {
	h, err := handle(namespace)
	if err != nil {
		return err
	}
	defer h.Close()
	return setUpEnd(h, end{name: name})
}

func handleOrOwn(namespace string) (*netlink.Handle, error) {
	if namespace != "" {
		return handle(namespace)
	}
	return handle(ownNamespace)
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Masked().Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), 32)}
}
