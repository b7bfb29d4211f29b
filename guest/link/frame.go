// Package link carries one reliable byte stream between a host and a guest over a channel that may lose, garble and cut
// bytes: a virtio-serial port, whose bytes in flight vanish when the guest is migrated or restored.
// docs/design/guest.md specifies the protocol.
package link

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"io"
	"sync"
)

// kind is the type of a frame.
type kind uint8

const (
	kindHello   kind = iota + 1 // from the host: open this session; repeated until answered
	kindWelcome                 // from the guest: the session is open
	kindData                    // payload: bytes of the stream from seq on
	kindAck                     // only the acknowledgement, which every frame carries
	kindPing                    // asks for kindPong
	kindPong
	kindFin   // the stream ends at seq
	kindReset // the session is unknown
)

// flagResend asks the peer to resend everything from ack on, because bytes after ack were lost.
const flagResend = 1

const (
	headerSize = 44
	// maxFrame makes a frame fit into one 16 KiB buffer, which the guest's kernel allocates for each write.
	maxFrame   = 16 << 10
	maxPayload = maxFrame - headerSize
)

var magic = []byte("WtL1")

// castagnoli is computed on first use: it takes long under emulation, and not every use of the program needs it.
var castagnoli = sync.OnceValue(func() *crc32.Table { return crc32.MakeTable(crc32.Castagnoli) })

// frame is one unit on the wire. seq and ack are offsets in the byte streams. seq is the offset of payload's first
// byte. ack is the offset of the first byte that the sender has not received. window is the number of bytes after ack
// that the sender accepts.
type frame struct {
	kind    kind
	flags   uint8
	session uint64
	seq     uint64
	ack     uint64
	window  uint32
	payload []byte
}

// encode appends f's encoded form to b.
func (f *frame) encode(b []byte) []byte {
	start := len(b)
	b = append(b, magic...)
	b = append(b, byte(f.kind), f.flags)
	b = binary.LittleEndian.AppendUint16(b, uint16(len(f.payload)))
	b = binary.LittleEndian.AppendUint64(b, f.session)
	b = binary.LittleEndian.AppendUint64(b, f.seq)
	b = binary.LittleEndian.AppendUint64(b, f.ack)
	b = binary.LittleEndian.AppendUint32(b, f.window)
	b = binary.LittleEndian.AppendUint32(b, crc32.Checksum(f.payload, castagnoli()))
	b = binary.LittleEndian.AppendUint32(b, crc32.Checksum(b[start:], castagnoli()))
	return append(b, f.payload...)
}

// decoder finds frames in a byte stream and skips other bytes.
type decoder struct {
	r          io.Reader
	buf        []byte
	start, end int
	skipped    bool // bytes were skipped since the last frame
}

func newDecoder(r io.Reader) *decoder {
	return &decoder{r: r, buf: make([]byte, 4*maxFrame)}
}

// reset discards buffered bytes, because a new stream begins.
func (d *decoder) reset() { d.start, d.end, d.skipped = 0, 0, false }

// next returns the next complete frame. Its payload is valid until the next call. garbled means that bytes before it
// were not a frame.
func (d *decoder) next() (f frame, garbled bool, err error) {
	for {
		if f, ok := d.parse(); ok {
			garbled, d.skipped = d.skipped, false
			return f, garbled, nil
		}
		if d.end == len(d.buf) {
			d.end = copy(d.buf, d.buf[d.start:d.end])
			d.start = 0
		}
		n, err := d.r.Read(d.buf[d.end:])
		d.end += n
		if n == 0 && err != nil {
			return frame{}, false, err
		}
	}
}

// parse removes a complete frame from the buffer, or reports that it needs more bytes.
func (d *decoder) parse() (frame, bool) {
	for {
		if d.start == d.end {
			d.start, d.end = 0, 0
			return frame{}, false
		}
		b := d.buf[d.start:d.end]
		if at := bytes.Index(b, magic); at > 0 {
			d.skip(at)
			continue
		} else if at < 0 {
			// The last bytes may be the beginning of a magic number.
			if tail := len(magic) - 1; len(b) > tail {
				d.skip(len(b) - tail)
			}
			return frame{}, false
		}
		if len(b) < headerSize {
			return frame{}, false
		}
		length := int(binary.LittleEndian.Uint16(b[6:]))
		if binary.LittleEndian.Uint32(b[40:]) != crc32.Checksum(b[:40], castagnoli()) || length > maxPayload {
			d.skip(1)
			continue
		}
		if len(b) < headerSize+length {
			return frame{}, false
		}
		payload := b[headerSize : headerSize+length]
		if binary.LittleEndian.Uint32(b[36:]) != crc32.Checksum(payload, castagnoli()) {
			d.skip(1)
			continue
		}
		d.start += headerSize + length
		return frame{
			kind:    kind(b[4]),
			flags:   b[5],
			session: binary.LittleEndian.Uint64(b[8:]),
			seq:     binary.LittleEndian.Uint64(b[16:]),
			ack:     binary.LittleEndian.Uint64(b[24:]),
			window:  binary.LittleEndian.Uint32(b[32:]),
			payload: payload,
		}, true
	}
}

func (d *decoder) skip(n int) {
	d.start += n
	d.skipped = true
}
