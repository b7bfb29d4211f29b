package rsh

import (
	"sync"
	"syscall"
)

// signalsLimit is how many signals wait for a peer that does not answer; further ones are dropped.
const signalsLimit = 4

// signals passes a launcher's signals on, one after the other. There is a goroutine only while a signal is on its way.
type signals struct {
	mu      sync.Mutex
	pass    func(syscall.Signal)
	waiting []syscall.Signal
	passing chan struct{} // closed when nothing is on its way any more; nil: nothing is
}

// passTo says what becomes of signals from now on; nil: they wait. When it returns nothing is passed as before.
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

// take takes a signal that has come.
func (s *signals) take(signal syscall.Signal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.waiting) < signalsLimit {
		s.waiting = append(s.waiting, signal)
	}
	s.begin()
}

// begin starts passing, where there is something to pass; s.mu is held.
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
