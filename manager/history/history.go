// Package history keeps what hosts and guests have used: the last hour in steps of seconds, the last week in steps of
// minutes. It is in memory and bounded, and a file keeps it over restarts. It is not part of the store, and correctness does
// not depend on it.
package history

import (
	"math"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "watari/api/watariv1"
	"watari/internal/printable"
)

// resolution is the interval of values, the length of a page, and the time for which values are kept.
type resolution struct {
	step  time.Duration
	page  int // steps in a page, which is allocated and freed as a whole
	pages int
}

// The resolutions, finest first. Each reaches back its time and up to one page more.
var resolutions = [...]resolution{
	{step: 5 * time.Second, page: 60, pages: 13},  // an hour
	{step: 10 * time.Minute, page: 36, pages: 29}, // a week
}

// reach returns how far back a resolution has values at least.
func (r resolution) reach() time.Duration {
	return time.Duration(r.page*(r.pages-1)) * r.step
}

// fold is how the samples of a step become one value.
type fold int

const (
	mean fold = iota
	least
)

// field is one value of a sample.
type field[S any] struct {
	fold fold
	get  func(S) float64 // NaN: the sample has none
	set  func(S, float64)
}

var hostFields = []field[*v1.HostSample]{
	{mean, (*v1.HostSample).GetCpuGuests, func(s *v1.HostSample, v float64) { s.CpuGuests = v }},
	{mean, (*v1.HostSample).GetCpuOwner, func(s *v1.HostSample, v float64) { s.CpuOwner = v }},
	{mean, (*v1.HostSample).GetCpuSystem, func(s *v1.HostSample, v float64) { s.CpuSystem = v }},
	{mean, func(s *v1.HostSample) float64 { return float64(s.MemoryAvailableBytes) }, func(s *v1.HostSample, v float64) { s.MemoryAvailableBytes = uint64(v) }},
	{mean, func(s *v1.HostSample) float64 { return float64(s.MemoryGuestsBytes) }, func(s *v1.HostSample, v float64) { s.MemoryGuestsBytes = uint64(v) }},
	pressure(func(s *v1.HostSample) **v1.Pressure { return &s.CpuPressure }),
	pressure(func(s *v1.HostSample) **v1.Pressure { return &s.MemoryPressure }),
	pressure(func(s *v1.HostSample) **v1.Pressure { return &s.IoPressure }),
	{least, func(s *v1.HostSample) float64 {
		return optional(s.GetOwner().GetInputIdle(), s.GetOwner() != nil && s.Owner.InputIdle != nil)
	},
		func(s *v1.HostSample, v float64) { owner(s).InputIdle = &v }},
	{least, func(s *v1.HostSample) float64 {
		return optional(s.GetOwner().GetTerminalIdle(), s.GetOwner() != nil && s.Owner.TerminalIdle != nil)
	},
		func(s *v1.HostSample, v float64) { owner(s).TerminalIdle = &v }},
	{mean, (*v1.HostSample).GetMigrationReceived, func(s *v1.HostSample, v float64) { s.MigrationReceived = v }},
	{mean, (*v1.HostSample).GetMigrationSent, func(s *v1.HostSample, v float64) { s.MigrationSent = v }},
}

// guestFields leaves out the pressure on guests: a guest takes memory for each field of each step, and there are many guests.
var guestFields = []field[*v1.GuestSample]{
	{mean, (*v1.GuestSample).GetCpu, func(s *v1.GuestSample, v float64) { s.Cpu = v }},
	{mean, func(s *v1.GuestSample) float64 { return float64(s.MemoryBytes) }, func(s *v1.GuestSample, v float64) { s.MemoryBytes = uint64(v) }},
	{mean, (*v1.GuestSample).GetReceived, func(s *v1.GuestSample, v float64) { s.Received = v }},
	{mean, (*v1.GuestSample).GetSent, func(s *v1.GuestSample, v float64) { s.Sent = v }},
	{mean, (*v1.GuestSample).GetCpuWait, func(s *v1.GuestSample, v float64) { s.CpuWait = v }},
	{mean, (*v1.GuestSample).GetDirtyRate, func(s *v1.GuestSample, v float64) { s.DirtyRate = v }},
}

// pressure returns the field of one kind of pressure. It keeps the share of time in which some tasks waited.
func pressure(of func(*v1.HostSample) **v1.Pressure) field[*v1.HostSample] {
	return field[*v1.HostSample]{mean,
		func(s *v1.HostSample) float64 { return optional((*of(s)).GetSome(), *of(s) != nil) },
		func(s *v1.HostSample, v float64) { *of(s) = &v1.Pressure{Some: v} }}
}

func optional(v float64, known bool) float64 {
	if known {
		return v
	}
	return math.NaN()
}

func owner(s *v1.HostSample) *v1.OwnerActivity {
	if s.Owner == nil {
		s.Owner = &v1.OwnerActivity{}
	}
	return s.Owner
}

// History is the usage of all hosts and guests.
type History struct {
	// Now is time.Now, except in tests.
	Now func() time.Time

	mu     sync.Mutex
	hosts  map[string]*series // by name
	guests map[string]*series // by uid
	latest map[string]latest  // by the host's name
}

type latest struct {
	sample *v1.HostSample
	at     time.Time
}

// New makes an empty history.
func New() *History {
	return &History{Now: time.Now, hosts: map[string]*series{}, guests: map[string]*series{}, latest: map[string]latest{}}
}

// Bounds for the logged-in users of a sample: their number, and the bytes of each name.
const (
	maxUsers = 64
	maxUser  = 32
)

// Add adds a host's sample. It keeps only the guests that has accepts, so that a host cannot invent guests. The time is this
// machine's, because hosts' clocks differ.
func (h *History) Add(host string, sample *v1.HostSample, has func(*v1.GuestSample) bool) {
	seen := map[string]bool{}
	sample.Guests = slices.Clone(slices.DeleteFunc(sample.Guests, func(g *v1.GuestSample) bool {
		again := seen[g.Uid]
		seen[g.Uid] = true
		return again || !has(g)
	}))
	if o := sample.Owner; o != nil {
		o.Users = o.Users[:min(len(o.Users), maxUsers)]
		for i, user := range o.Users {
			o.Users[i] = printable.Line(user, maxUser)
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	now := h.Now()
	h.latest[host] = latest{sample, now}
	if !(sample.Seconds > 0) {
		return
	}
	add(h.hosts, host, now, sample, hostFields)
	for _, g := range sample.Guests {
		add(h.guests, g.Uid, now, g, guestFields)
	}
}

// freshFor is how long a host's latest sample counts as its present one.
const freshFor = 5 * time.Second

// Latest returns a host's present sample; nil: the host has sent none for seconds. It is shared: do not change it.
func (h *History) Latest(host string) *v1.HostSample { return h.LatestWithin(host, freshFor) }

// LatestWithin is Latest for another time.
func (h *History) LatestWithin(host string, within time.Duration) *v1.HostSample {
	h.mu.Lock()
	defer h.mu.Unlock()
	if l, is := h.latest[host]; is && h.Now().Sub(l.at) < within {
		return l.sample
	}
	return nil
}

// Host returns a host's usage since a time, oldest first, in the finest steps that are kept of each time. Steps without values
// are left out. Pressure is that of some tasks, and users are not kept.
func (h *History) Host(name string, since time.Time) []*v1.HostSample {
	h.mu.Lock()
	defer h.mu.Unlock()
	var list []*v1.HostSample
	h.hosts[name].read(h.Now(), since, len(hostFields), func(at time.Time, step time.Duration, row []float64) {
		s := &v1.HostSample{At: timestamppb.New(at), Seconds: step.Seconds()}
		fill(s, row, hostFields)
		list = append(list, s)
	})
	return list
}

// Guest is Host for a guest, wherever it was.
func (h *History) Guest(uid string, since time.Time) []*v1.GuestStep {
	h.mu.Lock()
	defer h.mu.Unlock()
	var list []*v1.GuestStep
	h.guests[uid].read(h.Now(), since, len(guestFields), func(at time.Time, step time.Duration, row []float64) {
		s := &v1.GuestSample{Uid: uid}
		fill(s, row, guestFields)
		list = append(list, &v1.GuestStep{At: timestamppb.New(at), Seconds: step.Seconds(), Sample: s})
	})
	return list
}

// HostMean returns the means of a host's usage since a time, from the finest steps, and the length of time that has values.
func (h *History) HostMean(name string, since time.Time) (*v1.HostSample, time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := &v1.HostSample{}
	return s, means(h.hosts[name], h.Now(), since, s, hostFields)
}

// GuestMean is HostMean for a guest, wherever it was.
func (h *History) GuestMean(uid string, since time.Time) (*v1.GuestSample, time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := &v1.GuestSample{}
	return s, means(h.guests[uid], h.Now(), since, s, guestFields)
}

// means fills in the means of a series since a time, and returns the length of time that has values.
func means[S any](s *series, now, since time.Time, sample S, fields []field[S]) (known time.Duration) {
	folded := step{row: make([]float64, len(fields)), samples: make([]int, len(fields))}
	for f := range folded.row {
		folded.row[f] = math.NaN()
	}
	s.read(now, since, len(fields), func(_ time.Time, length time.Duration, row []float64) {
		for f, field := range fields {
			folded.take(f, row[f], field.fold)
		}
		known += length
	})
	fill(sample, folded.row, fields)
	return known
}

// add adds a sample to the series of that name.
func add[S any](all map[string]*series, name string, now time.Time, sample S, fields []field[S]) {
	s := all[name]
	if s == nil {
		s = &series{}
		all[name] = s
	}
	values := make([]float64, len(fields))
	folds := make([]fold, len(fields))
	for f, field := range fields {
		values[f], folds[f] = sound(field.get(sample)), field.fold
	}
	s.add(now, values, folds)
}

// sound returns a host's value, or NaN if it is not a finite, non-negative number.
func sound(v float64) float64 {
	if math.IsInf(v, 0) || v < 0 {
		return math.NaN()
	}
	return v
}

func fill[S any](s S, row []float64, fields []field[S]) {
	for f, field := range fields {
		if !math.IsNaN(row[f]) {
			field.set(s, row[f])
		}
	}
}
