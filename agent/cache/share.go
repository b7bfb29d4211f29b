package cache

// share.go - what the manager says about who fetches from whom, what is remembered of other hosts, and what this host
// reports.

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

// limiter bounds bytes per second; nil: no limit.
func limiter(bytes uint64) *rate.Limiter {
	if bytes == 0 {
		return nil
	}
	return rate.NewLimiter(rate.Limit(bytes), chunk)
}

// wait waits until n more bytes, a chunk at most, are within the limit.
func wait(ctx context.Context, limit *rate.Limiter, n int) error {
	if limit == nil {
		return nil
	}
	return limit.WaitN(ctx, n)
}

// Share replaces what the manager said about who fetches from whom. sharing is false where it says nothing about that.
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
	close(c.told)
	c.told = make(chan struct{})
}

// plan is what the manager says about a blob, and a channel that is closed when it says something new.
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
	return p, peers, c.told
}

// whenMoved calls act once another host of the site is to fetch a blob from outside, and this one from it.
func (c *Cache) whenMoved(ctx context.Context, sum string, act func()) {
	for {
		c.mu.Lock()
		share, told := c.shares[sum], c.told
		moved := c.sharing && share != nil && !share.FromManager && len(share.Sources) > 0
		c.mu.Unlock()
		if moved {
			act()
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-told:
		}
	}
}

// remember changes what is known of a host, for one blob.
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

// blame remembers that hosts sent damaged content.
func (c *Cache) blame(sum string, hosts map[string]bool) {
	for host := range hosts {
		c.remember(sum, host, func(s *source) { s.damaged = time.Now().Add(blameTime) })
	}
}

// seenOf is what is known of hosts for one blob.
func (c *Cache) seenOf(sum string) map[string]sharing.Source {
	c.mu.Lock()
	defer c.mu.Unlock()
	now, seen := time.Now(), map[string]sharing.Source{}
	for host, s := range c.sources[sum] {
		seen[host] = sharing.Source{Damaged: now.Before(s.damaged), Absent: s.absent, Wait: s.again.Sub(now)}
	}
	return seen
}

// measured notes how fast a blob came from the manager. Small ones tell of delay rather than of bandwidth.
func (c *Cache) measured(bytes int64, took time.Duration) {
	if bytes < 4<<20 || took <= 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.rate = uint64(float64(bytes) / took.Seconds())
}

// Rate is how fast a blob came from the manager last, bytes per second; 0: not known.
func (c *Cache) Rate() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.rate
}

// Blobs are those that are whole here, and those that are being fetched.
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

// findWhole lists the blobs that are whole. One that was damaged since is found out before it is used or passed on.
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
