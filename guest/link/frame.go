// Package link carries one reliable byte stream between a host and a guest over a channel that loses, garbles
// and cuts bytes: a virtio-serial port, whose bytes in flight vanish when the guest is migrated or restored.
// The protocol is written down in docs/design/guest.md.
package link

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"io"
	"sync"
)

// kind says what a frame is for.
type kind uint8

const (
	kindHello   kind = iota + 1 // host: let us have this session; repeated until answered
	kindWelcome                 // guest: we have it
	kindData                    // bytes of the stream from seq on
	kindAck                     // nothing but the acknowledgement that every frame carries
	kindPing                    // are you there? answered by kindPong
	kindPong
	kindFin   // no more bytes after seq
	kindReset // I know nothing of this session
)

// flagAgain asks for everything from ack on to be sent again: something after it was lost.
const flagAgain = 1

const (
	headerSize = 44
	// maxFrame keeps a frame within one 16 KiB buffer, which the guest's kernel allocates for each write.
	maxFrame   = 16 << 10
	maxPayload = maxFrame - headerSize
)

var magic = []byte("WtL1")

// castagnoli is made when it is needed: under emulation that takes long, and not every use of the program needs it.
var castagnoli = sync.OnceValue(func() *crc32.Table { return crc32.MakeTable(crc32.Castagnoli) })

// frame is one unit on the wire. seq and ack count bytes of the stream: seq is the offset of payload's first
// byte, ack the offset of the first byte the sender has not had. window is how many bytes after ack it takes.
type frame struct {
	kind    kind
	flags   uint8
	session uint64
	seq     uint64
	ack     uint64
	window  uint32
	payload []byte
}

// encode appends f's wire form to b.
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

// decoder finds frames in a byte stream and skips what is none.
type decoder struct {
	r          io.Reader
	buf        []byte
	start, end int
	skipped    bool // bytes were skipped since the last frame
}

func newDecoder(r io.Reader) *decoder {
	return &decoder{r: r, buf: make([]byte, 4*maxFrame)}
}

// reset forgets bytes that were read but not used: the stream begins anew.
func (d *decoder) reset() { d.start, d.end, d.skipped = 0, 0, false }

// next returns the next whole frame; its payload is good until the next call. garbled says that bytes before
// it were no frame.
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

// parse takes a whole frame off the buffer, or reports that more bytes are needed.
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
