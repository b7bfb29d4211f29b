package tunnel

// packed.go - sends a guest's memory in frames, and compresses a frame if that makes the transfer faster.

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"github.com/klauspost/compress/zstd"
)

const (
	// mostFrame bounds the content of a frame, bytes.
	mostFrame = 256 << 10
	// packedBit marks the length of a frame that is compressed.
	packedBit = 1 << 31
	// halfLifeBytes is the number of bytes after which a measurement counts half.
	halfLifeBytes = 4 << 20
	// probeEvery: every 64th frame is compressed for a new measurement, even if compression was slower before.
	probeEvery = 64
)

// pace decides whether compression makes a transfer faster. Compressing and writing do not overlap, so their times add up. A
// write takes as long as the link does when the connection's buffer is full.
type pace struct {
	link    cost    // of writing a byte to the connection
	packing cost    // of compressing a byte
	ratio   average // compressed bytes for a byte
	frames  int
}

// average is a mean in which the latest bytes count most.
type average struct{ sum, weight float64 }

func (a *average) add(sum float64, bytes int) {
	keep := 1 / (1 + float64(bytes)/halfLifeBytes)
	a.sum, a.weight = a.sum*keep+sum, a.weight*keep+float64(bytes)
}

func (a *average) value() float64 { return a.sum / max(a.weight, 1) }

// cost is an average of seconds for a byte.
type cost struct{ average }

func (c *cost) add(took time.Duration, bytes int) { c.average.add(took.Seconds(), bytes) }

// packs reports whether to compress the next frame.
func (p *pace) packs() bool {
	p.frames++
	if p.packing.weight == 0 || p.frames%probeEvery == 0 {
		return true
	}
	return p.packing.value() < p.link.value()*(1-p.ratio.value())
}

// copyPacked copies from from to to in frames, until from ends. It adds the bytes that it writes to sent.
func copyPacked(to io.Writer, from io.Reader, sent *atomic.Uint64) error {
	encoder, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(mostFrame))
	if err != nil {
		return err
	}
	defer encoder.Close()
	var p pace
	content, frame := make([]byte, mostFrame), make([]byte, 4, 4+mostFrame)
	for {
		n, err := from.Read(content)
		if n > 0 {
			frame = frame[:4]
			length := uint32(n)
			if p.packs() {
				begun := time.Now()
				frame = encoder.EncodeAll(content[:n], frame)
				p.packing.add(time.Since(begun), n)
				p.ratio.add(float64(len(frame)-4), n)
				length = uint32(len(frame)-4) | packedBit
			}
			if len(frame) == 4 || len(frame)-4 >= n { // not compressed, or not smaller
				frame, length = append(frame[:4], content[:n]...), uint32(n)
			}
			binary.BigEndian.PutUint32(frame, length)
			begun := time.Now()
			if _, err := to.Write(frame); err != nil {
				return err
			}
			p.link.add(time.Since(begun), len(frame))
			sent.Add(uint64(len(frame)))
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// copyUnpacked copies the content of frames from from to to, until from ends.
func copyUnpacked(to io.Writer, from io.Reader) error {
	decoder, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(mostFrame))
	if err != nil {
		return err
	}
	defer decoder.Close()
	var head [4]byte
	frame, content := make([]byte, mostFrame), make([]byte, 0, mostFrame)
	for {
		if _, err := io.ReadFull(from, head[:]); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		length := binary.BigEndian.Uint32(head[:])
		packed := length&packedBit != 0
		if length &^= packedBit; length == 0 || length > mostFrame {
			return fmt.Errorf("a frame of %d bytes", length)
		}
		if _, err := io.ReadFull(from, frame[:length]); err != nil {
			return err
		}
		out := frame[:length]
		if packed {
			if content, err = decoder.DecodeAll(out, content[:0]); err != nil {
				return fmt.Errorf("a compressed frame: %w", err)
			}
			out = content
		}
		if _, err := to.Write(out); err != nil {
			return err
		}
	}
}
