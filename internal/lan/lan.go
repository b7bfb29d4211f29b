// Package lan finds the address by which other machines reach this one.
package lan

import "net"

// Address returns this machine's IPv4 address towards the rest of the world. If there is none, it returns any address
// that is not loopback, or else the loopback address, which suffices for a single host.
func Address() string {
	// Connecting a UDP socket sends no packet; the kernel only chooses a route. The address is reserved for
	// documentation.
	if connection, err := net.Dial("udp4", "192.0.2.1:9"); err == nil {
		defer connection.Close()
		if address, ok := connection.LocalAddr().(*net.UDPAddr); ok && !address.IP.IsLoopback() {
			return address.IP.String()
		}
	}
	addresses, _ := net.InterfaceAddrs()
	for _, address := range addresses {
		if network, ok := address.(*net.IPNet); ok && network.IP.To4() != nil && network.IP.IsGlobalUnicast() {
			return network.IP.String()
		}
	}
	return "127.0.0.1"
}
