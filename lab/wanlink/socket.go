package wanlink

import (
	"errors"
	"fmt"
	"net"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	batch     = 64
	frameSize = 2048     // more than any frame of the lab's links
	queueSize = 16 << 20 // bytes the kernel holds for us while we are not run
)

// message is struct mmsghdr of recvmmsg(2).
type message struct {
	header unix.Msghdr
	length uint32
	_      [4]byte
}

// socket is a packet socket on one link, with batches of frames received and to be sent.
type socket struct {
	fd       int
	in       [batch]message
	inFrames [batch][]byte
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
	const protocol = unix.ETH_P_IP>>8 | unix.ETH_P_IP&0xff<<8 // in network byte order
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	s := &socket{fd: fd}
	err = errors.Join(
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, queueSize),
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, queueSize),
		unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_QDISC_BYPASS, 1),
		unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: protocol, Ifindex: device.Index}),
	)
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	for i := range batch {
		s.in[i].header.Iov, s.in[i].header.Iovlen = &s.inParts[i], 1
		s.out[i].header.Iov, s.out[i].header.Iovlen = &s.outParts[i], 1
	}
	return s, nil
}

func (s *socket) close() { unix.Close(s.fd) }

// receive takes in up to a batch of frames; each is take's own from then on. A link that was cut has none.
func (s *socket) receive(buffer func() []byte, take func(frame []byte)) error {
	for i := range s.inFrames {
		if s.inFrames[i] == nil {
			s.inFrames[i] = buffer()
			s.inParts[i].Base = &s.inFrames[i][0]
			s.inParts[i].SetLen(frameSize)
		}
	}
	n, _, errno := unix.Syscall6(unix.SYS_RECVMMSG, uintptr(s.fd), uintptr(unsafe.Pointer(&s.in[0])), batch, unix.MSG_DONTWAIT, 0, 0)
	switch errno {
	case 0:
	case unix.EAGAIN, unix.EINTR, unix.ENETDOWN:
		return nil
	default:
		return fmt.Errorf("receive packets: %w", errno)
	}
	for i := range int(n) {
		if s.in[i].header.Flags&unix.MSG_TRUNC != 0 {
			continue // larger than any link's MTU: its sender does not segment
		}
		frame := s.inFrames[i][:s.in[i].length]
		s.inFrames[i] = nil
		take(frame)
	}
	return nil
}

// queue holds a frame until flush or until a batch is full.
func (s *socket) queue(frame []byte, release func([]byte)) {
	s.pending = append(s.pending, frame)
	if len(s.pending) == batch {
		s.flush(release)
	}
}

// flush sends what is queued. What a link does not take, being cut, is lost, as on a wire.
func (s *socket) flush(release func([]byte)) {
	for first := 0; first < len(s.pending); {
		rest := s.pending[first:]
		for i, frame := range rest {
			s.outParts[i].Base = &frame[0]
			s.outParts[i].SetLen(len(frame))
		}
		n, _, errno := unix.Syscall6(unix.SYS_SENDMMSG, uintptr(s.fd), uintptr(unsafe.Pointer(&s.out[0])), uintptr(len(rest)), 0, 0, 0)
		switch {
		case errno == unix.EINTR:
		case errno != 0:
			first++ // this one failed
		default:
			first += int(n)
		}
	}
	for _, frame := range s.pending {
		release(frame)
	}
	s.pending = s.pending[:0]
}
