// Package lan finds the address by which other machines reach this one.
package lan

import (
	"net"
	"net/netip"
)

// Address returns this machine's IPv4 address towards the rest of the world. If there is none, it returns any address
// that is not loopback, or else the loopback address, which suffices for a single host.
func Address() string {
	if address, routed := Routed(); routed {
		return address.String()
	}
	addresses, _ := net.InterfaceAddrs()
	for _, address := range addresses {
		if network, ok := address.(*net.IPNet); ok && network.IP.To4() != nil && network.IP.IsGlobalUnicast() {
			return network.IP.String()
		}
	}
	return "127.0.0.1"
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

// Has reports whether an interface of this machine has an address.
func Has(address netip.Addr) bool {
	all, _ := net.InterfaceAddrs()
	for _, one := range all {
		if network, ok := one.(*net.IPNet); ok && network.IP.Equal(address.AsSlice()) {
			return true
		}
	}
	return false
}
