package core

// strangers.go - copies that run though the store does not know their grant: an older copy of it was put back, perhaps.

import (
	"fmt"

	v1 "watari/api/watariv1"
)

// Stranger is a guest that a host runs and whose grant the store does not know. The manager leaves it alone: it may be
// the only copy of a guest that was made after the store was backed up.
type Stranger struct {
	Host, Name string
	Epoch      uint64
	// LastEpoch is the highest epoch that the store has given to this guest; 0: it does not know the guest.
	LastEpoch uint64
}

// String says what is wrong and what can be done.
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

// runs tells whether a copy was let run and may have computed what no other copy has. A copy of epoch 0 has no record on
// its host: it is a remainder. An epoch that no guest can have is no agent's report.
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
