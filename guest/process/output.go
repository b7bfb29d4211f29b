package process

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

const (
	// outputLimit is how many bytes of one stream are kept. Older bytes are dropped, in steps of dropStep.
	outputLimit = 64 << 20
	dropStep    = 4 << 20
	// reservedSpace is how many bytes output leaves free on its file system, which also holds the guest's identity.
	reservedSpace = 4 << 20
	// pageSize is the alignment that the ends of a hole need to free memory.
	pageSize = 4096
)

// output stores one stream of a process in a file. File offsets equal stream offsets: dropped bytes become a hole,
// which takes no memory.
type output struct {
	mu      sync.Mutex
	file    *os.File
	size    uint64        // bytes written by the process
	kept    uint64        // offset of the first byte that is not dropped
	limit   uint64        // bytes
	closed  bool          // the process will write no more
	removed bool          // the file is gone
	changed chan struct{} // closed and replaced when size or closed changes
}

// newOutput makes a stream of which the last bytes are kept; 0: outputLimit, which is also the most.
func newOutput(path string, keep uint64) (*output, error) {
	if keep == 0 || keep > outputLimit {
		keep = outputLimit
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	return &output{file: file, limit: keep, changed: make(chan struct{})}, nil
}

// reopenOutput opens the stream of a process that has ended.
func reopenOutput(path string) (*output, error) {
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	o := &output{file: file, limit: outputLimit, closed: true, changed: make(chan struct{})}
	info, err := file.Stat()
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	o.size = uint64(info.Size())
	// Dropped bytes are a hole at the beginning.
	if kept, err := file.Seek(0, unix.SEEK_DATA); err == nil {
		o.kept = uint64(kept)
	} else if errors.Is(err, unix.ENXIO) { // the whole file is a hole
		o.kept = o.size
	}
	return o, nil
}

// Write appends bytes. If memory is short, it drops older bytes, and if that is not enough, the new ones. It does not
// return an error for that: an error would end the program that writes.
func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.removed {
		return len(b), nil // whoever still writes must not be ended by that
	}
	defer o.wakeReaders()
	for done := 0; ; {
		n, err := o.append(b[done:])
		done += n
		o.size += uint64(n)
		switch {
		case err == nil && o.size-o.kept > o.limit:
			return done, o.drop(o.kept + (o.size-o.kept-o.limit+dropStep-1)/dropStep*dropStep)
		case err == nil:
			return done, nil
		case !errors.Is(err, unix.ENOSPC):
			return done, err
		case o.kept < o.size:
			half := o.kept + (o.size-o.kept)/2
			if err := o.drop((half/pageSize + 1) * pageSize); err != nil {
				return done, err
			}
		default:
			o.size += uint64(len(b) - done)
			o.kept = o.size
			return len(b), nil
		}
	}
}

// append writes bytes if enough space remains free afterwards.
func (o *output) append(b []byte) (int, error) {
	var s unix.Statfs_t
	if err := unix.Fstatfs(int(o.file.Fd()), &s); err == nil && s.Blocks > 0 {
		size := uint64(s.Bsize)
		if s.Bavail*size < uint64(len(b))+min(s.Blocks*size/8, reservedSpace) {
			return 0, unix.ENOSPC
		}
	}
	return o.file.WriteAt(b, int64(o.size))
}

// drop frees the memory of bytes before an offset. The caller holds mu.
func (o *output) drop(before uint64) error {
	before = min(before, o.size)
	if err := unix.Fallocate(int(o.file.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, int64(o.kept), int64(before-o.kept)); err != nil {
		return fmt.Errorf("drop old output: %w", err)
	}
	o.kept = before
	return nil
}

// wakeReaders wakes readers. The caller holds mu.
func (o *output) wakeReaders() {
	close(o.changed)
	o.changed = make(chan struct{})
}

// end marks the end of the stream.
func (o *output) end() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.closed {
		o.closed = true
		o.wakeReaders()
	}
}

func (o *output) bytes() uint64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.size
}

// read waits for bytes from offset on and copies them to b. If bytes at offset were dropped, read returns a note
// instead, and the next read continues behind them. from is the offset of b's first byte in the stream. next is the
// offset for the next read. At the end of the stream, read returns io.EOF.
func (o *output) read(ctx context.Context, offset uint64, b []byte) (n int, from, next uint64, err error) {
	for {
		o.mu.Lock()
		size, kept, closed, changed := o.size, o.kept, o.closed, o.changed
		if offset < kept {
			o.mu.Unlock()
			note := fmt.Sprintf("\n[watari: %d bytes of output were dropped here]\n", kept-offset)
			n = copy(b, note)
			// Choose from so that the note ends where the kept bytes begin.
			return n, kept - min(kept, uint64(n)), kept, nil
		}
		if offset < size {
			n, err = o.file.ReadAt(b[:min(uint64(len(b)), size-offset)], int64(offset))
			o.mu.Unlock()
			if errors.Is(err, io.EOF) && n > 0 {
				err = nil
			}
			return n, offset, offset + uint64(n), err
		}
		o.mu.Unlock()
		if closed {
			return 0, offset, offset, io.EOF
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return 0, offset, offset, ctx.Err()
		}
	}
}

// remove deletes the file and so frees its memory.
func (o *output) remove() {
	o.end()
	o.mu.Lock()
	defer o.mu.Unlock()
	o.removed = true
	os.Remove(o.file.Name())
	o.file.Close()
}
