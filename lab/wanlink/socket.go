// Packet sockets, with which the link process receives and sends the packets of the WAN.

package wanlink

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	batch      = 64
	vnetHeader = 10          // struct virtio_net_hdr, before each frame in both directions
	frameSize  = 2048        // holds any frame of one segment
	packetSize = 65536 + 256 // holds any frame of several segments
	queueSize  = 16 << 20    // bytes that the kernel buffers while this process does not run
)

// message is struct mmsghdr of recvmmsg(2).
type message struct {
	header unix.Msghdr
	length uint32
	_      [4]byte
}

// socket is a packet socket on one link, with batches of packets received and packets to be sent. A packet may contain
// several segments, and its checksums may still have to be computed. Its virtio header states that, and the receiver's
// kernel does that work, as if no process were between.
type socket struct {
	fd       int
	in       [batch]message
	inData   [batch][]byte
	inParts  [batch]unix.Iovec
	out      [batch]message
	outParts [batch]unix.Iovec
	pending  [][]byte
}

func openSocket(link string) (*socket, error) {
	s, err := bindSocket(link)
	if err != nil {
		return nil, fmt.Errorf("open link %s: %w", link, err)
	}
	return s, nil
}

func bindSocket(link string) (*socket, error) {
	device, err := net.InterfaceByName(link)
	if err != nil {
		return nil, err
	}
	const protocol = unix.ETH_P_IP>>8 | unix.ETH_P_IP&0xff<<8 // ETH_P_IP in network byte order
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	s := &socket{fd: fd}
	err = errors.Join(
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, queueSize),
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, queueSize),
		unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_VNET_HDR, 1),
		unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_QDISC_BYPASS, 1),
		unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: protocol, Ifindex: device.Index}),
	)
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	for i := range batch {
		s.inData[i] = make([]byte, packetSize)
		s.inParts[i].Base = &s.inData[i][0]
		s.inParts[i].SetLen(packetSize)
		s.in[i].header.Iov, s.in[i].header.Iovlen = &s.inParts[i], 1
		s.out[i].header.Iov, s.out[i].header.Iovlen = &s.outParts[i], 1
	}
	return s, nil
}

func (s *socket) close() { unix.Close(s.fd) }

// receive reads up to one batch of packets. A packet's memory belongs to take until take returns. It is not an error if
// the link is cut.
func (s *socket) receive(take func(packet []byte)) error {
	n, _, errno := unix.Syscall6(unix.SYS_RECVMMSG, uintptr(s.fd), uintptr(unsafe.Pointer(&s.in[0])), batch, unix.MSG_DONTWAIT, 0, 0)
	switch errno {
	case 0:
	case unix.EAGAIN, unix.EINTR, unix.ENETDOWN, unix.EINVAL: // EINVAL: no virtio header describes these segments
		return nil
	default:
		return fmt.Errorf("receive packets: %w", errno)
	}
	for i := range int(n) {
		length := int(s.in[i].length)
		if s.in[i].header.Flags&unix.MSG_TRUNC == 0 && length > vnetHeader {
			take(s.inData[i][:length])
		}
	}
	return nil
}

// wireLength returns the number of bytes that a packet's segments have on the wire, each with its own headers.
func wireLength(packet []byte) int {
	length := len(packet) - vnetHeader
	kind, headers, segment := packet[1], int(binary.NativeEndian.Uint16(packet[2:])), int(binary.NativeEndian.Uint16(packet[4:]))
	if kind == unix.VIRTIO_NET_HDR_GSO_NONE || segment == 0 || headers == 0 || length <= headers+segment {
		return length
	}
	segments := (length - headers + segment - 1) / segment
	return length + (segments-1)*headers
}

// queue holds a packet until flush is called or the batch is full.
func (s *socket) queue(packet []byte, release func([]byte)) {
	s.pending = append(s.pending, packet)
	if len(s.pending) == batch {
		s.flush(release)
	}
}

// flush sends the queued packets. If the link is cut, packets are lost, as on a wire.
func (s *socket) flush(release func([]byte)) {
	for first := 0; first < len(s.pending); {
		rest := s.pending[first:]
		for i, packet := range rest {
			s.outParts[i].Base = &packet[0]
			s.outParts[i].SetLen(len(packet))
		}
		n, _, errno := unix.Syscall6(unix.SYS_SENDMMSG, uintptr(s.fd), uintptr(unsafe.Pointer(&s.out[0])), uintptr(len(rest)), 0, 0, 0)
		switch {
		case errno == unix.EINTR:
		case errno != 0:
			first++ // the first packet failed: skip it
		default:
			first += int(n)
		}
	}
	for _, packet := range s.pending {
		release(packet)
	}
	s.pending = s.pending[:0]
}
