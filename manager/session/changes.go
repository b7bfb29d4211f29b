package session

// changes.go - notifies others when reports or connections change.

import (
	"context"

	"google.golang.org/protobuf/proto"

	v1 "watari/api/watariv1"
)

// withoutFigures encodes a report without the figures that change all the time: the host's load, and the processor time and
// memory of its guests. No decision depends on these figures. Comparing encodings takes a fraction of the time of comparing
// messages. The caller must be the only user of the report.
func withoutFigures(o *v1.HostObserved) ([]byte, error) {
	load := o.Load
	defer func() { o.Load = load }()
	o.Load = nil
	for _, g := range o.Guests {
		cpuTime, memory := g.CpuTimeNs, g.MemoryBytes
		defer func() { g.CpuTimeNs, g.MemoryBytes = cpuTime, memory }()
		g.CpuTimeNs, g.MemoryBytes = 0, 0
	}
	return proto.MarshalOptions{Deterministic: true}.Marshal(o)
}

// keepInfo makes a report share the previous report's host information if both are equal.
func keepInfo(o, before *v1.HostObserved) {
	if info := before.GetInfo(); info != nil && proto.Equal(o.Info, info) {
		o.Info = info
	}
}

// notify fills the subscriptions. s.mu is not held.
func (s *Sessions) notify() {
	s.mu.Lock()
	subs := s.subs
	s.mu.Unlock()
	for _, ch := range subs {
		select {
		case ch <- struct{}{}:
		default: // the channel already has a token
		}
	}
}

// Subscribe returns a channel that holds a token if, since the last receive, a host has connected, disconnected, or reported
// a change other than in its figures. The channel is for one consumer, until ctx ends.
func (s *Sessions) Subscribe(ctx context.Context) <-chan struct{} {
	ch := make(chan struct{}, 1)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.subs = append(s.subs[:len(s.subs):len(s.subs)], ch)
	context.AfterFunc(ctx, func() { s.unsubscribe(ch) })
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
