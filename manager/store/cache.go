package store

// cache.go - the snapshot: all objects in memory. The watch replaces it after each write; it never changes.

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"sync"
	"time"

	"watari/core"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// Snapshot is all objects at one revision. It is shared and never changes.
type Snapshot = core.Objects

// HoldName is the name of the only Hold.
const HoldName = core.HoldName

type subscriber struct {
	ch  chan struct{}
	ctx context.Context // nil: lives as long as the store
}

type cache struct {
	mu      sync.Mutex
	snap    *Snapshot
	moved   chan struct{} // closed and replaced whenever snap is replaced
	subs    []subscriber
	history history
}

func newCache(maxEvents int) *cache {
	return &cache{snap: core.NoObjects(), moved: make(chan struct{}), history: newHistory(maxEvents)}
}

func (c *cache) current() *Snapshot {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.snap
}

func (c *cache) subscribe(ctx context.Context) <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	sub := subscriber{make(chan struct{}, 1), ctx}
	c.subs = append(c.subs, sub)
	return sub.ch
}

// wait returns when the snapshot is at revision rev or later.
func (c *cache) wait(ctx context.Context, rev int64) error {
	for {
		c.mu.Lock()
		at, moved := c.snap.Revision, c.moved
		c.mu.Unlock()
		if at >= rev {
			return nil
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return fmt.Errorf("wait for the snapshot to show a write: %w", ctx.Err())
		}
	}
}

// replace makes snap the current snapshot and wakes all subscribers. c.mu is held.
func (c *cache) replace(snap *Snapshot) {
	c.snap = snap
	close(c.moved)
	c.moved = make(chan struct{})
	kept := c.subs[:0]
	for _, sub := range c.subs {
		if sub.ctx != nil && sub.ctx.Err() != nil {
			continue
		}
		kept = append(kept, sub)
		select {
		case sub.ch <- struct{}{}:
		default: // the channel already has a token
		}
	}
	clear(c.subs[len(kept):])
	c.subs = kept
}

// builder makes the next snapshot; maps are copied when they are first written.
type builder struct {
	next   Snapshot
	copied map[string]bool
}

func newBuilder(from *Snapshot) *builder { return &builder{*from, map[string]bool{}} }

func put[T Object](b *builder, k Kind[T], m *map[string]T, name string, kv *mvccpb.KeyValue) error {
	if !b.copied[k.dir] {
		*m = maps.Clone(*m)
		b.copied[k.dir] = true
	}
	if kv == nil {
		delete(*m, name)
		return nil
	}
	o, err := k.decode(kv.Value, kv.ModRevision)
	if err != nil {
		return err
	}
	(*m)[name] = o
	return nil
}

// apply applies one key's new value (nil: the key was deleted).
func (b *builder) apply(key string, kv *mvccpb.KeyValue) error {
	dir, name := root, strings.TrimPrefix(key, root)
	if i := strings.IndexByte(name, '/'); i >= 0 {
		dir, name = root+name[:i+1], name[i+1:]
	}
	switch dir {
	case Hosts.dir:
		return put(b, Hosts, &b.next.Hosts, name, kv)
	case Images.dir:
		return put(b, Images, &b.next.Images, name, kv)
	case Clusters.dir:
		return put(b, Clusters, &b.next.Clusters, name, kv)
	case Guests.dir:
		return put(b, Guests, &b.next.Guests, name, kv)
	case Migrations.dir:
		return put(b, Migrations, &b.next.Migrations, name, kv)
	case Runs.dir:
		return put(b, Runs, &b.next.Runs, name, kv)
	case Users.dir:
		return put(b, Users, &b.next.Users, name, kv)
	case Tokens.dir:
		return put(b, Tokens, &b.next.Tokens, name, kv)
	case Removed.dir:
		return put(b, Removed, &b.next.Removed, name, kv)
	case Checkpoints.dir:
		return put(b, Checkpoints, &b.next.Checkpoints, name, kv)
	case Volumes.dir:
		return put(b, Volumes, &b.next.Volumes, name, kv)
	case Storages.dir:
		return put(b, Storages, &b.next.Storages, name, kv)
	case Sites.dir:
		return put(b, Sites, &b.next.Sites, name, kv)
	case Policies.dir:
		return put(b, Policies, &b.next.Policies, name, kv)
	case Holds.dir:
		return put(b, Holds, &b.next.Holds, name, kv)
	case Revocations.dir:
		return put(b, Revocations, &b.next.Revocations, name, kv)
	case termsDir:
		return applyTerm(b, name, kv)
	}
	if key == termKey && kv != nil {
		return decodeTerm(kv.Value, &b.next)
	}
	return nil
}

// load reads all objects and returns their revision.
func (s *Store) load(ctx context.Context) (int64, error) {
	resp, err := s.client.Get(ctx, root, clientv3.WithPrefix())
	if err != nil {
		return 0, err
	}
	c := s.cache
	b := newBuilder(core.NoObjects())
	events := newHistory(s.cfg.MaxEvents)
	for _, kv := range resp.Kvs {
		if strings.HasPrefix(string(kv.Key), eventsDir) {
			events.add(kv)
		} else {
			b.note(string(kv.Key), b.apply(string(kv.Key), kv))
		}
	}
	events.sort()
	b.next.Revision = resp.Header.Revision
	c.mu.Lock()
	defer c.mu.Unlock()
	c.history = events
	c.replace(&b.next)
	return resp.Header.Revision, nil
}

// watch follows all changes after revision rev until ctx ends. If the watch breaks, because etcd was away or has
// compacted later revisions, it begins again with a full read.
func (s *Store) watch(ctx context.Context, rev int64) {
	for ctx.Err() == nil {
		err := s.follow(ctx, rev)
		if ctx.Err() != nil {
			return
		}
		s.log.Warn("watching etcd broke off; reading everything anew", "error", err)
		for ctx.Err() == nil {
			if rev, err = s.load(ctx); err == nil {
				break
			}
			select {
			case <-time.After(time.Second):
			case <-ctx.Done():
			}
		}
	}
}

func (s *Store) follow(ctx context.Context, rev int64) error {
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	defer cancel()
	for resp := range s.client.Watch(ctx, root, clientv3.WithPrefix(), clientv3.WithRev(rev+1)) {
		if err := resp.Err(); err != nil {
			return err
		}
		if len(resp.Events) > 0 {
			s.take(resp)
		}
	}
	return fmt.Errorf("the watch ended")
}

// take applies one watch response to the snapshot.
func (s *Store) take(resp clientv3.WatchResponse) {
	c := s.cache
	c.mu.Lock()
	defer c.mu.Unlock()
	b := newBuilder(c.snap)
	for _, ev := range resp.Events {
		key, kv := string(ev.Kv.Key), ev.Kv
		if ev.Type == mvccpb.DELETE {
			kv = nil
		}
		if strings.HasPrefix(key, eventsDir) {
			if kv != nil {
				c.history.add(kv)
			}
		} else {
			b.note(key, b.apply(key, kv))
		}
		b.next.Revision = ev.Kv.ModRevision
	}
	c.replace(&b.next)
}
