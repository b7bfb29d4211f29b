package sim

import (
	"os"
	"strconv"
	"testing"
)

// seeds is how many seeds a test runs.
func seeds(t *testing.T) int {
	n, err := strconv.Atoi(os.Getenv("WATARI_SIM_SEEDS"))
	if err != nil {
		n = 200
	}
	return n
}

func TestEverythingHolds(t *testing.T) {
	for seed := range seeds(t) {
		if r := Run(uint64(seed)); r.Violation != "" {
			t.Errorf("seed %d: %s", seed, r.Violation)
		}
	}
}

func TestARunCanBeRepeated(t *testing.T) {
	for seed := range uint64(20) {
		a, b := Replay(seed, planOf(seed)), Replay(seed, planOf(seed))
		if len(a.Dialogue) != len(b.Dialogue) {
			t.Fatalf("seed %d: %d lines, then %d", seed, len(a.Dialogue), len(b.Dialogue))
		}
		for i := range a.Dialogue {
			if a.Dialogue[i] != b.Dialogue[i] {
				t.Fatalf("seed %d, line %d:\n%s\n%s", seed, i, a.Dialogue[i], b.Dialogue[i])
			}
		}
	}
}
