package qemuprocesses

// finder.go - looks at the process table that are bounded in time. A process that the kernel holds in an uninterruptible
// sleep can keep a look from ending.

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// lookTime is how long a caller waits for a look.
const lookTime = 2 * time.Second

// Finder makes looks, one at a time.
type Finder struct {
	list func() ([]Process, error) // nil: List

	mu      sync.Mutex
	current *look
}

// look is one look at the process table.
type look struct {
	ended chan struct{}
	pids  map[string][]int
	err   error
}

// Find returns the pids of guests' processes, by guest uid, as a look found them that began after the call: the absence of a
// process from an earlier one proves nothing. It fails when that has not ended in time, or could not see all processes.
func (f *Finder) Find(ctx context.Context) (map[string][]int, error) {
	ctx, cancel := context.WithTimeout(ctx, lookTime)
	defer cancel()
	for fresh := false; ; {
		l, began := f.join()
		fresh = fresh || began
		select {
		case <-l.ended:
		case <-ctx.Done():
			return nil, fmt.Errorf("the process table could not be read in time: %w", ctx.Err())
		}
		if fresh {
			return l.pids, l.err
		}
		fresh = true // the next look begins after this one, and so after the call
	}
}

// join returns the look that is under way, or begins one.
func (f *Finder) join() (l *look, began bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.current != nil {
		return f.current, false
	}
	l = &look{ended: make(chan struct{})}
	f.current = l
	list := f.list
	if list == nil {
		list = List
	}
	go func() {
		found, err := list()
		l.pids, l.err = ByGuest(found), err
		f.mu.Lock()
		f.current = nil
		f.mu.Unlock()
		close(l.ended)
	}()
	return l, true
}
