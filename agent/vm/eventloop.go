package vm

// eventloop.go - runs libvirt's event loop. A process has one loop, which serves all connections. Without it there are
// no events and no keepalives, so that a dead daemon would not be detected.

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
		// The loop needs something to wait for, so give it a timer that expires rarely.
		if _, err := libvirt.EventAddTimeout(int(time.Hour.Milliseconds()), func(int) {}); err != nil {
			errEventLoop = fmt.Errorf("start libvirt's event loop: %w", err)
			return
		}
		go func() {
			for {
				if err := libvirt.EventRunDefaultImpl(); err != nil {
					time.Sleep(100 * time.Millisecond) // poll failed, which is rare and temporary; do not spin
				}
			}
		}()
	})
	return errEventLoop
}
