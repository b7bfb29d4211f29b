package speed

import (
	"context"
	"slices"
	"time"
)

const (
	// kept is the number of measurements from which the speed is taken: the best, because a disturbance only slows them down.
	kept = 5
	// soon is the pause between the first measurements. An agent often starts together with other programs, as at a boot.
	soon = 10 * time.Second
	// later is the pause between the others. Their time is less than 0.02 % of a core.
	later = 10 * time.Minute
	// change is the relative difference from which a speed counts as another. Smaller ones are noise.
	change = 0.1
)

// Follow measures the speed of a core again until ctx ends, first soon, and then rarely and only while the host is not busy: the
// threads of a core slow each other down. It calls changed with a speed that differs from the one before. first is the result of
// Core at the start.
func Follow(ctx context.Context, first float64, busy func() bool, changed func(float64)) {
	h := history{speeds: []float64{first}, told: first}
	for {
		pause, rarely := soon, len(h.speeds) == kept
		if rarely {
			pause = later
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		if rarely && busy() {
			continue
		}
		speed, err := Core()
		if err == nil && h.add(speed) {
			changed(h.told)
		}
	}
}

// history has the last measurements of a host.
type history struct {
	speeds []float64 // the oldest first
	told   float64
}

// add adds a measurement, and reports whether the host has another speed now.
func (h *history) add(speed float64) bool {
	h.speeds = append(h.speeds[max(0, len(h.speeds)-kept+1):], speed)
	best := slices.Max(h.speeds)
	if best > h.told/(1+change) && best < h.told*(1+change) {
		return false
	}
	h.told = best
	return true
}
