package agent

// computing.go - which part of the time a guest's programs compute, by the guest's own account.

import (
	"time"

	v1 "watari/api/watariv1"
)

const (
	// computingOver is the least time over which the part is measured, as soon as the guest has answered for that long.
	computingOver = 30 * time.Second
	// leastComputing is the part of a guest of which all programs wait: 0 is for guests of which nothing is known.
	leastComputing = 0.001
)

// cpuReading is a guest's message about the times of its virtual CPUs.
type cpuReading struct {
	at    time.Time
	times *v1.CpuTimes
}

// cpuReadings are a guest's messages of about the last computingOver, oldest first.
type cpuReadings []cpuReading

// add adds a guest's message; nil: its agent is too old to send one.
func (r *cpuReadings) add(t *v1.CpuTimes, now time.Time) {
	if t == nil {
		*r = nil
		return
	}
	if last := len(*r) - 1; last >= 0 {
		before := (*r)[last].times
		if before.Computing > t.Computing || before.Kernel > t.Kernel || before.Idle > t.Idle || before.Stolen > t.Stolen {
			*r = nil // it went back to a checkpoint, or was started anew
		}
	}
	// Only the known fields are kept: the guest may have sent others.
	*r = append(*r, cpuReading{now, &v1.CpuTimes{Computing: t.Computing, Kernel: t.Kernel, Idle: t.Idle, Stolen: t.Stolen}})
	for len(*r) > 2 && now.Sub((*r)[1].at) >= computingOver {
		*r = (*r)[1:]
	}
}

// part returns the part of the time that the guest's programs computed; 0: not known. The time that the host did not give is divided
// like the time that it gave: a virtual CPU that waits for the host's processor would compute, or look for messages in the kernel.
func (r cpuReadings) part(now time.Time) float64 {
	if len(r) < 2 || now.Sub(r[len(r)-1].at) > 2*checkEvery {
		return 0
	}
	first, last := r[0].times, r[len(r)-1].times
	computing, kernel := float64(last.Computing-first.Computing), float64(last.Kernel-first.Kernel)
	idle, stolen := float64(last.Idle-first.Idle), float64(last.Stolen-first.Stolen)
	all := computing + kernel + idle + stolen
	if all == 0 {
		return 0
	}
	if computing == 0 {
		return leastComputing
	}
	return max(leastComputing, (1-idle/all)*computing/(computing+kernel))
}

// Computing returns the part of the time that each guest's programs compute, by uid. Guests of which it is not known are left out.
func (a *Agent) Computing() map[string]float64 {
	parts := map[string]float64{}
	a.mu.Lock()
	defer a.mu.Unlock()
	for uid, g := range a.guests {
		if part := g.identity.computing(time.Now()); part > 0 {
			parts[uid] = part
		}
	}
	return parts
}

func (k *identityKeeper) computing(now time.Time) float64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.cpu.part(now)
}
