package relay

// offload.go - makes the kernel join packets of the same size and origin, and divide them again (UDP GRO and GSO), so that
// they pass the relay together. WireGuard sends a stream's packets in this way.

import (
	"encoding/binary"
	"net"
	"net/netip"
	"unsafe"

	"golang.org/x/net/ipv4"
	"golang.org/x/sys/unix"
)

// controlSize is the size of the control message about joined packets, bytes.
var controlSize = unix.CmsgSpace(4)

// joinPackets makes the kernel join packets. If the kernel cannot, it delivers them one by one.
func joinPackets(conn *net.UDPConn) {
	if raw, err := conn.SyscallConn(); err == nil {
		raw.Control(func(fd uintptr) { unix.SetsockoptInt(int(fd), unix.SOL_UDP, unix.UDP_GRO, 1) })
	}
}

// joined returns the size of the packets in a message (the last one may be smaller); 0: the message is one packet.
func joined(control []byte) int {
	list, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return 0
	}
	for _, c := range list {
		if c.Header.Level == unix.SOL_UDP && c.Header.Type == unix.UDP_GRO && len(c.Data) >= 4 {
			return int(binary.NativeEndian.Uint32(c.Data))
		}
	}
	return 0
}

// packets are packets of one size in the same direction, or one packet.
type packets struct {
	data []byte
	size int // of each packet; 0: it is one packet
}

// split splits a message into groups of packets that go the same way: one group, unless a packet may be a handshake.
func split(data []byte, size int) []packets {
	if size <= 0 || size >= len(data) {
		return []packets{{data, 0}}
	}
	if size != sizeInitiation && size != sizeResponse {
		return []packets{{data, size}}
	}
	return each(data, size)
}

func each(data []byte, size int) (list []packets) {
	for ; len(data) > size; data = data[size:] {
		list = append(list, packets{data[:size], 0})
	}
	return append(list, packets{data, 0})
}

// message makes the message that sends packets.
func (p packets) message(to netip.AddrPort) ipv4.Message {
	m := ipv4.Message{Buffers: [][]byte{p.data}, Addr: net.UDPAddrFromAddrPort(to)}
	if p.size > 0 {
		m.OOB = make([]byte, unix.CmsgSpace(2))
		header := (*unix.Cmsghdr)(unsafe.Pointer(&m.OOB[0]))
		header.Level, header.Type = unix.SOL_UDP, unix.UDP_SEGMENT
		header.SetLen(unix.CmsgLen(2))
		binary.NativeEndian.PutUint16(m.OOB[unix.CmsgLen(0):], uint16(p.size))
	}
	return m
}

// divided returns the packets of a message one by one.
func divided(m ipv4.Message) (list []ipv4.Message) {
	size := int(binary.NativeEndian.Uint16(m.OOB[unix.CmsgLen(0):]))
	to := m.Addr.(*net.UDPAddr).AddrPort()
	for _, p := range each(m.Buffers[0], size) {
		list = append(list, p.message(to))
	}
	return list
}
