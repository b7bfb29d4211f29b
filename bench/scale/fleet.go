package main

// fleet.go - the simulated hosts together, and what the measurements ask of them.

import (
	"context"
	"crypto/tls"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// Simulated durations of what hosts do.
const (
	startTime    = 300 * time.Millisecond // a guest's start, until it runs
	readyTime    = 200 * time.Millisecond // until its guest agent answers
	reserveTime  = 50 * time.Millisecond  // room for an incoming guest
	transferTime = 500 * time.Millisecond // memory of a moving guest
	resumeTime   = 20 * time.Millisecond
	endTime      = 50 * time.Millisecond
	reportEvery  = 5 * time.Second // as watari-agent
)

// fleet is all simulated hosts.
type fleet struct {
	hosts []*host
	names map[string]*host
	ready atomic.Int64 // guests that are ready on any host

	mu      sync.Mutex
	waiting map[string]*arrivals // by cluster
}

// arrivals are the guests of a cluster whose hosts were told to start them.
type arrivals struct {
	missing int
	seen    map[string]bool // by uid
	all     chan time.Time  // gets the time of the last one
}

func newFleet(n int) *fleet {
	f := &fleet{names: map[string]*host{}, waiting: map[string]*arrivals{}}
	for i := range n {
		h := newHost(f, i)
		f.hosts = append(f.hosts, h)
		f.names[h.name] = h
	}
	return f
}

// await returns a channel that gets the time at which the last of a cluster's n guests reached a host as an order.
func (f *fleet) await(cluster string, n int) <-chan time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	a := &arrivals{missing: n, seen: map[string]bool{}, all: make(chan time.Time, 1)}
	f.waiting[cluster] = a
	return a.all
}

// told notes that a host was told to start a guest.
func (f *fleet) told(cluster, uid string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	a := f.waiting[cluster]
	if a == nil || a.seen[uid] {
		return
	}
	a.seen[uid] = true
	if a.missing--; a.missing == 0 {
		a.all <- time.Now()
		delete(f.waiting, cluster)
	}
}

// guests counts those of a cluster that any host has; of all clusters, where that is empty.
func (f *fleet) guests(cluster string) (n int) {
	for _, h := range f.hosts {
		n += h.count(cluster)
	}
	return n
}

// connect joins and dials the hosts, some at once, and keeps them connected until ctx ends.
func (f *fleet) connect(ctx context.Context, url string, join func(ctx context.Context, name string) (*tls.Config, error)) error {
	errs := make(chan error, len(f.hosts))
	slots := make(chan struct{}, 16)
	for _, h := range f.hosts {
		slots <- struct{}{}
		go func() {
			defer func() { <-slots }()
			config, err := join(ctx, h.name)
			if err != nil {
				err = fmt.Errorf("join host %s: %w", h.name, err)
			} else {
				go h.dial(ctx, url, config)
			}
			errs <- err
		}()
	}
	for range f.hosts {
		if err := <-errs; err != nil {
			return err
		}
	}
	return nil
}
