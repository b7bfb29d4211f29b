// Package cache holds content on a host by its hash: the parts of images, and packed templates. It fetches a blob from
// the manager or from other hosts on first use, and verifies it before use. It resumes an interrupted transfer. Other
// hosts may read a blob while it is being fetched.
package cache

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"

	v1 "watari/api/watariv1"
)

// Files are the paths of an image's parts.
type Files struct{ Kernel, Initrd, Root string }

// Get asks the manager for a path, from an offset of bytes on.
type Get func(ctx context.Context, path string, offset int64) (*http.Response, error)

// Ask requests a blob from another host, from an offset in bytes. ErrAbsent: that host has no byte of it yet.
type Ask func(ctx context.Context, peer *v1.BlobPeer, digest string, offset int64) (io.ReadCloser, error)

// Config configures a cache.
type Config struct {
	Get Get
	Ask Ask // nil: other hosts cannot be asked
	// Bandwidth limits fetching and, separately, sending to other hosts, in bytes per second; 0: no limit.
	Bandwidth uint64
	// Changed is called when the cache's content has changed; may be nil.
	Changed func()
	Log     *slog.Logger
}

// Cache is a host's content. In its folder there is a directory for each image (its digest's hex digits) with the files
// kernel, initrd and root, which are links to files under .blobs, named by their SHA-256.
type Cache struct {
	Config
	dir       string
	log       *slog.Logger
	stall     time.Duration // stallTime
	peerStall time.Duration // peerStallTime
	in, out   *rate.Limiter

	mu        sync.Mutex
	fetching  map[string]*fetching          // by image digest
	checked   map[string]stamp              // blobs verified since the agent started, by path
	seen      map[string]time.Time          // when an image was last wanted or used, by hex digest
	held      []string                      // digests of whole images
	busy      map[string]*sync.Mutex        // one transfer of a blob at a time, by hex digest
	whole     map[string]bool               // blobs that are whole, by hex digest
	growing   map[string]*growth            // blobs that are being fetched, by hex digest
	sources   map[string]map[string]*source // earlier results of hosts, by hex digest and host's name
	sharing   bool                          // the manager decides which host fetches from which
	shares    map[string]*v1.BlobShare      // the manager's orders, by hex digest
	reordered chan struct{}                 // closed when the orders are replaced
	rate      uint64                        // speed of the last transfer from the manager, bytes per second
}

// stamp shows, without reading a file, whether it has changed.
type stamp struct {
	size  int64
	mtime time.Time
	inode uint64
}

type fetching struct {
	done  chan struct{}
	files Files
	err   error

	mu   sync.Mutex
	step string
	stop context.CancelFunc
	wait int // callers
}

// grace is how long the cache keeps an unused image.
const grace = 10 * time.Minute

// New opens a cache in dir.
func New(dir string, config Config) (*Cache, error) {
	c := &Cache{Config: config, dir: dir, log: config.Log, stall: stallTime, peerStall: peerStallTime,
		in: limiter(config.Bandwidth), out: limiter(config.Bandwidth), fetching: map[string]*fetching{},
		checked: map[string]stamp{}, seen: map[string]time.Time{}, busy: map[string]*sync.Mutex{}, growing: map[string]*growth{},
		sources: map[string]map[string]*source{}, reordered: make(chan struct{})}
	if c.log == nil {
		c.log = slog.Default()
	}
	if err := os.MkdirAll(c.blobDir(), 0o755); err != nil {
		return nil, fmt.Errorf("open the image cache: %w", err)
	}
	c.held, c.whole = c.findHeld(), c.findWhole()
	return c, nil
}

func (c *Cache) blobDir() string { return filepath.Join(c.dir, ".blobs") }

// Ensure fetches the missing parts of an image and returns the paths of all parts. Concurrent callers for the same
// image share one transfer, which ends when the last caller has given up. Ensure calls step with what it is doing.
func (c *Cache) Ensure(ctx context.Context, image *v1.Image, step func(string)) (Files, error) {
	name, err := hexDigest(image.GetDigest())
	if err != nil {
		return Files{}, fmt.Errorf("image: %w", err)
	}
	c.mu.Lock()
	c.seen[name] = time.Now()
	f := c.fetching[name]
	if f == nil || f.wait == 0 { // a transfer without a caller is being cancelled
		fetchCtx, stop := context.WithCancel(context.WithoutCancel(ctx))
		f = &fetching{done: make(chan struct{}), stop: stop}
		c.fetching[name] = f
		go c.fetchShared(fetchCtx, name, image, f)
	}
	f.wait++
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if f.wait--; f.wait == 0 {
			f.stop()
		}
	}()
	tick := time.NewTicker(250 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-f.done:
			return f.files, f.err
		case <-ctx.Done():
			return Files{}, ctx.Err()
		case <-tick.C:
			f.mu.Lock()
			doing := f.step
			f.mu.Unlock()
			step(doing) // without f.mu: the caller may take a lock of its own
		}
	}
}

func (c *Cache) fetchShared(ctx context.Context, name string, image *v1.Image, f *fetching) {
	f.files, f.err = c.fetch(ctx, name, image, f)
	c.mu.Lock()
	if c.fetching[name] == f {
		delete(c.fetching, name)
	}
	c.held = c.findHeld()
	c.mu.Unlock()
	close(f.done)
}

func (c *Cache) fetch(ctx context.Context, name string, image *v1.Image, f *fetching) (Files, error) {
	dir := filepath.Join(c.dir, name)
	files := Files{filepath.Join(dir, "kernel"), filepath.Join(dir, "initrd"), filepath.Join(dir, "root")}
	parts := []struct {
		path string
		blob *v1.Blob
	}{{files.Kernel, image.Kernel}, {files.Initrd, image.Initrd}, {files.Root, image.Root}}
	var total, before uint64
	for _, p := range parts {
		total += p.blob.GetSize()
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return files, fmt.Errorf("image %s: %w", shortName(image), err)
	}
	for _, p := range parts {
		tell := func(have uint64, from string) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.step = fmt.Sprintf("fetching image %d %% from %s", (before+have)*100/max(total, 1), from)
		}
		if err := c.ensureBlob(ctx, p.path, p.blob, false, tell); err != nil {
			return files, fmt.Errorf("image %s, %s: %w", shortName(image), filepath.Base(p.path), err)
		}
		before += p.blob.GetSize()
	}
	return files, nil
}

// shortName returns a short name for messages: the manager sends hosts no names of images.
func shortName(image *v1.Image) string {
	if name := image.GetMeta().GetName(); name != "" {
		return name
	}
	return image.Digest[:min(len(image.Digest), 19)]
}

// lock locks a blob, which several images may share.
func (c *Cache) lock(sum string) (unlock func()) {
	c.mu.Lock()
	turn := c.busy[sum]
	if turn == nil {
		turn = new(sync.Mutex)
		c.busy[sum] = turn
	}
	c.mu.Unlock()
	turn.Lock()
	return turn.Unlock
}

func (c *Cache) blobPath(sum string) string { return filepath.Join(c.blobDir(), sum) }

// verify checks the content of a file. Its size and times are not enough: libvirt may make QEMU's user the owner of files
// that it opens. A guest that has escaped from its QEMU could then change what others boot, and set the times back.
func verify(path, sum string, size uint64) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if info.Size() != int64(size) {
		return fmt.Errorf("it has %d bytes instead of %d", info.Size(), size)
	}
	got, err := hashFile(path)
	if err != nil {
		return err
	}
	if got != sum {
		return errors.New("its content was altered (SHA-256 differs)")
	}
	return nil
}

// verifyOnce verifies a blob for other hosts, which verify it themselves. It hashes the blob once in an agent's life; later
// calls only check that the file is unchanged.
func (c *Cache) verifyOnce(path, sum string, size uint64) error {
	now, err := stampOf(path)
	if err != nil {
		return err
	}
	c.mu.Lock()
	was, checked := c.checked[path]
	c.mu.Unlock()
	if checked && was == now {
		return nil
	}
	if err := verify(path, sum, size); err != nil {
		return err
	}
	c.mu.Lock()
	c.checked[path] = now
	c.mu.Unlock()
	return nil
}

// trust marks a blob's present file as verified.
func (c *Cache) trust(path string) {
	if now, err := stampOf(path); err == nil {
		c.mu.Lock()
		c.checked[path] = now
		c.mu.Unlock()
	}
}

// Held returns the digests of the complete images.
func (c *Cache) Held() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.held
}

func (c *Cache) findHeld() []string {
	entries, _ := os.ReadDir(c.dir)
	var held []string
	for _, entry := range entries {
		if !entry.IsDir() || strings.HasPrefix(entry.Name(), ".") {
			continue
		}
		whole := true
		for _, part := range []string{"kernel", "initrd", "root"} {
			_, err := os.Stat(filepath.Join(c.dir, entry.Name(), part))
			whole = whole && err == nil
		}
		if whole {
			held = append(held, "sha256:"+entry.Name())
		}
	}
	slices.Sort(held)
	return held
}

// Prune removes images, and their parts, that have been unused for a while.
func (c *Cache) Prune(inUse func(digest string) bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	entries, _ := os.ReadDir(c.dir)
	for _, entry := range entries {
		name := entry.Name()
		if !entry.IsDir() || strings.HasPrefix(name, ".") {
			continue
		}
		last, known := c.seen[name]
		if !known || inUse("sha256:"+name) || c.fetching[name] != nil {
			c.seen[name] = time.Now()
			continue
		}
		if time.Since(last) > grace {
			os.RemoveAll(filepath.Join(c.dir, name))
			c.log.Info("image removed from the cache", "digest", "sha256:"+name)
		}
	}
	c.held = c.findHeld()
	if len(c.fetching) > 0 || len(c.growing) > 0 {
		return
	}
	blobs, _ := os.ReadDir(c.blobDir())
	for _, blob := range blobs {
		path := filepath.Join(c.blobDir(), blob.Name())
		if info, err := blob.Info(); err == nil && links(info) == 1 && time.Since(info.ModTime()) > grace {
			os.Remove(path)
			delete(c.checked, path)
			delete(c.whole, blob.Name())
			delete(c.sources, blob.Name())
		}
	}
}
