// Package monitor measures who uses a host: its guests, its owner, or the system. It reads /proc, control groups, terminals
// and input devices, and asks systemd-logind.
package monitor

import (
	"context"
	"maps"
	"net/netip"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/procfs"
	"google.golang.org/protobuf/types/known/timestamppb"

	"watari/agent/load"
	v1 "watari/api/watariv1"
)

// Config configures a monitor.
type Config struct {
	Root string // "/" except in tests
	Host Host
	// Tap returns the name of the network interface of a guest.
	Tap func(uid string) string
	// Sent returns how many bytes each guest's interface has sent to each address since the count began; nil: not counted.
	Sent func() (map[string]map[netip.Addr]uint64, error)
	// OwnerGuest is the name of the libvirt domain that the owner uses. Its processor time counts as the owner's. Empty: none.
	OwnerGuest string
	// Moved returns how many bytes migrations have received from other hosts, and sent to them; nil: not counted.
	Moved func() (received, sent uint64)
	// DirtyRates measures for a second or two how fast guests write to memory, bytes per second by uid; nil: not measured.
	DirtyRates func(ctx context.Context) (map[string]float64, error)
	// Computing returns the part of the time that the programs of each guest compute, by uid; nil: not known.
	Computing func() map[string]float64
}

// Host measures the host as a whole; load.Reader implements it.
type Host interface {
	// Used returns the processor time that the host has used since its boot; false: not known.
	Used() (load.Used, bool)
	// Sessions returns the part of Used that login sessions have used; false: not known.
	Sessions() (time.Duration, bool)
	// MemoryAvailable returns the memory that can be used without swapping, bytes.
	MemoryAvailable() uint64
}

// Monitor measures one host.
type Monitor struct {
	config Config
	fs     procfs.FS
	inputs inputs
	logind *logind

	// State of the last sample. Only one sample is taken at a time: reading /proc may take long.
	sampling  sync.Mutex
	at        time.Time // of the last sample; zero: none
	used      load.Used
	known     bool
	sessions  time.Duration // part of used by login sessions
	grouped   bool          // sessions is known
	processes map[int]process
	taps      procfs.NetDev
	psi       psi
	guestsPSI guestsPSI
	peers     peers
	moved     struct{ received, sent uint64 }

	mu     sync.Mutex
	latest *v1.HostSample
	next   chan struct{}
	dirty  map[string]float64 // see Config.DirtyRates. It never changes; a new measurement makes a new map.
}

// New makes a monitor of a host. Close closes its input devices.
func New(config Config) (*Monitor, error) {
	fs, err := procfs.NewFS(filepath.Join(config.Root, "proc"))
	if err != nil {
		return nil, err
	}
	return &Monitor{config: config, fs: fs, inputs: inputs{root: config.Root, arrived: make(chan struct{}, 1)},
		logind: &logind{root: config.Root, fs: fs, open: openSystemBus}, next: make(chan struct{})}, nil
}

// Close closes what the monitor keeps open.
func (m *Monitor) Close() { m.inputs.close() }

const (
	// every is the time between two samples. If a sample takes long, the pause after it is at least ten times as long.
	every = time.Second
	// atLeast is the shortest time over which rates are measured: the kernel counts processor time in hundredths of a second.
	atLeast = 500 * time.Millisecond
)

// Run measures the host every second until ctx ends, and at once when the owner comes back.
func (m *Monitor) Run(ctx context.Context) {
	defer m.Close()
	go m.logind.run(ctx)
	if m.config.DirtyRates != nil {
		go m.followDirtyRates(ctx)
	}
	owner := &watch{root: m.config.Root, inputs: &m.inputs, logind: m.logind}
	look := time.NewTicker(lookForOwnerEvery)
	defer look.Stop()
	for ctx.Err() == nil {
		begun := time.Now()
		m.publish(m.Sample(begun))
		took := time.Since(begun)
		m.wait(ctx, owner, look.C, begun.Add(max(atLeast, 11*took)), begun.Add(max(every, 11*took)))
	}
}

// wait returns when the next sample is due. It also returns when the owner comes back, but not before early. If the owner
// comes back before early, wait publishes a sample without rates.
func (m *Monitor) wait(ctx context.Context, owner *watch, look <-chan time.Time, early, due time.Time) {
	end := time.NewTimer(time.Until(due))
	defer end.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-end.C:
			return
		case <-look:
		case <-m.inputs.arrived:
		}
		now := time.Now()
		if !owner.returned(now) {
			continue
		}
		if now.After(early) {
			return
		}
		m.publish(m.glance(now))
	}
}

// publish makes a sample the latest.
func (m *Monitor) publish(s *v1.HostSample) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.latest = s
	close(m.next)
	m.next = make(chan struct{})
}

// glance returns a sample of the owner's activity without rates. It lists the guests of the sample before. It does not
// change the state from which the next sample computes rates.
func (m *Monitor) glance(now time.Time) *v1.HostSample {
	s := &v1.HostSample{At: timestamppb.New(now), MemoryAvailableBytes: m.config.Host.MemoryAvailable(), Owner: m.activity(now)}
	last, _ := m.Latest()
	s.MemoryGuestsBytes = last.GetMemoryGuestsBytes()
	for _, g := range last.GetGuests() {
		s.Guests = append(s.Guests, &v1.GuestSample{Uid: g.Uid, Name: g.Name, MemoryBytes: g.MemoryBytes, Computing: g.Computing})
	}
	return s
}

// Latest returns the latest sample of Run, nil before the first one, and a channel that is closed at the next one. The sample
// is shared: do not change it.
func (m *Monitor) Latest() (*v1.HostSample, <-chan struct{}) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.latest, m.next
}

// Problems returns what cannot be measured, a sentence each.
func (m *Monitor) Problems() []string {
	if problem := m.logind.problem(); problem != "" {
		return []string{problem}
	}
	return nil
}

// Sample measures the host since the last sample.
func (m *Monitor) Sample(now time.Time) *v1.HostSample {
	m.sampling.Lock()
	defer m.sampling.Unlock()
	s := &v1.HostSample{At: timestamppb.New(now), MemoryAvailableBytes: m.config.Host.MemoryAvailable()}
	since := now.Sub(m.at)
	if m.at.IsZero() || since <= 0 {
		since = 0
	}
	s.Seconds = since.Seconds()
	m.at = now
	guests := m.measureProcesses(s, since)
	m.measureTaps(guests, since)
	m.measurePeers(guests, now)
	m.measureGuestPressure(guests, now)
	m.measureMoves(s, since)
	dirty := m.dirtyRates()
	var computing map[string]float64
	if m.config.Computing != nil {
		computing = m.config.Computing()
	}
	for _, uid := range slices.Sorted(maps.Keys(guests)) {
		guests[uid].DirtyRate, guests[uid].Computing = dirty[uid], computing[uid]
		s.Guests = append(s.Guests, guests[uid])
		s.MemoryGuestsBytes += guests[uid].MemoryBytes
	}
	before := m.psi
	m.psi = m.hostPSI()
	s.CpuPressure, s.MemoryPressure, s.IoPressure = m.psi.since(before, "cpu", since), m.psi.since(before, "memory", since), m.psi.since(before, "io", since)
	s.Owner = m.activity(now)
	return s
}

// measureTaps fills in the traffic of the guests. What a tap receives, its guest has sent.
func (m *Monitor) measureTaps(guests map[string]*v1.GuestSample, since time.Duration) {
	before := m.taps
	m.taps, _ = m.fs.NetDev()
	for uid, g := range guests {
		name := m.config.Tap(uid)
		now, is := m.taps[name]
		then, was := before[name]
		if is && was && since > 0 {
			g.Sent = rate(then.RxBytes, now.RxBytes, since)
			g.Received = rate(then.TxBytes, now.TxBytes, since)
		}
	}
}

// measureMoves fills in the traffic of migrations.
func (m *Monitor) measureMoves(s *v1.HostSample, since time.Duration) {
	if m.config.Moved == nil {
		return
	}
	before := m.moved
	m.moved.received, m.moved.sent = m.config.Moved()
	if since > 0 {
		s.MigrationReceived = rate(before.received, m.moved.received, since)
		s.MigrationSent = rate(before.sent, m.moved.sent, since)
	}
}

// rate returns the growth of a counter per second; 0 if the counter began again.
func rate(before, now uint64, since time.Duration) float64 {
	if now < before {
		return 0
	}
	return float64(now-before) / since.Seconds()
}
