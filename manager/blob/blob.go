// Package blob stores content by its hash in <dir>/sha256/<64 hex digits>, and unfinished uploads in <dir>/partial/<64
// hex digits>.<uploader>. Content is verified before it gets its final name.
package blob

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/dustin/go-humanize"

	"watari/internal/durable"
)

var (
	// ErrNotFound means that there is no such blob, or that it is incomplete.
	ErrNotFound = errors.New("no such blob")
	// ErrBusy means that the same uploader has another upload of the blob in progress.
	ErrBusy = errors.New("another upload of it is under way")
	// ErrAltered means that the content does not have the hash. It has been deleted.
	ErrAltered = errors.New("the content does not have that hash; put it again from the start")
	// ErrFull means that the disk has no room for the blob.
	ErrFull = errors.New("the manager's disk is full")
)

// OffsetError means that an upload does not continue at the end of the stored part.
type OffsetError struct{ Held int64 }

func (e *OffsetError) Error() string { return fmt.Sprintf("%d bytes are held; go on there", e.Held) }

// DefaultReserve is the number of bytes of the disk that uploads leave free for the manager's own state.
const DefaultReserve = 256 << 20

// Store is a directory of blobs.
type Store struct {
	dir string
	// Reserve is the number of bytes of the disk that stay free.
	Reserve uint64

	mu      sync.Mutex
	busy    map[string]bool             // uploads in progress, by the name of the partial file
	pending map[string]map[string]int64 // sizes of an uploader's blobs and uploads, by hex digest
}

// Open opens the directory, and makes it if it does not exist.
func Open(dir string) (*Store, error) {
	for _, d := range []string{"sha256", "partial"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o700); err != nil {
			return nil, fmt.Errorf("make the directory for blobs: %w", err)
		}
	}
	return &Store{dir: dir, Reserve: DefaultReserve, busy: map[string]bool{}, pending: map[string]map[string]int64{}}, nil
}

// ParseDigest checks "sha256:<64 hex digits>" and returns the hex digits.
func ParseDigest(digest string) (string, error) {
	sum, found := strings.CutPrefix(digest, "sha256:")
	raw, err := hex.DecodeString(sum)
	if !found || err != nil || len(raw) != sha256.Size || strings.ToLower(sum) != sum {
		return "", fmt.Errorf("%q is not a digest (sha256:<64 hex digits>)", digest)
	}
	return sum, nil
}

// Path returns the path of a complete blob; sum is its hex digest.
func (s *Store) Path(sum string) string { return filepath.Join(s.dir, "sha256", sum) }

// partial returns the path of an unfinished upload. Each uploader has a separate file, so no other uploader can
// continue, delete or spoil it.
func (s *Store) partial(uploader, sum string) string {
	return filepath.Join(s.dir, "partial", sum+"."+uploader)
}

// Stat returns the size of a complete blob, or else the number of bytes that the uploader has stored.
func (s *Store) Stat(uploader, sum string) (size int64, whole bool, err error) {
	if info, err := os.Stat(s.Path(sum)); err == nil {
		return info.Size(), true, nil
	} else if !errors.Is(err, fs.ErrNotExist) {
		return 0, false, err
	}
	info, err := os.Stat(s.partial(uploader, sum))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, err
	}
	return info.Size(), false, nil
}

// Admit counts a blob as the uploader's until Collect removes it, if room accepts all blobs of the uploader together. room
// gets their sizes by hex digest, and must not call the store.
func (s *Store) Admit(uploader, sum string, size int64, room func(sizes map[string]int64) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	sizes := maps.Clone(s.pending[uploader])
	if sizes == nil {
		sizes = map[string]int64{}
	}
	if info, err := os.Stat(s.Path(sum)); err == nil {
		size = info.Size() // instead of the size that the uploader claims
	}
	sizes[sum] = max(size, sizes[sum])
	if err := room(sizes); err != nil {
		return err
	}
	s.pending[uploader] = sizes // only Collect changes it, under the lock
	return nil
}

// Put appends content at offset to the blob, whose complete size is size, and returns how many bytes are stored
// afterwards. When all bytes are stored, Put verifies them and the blob is complete. An interrupted Put keeps the bytes
// that it got. uploader identifies the caller and must be valid in a file name.
func (s *Store) Put(uploader, sum string, offset, size int64, content io.Reader) (held int64, err error) {
	partial := s.partial(uploader, sum)
	release, err := s.claim(filepath.Base(partial))
	if err != nil {
		return 0, err
	}
	defer release()
	held, whole, err := s.Stat(uploader, sum)
	if err != nil || whole {
		return held, err
	}
	if held > size {
		os.Remove(partial)
		held = 0
	}
	if held != offset {
		return held, &OffsetError{held}
	}
	if err := s.room(size - offset); err != nil {
		return held, err
	}
	f, err := os.OpenFile(partial, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return held, fmt.Errorf("write blob %s: %w", sum, full(err))
	}
	defer f.Close()
	held, err = s.append(f, offset, size, content)
	if err != nil {
		return held, fmt.Errorf("write blob %s: %w", sum, full(err))
	}
	if held < size {
		return held, nil
	}
	if err := f.Sync(); err != nil {
		return held, fmt.Errorf("write blob %s: %w", sum, full(err))
	}
	if err := verify(partial, sum); err != nil {
		os.Remove(partial)
		return 0, err
	}
	if err := os.Rename(partial, s.Path(sum)); err != nil {
		return held, fmt.Errorf("write blob %s: %w", sum, err)
	}
	return held, durable.SyncDir(filepath.Dir(s.Path(sum)))
}

// append copies up to size-offset bytes to f and returns how many bytes f then has.
func (s *Store) append(f *os.File, offset, size int64, content io.Reader) (held int64, err error) {
	const checkEvery = 8 << 20 // bytes between two checks of the disk's free space
	held = offset
	for held < size {
		if err := s.room(0); err != nil {
			return held, err
		}
		n, err := io.CopyN(io.NewOffsetWriter(f, held), content, min(checkEvery, size-held))
		held += n
		if errors.Is(err, io.EOF) {
			return held, nil
		}
		if err != nil {
			return held, err
		}
	}
	return held, nil
}

func (s *Store) claim(name string) (release func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.busy[name] {
		return nil, ErrBusy
	}
	s.busy[name] = true
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.busy, name)
	}, nil
}

// room checks that n more bytes fit without using the reserve.
func (s *Store) room(n int64) error {
	var st syscall.Statfs_t
	if err := syscall.Statfs(s.dir, &st); err != nil {
		return fmt.Errorf("free space of %s: %w", s.dir, err)
	}
	free := st.Bavail * uint64(st.Bsize)
	if free < s.Reserve || free-s.Reserve < uint64(n) {
		return fmt.Errorf("%w: %s more are needed, %s are free at %s and %s of these are kept free; remove images or make room",
			ErrFull, humanize.IBytes(uint64(n)), humanize.IBytes(free), s.dir, humanize.IBytes(s.Reserve))
	}
	return nil
}

// full converts the system's "no space" errors to ErrFull.
func full(err error) error {
	if durable.IsFull(err) {
		return fmt.Errorf("%w: %w", ErrFull, err)
	}
	return err
}

func verify(path, sum string) error {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("verify blob %s: %w", sum, err)
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return fmt.Errorf("verify blob %s: %w", sum, err)
	}
	if got := hex.EncodeToString(h.Sum(nil)); got != sum {
		return fmt.Errorf("blob %s: %w (it has %s)", sum, ErrAltered, got)
	}
	return nil
}

// Check verifies the size and content of a complete blob, and protects it from the next garbage collections. It deletes
// a damaged blob, so that it can be put again. It returns ErrNotFound or ErrAltered.
func (s *Store) Check(sum string, size int64) error {
	if !s.touch(sum) {
		return fmt.Errorf("blob %s: %w", sum, ErrNotFound)
	}
	info, err := os.Stat(s.Path(sum))
	if err != nil {
		return fmt.Errorf("blob %s: %w", sum, ErrNotFound)
	}
	err = verify(s.Path(sum), sum)
	if err == nil && info.Size() != size {
		return fmt.Errorf("blob %s has %d bytes, not %d", sum, info.Size(), size)
	}
	if errors.Is(err, ErrAltered) {
		os.Remove(s.Path(sum))
	}
	return err
}

func (s *Store) touch(sum string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	return os.Chtimes(s.Path(sum), now, now) == nil
}

// Collect removes complete blobs that are not in use, and unfinished uploads. It removes only files that were last
// written or checked before the given time. It returns the number of bytes freed. inUse is called while no Check can
// begin, so it sees the state that a caller of Check has written.
func (s *Store) Collect(before time.Time, inUse func() map[string]bool) (freed int64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	used := inUse()
	for _, dir := range []string{"sha256", "partial"} {
		entries, readErr := os.ReadDir(filepath.Join(s.dir, dir))
		err = errors.Join(err, readErr)
		for _, e := range entries {
			info, infoErr := e.Info()
			if infoErr != nil || info.ModTime().After(before) || s.busy[e.Name()] || dir == "sha256" && used[e.Name()] {
				continue
			}
			if removeErr := os.Remove(filepath.Join(s.dir, dir, e.Name())); removeErr != nil {
				err = errors.Join(err, removeErr)
				continue
			}
			freed += info.Size()
		}
	}
	for uploader, sizes := range s.pending {
		maps.DeleteFunc(sizes, func(sum string, _ int64) bool {
			return missing(s.Path(sum)) && missing(s.partial(uploader, sum))
		})
		if len(sizes) == 0 {
			delete(s.pending, uploader)
		}
	}
	return freed, err
}

func missing(path string) bool {
	_, err := os.Lstat(path)
	return errors.Is(err, fs.ErrNotExist)
}
