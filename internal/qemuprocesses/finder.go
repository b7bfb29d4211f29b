package qemuprocesses

// finder.go - checks of the process table with a time limit. A process in an uninterruptible sleep in the kernel can
// block a check.

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// lookTime is how long a caller waits for a check.
const lookTime = 2 * time.Second

// Finder makes checks, one at a time.
type Finder struct {
	list func() ([]Process, error) // nil: List

	mu      sync.Mutex
	current *look
}

// look is one check of the process table.
type look struct {
	ended chan struct{}
	pids  map[string][]int
	err   error
}

// Find returns the pids of guests' processes by guest uid. The result is that of a check that began after the call,
// because the absence of a process from an earlier check proves nothing. Find fails if the check does not end in time
// or could not read all processes.
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
		fresh = true // the next check begins after this one, and so after the call
	}
}

// join returns the current check, or begins one.
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
