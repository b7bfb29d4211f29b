package vm

// eventloop.go - libvirt's event loop, of which a process has one. It serves all connections: without it there
// are no events, no keepalives, and a dead daemon is not noticed.

import (
	"fmt"
	"sync"
	"time"

	"libvirt.org/go/libvirt"
)

var (
	eventLoopOnce sync.Once
	errEventLoop  error
)

// startEventLoop starts the loop once. It must be called before the first connection is made; it runs until the
// process ends, as libvirt offers no way to end it.
func startEventLoop() error {
	eventLoopOnce.Do(func() {
		if err := libvirt.EventRegisterDefaultImpl(); err != nil {
			errEventLoop = fmt.Errorf("start libvirt's event loop: %w", err)
			return
		}
		// A timer that never expires keeps the loop from having nothing to wait for.
		if _, err := libvirt.EventAddTimeout(int(time.Hour.Milliseconds()), func(int) {}); err != nil {
			errEventLoop = fmt.Errorf("start libvirt's event loop: %w", err)
			return
		}
		go func() {
			for {
				if err := libvirt.EventRunDefaultImpl(); err != nil {
					time.Sleep(100 * time.Millisecond) // poll failed: rare, passing, and not to be spun on
				}
			}
		}()
	})
	return errEventLoop
}
