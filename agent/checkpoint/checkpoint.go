// Package checkpoint keeps guests' saved states in files that are compressed (zstd), encrypted (age), and identified by
// their SHA-256. It knows neither hypervisors nor managers: a state is a stream of bytes, such as a vm.Snapshot.
//
// A host encrypts with a public key, so it cannot decrypt the files. The manager sends the private key when the guest is
// restored.
package checkpoint

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"

	"filippo.io/age"
	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"watari/internal/durable"
)

// Errors that callers tell apart with errors.Is.
var (
	// ErrDamaged: the file is not the file that was written.
	ErrDamaged = errors.New("the checkpoint's file is damaged")
	// ErrNoRoom: the file needs more than its limit, or more than the disk can spare.
	ErrNoRoom = errors.New("no room for the checkpoint")
)

// Options are options for writing a file.
type Options struct {
	Recipient age.Recipient // who can decrypt the file
	Limit     int64         // limit of the file's size, bytes; 0: none
	Spare     int64         // bytes that must stay free on the disk
	Layout    Layout        // where the state's pages are
	Base      *Base         // write only what differs from this earlier state; nil: write the whole state
}

// Stored is a file on this host.
type Stored struct {
	Path string
	File File
}

// File describes a whole file. The manager keeps it in its store.
type File struct {
	Digest string // "sha256:" and the hash of the file as it is on disk
	Size   int64  // of the file, bytes
	State  int64  // size of the state, bytes
	Base   string `json:",omitempty"` // the digest of the file that this one builds on; empty: the file has the whole state
}

// Write writes a state to a file. The file appears complete and on disk, or not at all. Only the user of this process can
// read it. Write fails when ctx ends.
func Write(ctx context.Context, path string, state io.Reader, o Options) (File, error) {
	f, err := write(ctx, path, state, o)
	if err != nil {
		return File{}, fmt.Errorf("write checkpoint %s: %w", path, err)
	}
	return f, nil
}

func write(ctx context.Context, path string, state io.Reader, o Options) (f File, err error) {
	part := path + PartSuffix
	file, err := os.OpenFile(part, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return f, err
	}
	defer func() {
		_ = file.Close()
		if err != nil {
			_ = os.Remove(part)
		}
	}()
	out := &target{ctx: ctx, file: file, hash: sha256.New(), options: o}
	var base *index
	if o.Base != nil {
		base, f.Base = o.Base.pages, o.Base.file.Digest
	}
	pages := createIndex(path, base)
	defer func() { pages.close(err == nil) }()
	f.State, err = seal(out, o.Recipient, func(to io.Writer) (int64, error) { return encode(to, state, o.Layout, base, pages) })
	if err != nil {
		return f, err
	}
	if err := file.Sync(); err != nil {
		return f, err
	}
	if err := os.Rename(part, path); err != nil {
		return f, err
	}
	f.Digest, f.Size = "sha256:"+hex.EncodeToString(out.hash.Sum(nil)), out.size
	return f, durable.SyncDir(filepath.Dir(path))
}

// seal compresses and encrypts what fill writes, and returns what fill returns.
func seal(to io.Writer, recipient age.Recipient, fill func(io.Writer) (int64, error)) (int64, error) {
	encrypted, err := age.Encrypt(to, recipient)
	if err != nil {
		return 0, err
	}
	compressed, err := zstd.NewWriter(encrypted, zstd.WithEncoderLevel(zstd.SpeedFastest))
	if err != nil {
		return 0, err
	}
	n, err := fill(compressed)
	if err != nil {
		_ = compressed.Close() // ends its goroutines
		return 0, err
	}
	if err := compressed.Close(); err != nil {
		return 0, err
	}
	return n, encrypted.Close()
}

// PartSuffix ends the name of an unfinished file. The file stays if the process that writes it is killed.
const PartSuffix = ".part"

// spareStep is how many bytes are written between two checks of the disk's free space.
const spareStep = 16 << 20

// target is a file that is being written.
type target struct {
	ctx     context.Context
	file    *os.File
	hash    hash.Hash
	options Options
	size    int64
	looked  int64 // the size at which the disk's free space is checked again
}

// Write writes to the file. It fails if the file exceeds its limit, or the disk has not enough free space.
func (t *target) Write(p []byte) (int, error) {
	if err := t.ctx.Err(); err != nil {
		return 0, err
	}
	size := t.size + int64(len(p))
	if limit := t.options.Limit; limit > 0 && size > limit {
		return 0, fmt.Errorf("%w: it is larger than its limit of %d bytes", ErrNoRoom, limit)
	}
	if size >= t.looked {
		if err := t.spare(); err != nil {
			return 0, err
		}
		t.looked = size + spareStep
	}
	n, err := t.file.Write(p)
	t.hash.Write(p[:n])
	t.size += int64(n)
	if durable.IsFull(err) {
		err = fmt.Errorf("%w: %w", ErrNoRoom, err)
	}
	return n, err
}

// spare fails if the disk cannot hold the next spareStep bytes and keep options.Spare free.
func (t *target) spare() error {
	var disk unix.Statfs_t
	if err := unix.Fstatfs(int(t.file.Fd()), &disk); err != nil {
		return err
	}
	if free := int64(disk.Bavail) * disk.Bsize; free < t.options.Spare+spareStep {
		return fmt.Errorf("%w: the disk has %d MiB free, of which %d MiB must stay free", ErrNoRoom, free>>20, t.options.Spare>>20)
	}
	return nil
}

// Verify fails with ErrDamaged if the file does not have f's size and hash.
func Verify(ctx context.Context, path string, f File) error {
	file, err := os.Open(path)
	if err == nil {
		defer file.Close()
		err = verify(ctx, file, f)
	}
	if err != nil {
		return fmt.Errorf("verify checkpoint %s: %w", path, err)
	}
	return nil
}

func verify(ctx context.Context, file *os.File, f File) error {
	hash := sha256.New()
	n, err := io.Copy(hash, source{ctx, io.LimitReader(file, f.Size+1)})
	if errors.Is(err, unix.EIO) {
		return fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	if err != nil {
		return err
	}
	if sum := "sha256:" + hex.EncodeToString(hash.Sum(nil)); n != f.Size || sum != f.Digest {
		return fmt.Errorf("%w: it has %d bytes or more with hash %s, and should have %d with %s", ErrDamaged, n, sum, f.Size, f.Digest)
	}
	return nil
}

// Read verifies the files of a chain, and writes the state in the last one to file to. Each file builds on the one before;
// the first has a whole state. File to appears complete or not at all. It holds the guest's memory in plain text, so the
// caller removes it soon. Read fails with a DamagedError if a file does not match its description, or was not written by
// Write.
func Read(ctx context.Context, chain []Stored, key age.Identity, to string) error {
	base := to + ".base" // the state in the previous file of the chain
	defer os.Remove(base)
	for i, s := range chain {
		if i > 0 {
			if err := os.Rename(to, base); err != nil {
				return err
			}
		}
		if err := read(ctx, s, key, base, to); err != nil {
			_ = os.Remove(to)
			err = fmt.Errorf("read checkpoint %s: %w", s.Path, err)
			if errors.Is(err, ErrDamaged) {
				return &DamagedError{i, err}
			}
			return err
		}
	}
	return nil
}

// DamagedError tells which file of a chain is damaged. It matches ErrDamaged.
type DamagedError struct {
	Index int
	Err   error
}

// Error implements error.
func (e *DamagedError) Error() string { return e.Err.Error() }

// Unwrap returns the underlying error.
func (e *DamagedError) Unwrap() error { return e.Err }

// read writes the state in file s to file to. If s builds on another file, base has that file's state.
func read(ctx context.Context, s Stored, key age.Identity, base, to string) error {
	file, err := os.Open(s.Path)
	if err != nil {
		return err
	}
	defer file.Close()
	if err := verify(ctx, file, s.File); err != nil {
		return err
	}
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return err
	}
	part := to + ".part"
	out, err := os.OpenFile(part, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer os.Remove(part) // fails harmlessly after the rename
	defer out.Close()
	plain, err := open(source{ctx, file}, key)
	if err != nil {
		return err
	}
	defer plain.Close()
	if s.File.Base == "" {
		err = whole(out, plain, s.File.State)
	} else {
		var earlier *os.File
		if earlier, err = os.Open(base); err != nil {
			return err
		}
		defer earlier.Close()
		err = decode(out, plain, earlier, s.File.State)
	}
	if err != nil {
		return err
	}
	return os.Rename(part, to)
}

// open decrypts and decompresses a file.
func open(from io.Reader, key age.Identity) (*zstd.Decoder, error) {
	decrypted, err := age.Decrypt(from, key)
	if err != nil {
		return nil, fmt.Errorf("decrypt it: %w", err)
	}
	return zstd.NewReader(decrypted)
}

// whole copies a state, and fails if it has not size bytes.
func whole(to io.Writer, state io.Reader, size int64) error {
	n, err := io.Copy(to, io.LimitReader(state, size+1))
	if err != nil {
		return err
	}
	if n != size {
		return fmt.Errorf("%w: the state in it has %d bytes or more, and should have %d", ErrDamaged, n, size)
	}
	return nil
}

// source is a reader that fails after its context has ended.
type source struct {
	ctx  context.Context
	from io.Reader
}

// Read implements io.Reader.
func (s source) Read(p []byte) (int, error) {
	if err := s.ctx.Err(); err != nil {
		return 0, err
	}
	return s.from.Read(p)
}
