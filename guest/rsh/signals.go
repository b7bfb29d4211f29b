package rsh

import (
	"sync"
	"syscall"
)

// signalsLimit is the number of signals that wait for a peer that does not answer. Further signals are dropped.
const signalsLimit = 4

// signals passes on a launcher's signals, one after the other. It has a goroutine only while a signal is under way.
type signals struct {
	mu      sync.Mutex
	pass    func(syscall.Signal)
	waiting []syscall.Signal
	passing chan struct{} // closed when no signal is under way any more; nil: none is under way
}

// passTo sets the function that receives signals from now on; nil: they wait. When passTo returns, the earlier function
// is no longer called.
func (s *signals) passTo(pass func(syscall.Signal)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pass = nil
	for s.passing != nil {
		passing := s.passing
		s.mu.Unlock()
		<-passing
		s.mu.Lock()
	}
	s.pass = pass
	s.begin()
}

// take adds a signal from the launcher.
func (s *signals) take(signal syscall.Signal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.waiting) < signalsLimit {
		s.waiting = append(s.waiting, signal)
	}
	s.begin()
}

// begin starts the goroutine if a signal waits. s.mu is held.
func (s *signals) begin() {
	if s.pass == nil || len(s.waiting) == 0 || s.passing != nil {
		return
	}
	s.passing = make(chan struct{})
	go func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		for len(s.waiting) > 0 && s.pass != nil {
			signal, pass := s.waiting[0], s.pass
			s.waiting = s.waiting[1:]
			s.mu.Unlock()
			pass(signal)
			s.mu.Lock()
		}
		close(s.passing)
		s.passing = nil
	}()
}
