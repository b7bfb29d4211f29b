package controller

// run_lost.go - whether a run has lost a guest, and with it a part of its program.

import (
	"fmt"
	"maps"
	"slices"

	v1 "watari/api/watariv1"
	"watari/manager/store"
)

// startedEpochs tells the present copies of a cluster's guests from later ones.
func startedEpochs(s *store.Snapshot, cluster string) map[string]uint64 {
	epochs := map[string]uint64{}
	for name, g := range s.Guests {
		if g.Cluster == cluster {
			epochs[name] = g.StartedEpoch
		}
	}
	return epochs
}

// lostGuest is a guest that ran a part of the run and does not any more; empty: there is none. Launchers span all
// guests of a cluster, however few ranks they start.
func lostGuest(s *store.Snapshot, run *v1.Run) string {
	for _, name := range slices.Sorted(maps.Keys(run.StartedEpochs)) {
		if g := s.Guests[name]; g == nil || g.Host == "" || g.StartedEpoch != run.StartedEpochs[name] {
			return name
		}
	}
	return ""
}

func lostMessage(guest string) string {
	return fmt.Sprintf("guest %s ended while the program ran, and its part of the program with it; `watari events` says why", guest)
}
