// Package cache holds images on a host by their content: parts are fetched from the manager when they are first
// needed, taken up where a transfer was cut off, and verified before anything uses them.
package cache

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
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

	v1 "watari/api/watariv1"
	"watari/internal/durable"
)

// Files are the paths of an image's parts.
type Files struct{ Kernel, Initrd, Root string }

// Get asks the manager for a path, from an offset of bytes on.
type Get func(ctx context.Context, path string, offset int64) (*http.Response, error)

// Cache is a host's images. In Dir there is a directory for each image (its digest's hex digits) with the files
// kernel, initrd and root, which are links to files under .blobs, named by their SHA-256.
type Cache struct {
	dir   string
	get   Get
	log   *slog.Logger
	stall time.Duration // stallTime

	mu       sync.Mutex
	fetching map[string]*fetching   // by image digest
	checked  map[string]stamp       // parts verified in this agent's life, by path
	seen     map[string]time.Time   // when an image was last wanted or used, by hex digest
	held     []string               // digests of whole images
	busy     map[string]*sync.Mutex // one transfer of a blob at a time, by hex digest
}

// stamp tells cheaply whether a file was touched.
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

// grace is how long an image that nobody wants is kept.
const grace = 10 * time.Minute

// stallTime is after how long without a byte a transfer is given up. It is taken up again where it ended, from whoever
// leads then: the manager that it came from may hang, and keep its connections.
const stallTime = time.Minute

var errStalled = errors.New("nothing came for too long")

// New opens a cache in dir.
func New(dir string, get Get, log *slog.Logger) (*Cache, error) {
	if log == nil {
		log = slog.Default()
	}
	c := &Cache{dir: dir, get: get, log: log, stall: stallTime, fetching: map[string]*fetching{}, checked: map[string]stamp{}, seen: map[string]time.Time{},
		busy: map[string]*sync.Mutex{}}
	if err := os.MkdirAll(c.blobDir(), 0o755); err != nil {
		return nil, fmt.Errorf("open the image cache: %w", err)
	}
	c.held = c.findHeld()
	return c, nil
}

func (c *Cache) blobDir() string { return filepath.Join(c.dir, ".blobs") }

// Ensure makes an image whole here and returns its parts. Callers that ask for the same image share one
// transfer, which ends when the last of them has given up. step is told what is being done.
func (c *Cache) Ensure(ctx context.Context, image *v1.Image, step func(string)) (Files, error) {
	name, err := hexDigest(image.GetDigest())
	if err != nil {
		return Files{}, fmt.Errorf("image: %w", err)
	}
	c.mu.Lock()
	c.seen[name] = time.Now()
	f := c.fetching[name]
	if f == nil || f.wait == 0 { // one that nobody waits for is being given up
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
			step(f.step)
			f.mu.Unlock()
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
		tell := func(have uint64) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.step = fmt.Sprintf("fetching image %d %%", (before+have)*100/max(total, 1))
		}
		if err := c.ensurePart(ctx, p.path, p.blob, tell); err != nil {
			return files, fmt.Errorf("image %s, %s: %w", shortName(image), filepath.Base(p.path), err)
		}
		before += p.blob.GetSize()
	}
	return files, nil
}

// shortName is for people; the manager sends hosts no names of images.
func shortName(image *v1.Image) string {
	if name := image.GetMeta().GetName(); name != "" {
		return name
	}
	return image.Digest[:min(len(image.Digest), 19)]
}

// ensurePart makes one part whole.
func (c *Cache) ensurePart(ctx context.Context, path string, blob *v1.Blob, tell func(uint64)) error {
	sum, err := hexDigest(blob.GetDigest())
	if err != nil {
		return err
	}
	defer c.lock(sum)()
	switch err := c.verify(path, sum, blob.Size); {
	case err == nil:
		return nil
	case !errors.Is(err, os.ErrNotExist):
		c.log.Warn("a part of an image is fetched anew", "path", path, "reason", err)
		os.Remove(path)
		os.Remove(c.blobPath(sum))
	}
	if err := c.verify(c.blobPath(sum), sum, blob.Size); err != nil {
		if !errors.Is(err, os.ErrNotExist) {
			os.Remove(c.blobPath(sum))
		}
		if err := c.download(ctx, sum, blob, tell); err != nil {
			return err
		}
	}
	os.Remove(path)
	if err := os.Link(c.blobPath(sum), path); err != nil {
		return err
	}
	if err := durable.SyncDir(filepath.Dir(path)); err != nil {
		return err
	}
	c.trust(path)
	return nil
}

// lock takes turns on a blob, which several images may share.
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

// verify checks a part: whole once in an agent's life, and that it was not touched since at each use.
func (c *Cache) verify(path, sum string, size uint64) error {
	now, err := stampOf(path)
	if err != nil {
		return err
	}
	if now.size != int64(size) {
		return fmt.Errorf("it has %d bytes instead of %d", now.size, size)
	}
	c.mu.Lock()
	was, checked := c.checked[path]
	c.mu.Unlock()
	if checked && was == now {
		return nil
	}
	got, err := hashFile(path)
	if err != nil {
		return err
	}
	if got != sum {
		return errors.New("its content was altered (SHA-256 differs)")
	}
	c.mu.Lock()
	c.checked[path] = now
	c.mu.Unlock()
	return nil
}

// trust notes that a part was verified as it is now.
func (c *Cache) trust(path string) {
	if now, err := stampOf(path); err == nil {
		c.mu.Lock()
		c.checked[path] = now
		c.mu.Unlock()
	}
}

// download fetches a blob, going on where an earlier transfer ended.
func (c *Cache) download(ctx context.Context, sum string, blob *v1.Blob, tell func(uint64)) error {
	partial := c.blobPath(sum) + ".partial"
	f, err := os.OpenFile(partial, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	defer f.Close()
	hash := sha256.New()
	have, err := io.Copy(hash, f)
	if err != nil {
		return err
	}
	if have > int64(blob.Size) {
		have = 0
		hash.Reset()
		if err := errors.Join(f.Truncate(0), rewind(f)); err != nil {
			return err
		}
	}
	if have < int64(blob.Size) {
		if err := c.transfer(ctx, f, hash, blob, have, tell); err != nil {
			return err
		}
	}
	if got := hex.EncodeToString(hash.Sum(nil)); got != sum {
		os.Remove(partial)
		return fmt.Errorf("what the manager sent is altered: its SHA-256 is %s instead of %s", got, sum)
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if err := os.Rename(partial, c.blobPath(sum)); err != nil {
		return err
	}
	c.trust(c.blobPath(sum))
	return durable.SyncDir(c.blobDir())
}

func rewind(f *os.File) error {
	_, err := f.Seek(0, io.SeekStart)
	return err
}

func (c *Cache) transfer(ctx context.Context, f *os.File, hash io.Writer, blob *v1.Blob, have int64, tell func(uint64)) error {
	tell(uint64(have))
	ctx, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	stalled := time.AfterFunc(c.stall, func() { giveUp(errStalled) })
	defer stalled.Stop()
	response, err := c.get(ctx, "/blobs/"+blob.Digest, have)
	if err != nil {
		return fmt.Errorf("fetch it from the manager: %w", cmp.Or(context.Cause(ctx), err))
	}
	defer response.Body.Close()
	switch {
	case response.StatusCode == http.StatusOK && have == 0, response.StatusCode == http.StatusPartialContent:
	default:
		text, _ := io.ReadAll(io.LimitReader(response.Body, 512))
		return fmt.Errorf("fetch it from the manager: %s: %s", response.Status, strings.TrimSpace(string(text)))
	}
	at := uint64(have)
	report := writerFunc(func(b []byte) (int, error) {
		stalled.Reset(c.stall)
		at += uint64(len(b))
		tell(at)
		return len(b), nil
	})
	body := io.LimitReader(response.Body, int64(blob.Size)-have+1)
	n, err := io.CopyBuffer(io.MultiWriter(f, hash, report), body, make([]byte, 256<<10))
	if err != nil {
		return fmt.Errorf("fetch it from the manager, %d of %d bytes: %w", have+n, blob.Size, cmp.Or(context.Cause(ctx), err))
	}
	if have+n != int64(blob.Size) {
		os.Truncate(f.Name(), min(have+n, int64(blob.Size)))
		return fmt.Errorf("the manager sent %d bytes instead of %d", have+n, blob.Size)
	}
	return nil
}

type writerFunc func([]byte) (int, error)

// Write calls the function.
func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

// Held are the digests of the images that are whole here.
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

// Keep removes images, and parts of such, that nobody has wanted for a while.
func (c *Cache) Keep(inUse func(digest string) bool) {
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
	if len(c.fetching) > 0 {
		return
	}
	blobs, _ := os.ReadDir(c.blobDir())
	for _, blob := range blobs {
		path := filepath.Join(c.blobDir(), blob.Name())
		if info, err := blob.Info(); err == nil && links(info) == 1 && time.Since(info.ModTime()) > grace {
			os.Remove(path)
			delete(c.checked, path)
		}
	}
}
