package manager

// usage.go - the usage of hosts and guests: adds samples to the history, keeps its file, serves present values to
// Prometheus.

import (
	"context"
	"path/filepath"
	"time"

	v1 "watari/api/watariv1"
	"watari/core"
	"watari/internal/metrics"
	"watari/manager/store"
)

func (m *Manager) historyFile() string { return filepath.Join(m.State, "history") }

// sampled takes a host's sample. It accepts values only for guests that are granted to the host.
func (m *Manager) sampled(host string, sample *v1.HostSample) {
	s := m.store.Snapshot()
	guests, now := s.Guests, time.Now()
	m.watch.see(s, host, sample, now)
	m.traffic.see(s, host, sample, now)
	m.history.Add(host, sample, func(s *v1.GuestSample) bool {
		g := guests[s.Name]
		return g != nil && g.Meta.Uid == s.Uid && g.Host == host
	})
}

// measured returns all hosts with their present samples.
func (m *Manager) measured() (hosts []metrics.Host) {
	for name, h := range m.store.Snapshot().Hosts {
		hosts = append(hosts, metrics.Host{Name: name, Info: h.Info, Sample: m.history.Latest(name)})
	}
	return hosts
}

// usage returns what hosts and guests have used lately.
func (m *Manager) usage(s *store.Snapshot) *core.Usage {
	since := time.Now().Add(-core.UsageWindow)
	usage := &core.Usage{Guests: make(map[string]core.GuestUsage, len(s.Guests)), Hosts: make(map[string]core.HostUsage, len(s.Hosts)), Traffic: m.traffic.at(time.Now())}
	computing := map[string]float64{}
	for name := range s.Hosts {
		mean, known := m.history.HostMean(name, since)
		usage.Hosts[name] = core.HostUsage{Others: mean.CpuOwner + mean.CpuSystem, Known: known}
		for _, g := range m.history.LatestWithin(name, core.UsageWindow).GetGuests() {
			computing[g.Uid] = g.Computing
		}
	}
	for _, g := range s.Guests {
		mean, known := m.history.GuestMean(g.Meta.Uid, since)
		usage.Guests[g.Meta.Uid] = core.GuestUsage{CPU: mean.Cpu, Wait: mean.CpuWait, MemoryBytes: mean.MemoryBytes, DirtyRate: mean.DirtyRate,
			Computing: computing[g.Meta.Uid], Known: known}
	}
	return usage
}

// knowsGuests returns a function that reports whether a guest with a uid exists.
func (m *Manager) knowsGuests() func(uid string) bool {
	known := map[string]bool{}
	for _, g := range m.store.Snapshot().Guests {
		known[g.Meta.Uid] = true
	}
	return func(uid string) bool { return known[uid] }
}

// saveEvery is how often the history is saved; a crash loses at most that much.
const saveEvery = 5 * time.Minute

// keepHistory saves the history regularly, and when ctx ends.
func (m *Manager) keepHistory(ctx context.Context) {
	tick := time.NewTicker(saveEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
		m.traffic.forget(m.knowsGuests(), time.Now())
		if err := m.history.Save(m.historyFile(), m.knowsGuests()); err != nil {
			m.Log.Warn("what hosts and guests have used was not saved; it is tried again", "every", saveEvery.String(), "error", err)
		}
		if ctx.Err() != nil {
			return
		}
	}
}
