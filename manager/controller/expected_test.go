package controller

import (
	"testing"
	"time"

	v1 "watari/api/watariv1"
	"watari/core"
	"watari/manager/store"
)

// Right after a manager's start, its hosts have not reconnected yet. A cluster may already be created, and waits.
func TestAHostThatIsExpectedBackCountsAsThere(t *testing.T) {
	f := newFixture(t, "a1")
	f.until("a1 is known", func(s *store.Snapshot) bool { return s.Hosts["a1"].GetInfo() != nil })
	spec := &v1.ClusterSpec{Guests: 1, Shape: &v1.GuestShape{Vcpus: 1, MemoryBytes: 512 << 20}}
	for name, c := range map[string]struct {
		away time.Duration // 0: not seen since the manager's start
		led  time.Duration
		want bool
	}{
		"just begun to lead":     {0, time.Second, true},
		"not come back for long": {0, time.Minute, false},
		"lost a moment ago":      {time.Second, time.Hour, true},
		"lost long ago":          {time.Minute, time.Hour, false},
	} {
		f.hosts.with("a1", func(h *fakeHost) {
			h.connected, h.since = false, time.Time{}
			if c.away != 0 {
				h.since = time.Now().Add(-c.away)
			}
		})
		if _, err := core.Feasible(f.store.Snapshot(), f.hosts, spec, "", time.Now(), time.Now().Add(-c.led)); (err == nil) != c.want {
			t.Errorf("%s: %v", name, err)
		}
	}
}
