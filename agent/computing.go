package agent

// computing.go - which part of the time a guest's programs compute, by the guest's own account.

import (
	"time"

	v1 "watari/api/watariv1"
)

const (
	// computingOver is about the time over which the part is measured.
	computingOver = 30 * time.Second
	// leastComputing is the part of a guest of which all programs wait: 0 is for guests of which nothing is known.
	leastComputing = 0.001
)

// cpuReading is a guest's message about the times of its virtual CPUs.
type cpuReading struct {
	at             time.Time
	computing, all uint64 // hundredths of a second
}

// cpuReadings are a guest's messages of about the last computingOver, oldest first.
type cpuReadings []cpuReading

// add adds a guest's message; nil: its agent is too old to send one.
func (r *cpuReadings) add(t *v1.CpuTimes, now time.Time) {
	if last := len(*r) - 1; t == nil || last >= 0 && ((*r)[last].all > t.All || (*r)[last].computing > t.Computing) {
		*r = nil // it went back to a checkpoint, or was started anew
	}
	if t == nil {
		return
	}
	*r = append(*r, cpuReading{now, t.Computing, t.All})
	for len(*r) > 2 && now.Sub((*r)[1].at) >= computingOver {
		*r = (*r)[1:]
	}
}

// part returns the part of the time that the guest's programs computed; 0: not known.
func (r cpuReadings) part(now time.Time) float64 {
	if len(r) < 2 {
		return 0
	}
	first, last := r[0], r[len(r)-1]
	if last.all <= first.all || now.Sub(last.at) > 2*checkEvery {
		return 0
	}
	return min(max(float64(last.computing-first.computing)/float64(last.all-first.all), leastComputing), 1)
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
