package tunnel

import (
	"bytes"
	"crypto/rand"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"time"

	"github.com/klauspost/compress/zstd"
	"pgregory.net/rapid"
)

func TestWhatIsPackedComesOutTheSame(t *testing.T) {
	noise := make([]byte, 1<<20)
	rand.Read(noise)
	for name, content := range map[string][]byte{
		"nothing": nil, "a byte": {1}, "zeros": make([]byte, 3<<20), "noise": noise,
		"both": append(bytes.Repeat([]byte("pages "), 1<<18), noise...),
	} {
		var wire, out bytes.Buffer
		var sent atomic.Uint64
		if err := copyPacked(&wire, bytes.NewReader(content), &sent); err != nil || sent.Load() != uint64(wire.Len()) {
			t.Fatalf("%s: %d bytes: %v", name, sent.Load(), err)
		}
		if wire.Len() > len(content)+len(content)/1000+100 {
			t.Errorf("%s: %d bytes became %d", name, len(content), wire.Len())
		}
		if err := copyUnpacked(&out, iotest.OneByteReader(&wire)); err != nil || !bytes.Equal(out.Bytes(), content) {
			t.Errorf("%s: %d of %d bytes came out: %v", name, out.Len(), len(content), err)
		}
	}
}

func TestFramesOfStrangersAreBounded(t *testing.T) {
	bomb, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	large := bomb.EncodeAll(make([]byte, 16<<20), nil)
	head := func(length uint32) string {
		return string([]byte{byte(length >> 24), byte(length >> 16), byte(length >> 8), byte(length)})
	}
	for name, wire := range map[string]string{
		"an empty frame": head(0), "a large one": head(mostFrame+1) + strings.Repeat("x", mostFrame+1), "one that ends early": head(10) + "x",
		"half a head": "\x00\x00", "one that is not compressed": head(4|packedBit) + "abcd", "a bomb": head(uint32(len(large))|packedBit) + string(large),
	} {
		var out bytes.Buffer
		if err := copyUnpacked(&out, strings.NewReader(wire)); err == nil || out.Len() > 0 {
			t.Errorf("%s: %d bytes came out: %v", name, out.Len(), err)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		copyUnpacked(io.Discard, bytes.NewReader(rapid.SliceOf(rapid.Byte()).Draw(t, "wire")))
	})
}

func TestOnlyWhatTheLinkSlowsDownIsPacked(t *testing.T) {
	for _, c := range []struct {
		name                string
		link, packing, rate float64 // MB/s, MB/s, compressed bytes for a byte
		want                bool
	}{
		{"a WAN", 25, 300, 0.4, true}, {"a fast LAN", 1000, 300, 0.4, false}, {"a LAN", 110, 300, 0.4, true},
		{"a WAN, and a processor with other work", 25, 20, 0.4, false}, {"a WAN, and what does not compress", 25, 300, 1, false},
	} {
		var p pace
		packed := 0
		for range 100 * probeEvery {
			n := 1 << 17
			sent := n
			if p.packs() {
				packed++
				p.packing.add(time.Duration(float64(n)/c.packing*1e3), n)
				p.ratio.add(float64(n)*c.rate, n)
				sent = int(float64(n) * c.rate)
			}
			p.link.add(time.Duration(float64(sent)/c.link*1e3), sent)
		}
		if most := packed > 50*probeEvery; most != c.want || packed < 100 {
			t.Errorf("%s: %d of %d frames are compressed", c.name, packed, 100*probeEvery)
		}
	}
	var p pace // p adapts to changes
	p.link.add(time.Second, 1<<20)
	p.link.add(time.Millisecond, 64<<20)
	if p.link.value() > 0.2/(1<<20) {
		t.Errorf("the link is still slow: %v s for a byte", p.link.value())
	}
}
