package tunnel

// wire.go - the header and the answer at the beginning of a connection, and the copying after them.

import (
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// The header is a byte for the socket, two for the length of a text, and the text: the migration's id, a volume's uid, or
// the digest of a blob and the offset from which to read. The answer is a byte, two for the length of a text, and the text.

func writeHeader(w io.Writer, migration string, socket Socket) error {
	return writeFrame(w, byte(socket), migration)
}

func readHeader(r io.Reader) (string, Socket, error) {
	kind, text, err := readFrame(r)
	if err == nil && kind != byte(Libvirt) && kind != byte(QEMU) && kind != byte(probe) && kind != byte(blob) && kind != byte(volume) && kind != byte(packed) {
		err = fmt.Errorf("unknown socket %d", kind)
	}
	return text, Socket(kind), err
}

func answer(w io.Writer, err error) {
	if err == nil {
		writeFrame(w, accepted, "")
		return
	}
	kind := byte(refused)
	if errors.Is(err, ErrAbsent) {
		kind = absent
	}
	text := err.Error()
	writeFrame(w, kind, text[:min(len(text), headerLimit)])
}

// unpacks is the answer's text to a probe from a host that accepts packed connections. An agent of an earlier version sends
// no text.
const unpacks = "unpacks"

// readAnswer returns the text of an accepting answer. Any other answer is an error.
func readAnswer(r io.Reader) (string, error) {
	kind, text, err := readFrame(r)
	if err != nil {
		return "", fmt.Errorf("read its answer: %w", err)
	}
	if kind == absent {
		return "", ErrAbsent
	}
	if kind != accepted {
		return "", fmt.Errorf("it refused: %s", text)
	}
	return text, nil
}

func writeFrame(w io.Writer, kind byte, text string) error {
	frame := append([]byte{kind, 0, 0}, text...)
	binary.BigEndian.PutUint16(frame[1:], uint16(len(text)))
	_, err := w.Write(frame)
	return err
}

func readFrame(r io.Reader) (kind byte, text string, err error) {
	var head [3]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, "", err
	}
	n := binary.BigEndian.Uint16(head[1:])
	if n > headerLimit {
		return 0, "", fmt.Errorf("a header of %d bytes", n)
	}
	body := make([]byte, n)
	_, err = io.ReadFull(r, body)
	return head[0], string(body), err
}

// counted is a connection of a migration, whose bytes are counted.
type counted struct {
	*tls.Conn
	tunnels *Tunnels
}

func (c counted) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.tunnels.received.Add(uint64(n))
	return n, err
}

func (c counted) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.tunnels.sent.Add(uint64(n))
	return n, err
}

// stream is a connection of which each direction ends by itself.
type stream interface {
	io.ReadWriter
	CloseWrite() error
}

// splice copies in both directions with toA and toB, until both have ended. It passes on the end of each direction.
func splice(a stream, b net.Conn, toA, toB func(io.Writer, io.Reader)) {
	both(func() {
		toA(a, b)
		a.CloseWrite()
	}, func() {
		toB(b, a)
		closeWrite(b)
	})
}

// both runs two functions at the same time, and returns when both have returned.
func both(a, b func()) {
	var group sync.WaitGroup
	group.Go(a)
	group.Go(b)
	group.Wait()
}

func closeWrite(conn net.Conn) {
	if local, ok := conn.(*net.UnixConn); ok {
		local.CloseWrite()
	}
}

func copyAll(to io.Writer, from io.Reader) {
	// The wrapper hides the connections' own copy methods, which use smaller buffers.
	io.CopyBuffer(struct{ io.Writer }{to}, struct{ io.Reader }{from}, make([]byte, bufferSize))
}

// giveUp is the time without an acknowledgement after which a connection counts as dead. Shorter interruptions of a WAN
// do no harm.
const giveUp = 20 * time.Second

func giveUpInTime(conn net.Conn) {
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		return
	}
	tcp.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: 5 * time.Second, Interval: 5 * time.Second, Count: 3})
	raw, err := tcp.SyscallConn()
	if err != nil {
		return
	}
	raw.Control(func(fd uintptr) {
		unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(giveUp/time.Millisecond))
	})
}
