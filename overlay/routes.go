// routes.go brings the kernel's routes in line with a plan. The overlay's routes have their own protocol number, by
// which they are found again, and their own metric, so that replacing one never hits another program's route.
package overlay

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const (
	routeProtocol = 119 // free in iproute2's rt_protos
	routeMetric   = 119
)

// applyRoutes sets missing and different routes, then deletes those that are not wanted.
func (o *Overlay) applyRoutes(wanted map[netip.Prefix]route) error {
	links := newLinkCache(o.handle, o.lan)
	actual, err := o.actualRoutes(links)
	if err != nil {
		return fmt.Errorf("list routes: %w", err)
	}
	set, remove := diffRoutes(wanted, actual)
	var errs []error
	for _, r := range set {
		entry, err := r.entry(links, o.lan)
		if err == nil {
			err = o.handle.RouteReplace(entry)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("set route to %s: %w", r.prefix, err))
		}
	}
	for _, r := range remove {
		entry := ownRoute(r.prefix)
		if err := o.handle.RouteDel(entry); err != nil && !errors.Is(err, unix.ESRCH) {
			errs = append(errs, fmt.Errorf("delete route to %s: %w", r.prefix, err))
		}
	}
	return errors.Join(errs...)
}

// actualRoutes lists the overlay's routes in the kernel. A route that the overlay would never make is returned as a tap
// route with a name that no plan has, so that it is replaced or deleted.
func (o *Overlay) actualRoutes(links *linkCache) (map[netip.Prefix]route, error) {
	filter := &netlink.Route{Table: unix.RT_TABLE_MAIN, Protocol: routeProtocol}
	entries, err := o.handle.RouteListFiltered(unix.AF_INET, filter, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_PROTOCOL)
	if err != nil {
		return nil, err
	}
	actual := map[netip.Prefix]route{}
	for _, e := range entries {
		if e.Dst == nil || e.Priority != routeMetric {
			continue
		}
		address, _ := netip.AddrFromSlice(e.Dst.IP.To4())
		bits, _ := e.Dst.Mask.Size()
		r := route{prefix: netip.PrefixFrom(address, bits)}
		gateway, hasGateway := netip.AddrFromSlice(e.Gw.To4())
		name := links.nameOf(e.LinkIndex)
		switch {
		case e.Type == unix.RTN_BLACKHOLE:
		case e.LinkIndex == o.lan.index && hasGateway:
			r.egress, r.gateway = egressLAN, gateway
		case name == Device && !hasGateway:
			r.egress = egressWireGuard
		default:
			r.egress, r.tap = egressTap, name
		}
		actual[r.prefix] = r
	}
	return actual, nil
}

// dropPrefix drops packets to the addresses of a guest's prefix that no guest has, if that is not so yet. A guest that makes a template is in
// no cluster of the orders: without this route, its packets would follow the host's default route.
func (o *Overlay) dropPrefix(prefix netip.Prefix) error {
	r := route{prefix: prefix, egress: egressNone}
	entry, err := r.entry(nil, o.lan)
	if err != nil {
		return err
	}
	if err := o.handle.RouteAdd(entry); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("set route to %s: %w", prefix, err)
	}
	if _, has := o.routes[prefix]; o.routes != nil && !has {
		o.routes[prefix] = r
	}
	return nil
}

// forgetPrefix removes the route of dropPrefix if the prefix is that of no other guest or cluster.
func (o *Overlay) forgetPrefix(prefix netip.Prefix) {
	if o.routes == nil || o.wanted[prefix] {
		return
	}
	for _, g := range o.guests {
		if g.Prefix.Masked() == prefix {
			return
		}
	}
	delete(o.routes, prefix)
	_ = o.handle.RouteDel(ownRoute(prefix)) // if this fails, Check does it
}

func ownRoute(prefix netip.Prefix) *netlink.Route {
	return &netlink.Route{
		Dst: ipNet(prefix), Table: unix.RT_TABLE_MAIN, Protocol: routeProtocol, Priority: routeMetric,
		// In a deletion, RT_SCOPE_NOWHERE (255) matches any scope.
		Scope: unix.RT_SCOPE_NOWHERE,
	}
}

// entry converts the route for netlink.
func (r route) entry(links *linkCache, lan lan) (*netlink.Route, error) {
	entry := ownRoute(r.prefix)
	entry.Scope = unix.RT_SCOPE_UNIVERSE
	device := ""
	switch r.egress {
	case egressNone:
		entry.Type = unix.RTN_BLACKHOLE
		return entry, nil
	case egressTap:
		device, entry.Scope = r.tap, unix.RT_SCOPE_LINK
	case egressLAN:
		entry.LinkIndex, entry.Gw = lan.index, r.gateway.AsSlice()
		entry.SetFlag(netlink.FLAG_ONLINK)
		return entry, nil
	case egressWireGuard:
		device, entry.Scope = Device, unix.RT_SCOPE_LINK
	}
	index, err := links.indexOf(device)
	if err != nil {
		return nil, err
	}
	entry.LinkIndex = index
	return entry, nil
}
