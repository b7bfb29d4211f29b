package rsh

// launcher.go - the packets between the agent and watari-guest-rsh, which cmd/watari-guest-rsh/main.c describes.

import (
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	// packetSize is the longest packet, in bytes; watari-guest-rsh has the same number.
	packetSize = 4096
	// socketBuffer is the number of bytes of output that the kernel buffers for a launcher that does not read.
	socketBuffer = 16 << 10
	// argumentsLimit is the longest command line, in bytes. The peer's kernel accepts no longer argument.
	argumentsLimit = 128 << 10
)

// Kinds of packets.
const (
	packetArguments = 'A'
	packetRun       = 'R'
	packetInput     = 'I' // from the agent: asks for a part of the input
	packetSignal    = 'S'
	packetOutput    = 'O'
	packetError     = 'E'
	packetEnd       = 'X'
)

var (
	errLauncherGone = errors.New("the launcher has gone")
	errTooLong      = errors.New("the command is longer than 128 KiB")
)

// launcher is the agent's end of the socket to one watari-guest-rsh.
type launcher struct {
	conn    *net.UnixConn
	raw     syscall.RawConn
	sending sync.Mutex // orders packets; a packet is one Write
}

func newLauncher(conn *net.UnixConn) (*launcher, error) {
	if err := conn.SetWriteBuffer(socketBuffer); err != nil {
		return nil, err
	}
	raw, err := conn.SyscallConn()
	return &launcher{conn: conn, raw: raw}, err
}

// send sends a packet. It blocks while the launcher does not read earlier packets.
func (l *launcher) send(packet []byte) error {
	l.sending.Lock()
	defer l.sending.Unlock()
	_, err := l.conn.Write(packet)
	return err
}

// write sends a stream's bytes in as many packets as necessary.
func (l *launcher) write(kind byte, b []byte) error {
	packets := buffers.Get().(*[packetSize]byte)
	defer buffers.Put(packets)
	packets[0] = kind
	for len(b) > 0 {
		n := copy(packets[1:], b)
		if err := l.send(packets[:1+n]); err != nil {
			return errLauncherGone
		}
		b = b[n:]
	}
	return nil
}

// buffers has buffers for packets under way, so that quiet sessions need none.
var buffers = sync.Pool{New: func() any { return new([packetSize]byte) }}

// ask asks the launcher for a part of its input.
func (l *launcher) ask() { l.send([]byte{packetInput}) }

// end tells the launcher its exit status.
func (l *launcher) end(status int) { l.send([]byte{packetEnd, byte(status)}) }

// receive reads a packet and passes it to take. The bytes are valid until take returns. A quiet launcher occupies no
// buffer.
func (l *launcher) receive(take func(kind byte, b []byte)) error {
	var failure error
	err := l.raw.Read(func(fd uintptr) (done bool) {
		packet := buffers.Get().(*[packetSize]byte)
		defer buffers.Put(packet)
		n, err := unix.Read(int(fd), packet[:])
		switch {
		case err == unix.EAGAIN || err == unix.EINTR:
			return false
		case err != nil:
			failure = err
		case n == 0:
			failure = io.EOF
		default:
			take(packet[0], packet[1:n])
		}
		return true
	})
	return errors.Join(err, failure)
}

// arguments reads the command line. It reads to the end even if the command line is too long, or is not to be kept.
func (l *launcher) arguments(keep bool) ([]string, error) {
	var text strings.Builder
	tooLong := !keep
	for complete := false; !complete; {
		err := l.receive(func(kind byte, b []byte) {
			switch kind {
			case packetArguments:
				if tooLong = tooLong || text.Len()+len(b) > argumentsLimit; !tooLong {
					text.Write(b)
				}
			case packetRun:
				complete = true
			}
		})
		if err != nil {
			return nil, errLauncherGone
		}
	}
	if tooLong {
		return nil, errTooLong
	}
	args := strings.Split(text.String(), "\x00")
	return args[:len(args)-1], nil // each ends with a zero byte
}

// events are the callbacks for a launcher's packets after its command line.
type events struct {
	signal func(syscall.Signal)
	input  func(b []byte) // empty: the end of the input
}

// listen passes the launcher's packets to e until the launcher has ended.
func (l *launcher) listen(e events) {
	for l.receive(func(kind byte, b []byte) {
		switch {
		case kind == packetSignal && len(b) == 1:
			e.signal(syscall.Signal(b[0]))
		case kind == packetInput:
			e.input(b)
		}
	}) == nil {
	}
}
