package main

// fleet.go - all simulated hosts together, and what the measurements need from them.

import (
	"context"
	"crypto/tls"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// Simulated durations of the hosts' work.
const (
	startTime    = 300 * time.Millisecond // from a guest's start until it runs
	readyTime    = 200 * time.Millisecond // from then until its guest agent answers
	reserveTime  = 50 * time.Millisecond  // reserving room for an incoming guest
	transferTime = 500 * time.Millisecond // sending the memory of a moving guest
	resumeTime   = 20 * time.Millisecond
	endTime      = 50 * time.Millisecond
	reportEvery  = 5 * time.Second // like watari-agent
	sampleEvery  = time.Second     // like watari-agent
)

// fleet holds all simulated hosts.
type fleet struct {
	hosts []*host
	names map[string]*host
	ready atomic.Int64 // guests that are ready on any host
	lost  atomic.Int64 // connections that ended unexpectedly

	mu      sync.Mutex
	waiting map[string]*arrivals // by cluster
}

// arrivals records the guests of a cluster whose hosts have an order to start them.
type arrivals struct {
	missing int
	seen    map[string]bool // by uid
	all     chan time.Time  // receives the time of the last one
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

// await returns a channel that receives the time at which the order for the last of a cluster's n guests reached a
// host.
func (f *fleet) await(cluster string, n int) <-chan time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	a := &arrivals{missing: n, seen: map[string]bool{}, all: make(chan time.Time, 1)}
	f.waiting[cluster] = a
	return a.all
}

// told records that a host has an order to start a guest.
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

// guests counts the guests of a cluster on all hosts; if cluster is empty, of all clusters.
func (f *fleet) guests(cluster string) (n int) {
	for _, h := range f.hosts {
		n += h.count(cluster)
	}
	return n
}

// connect makes the hosts join and connect, several at a time, and keeps them connected until ctx ends.
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
