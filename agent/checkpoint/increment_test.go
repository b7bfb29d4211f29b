package checkpoint

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
)

// memory writes pages as QEMU does, in an order that seed decides. The first page of a block names the block.
func memory(pages [][]byte, seed uint64) []byte {
	out := []byte("LibvirtQemudSave, and what else comes before QEVM")
	for i, n := range rand.New(rand.NewPCG(seed, 0)).Perm(len(pages)) {
		address := uint64(n) << 12
		switch page := pages[n]; {
		case i == 0:
			out = append(binary.BigEndian.AppendUint64(out, address|0x08), "\x06pc.ram"...)
			out = append(out, page...)
		case page == nil:
			out = append(binary.BigEndian.AppendUint64(out, address|zeroFlag), 0)
		default:
			out = append(binary.BigEndian.AppendUint64(out, address|pageFlag), page...)
		}
		if i%100 == 99 { // a section ends, and another begins
			out = append(binary.BigEndian.AppendUint64(out, 0x10), "\x7e\x00\x00\x00\x02\x02\x00\x00\x00\x02"...)
		}
	}
	return append(out, bytes.Repeat([]byte("devices"), 5000)...)
}

func randomPages(t *testing.T, n int) (pages [][]byte) {
	t.Helper()
	for i := range n {
		page := make([]byte, pageSize)
		rng := rand.New(rand.NewPCG(uint64(i), 1))
		for k := range page {
			page[k] = byte(rng.Uint32())
		}
		if i%3 == 0 {
			page = nil
		}
		pages = append(pages, page)
	}
	return pages
}

// A chain of increments gives each state back. An increment is small even if the pages come in another order.
func TestAChainOfIncrements(t *testing.T) {
	key, folder := newKey(t), t.TempDir()
	pages := randomPages(t, 3000)
	var chain []Stored
	for i := range 4 {
		for k := range 30 {
			pages[(i*40+k*3)%len(pages)] = bytes.Repeat([]byte{byte(i), byte(k), 7, 9}, pageSize/4)
		}
		state := memory(pages, uint64(i/2)) // in another order from the third on
		o := Options{Recipient: key.Recipient(), Layout: Memory}
		if i > 0 {
			o.Base = LoadBase(chain[i-1])
		}
		path := filepath.Join(folder, string(rune('a'+i)))
		f, err := Write(t.Context(), path, bytes.NewReader(state), o)
		if err != nil {
			t.Fatal(err)
		}
		if i > 0 && (f.Base != chain[i-1].File.Digest || f.Size > chain[0].File.Size/10) {
			t.Errorf("increment %d has %d bytes, the whole one %d; it builds on %q", i, f.Size, chain[0].File.Size, f.Base)
		}
		chain = append(chain, Stored{path, f})
		to := filepath.Join(folder, "plain")
		if err := Read(t.Context(), chain, key, to); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(to); err != nil || !bytes.Equal(got, state) {
			t.Errorf("state %d is not what was written: %v", i, err)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(folder, "*.base")); len(left) > 0 {
		t.Errorf("left are %v", left)
	}
	// An increment is refused if it is read with another base; the error names the damaged file.
	to := filepath.Join(folder, "plain")
	var damage *DamagedError
	if err := Read(t.Context(), []Stored{chain[0], chain[2]}, key, to); !errors.Is(err, ErrDamaged) {
		t.Errorf("with another base: %v", err)
	}
	if err := os.Truncate(chain[1].Path, 1000); err != nil {
		t.Fatal(err)
	}
	if err := Read(t.Context(), chain, key, to); !errors.As(err, &damage) || damage.Index != 1 {
		t.Errorf("with a damaged file: %v", err)
	}
	// Without its index, a state is written whole.
	RemoveIndex(chain[3].Path)
	f, err := Write(t.Context(), filepath.Join(folder, "e"), bytes.NewReader(memory(pages, 1)), Options{Recipient: key.Recipient(), Base: LoadBase(chain[3])})
	if err != nil || f.Base != "" {
		t.Errorf("without an index it builds on %q: %v", f.Base, err)
	}
}

// FuzzIncrement checks that any sequence of bytes is restored unchanged.
func FuzzIncrement(f *testing.F) {
	f.Add([]byte("\x00\x00\x00\x00\x00\x00\x10\x28 and more"), []byte("another"), false)
	f.Add(bytes.Repeat([]byte{0, 0, 0, 0, 0, 0, 0, zeroFlag, 1}, 2000), bytes.Repeat([]byte{0, 0, 0, 0, 0, 0, 0, pageFlag}, 3000), true)
	f.Fuzz(func(t *testing.T, first, second []byte, disk bool) {
		layout := Memory
		if disk {
			layout = Disk
		}
		path := filepath.Join(t.TempDir(), "state")
		pages := createIndex(path, nil)
		var whole, increment, back bytes.Buffer
		if _, err := encode(&whole, bytes.NewReader(first), layout, nil, pages); err != nil || !bytes.Equal(whole.Bytes(), first) {
			t.Fatalf("whole: %v", err)
		}
		pages.close(true)
		base := readIndex(path)
		if base == nil {
			base = &index{}
		}
		state := append(bytes.Clone(second), first...)
		n, err := encode(&increment, bytes.NewReader(state), layout, base, createIndex(path+".next", base))
		if err != nil || n != int64(len(state)) {
			t.Fatalf("%d bytes, %v", n, err)
		}
		if err := decode(&back, bytes.NewReader(increment.Bytes()), bytes.NewReader(first), n); err != nil || !bytes.Equal(back.Bytes(), state) {
			t.Fatalf("it is another state: %v", err)
		}
		for _, size := range []int64{n - 1, n + 1} {
			if err := decode(&bytes.Buffer{}, bytes.NewReader(increment.Bytes()), bytes.NewReader(first), size); !errors.Is(err, ErrDamaged) {
				t.Errorf("a state of %d bytes, of which %d are wanted: %v", n, size, err)
			}
		}
		for cut := range min(increment.Len(), 100) {
			if err := decode(&bytes.Buffer{}, bytes.NewReader(increment.Bytes()[:cut]), bytes.NewReader(first), n); err == nil {
				t.Errorf("an increment of which only %d bytes are there is read", cut)
			}
		}
	})
}
