package sim

// clocks.go - the clocks of hosts and managers. Each machine has a time of day, which may jump, and a monotonic clock, which
// does not. Leases use only the monotonic clocks (leases.go).

import (
	"time"

	"watari/internal/clocks"
)

// farOff is how far a clock jumps that is set to a wrong time.
const farOff = 10 * time.Minute

// jumpFar returns by how much a clock jumps that is set to a wrong time: forward or back.
func jumpFar(pick int) time.Duration {
	if pick%2 == 0 {
		return farOff
	}
	return -farOff
}

// reading returns a machine's time. In a replay no clock jumps.
func (s *Sim) reading(offset, monotonic time.Duration) time.Time {
	if s.foresight != nil {
		return s.now
	}
	return clocks.Reading(s.now.Add(offset), monotonic)
}
