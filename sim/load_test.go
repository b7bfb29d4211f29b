package sim

import (
	"os"
	"testing"
	"time"

	v1 "watari/api/watariv1"
	"watari/policy"
)

// TestNoPatternOfUseMovesGuestsToAndFro changes guests' use in the worst ways, with a period as long as the cool-down.
// checkRebalanced checks each move, and checkGain does, too.
func TestNoPatternOfUseMovesGuestsToAndFro(t *testing.T) {
	seeds := []uint64{0, 3}
	if os.Getenv("WATARI_TEST_FULL") != "" {
		seeds = append(seeds, 4, 5)
	}
	for p := range patterns {
		for _, seed := range seeds {
			s := newSim(seed, nil)
			s.pattern, s.coolDown = p, time.Minute
			s.begin(seed, "balance: {cool_down: 1m}\nspread: {cool_down: 1m}\n")
			s.until(start.Add(5 * time.Second))
			for _, pick := range []int{3, 7, 11} { // four guests each
				s.createCluster(pick)
			}
			s.until(start.Add(10 * time.Minute))
			first := s.rebalanced()
			s.until(start.Add(time.Hour))
			guests := len(s.store.objects.Guests)
			t.Logf("pattern %d, seed %d, %d hosts, %d guests: %d moves in 10 minutes, %d in an hour", p, seed, len(s.names), guests, first, s.rebalanced())
			if s.rebalanced() > 6*guests { // the cool-down doubles: 1 + 2 + 4 + 8 + 16 + 32 minutes
				t.Errorf("pattern %d, seed %d: %d moves of %d guests in an hour", p, seed, s.rebalanced(), guests)
			}
			if s.violation != "" {
				t.Errorf("pattern %d, seed %d: %s", p, seed, s.violation)
			}
			if p == steady && s.rebalanced() != first {
				t.Errorf("pattern %d, seed %d: steady guests moved again: %d moves in 10 minutes, %d in an hour", p, seed, first, s.rebalanced())
			}
		}
	}
}

// rebalanced returns the number of moves by which policies have rebalanced guests.
func (s *Sim) rebalanced() (n int) {
	for _, m := range s.store.objects.Migrations {
		if policy.Rebalancing(m.Policy) && m.State == v1.MigrationState_MIGRATION_STATE_DONE {
			n++
		}
	}
	return n
}
