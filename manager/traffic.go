package manager

// traffic.go - keeps which guests exchange messages, for the policy locality and for users. It is in memory only.

import (
	"sync"
	"time"

	v1 "watari/api/watariv1"
	"watari/core"
	"watari/locality"
	"watari/manager/store"
)

// traffic is the present traffic between guests.
type traffic struct {
	mu     sync.Mutex
	matrix locality.Matrix
}

// see takes the traffic from a host's sample, and removes the peers from the sample.
func (t *traffic) see(s *store.Snapshot, host string, sample *v1.HostSample, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	core.Talked(s, host, sample, func(from, to string, bytes uint64) { t.matrix.Add(from, to, bytes, now) })
}

// at returns the traffic at a time.
func (t *traffic) at(now time.Time) core.Traffic {
	return func(uid string) map[string]float64 {
		t.mu.Lock()
		defer t.mu.Unlock()
		return t.matrix.Sent(uid, now)
	}
}

// forget forgets guests that no longer exist, and pairs without traffic.
func (t *traffic) forget(exists func(uid string) bool, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.matrix.Forget(exists, now)
}
