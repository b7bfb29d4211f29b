package manager

// watch.go - watches the samples of hosts for the policy in force, and puts the first policy in force.

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	v1 "watari/api/watariv1"
	"watari/core"
	"watari/manager/store"
	"watari/policy"
)

// watch keeps the signals of hosts.
type watch struct {
	changed chan struct{} // holds a token when signals have changed

	mu      sync.Mutex
	stored  *v1.Policy // the one that policy is read from
	policy  *policy.Policy
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
	if stored := core.InForce(s); stored != w.stored {
		w.stored, w.policy = stored, nil
		if stored != nil {
			w.policy, _ = policy.Parse(stored.Text) // core notes an error
		}
	}
	if !w.watcher.See(w.policy, h, sample, now) {
		return
	}
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

// now returns what is known of hosts now.
func (w *watch) now(now time.Time) core.Signals {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.watcher.All(now)
}

// ensurePolicy puts the default policy in force in an installation that this process has begun. Other installations keep
// what they have, perhaps none.
func (m *Manager) ensurePolicy(ctx context.Context) error {
	if !m.fresh || core.InForce(m.store.Snapshot()) != nil {
		return nil
	}
	err := store.Policies.Create(ctx, m.store, core.NewPolicy(1, policy.Default, "the default", ""))
	if err != nil && !errors.Is(err, store.ErrExists) {
		return fmt.Errorf("put the default policy in force: %w", err)
	}
	m.fresh = false
	return nil
}
