package main

// watch.go - watches the guest's console from outside, because a guest does not notice its pauses.

import (
	"os"
	"time"
)

// watch is a guest's activity from one moment to another.
type watch struct {
	longest time.Duration // longest time without output on its console
	written int           // number of pages that it wrote to
	lasted  time.Duration
}

// rate returns the number of pages that the guest wrote to per second.
func (w watch) rate() float64 { return float64(w.written) / w.lasted.Seconds() }

// watchGuest watches the guest until the returned function is called.
func (h *host) watchGuest() (end func() watch) {
	begun, before := time.Now(), h.count()
	over, found := make(chan struct{}), make(chan time.Duration)
	go func() {
		longest, last, size := time.Duration(0), time.Now(), int64(-1)
		for {
			if info, err := os.Stat(h.console()); err == nil && info.Size() != size {
				size, last = info.Size(), time.Now()
			}
			longest = max(longest, time.Since(last))
			select {
			case <-over:
				found <- longest
				return
			case <-time.After(500 * time.Microsecond):
			}
		}
	}()
	return func() watch {
		close(over)
		return watch{longest: <-found, written: h.count() - before, lasted: time.Since(begun)}
	}
}
