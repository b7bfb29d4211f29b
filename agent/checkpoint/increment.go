package checkpoint

// increment.go - files that have only what differs from an earlier state, the base. An index records the place of each page
// in the base. An increment is a list of pieces: literal bytes, and places in the base from which bytes are copied. Finding
// the page boundaries matters only for the increment's size: a state is rebuilt byte for byte, and its hash is verified.

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"io"
	"math/rand/v2"
	"os"

	"github.com/zeebo/xxh3"
)

// Layout tells where a state's pages are.
type Layout int

const (
	// Memory is QEMU's migration stream. A page in it is an 8-byte head, with address and flags, and 4 KiB of memory.
	Memory Layout = iota
	// Disk is a disk image: pages of 4 KiB, one after the other.
	Disk
)

const (
	pageSize = 4096
	headSize = 8
	// The lowest bits of a head say what follows (QEMU, migration/ram.c, RAM_SAVE_FLAG_*).
	flagBits = pageSize - 1
	pageFlag = 0x28 // a page, of the same block of memory as the one before
	zeroFlag = 0x22 // one byte, with which a page is filled
	// highest is above all addresses in heads.
	highest = 1 << 46
	// literalSize is how many literal bytes are collected before they are written as one piece.
	literalSize = 64 << 10
	// mostIndexed bounds an index: 16 GiB of pages. A larger state is always written whole.
	mostIndexed = 4 << 20
	sumSize     = 16
	indexEntry  = sumSize + 8
	// indexMagic begins an index. A random seed of 8 bytes follows, then entries.
	indexMagic = "watari's index 2"
)

// IndexSuffix ends the name of a file's index, which is in the same folder.
const IndexSuffix = ".index"

// index maps hashes of pages (XXH3, 128 bits) to their places in a state. XXH3 is fast but not cryptographic. Its seed is
// secret, so a guest cannot make two pages with the same hash. The index of a later state has the same seed.
type index struct {
	seed  uint64
	pages map[[sumSize]byte]int64
}

// splitter cuts a state into pages and the bytes between them.
type splitter struct {
	from   *bufio.Reader
	layout Layout
}

func newSplitter(from io.Reader, layout Layout) *splitter {
	return &splitter{bufio.NewReaderSize(from, 64*pageSize), layout}
}

// next returns the next piece of the state, and whether it is a page. The piece is valid until the next call. At the end,
// next returns io.EOF.
func (s *splitter) next() (piece []byte, page bool, err error) {
	size, page := pageSize, true
	if s.layout == Memory {
		if size, page, err = s.measure(); err != nil {
			return nil, false, err
		}
	}
	piece, err = s.from.Peek(size)
	if len(piece) < size && (err != io.EOF || len(piece) == 0) {
		return nil, false, err
	}
	_, err = s.from.Discard(len(piece)) // piece stays valid until the next read
	return piece, page && len(piece) == size, err
}

// measure returns the size of the next piece of a Memory state. It passes over bytes that are no page one by one, until it
// finds a head.
func (s *splitter) measure() (size int, page bool, err error) {
	head, err := s.from.Peek(headSize)
	if len(head) < headSize {
		if err == io.EOF && len(head) > 0 {
			return len(head), false, nil
		}
		return 0, false, err
	}
	switch value := binary.BigEndian.Uint64(head); {
	case value >= highest:
	case value&flagBits == pageFlag:
		return headSize + pageSize, true, nil
	case value&flagBits == zeroFlag:
		return headSize + 1, false, nil
	}
	return 1, false, nil
}

// encoder writes a whole state, or an increment.
type encoder struct {
	to      *bufio.Writer
	base    *index // nil: write a whole state
	literal []byte
	from    int64 // where in the base the bytes to be copied begin
	copied  int64 // how many bytes are to be copied
	sum     hash.Hash
}

// encode writes a state, and returns its size. It adds the state's pages to an index file, which was created for the same
// base.
func encode(to io.Writer, state io.Reader, layout Layout, base *index, pages *indexFile) (int64, error) {
	e := &encoder{to: bufio.NewWriterSize(to, literalSize), base: base, sum: sha256.New()}
	at := int64(0)
	split := newSplitter(state, layout)
	for {
		piece, page, err := split.next()
		if err == io.EOF {
			break
		}
		if err == nil {
			err = e.add(piece, page, at, pages)
		}
		if err != nil {
			return at, err
		}
		at += int64(len(piece))
	}
	return at, e.end()
}

func (e *encoder) add(piece []byte, page bool, at int64, pages *indexFile) error {
	var sum [sumSize]byte
	if page {
		sum = xxh3.Hash128Seed(piece, pages.seed).Bytes()
		pages.add(sum, at)
	}
	if e.base == nil {
		_, err := e.to.Write(piece)
		return err
	}
	e.sum.Write(piece)
	if page {
		if place, has := e.base.pages[sum]; has {
			return e.copy(place, int64(len(piece)))
		}
	}
	if err := e.endCopy(); err != nil {
		return err
	}
	e.literal = append(e.literal, piece...)
	if len(e.literal) >= literalSize {
		return e.endLiteral()
	}
	return nil
}

// copy adds bytes that are copied from the base.
func (e *encoder) copy(place, size int64) error {
	if e.copied > 0 && e.from+e.copied == place {
		e.copied += size
		return nil
	}
	if err := errors.Join(e.endLiteral(), e.endCopy()); err != nil {
		return err
	}
	e.from, e.copied = place, size
	return nil
}

// endLiteral writes the collected literal bytes as one piece. A piece begins with twice its size, plus one if it is copied.
// The size 0 ends the list; the state's SHA-256 follows.
func (e *encoder) endLiteral() error {
	if len(e.literal) == 0 {
		return nil
	}
	_, err := e.to.Write(binary.AppendUvarint(nil, uint64(len(e.literal))<<1))
	if err == nil {
		_, err = e.to.Write(e.literal)
	}
	e.literal = e.literal[:0]
	return err
}

func (e *encoder) endCopy() error {
	if e.copied == 0 {
		return nil
	}
	_, err := e.to.Write(binary.AppendUvarint(binary.AppendUvarint(nil, uint64(e.copied)<<1|1), uint64(e.from)))
	e.copied = 0
	return err
}

func (e *encoder) end() error {
	err := errors.Join(e.endLiteral(), e.endCopy())
	if err == nil && e.base != nil {
		_, err = e.to.Write(e.sum.Sum([]byte{0}))
	}
	return errors.Join(err, e.to.Flush())
}

// decode rebuilds a state of size bytes from an increment and its base.
func decode(to io.Writer, increment io.Reader, base io.ReaderAt, size int64) error {
	from, sum, left := bufio.NewReaderSize(increment, literalSize), sha256.New(), size
	out := io.MultiWriter(to, sum)
	for {
		head, err := binary.ReadUvarint(from)
		if err != nil {
			return damaged(err)
		}
		n := int64(head >> 1)
		if n == 0 {
			break
		}
		if n > left || n < 0 {
			return fmt.Errorf("%w: the state in it is larger than the %d bytes that it should have", ErrDamaged, size)
		}
		left -= n
		var piece io.Reader = io.LimitReader(from, n)
		if head&1 == 1 {
			place, err := binary.ReadUvarint(from)
			if err != nil || place > 1<<62 {
				return damaged(err)
			}
			piece = io.NewSectionReader(base, int64(place), n)
		}
		if copied, err := io.Copy(out, piece); err != nil || copied != n {
			return damaged(err)
		}
	}
	want := make([]byte, sha256.Size)
	if _, err := io.ReadFull(from, want); err != nil {
		return damaged(err)
	}
	if left != 0 || !bytes.Equal(sum.Sum(nil), want) {
		return fmt.Errorf("%w: put together with the file that it builds on, it is not the state that was saved", ErrDamaged)
	}
	return nil
}

// damaged returns the error for an increment that cannot be read; err may be nil.
func damaged(err error) error {
	if err == nil || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("%w: it ends too early", ErrDamaged)
	}
	return err
}

// indexFile is an index that is being written. Losing an index does no harm: the next state is then written whole. A wrong
// index would produce increments that cannot be restored, so the index is on disk before Write returns.
type indexFile struct {
	seed    uint64
	file    *os.File
	to      *bufio.Writer
	entries int
	failed  error
}

// createIndex creates the index of a file that builds on base; nil: the file has a whole state. If the index cannot be
// written, close removes it.
func createIndex(path string, base *index) *indexFile {
	f := &indexFile{seed: rand.Uint64()}
	if base != nil {
		f.seed = base.seed
	}
	f.file, f.failed = os.OpenFile(path+IndexSuffix, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if f.failed == nil {
		f.to = bufio.NewWriter(f.file)
		_, f.failed = f.to.Write(binary.BigEndian.AppendUint64([]byte(indexMagic), f.seed))
	}
	return f
}

func (f *indexFile) add(sum [sumSize]byte, at int64) {
	if f.failed != nil {
		return
	}
	if f.entries++; f.entries > mostIndexed {
		f.failed = errors.New("it is too large")
		return
	}
	_, f.failed = f.to.Write(binary.BigEndian.AppendUint64(sum[:], uint64(at)))
}

// close finishes the index. It removes the index if a write failed, or if whole is false.
func (f *indexFile) close(whole bool) {
	if f.to == nil {
		return
	}
	if err := errors.Join(f.failed, f.to.Flush(), f.file.Sync(), f.file.Close()); err != nil || !whole {
		_ = os.Remove(f.file.Name())
	}
}

// readIndex reads the index of a file. It returns nil if there is no valid index.
func readIndex(path string) *index {
	text, err := os.ReadFile(path + IndexSuffix)
	text, is := bytes.CutPrefix(text, []byte(indexMagic))
	if err != nil || !is || len(text) <= 8 || (len(text)-8)%indexEntry != 0 {
		return nil
	}
	found := &index{binary.BigEndian.Uint64(text), make(map[[sumSize]byte]int64, len(text)/indexEntry)}
	for text = text[8:]; len(text) > 0; text = text[indexEntry:] {
		found.pages[[sumSize]byte(text[:sumSize])] = int64(binary.BigEndian.Uint64(text[sumSize:]))
	}
	return found
}

// Base is a file on which another file can build.
type Base struct {
	file  File
	pages *index
}

// LoadBase reads the index of a file; nil: it has none. This takes a second for 16 GiB, so it is done before the guest is
// paused.
func LoadBase(s Stored) *Base {
	pages := readIndex(s.Path)
	if pages == nil {
		return nil
	}
	return &Base{s.File, pages}
}

// RemoveIndex removes the index that Write made for later increments. The file itself stays.
func RemoveIndex(path string) { _ = os.Remove(path + IndexSuffix) }
