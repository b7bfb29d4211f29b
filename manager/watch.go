package manager

// watch.go - watches the samples of hosts for the policy in force.

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	v1 "watari/api/watariv1"
	"watari/core"
	"watari/manager/store"
	"watari/policy"
)

// watch keeps the signals of hosts.
type watch struct {
	changed chan struct{} // holds a token when signals or the usage have changed
	usage   atomic.Pointer[core.Usage]

	mu      sync.Mutex
	reader  core.PolicyReader
	policy  *policy.Policy // that was in force at the last sample
	watcher *policy.Watcher
}

func newWatch() *watch {
	return &watch{changed: make(chan struct{}, 1), watcher: policy.NewWatcher()}
}

// see takes a sample of a host.
func (w *watch) see(s *store.Snapshot, host string, sample *v1.HostSample, now time.Time) {
	h := s.Hosts[host]
	if h == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.policy = w.reader.Read(s)
	w.watcher.Forget(s.Hosts)
	if !w.watcher.See(w.policy, h, sample, now) {
		return
	}
	w.poke()
}

func (w *watch) poke() {
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

// keepUsage updates the usage as often as decisions use it, until ctx ends. It does nothing while no decision uses it.
func (w *watch) keepUsage(ctx context.Context, snapshot func() *store.Snapshot, made func(*store.Snapshot) *core.Usage) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	var last time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		s := snapshot()
		w.mu.Lock()
		every, is := core.UsageEvery(s, w.reader.Read(s))
		w.mu.Unlock()
		switch {
		case !is:
			w.usage.Store(nil)
		case time.Since(last) >= every:
			last = time.Now()
			w.usage.Store(made(s))
			w.poke()
		}
	}
}

// now returns the present knowledge of hosts, and the policy in force; nil: there is none.
func (w *watch) now(now time.Time) (core.Signals, *policy.Policy) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.watcher.All(now), w.policy
}

// signals returns now's signals.
func (w *watch) signals(now time.Time) core.Signals {
	signals, _ := w.now(now)
	return signals
}
