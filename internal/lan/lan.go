// Package lan finds the address by which other machines reach this one.
package lan

import (
	"net"
	"net/netip"
)

// Find returns this machine's IPv4 address towards the rest of the world. guessed: it has no route there now, so Find returns any address
// that is not loopback, or else the loopback address, which suffices for a single host.
func Find() (address netip.Addr, guessed bool) {
	if address, routed := Routed(); routed {
		return address, false
	}
	all, _ := net.InterfaceAddrs()
	for _, one := range all {
		if network, ok := one.(*net.IPNet); ok && network.IP.To4() != nil && network.IP.IsGlobalUnicast() {
			address, _ := netip.AddrFromSlice(network.IP.To4())
			return address, true
		}
	}
	return netip.MustParseAddr("127.0.0.1"), true
}

// Routed returns this machine's IPv4 address towards the rest of the world; false: it has no route there now.
func Routed() (netip.Addr, bool) {
	// Connecting a UDP socket sends no packet; the kernel only chooses a route. The address is reserved for
	// documentation.
	connection, err := net.Dial("udp4", "192.0.2.1:9")
	if err != nil {
		return netip.Addr{}, false
	}
	defer connection.Close()
	address, ok := connection.LocalAddr().(*net.UDPAddr)
	if !ok || address.IP.IsLoopback() {
		return netip.Addr{}, false
	}
	return address.AddrPort().Addr().Unmap(), true
}

// Of returns the first IPv4 address of an interface; false: it has none, or there is no such interface.
func Of(name string) (netip.Addr, bool) {
	link, err := net.InterfaceByName(name)
	if err != nil {
		return netip.Addr{}, false
	}
	all, _ := link.Addrs()
	for _, one := range all {
		if network, ok := one.(*net.IPNet); ok && network.IP.To4() != nil {
			return netip.AddrFrom4([4]byte(network.IP.To4())), true
		}
	}
	return netip.Addr{}, false
}

// Has reports whether an interface of this machine has an address, so far as that can be found out.
func Has(address netip.Addr) bool {
	all, err := net.InterfaceAddrs()
	for _, one := range all {
		if network, ok := one.(*net.IPNet); ok && network.IP.Equal(address.AsSlice()) {
			return true
		}
	}
	return err != nil
}
