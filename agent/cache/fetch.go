package cache

// fetch.go - fetches a blob from the manager or from other hosts. sharing.NextSource chooses the source.

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	v1 "watari/api/watariv1"
	"watari/internal/durable"
	"watari/sharing"
)

// stallTime is the time without a byte after which a transfer from the manager is cancelled. The download then
// continues from the present leader: the first manager may hang and keep its connections.
const stallTime = time.Minute

// peerStallTime is the time without peerProgress bytes after which a transfer from another host is cancelled. It is
// short because there are several hosts to ask. It counts peerProgress bytes, not one: otherwise a host that sends a
// byte now and then could delay a whole site.
const peerStallTime = 10 * time.Second

// peerProgress is the number of bytes from another host that count as progress.
const peerProgress = 1 << 20

var errStalled = errors.New("nothing came for too long")

// errMoved ends a transfer from the manager because another host of the site now makes it.
var errMoved = errors.New("another host of the site fetches it from the manager")

// ErrAbsent says that a host has no byte of a blob yet.
var ErrAbsent = errors.New("this host has no byte of it yet")

// chunk is the number of bytes per read from a source.
const chunk = 256 << 10

// blameTime is how long the cache does not ask a host again for a blob after the host sent damaged content.
const blameTime = 10 * time.Minute

// source is the earlier results of one host for one blob.
type source struct {
	damaged time.Time // do not ask before this time: the host sent damaged content
	again   time.Time // do not ask before this time
	absent  bool      // the host had no byte of the blob
}

// Fetch fetches a blob that only other hosts have, and links it to path. It calls step with what it is doing.
func (c *Cache) Fetch(ctx context.Context, blob *v1.Blob, path string, step func(string)) error {
	err := c.ensureBlob(ctx, path, blob, true, func(have uint64, from string) {
		step(fmt.Sprintf("%d %% from %s", have*100/max(blob.Size, 1), from))
	})
	if err != nil {
		return fmt.Errorf("fetch %s: %w", blob.Digest, err)
	}
	return nil
}

// ensureBlob fetches one blob if it is missing, and links it to path. hostsOnly: the manager does not have it.
func (c *Cache) ensureBlob(ctx context.Context, path string, blob *v1.Blob, hostsOnly bool, tell func(uint64, string)) error {
	sum, err := hexDigest(blob.GetDigest())
	if err != nil {
		return err
	}
	defer c.lock(sum)()
	switch err := verify(path, sum, blob.Size); {
	case err == nil:
		return nil
	case !errors.Is(err, os.ErrNotExist):
		c.log.Warn("a blob is fetched anew", "path", path, "reason", err)
		os.Remove(path)
		c.drop(sum)
	}
	if err := verify(c.blobPath(sum), sum, blob.Size); err != nil {
		if !errors.Is(err, os.ErrNotExist) {
			c.drop(sum)
		}
		d := &download{cache: c, blob: blob, sum: sum, hostsOnly: hostsOnly, tell: tell, hash: sha256.New()}
		if err := d.run(ctx); err != nil {
			return err
		}
	}
	return c.link(sum, path)
}

// link links a complete blob to path.
func (c *Cache) link(sum, path string) error {
	os.Remove(path)
	if err := os.Link(c.blobPath(sum), path); err != nil {
		return err
	}
	return durable.SyncDir(filepath.Dir(path))
}

// Adopt lets other hosts fetch a file that was made here. The file must not change any more.
func (c *Cache) Adopt(digest, path string) error {
	sum, err := hexDigest(digest)
	if err != nil {
		return err
	}
	defer c.lock(sum)()
	if err := os.Link(path, c.blobPath(sum)); err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("let other hosts fetch %s: %w", path, err)
	}
	c.mu.Lock()
	c.whole[sum] = true
	c.mu.Unlock()
	return nil
}

// Forget removes a blob of which the caller has removed the last file.
func (c *Cache) Forget(digest string) {
	sum, err := hexDigest(digest)
	if err != nil {
		return
	}
	defer c.lock(sum)()
	if info, err := os.Stat(c.blobPath(sum)); err == nil && links(info) == 1 {
		c.drop(sum)
	}
}

// drop removes a blob that is damaged.
func (c *Cache) drop(sum string) {
	os.Remove(c.blobPath(sum))
	c.mu.Lock()
	delete(c.whole, sum)
	c.mu.Unlock()
}

// download is the fetching of one blob.
type download struct {
	cache     *Cache
	blob      *v1.Blob
	sum       string
	hostsOnly bool
	tell      func(have uint64, from string)

	file *os.File // the partial blob
	hash hash.Hash
	have int64
	g    *growth

	resumed      bool            // the partial blob has bytes of an earlier download
	from         map[string]bool // hosts that sent a part of it
	lastProgress time.Time       // when the transfer last made progress
	since        int64           // bytes received since lastProgress
	throttled    time.Duration   // time since lastProgress in which this host's own limit delayed the transfer
}

// run fetches until the blob is complete and verified. It resumes an earlier download.
func (d *download) run(ctx context.Context) error {
	d.lastProgress = time.Now()
	for {
		err := d.once(ctx)
		if !errors.Is(err, errDamaged) {
			return err
		}
		if !d.resumed && len(d.from) == 0 {
			return fmt.Errorf("what the manager sent is altered: %w", err)
		}
		if !d.resumed {
			d.cache.blame(d.sum, d.from)
		}
		d.cache.log.Warn("a blob is fetched from its start again", "digest", d.blob.Digest, "reason", err, "sources", keys(d.from))
	}
}

var errDamaged = errors.New("its content is damaged")

// once fetches the missing bytes and renames the blob to its final path. After errDamaged, the partial blob has been
// removed.
func (d *download) once(ctx context.Context) (err error) {
	c := d.cache
	partial := c.blobPath(d.sum) + ".partial"
	if d.file, err = os.OpenFile(partial, os.O_RDWR|os.O_CREATE, 0o644); err != nil {
		return err
	}
	defer d.file.Close()
	if err := d.takeUp(); err != nil {
		return err
	}
	d.g = c.grow(d.sum, d.have)
	defer func() { c.grown(d.sum, d.g, err) }()
	for d.have < int64(d.blob.Size) {
		if err := d.more(ctx); err != nil {
			return err
		}
	}
	if got := hex.EncodeToString(d.hash.Sum(nil)); got != d.sum {
		os.Remove(partial)
		return fmt.Errorf("%w: its SHA-256 is %s instead of %s", errDamaged, got, d.sum)
	}
	if err := d.file.Sync(); err != nil {
		return err
	}
	if err := os.Rename(partial, c.blobPath(d.sum)); err != nil {
		return err
	}
	c.trust(c.blobPath(d.sum))
	return durable.SyncDir(c.blobDir())
}

// takeUp hashes the bytes of an earlier download.
func (d *download) takeUp() (err error) {
	d.hash.Reset()
	d.from = map[string]bool{}
	if d.have, err = io.Copy(d.hash, d.file); err != nil {
		return err
	}
	if d.have > int64(d.blob.Size) {
		d.have = 0
		d.hash.Reset()
		_, err = d.file.Seek(0, io.SeekStart)
		err = errors.Join(err, d.file.Truncate(0))
	}
	d.resumed = d.have > 0
	return err
}

// more takes one step: it fetches from one source until that source ends, or it waits. Its error ends the download.
func (d *download) more(ctx context.Context) error {
	c := d.cache
	plan, peers, reordered := c.plan(d.sum, d.hostsOnly)
	choice := sharing.NextSource(plan, c.seenOf(d.sum), time.Since(d.lastProgress))
	if choice.Reason != "" {
		c.log.Warn("where a blob is fetched from", "digest", d.blob.Digest, "reason", choice.Reason)
	}
	switch choice.Kind {
	case sharing.FromManager:
		err := d.fromManager(ctx, plan)
		if errors.Is(err, errMoved) {
			return nil
		}
		return err
	case sharing.FromHost:
		err := d.fromHost(ctx, peers[choice.Host])
		var local *localError
		if ctx.Err() != nil || errors.As(err, &local) {
			return cmp.Or(ctx.Err(), err)
		}
		if err != nil && !errors.Is(err, ErrAbsent) {
			c.log.Warn("a host did not pass a blob on", "host", choice.Host, "digest", d.blob.Digest, "have", d.have, "error", err)
		}
		return nil
	case sharing.GiveUp:
		if len(plan.Sources) == 0 {
			return sharing.ErrNoSource
		}
		return errors.New(choice.Reason)
	}
	d.tell(uint64(d.have), "other hosts")
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-reordered:
	case <-time.After(choice.Wait):
	}
	return nil
}

// fromHost fetches from another host until the blob is complete or that host fails. It remembers the failure.
func (d *download) fromHost(ctx context.Context, peer *v1.BlobPeer) error {
	ctx, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	stalled := time.AfterFunc(d.cache.peerStall, func() { giveUp(errStalled) })
	defer stalled.Stop()
	before := d.have
	d.tell(uint64(d.have), "host "+peer.Name)
	body, err := d.cache.Ask(ctx, peer, d.blob.Digest, d.have)
	if err == nil {
		stop := context.AfterFunc(ctx, func() { body.Close() })
		err = d.copy(ctx, body, "host "+peer.Name, peerProgress, func() { stalled.Reset(d.cache.peerStall) })
		stop()
		body.Close()
		if d.have > before {
			d.from[peer.Name] = true
		}
	}
	if err == nil && d.have < int64(d.blob.Size) {
		err = fmt.Errorf("it ended after %d of %d bytes", d.have, d.blob.Size)
	}
	if err == nil {
		return nil
	}
	pause := sharing.FailedPause
	if errors.Is(err, ErrAbsent) || d.have > before {
		pause = sharing.AbsentPause
	}
	d.cache.remember(d.sum, peer.Name, func(s *source) {
		s.again, s.absent = time.Now().Add(pause), errors.Is(err, ErrAbsent)
	})
	if cause := context.Cause(ctx); cause != nil {
		return fmt.Errorf("%w (%w)", cause, err)
	}
	return err
}

// fromManager fetches from the manager. It fails with errMoved when another host of the site takes over the transfer.
func (d *download) fromManager(ctx context.Context, plan sharing.Plan) error {
	c := d.cache
	begun, before := time.Now(), d.have
	d.tell(uint64(d.have), "the manager")
	ctx, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	stalled := time.AfterFunc(c.stall, func() { giveUp(errStalled) })
	defer stalled.Stop()
	c.outside(d.g, true)
	defer c.outside(d.g, false)
	if plan.Manager {
		go c.whenMoved(ctx, d.sum, func() { giveUp(errMoved) })
	}
	response, err := c.Get(ctx, "/blobs/"+d.blob.Digest, d.have)
	if errors.Is(context.Cause(ctx), errMoved) {
		return errMoved
	}
	if err != nil {
		return fmt.Errorf("fetch it from the manager: %w", cmp.Or(context.Cause(ctx), err))
	}
	defer response.Body.Close()
	switch {
	case response.StatusCode == http.StatusOK && d.have == 0, response.StatusCode == http.StatusPartialContent:
	default:
		text, _ := io.ReadAll(io.LimitReader(response.Body, 512))
		return fmt.Errorf("fetch it from the manager: %s: %s", response.Status, strings.TrimSpace(string(text)))
	}
	err = d.copy(ctx, response.Body, "the manager", 1, func() { stalled.Reset(c.stall) })
	if cause := context.Cause(ctx); errors.Is(cause, errMoved) {
		return errMoved
	}
	if err != nil {
		return fmt.Errorf("fetch it from the manager, %d of %d bytes: %w", d.have, d.blob.Size, cmp.Or(context.Cause(ctx), err))
	}
	if d.have < int64(d.blob.Size) {
		return fmt.Errorf("the manager sent %d bytes instead of %d", d.have, d.blob.Size)
	}
	c.measured(d.have-before, time.Since(begun))
	return nil
}

// localError is a failed write on this host. Another source would not help.
type localError struct{ error }

// Unwrap is the file system's error.
func (e *localError) Unwrap() error { return e.error }

// copy appends the source's bytes to the partial blob until the blob is complete or the source ends; the latter is no
// error. It calls progressed after every count bytes, and while this host's own limit delays the transfer.
func (d *download) copy(ctx context.Context, body io.Reader, from string, count int64, progressed func()) error {
	buffer := make([]byte, chunk)
	for d.have < int64(d.blob.Size) {
		n, err := body.Read(buffer[:min(chunk, int64(d.blob.Size)-d.have)])
		if n > 0 {
			if _, err := d.file.WriteAt(buffer[:n], d.have); err != nil {
				return &localError{err}
			}
			d.hash.Write(buffer[:n])
			d.have += int64(n)
			d.g.add(int64(n))
			d.tell(uint64(d.have), from)
			begun := time.Now()
			if err := wait(ctx, d.cache.in, n); err != nil {
				return err
			}
			d.since += int64(n)
			d.throttled += time.Since(begun)
			if d.since >= count || d.throttled > time.Second {
				d.since, d.throttled, d.lastProgress = 0, 0, time.Now()
				progressed()
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}
