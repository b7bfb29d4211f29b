package core

// strangers.go - finds copies that run without a grant in the store, perhaps because an older copy of the store was
// restored.

import (
	"fmt"

	v1 "watari/api/watariv1"
)

// Stranger is a guest that a host runs without a grant in the store. The manager must not end it: it may be the only
// copy of a guest that was created after the store's backup.
type Stranger struct {
	Host, Name string
	Epoch      uint64
	// LastEpoch is the highest epoch that the store has given to this guest; 0: it does not know the guest.
	LastEpoch uint64
}

// String describes the problem and the next step.
func (s Stranger) String() string {
	known := "which this manager's state does not know"
	if s.LastEpoch > 0 {
		known = fmt.Sprintf("and this manager's state knows none after epoch %d", s.LastEpoch)
	}
	return fmt.Sprintf("host %s runs guest %s at epoch %d, %s; was the state put back from an older copy? The guest is left alone; "+
		"put the newer state back, or end the guest on that host: virsh -c qemu:///system destroy watari-%s", s.Host, s.Name, s.Epoch, known, s.Name)
}

// Strangers returns the strangers that connected hosts report, by guest uid.
func Strangers(s *Objects, r Reports) map[string]Stranger {
	last := make(map[string]uint64, len(s.Guests))
	for _, g := range s.Guests {
		last[g.Meta.Uid] = max(g.LastEpoch, g.Epoch)
	}
	strangers := map[string]Stranger{}
	for _, host := range sortedKeys(s.Hosts) {
		report, _, connected := r.Observed(host)
		if !connected {
			continue
		}
		for _, seen := range report.GetGuests() {
			if epoch, known := last[seen.Uid]; runs(seen) && (!known || seen.Epoch > epoch) {
				strangers[seen.Uid] = Stranger{Host: host, Name: seen.Name, Epoch: seen.Epoch, LastEpoch: epoch}
			}
		}
	}
	return strangers
}

// runs reports whether a copy has run and may have results that no other copy has. A copy with epoch 0 has no record on
// its host, so it is a leftover. No agent reports an epoch that no guest can have.
func runs(g *v1.GuestObserved) bool {
	if g.Epoch == 0 || g.Epoch >= maxEpoch {
		return false
	}
	switch g.Condition {
	case v1.GuestCondition_GUEST_CONDITION_RUNNING, v1.GuestCondition_GUEST_CONDITION_PAUSED, v1.GuestCondition_GUEST_CONDITION_SENDING, v1.GuestCondition_GUEST_CONDITION_SEND_FAILED:
		return true
	}
	return false
}
