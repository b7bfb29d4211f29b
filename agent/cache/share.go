package cache

// share.go - the manager's orders about sharing, the earlier results of other hosts, and this host's report.

import (
	"context"
	"maps"
	"os"
	"slices"
	"time"

	"golang.org/x/time/rate"

	v1 "watari/api/watariv1"
	"watari/sharing"
)

// limiter returns a limiter of bytes per second; nil: no limit.
func limiter(bytes uint64) *rate.Limiter {
	if bytes == 0 {
		return nil
	}
	return rate.NewLimiter(rate.Limit(bytes), chunk)
}

// wait waits until the limit permits n more bytes. n is at most a chunk.
func wait(ctx context.Context, limit *rate.Limiter, n int) error {
	if limit == nil {
		return nil
	}
	return limit.WaitN(ctx, n)
}

// Share replaces the manager's orders about which host fetches a blob from which hosts. sharing: the manager gives such
// orders.
func (c *Cache) Share(sharing bool, shares []*v1.BlobShare) {
	byDigest := map[string]*v1.BlobShare{}
	for _, share := range shares {
		if sum, err := hexDigest(share.Digest); err == nil {
			byDigest[sum] = share
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sharing, c.shares = sharing, byDigest
	close(c.reordered)
	c.reordered = make(chan struct{})
}

// plan returns the manager's orders about a blob, and a channel that is closed when they are replaced.
func (c *Cache) plan(sum string, hostsOnly bool) (sharing.Plan, map[string]*v1.BlobPeer, <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	share := c.shares[sum]
	p := sharing.Plan{Told: c.sharing && share != nil && c.Ask != nil, Manager: share.GetFromManager(), HostsOnly: hostsOnly}
	peers := map[string]*v1.BlobPeer{}
	for _, peer := range share.GetSources() {
		p.Sources = append(p.Sources, peer.Name)
		peers[peer.Name] = peer
	}
	return p, peers, c.reordered
}

// whenMoved calls act when new orders make another host of the site fetch a blob from outside, and this host fetch it
// from that host.
func (c *Cache) whenMoved(ctx context.Context, sum string, act func()) {
	for {
		c.mu.Lock()
		share, reordered := c.shares[sum], c.reordered
		moved := c.sharing && share != nil && !share.FromManager && len(share.Sources) > 0
		c.mu.Unlock()
		if moved {
			act()
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-reordered:
		}
	}
}

// remember changes the stored results of a host for one blob.
func (c *Cache) remember(sum, host string, change func(*source)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.sources[sum] == nil {
		c.sources[sum] = map[string]*source{}
	}
	if c.sources[sum][host] == nil {
		c.sources[sum][host] = &source{}
	}
	change(c.sources[sum][host])
}

// blame stores that hosts sent damaged content.
func (c *Cache) blame(sum string, hosts map[string]bool) {
	for host := range hosts {
		c.remember(sum, host, func(s *source) { s.damaged = time.Now().Add(blameTime) })
	}
}

// seenOf returns the stored results of hosts for one blob.
func (c *Cache) seenOf(sum string) map[string]sharing.Source {
	c.mu.Lock()
	defer c.mu.Unlock()
	now, seen := time.Now(), map[string]sharing.Source{}
	for host, s := range c.sources[sum] {
		seen[host] = sharing.Source{Damaged: now.Before(s.damaged), Absent: s.absent, Wait: s.again.Sub(now)}
	}
	return seen
}

// measured stores the speed of a transfer from the manager. It ignores small transfers, which measure delay rather than
// bandwidth.
func (c *Cache) measured(bytes int64, took time.Duration) {
	if bytes < 4<<20 || took <= 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.rate = uint64(float64(bytes) / took.Seconds())
}

// Rate returns the speed of the last transfer from the manager, bytes per second; 0: not known.
func (c *Cache) Rate() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.rate
}

// Blobs returns the complete blobs and those being fetched.
func (c *Cache) Blobs() []*v1.BlobObserved {
	c.mu.Lock()
	defer c.mu.Unlock()
	var blobs []*v1.BlobObserved
	for _, sum := range slices.Sorted(maps.Keys(c.whole)) {
		blobs = append(blobs, &v1.BlobObserved{Digest: "sha256:" + sum, Whole: true})
	}
	for _, sum := range slices.Sorted(maps.Keys(c.growing)) {
		g := c.growing[sum]
		blobs = append(blobs, &v1.BlobObserved{Digest: "sha256:" + sum, HaveBytes: uint64(g.have.Load()), FromOutside: g.outside})
	}
	return blobs
}

// findWhole lists the complete blobs by their names alone. Damage since they were written is detected before a blob is used
// or sent.
func (c *Cache) findWhole() map[string]bool {
	whole := map[string]bool{}
	entries, _ := os.ReadDir(c.blobDir())
	for _, entry := range entries {
		if _, err := hexDigest("sha256:" + entry.Name()); err == nil {
			whole[entry.Name()] = true
		}
	}
	return whole
}

func (c *Cache) changed() {
	if c.Changed != nil {
		c.Changed()
	}
}

func keys(set map[string]bool) []string { return slices.Sorted(maps.Keys(set)) }
