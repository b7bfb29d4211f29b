package cache

// serve.go - sends blobs to other hosts, including blobs that are still being fetched here.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"

	"golang.org/x/time/rate"
)

// ErrRefused says that a host may not fetch a blob here.
var ErrRefused = errors.New("the manager has not said that this host may fetch it here")

// growth is a blob that is being fetched, as its concurrent readers see it.
type growth struct {
	have    atomic.Int64 // bytes on disk, not verified
	outside bool         // under Cache.mu: the source is outside the site

	mu    sync.Mutex
	more  chan struct{} // closed when have has grown or the fetching has ended
	ended bool
}

func (g *growth) add(n int64) {
	g.have.Add(n)
	g.mu.Lock()
	defer g.mu.Unlock()
	close(g.more)
	g.more = make(chan struct{})
}

// wait waits until there are more than n bytes (true) or the fetching has ended.
func (g *growth) wait(ctx context.Context, n int64) (bool, error) {
	for {
		g.mu.Lock()
		more, ended := g.more, g.ended
		g.mu.Unlock()
		if g.have.Load() > n {
			return true, nil
		}
		if ended {
			return false, nil
		}
		select {
		case <-ctx.Done():
			return false, ctx.Err()
		case <-more:
		}
	}
}

// grow registers a blob that is being fetched.
func (c *Cache) grow(sum string, have int64) *growth {
	g := &growth{more: make(chan struct{})}
	g.have.Store(have)
	c.mu.Lock()
	c.growing[sum] = g
	c.mu.Unlock()
	return g
}

// grown registers the end of the fetching; nil: the blob is complete.
func (c *Cache) grown(sum string, g *growth, err error) {
	c.mu.Lock()
	delete(c.growing, sum)
	if err == nil {
		c.whole[sum] = true
	}
	c.mu.Unlock()
	g.mu.Lock()
	g.ended = true
	close(g.more)
	g.more = make(chan struct{})
	g.mu.Unlock()
	c.changed()
}

// outside sets whether a blob's present source is outside the site.
func (c *Cache) outside(g *growth, outside bool) {
	c.mu.Lock()
	g.outside = outside
	c.mu.Unlock()
	c.changed()
}

// Open reads a blob from an offset on for another host. The manager must have permitted that host. A blob that is being
// fetched here is read as it grows; its bytes are not verified yet. Open may fail with ErrAbsent or ErrRefused.
func (c *Cache) Open(ctx context.Context, name, uid, digest string, offset int64) (io.ReadCloser, error) {
	sum, err := hexDigest(digest)
	if err != nil {
		return nil, err
	}
	if !c.mayRead(sum, name, uid) {
		return nil, fmt.Errorf("blob %s, host %s: %w", digest, name, ErrRefused)
	}
	c.mu.Lock()
	g, whole := c.growing[sum], c.whole[sum]
	c.mu.Unlock()
	switch {
	case whole:
		return c.openWhole(ctx, sum, offset)
	case g != nil && g.have.Load() >= offset:
		f, err := os.Open(c.blobPath(sum) + ".partial")
		if errors.Is(err, os.ErrNotExist) {
			return nil, ErrAbsent // the fetching has just failed
		}
		if err != nil {
			return nil, err
		}
		return &reader{ctx: ctx, file: f, at: offset, growth: g, limit: c.out}, nil
	}
	return nil, ErrAbsent
}

func (c *Cache) openWhole(ctx context.Context, sum string, offset int64) (io.ReadCloser, error) {
	info, err := os.Stat(c.blobPath(sum))
	if err == nil {
		err = c.verifyOnce(c.blobPath(sum), sum, uint64(info.Size()))
	}
	if err != nil {
		c.log.Warn("a blob is not passed on", "digest", sum, "reason", err)
		c.mu.Lock()
		delete(c.whole, sum)
		c.mu.Unlock()
		c.changed()
		return nil, ErrAbsent
	}
	f, err := os.Open(c.blobPath(sum))
	if err != nil {
		return nil, err
	}
	return &reader{ctx: ctx, file: f, at: offset, limit: c.out}, nil
}

// mayRead reports whether the manager permitted a host to fetch a blob here.
func (c *Cache) mayRead(sum, name, uid string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.sharing {
		return false
	}
	for _, reader := range c.shares[sum].GetReaders() {
		if reader.Name == name && reader.Uid == uid {
			return true
		}
	}
	return false
}

// reader reads a blob within the bandwidth limit. It reads a growing blob until the fetching ends.
type reader struct {
	ctx    context.Context
	file   *os.File
	at     int64
	growth *growth // nil: the blob is whole
	limit  *rate.Limiter
}

// Read returns io.EOF at the blob's end, and also where the fetching of a growing blob has failed.
func (r *reader) Read(p []byte) (int, error) {
	p = p[:min(len(p), chunk)]
	if r.growth != nil {
		more, err := r.growth.wait(r.ctx, r.at)
		if err != nil {
			return 0, err
		}
		if !more {
			return 0, io.EOF
		}
		p = p[:min(int64(len(p)), r.growth.have.Load()-r.at)]
	}
	n, err := r.file.ReadAt(p, r.at)
	r.at += int64(n)
	if n > 0 {
		return n, wait(r.ctx, r.limit, n)
	}
	return n, err
}

// Close ends the reading.
func (r *reader) Close() error { return r.file.Close() }
