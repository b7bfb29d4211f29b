package session

// changes.go - telling others that something observed changed.

import (
	"context"

	"google.golang.org/protobuf/proto"

	v1 "watari/api/watariv1"
)

// sameButFigures compares a new report, which nobody else has yet, with the one before, without the figures that always
// change and on which nothing is decided: the host's load, and the processor time and memory of its guests.
func sameButFigures(observed, before *v1.HostObserved) bool {
	if len(observed.Guests) != len(before.GetGuests()) {
		return false
	}
	load := observed.Load
	defer func() { observed.Load = load }()
	observed.Load = before.GetLoad()
	for i, g := range observed.Guests {
		had := before.Guests[i]
		cpuTime, memory := g.CpuTimeNs, g.MemoryBytes
		defer func() { g.CpuTimeNs, g.MemoryBytes = cpuTime, memory }()
		g.CpuTimeNs, g.MemoryBytes = had.CpuTimeNs, had.MemoryBytes
	}
	return proto.Equal(observed, before)
}

// tell calls the watchers and fills the subscriptions. s.mu is not held.
func (s *Sessions) tell(host string) {
	s.mu.Lock()
	watchers, subs := s.watchers, s.subs
	s.mu.Unlock()
	for _, f := range watchers {
		f(host)
	}
	for _, ch := range subs {
		select {
		case ch <- struct{}{}:
		default: // a token waits already
		}
	}
}

// OnChange has f called after a host reported something new (figures of load apart), connected or disconnected. f
// must not block; it stays registered.
func (s *Sessions) OnChange(f func(host string)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.watchers = append(s.watchers[:len(s.watchers):len(s.watchers)], f)
}

// Changes returns a channel that holds a token when something changed (as OnChange) since the last receive.
// Call it once per consumer.
func (s *Sessions) Changes() <-chan struct{} { return s.Subscribe(nil) }

// Subscribe is Changes for a consumer that ends with ctx.
func (s *Sessions) Subscribe(ctx context.Context) <-chan struct{} {
	ch := make(chan struct{}, 1)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.subs = append(s.subs[:len(s.subs):len(s.subs)], ch)
	if ctx != nil {
		context.AfterFunc(ctx, func() { s.unsubscribe(ch) })
	}
	return ch
}

func (s *Sessions) unsubscribe(ch chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var kept []chan struct{}
	for _, sub := range s.subs {
		if sub != ch {
			kept = append(kept, sub)
		}
	}
	s.subs = kept
}
