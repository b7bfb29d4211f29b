package sim

// load.go - guests' use over time, how managers see it, and the invariants of the moves that follow.

import (
	"hash/fnv"
	"math"
	"time"

	v1 "watari/api/watariv1"
	"watari/core"
	"watari/policy"
)

// Policies that decide by use, for some seeds. Their times are short, so that much happens in a minute.
const (
	simCoolDown = 10 * time.Second
	simBalance  = `
balance: {interval: 2s, cool_down: 10s}
spread: {interval: 3s, cool_down: 10s}
`
	simPack = `
pack: {interval: 2s, cool_down: 10s, max_load: 0.9}
`
)

// rebalancing returns the policies of a seed that decide by use; empty: it has none.
func rebalancing(seed uint64) string {
	switch seed % 5 {
	case 1, 2, 3:
		return simBalance
	case 4:
		return simPack
	}
	return ""
}

// pattern is how guests' use changes over time.
type pattern int

const (
	steady pattern = iota
	// square: guests are busy and idle in turns, each as long as a cool-down.
	square
	// follows: the guests of the host to which a guest moved last are busy.
	follows
	// alternates: the guests of every other host are busy, in turns.
	alternates
	// noisy: use is random.
	noisy
	patterns
)

// demand returns the cores that a guest on a host would use now.
func (s *Sim) demand(uid string, at *host) float64 {
	sum := fnv.New32a()
	sum.Write([]byte(uid))
	number, turn := int(sum.Sum32()%1000), int(s.now.Sub(start)/s.coolDown)
	busy := false
	switch s.pattern {
	case steady:
		return 0.2 + 0.8*float64(number)/1000
	case square:
		busy = (turn+number)%2 == 0
	case follows:
		busy = at.name == s.lastTarget
	case alternates:
		busy = (turn+int(at.name[1]))%2 == 0
	case noisy:
		return s.rng.Float64()
	}
	if busy {
		return 1
	}
	return 0.1
}

// share is how much processor time a host's guests may use, in cores.
const share = 1.5

// use fills a sample with the use of a host's guests.
func (h *host) use(sample *v1.HostSample) {
	demand := 0.0
	for _, c := range h.live() {
		d := h.sim.demand(c.uid, h)
		demand += d
		sample.Guests = append(sample.Guests, &v1.GuestSample{Uid: c.uid, Name: c.name, Cpu: d, Computing: h.sim.computing(c, h)})
	}
	for _, g := range sample.Guests {
		asked := g.Cpu
		g.Cpu *= min(1, share/demand)
		g.CpuWait = asked - g.Cpu
	}
}

// meter is a manager's view of hosts' and guests' use.
type meter struct {
	hosts  map[string]used
	guests map[string]used
	hurry  time.Duration
}

// hurry divides the time until something is known, in a run of a seed.
const hurry = 5

// used is the last use. In a replay it is the mean of a step.
type used struct {
	at                       time.Time
	first                    time.Time
	cpu, wait, memory, dirty float64
	computing                float64
}

func (s *Sim) newMeter() meter {
	m := meter{hosts: map[string]used{}, guests: map[string]used{}, hurry: hurry}
	if s.foresight != nil {
		m.hurry = 1
	}
	return m
}

// see takes a sample.
func (m *meter) see(host string, s *v1.HostSample, now time.Time) {
	note := func(of map[string]used, name string, cpu, wait, memory, dirty, computing float64) {
		u, known := of[name]
		if !known || now.Sub(u.at) > core.UsageWindow {
			u = used{first: now.Add(-time.Duration(s.Seconds * float64(time.Second))), cpu: cpu, wait: wait}
		}
		// This average follows a change as fast as the mean of a window does, however long the steps are.
		part := 1 - math.Exp(-2*s.Seconds/core.UsageWindow.Seconds())
		u.at, u.cpu, u.wait, u.memory = now, u.cpu+part*(cpu-u.cpu), u.wait+part*(wait-u.wait), memory
		u.dirty, u.computing = dirty, computing
		of[name] = u
	}
	if host != "" {
		note(m.hosts, host, s.CpuOwner+s.CpuSystem, 0, 0, 0, 0)
	}
	for _, g := range s.Guests {
		note(m.guests, g.Uid, g.Cpu, g.CpuWait, float64(g.MemoryBytes), g.DirtyRate, g.Computing)
	}
}

// usage returns the recent use. Use that was not seen for fresh counts as unknown.
func (m *meter) usage(now time.Time, fresh time.Duration) *core.Usage {
	u := &core.Usage{Guests: map[string]core.GuestUsage{}, Hosts: map[string]core.HostUsage{}}
	known := func(of used) time.Duration {
		if now.Sub(of.at) > fresh {
			return 0
		}
		return m.hurry * of.at.Sub(of.first)
	}
	for name, of := range m.hosts {
		u.Hosts[name] = core.HostUsage{Others: of.cpu, Known: known(of)}
	}
	for uid, of := range m.guests {
		u.Guests[uid] = core.GuestUsage{CPU: of.cpu, Wait: of.wait, MemoryBytes: uint64(of.memory), DirtyRate: of.dirty, Computing: of.computing, Known: known(of)}
	}
	return u
}

// renew makes a manager's usage anew, as often as the policies need it, if there are new samples.
func (m *manager) renew() {
	if m.dead {
		return
	}
	every, is := core.UsageEvery(m.objects(), m.signals.reader.Read(m.objects()))
	switch {
	case !is:
		every, m.usage = time.Second, nil
	case m.metered:
		fresh := 3 * time.Second
		if f := m.sim.foresight; f != nil {
			fresh = max(fresh, f.stale)
		}
		m.usage, m.metered = m.meter.usage(m.now(), fresh), false
		m.usage.Traffic = m.traffic(m.now())
		m.poke()
	}
	m.sim.after(every, m.renew)
}

// meters shows a sample to the manager's meter. host is empty if the sample is of guests only.
func (m *manager) meters(host string, s *v1.HostSample) {
	m.metered = true
	m.meter.see(host, s, m.now())
}

// checkGain checks the moves by which a decision rebalances guests: each move, or each group of moves that are written
// together, lowers the cost of the guests' places.
func (s *Sim) checkGain(m *manager, w core.World, d core.Decision) {
	var places *core.Places
	for _, change := range d.Changes {
		name, before := "", 0.0
		for _, op := range change.Ops {
			move, is := op.Object.(*v1.Migration)
			if !is || op.Kind != core.Create || !policy.Rebalancing(move.Policy) {
				continue
			}
			if places == nil {
				places = core.PlacesOf(w.Objects, w.Reports, w.Usage, m.signals.reader.Read(w.Objects), w.Now)
			}
			if name == "" {
				name, before = move.Policy, places.Cost()
			}
			places.Move(move.GuestUid, move.Target)
		}
		if name == "" {
			continue
		}
		gained := before - places.Cost()
		for _, p := range places.Policies {
			if p.Name == name && gained < p.LeastGain-1e-9 {
				s.violate("policy %s begins %s, which gains %.3f; the least gain is %.3f", name, change.Key, gained, p.LeastGain)
			}
		}
	}
}

// checkRebalanced checks a move by which a policy rebalances guests: no policy has moved the guest within the cool-down.
func (s *Sim) checkRebalanced(now *core.Objects, m *v1.Migration) {
	if s.jumped {
		return // the cool-down is counted by managers' clocks
	}
	for _, before := range now.Migrations {
		if before.GuestUid != m.GuestUid || before.Policy == "" || before.State != v1.MigrationState_MIGRATION_STATE_DONE {
			continue
		}
		if ago := s.now.Sub(before.Ended.AsTime()); ago < s.coolDown {
			s.violate("policy %s moves guest %s again %v after its last move, %s", m.Policy, m.Guest, ago, before.Meta.Name)
		}
	}
}
