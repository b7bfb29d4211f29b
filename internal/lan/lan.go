// Package lan finds the address by which other machines reach this one.
package lan

import "net"

// Address is this machine's own IPv4 address towards the rest of the world, else any that is not loopback, else
// loopback, by which a machine can be a host all alone.
func Address() string {
	// Connecting a UDP socket sends nothing: it asks the kernel for a route. The address is kept for documents.
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
