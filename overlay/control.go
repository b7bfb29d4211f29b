// control.go talks to the WireGuard device. If a process implements the device, that process may hang, and wgctrl has
// no timeouts. A caller that waits for it would block all changes of taps and routes on the host.
package overlay

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
)

// controlTime is the longest time that WireGuard may take to answer on a busy host.
const controlTime = 30 * time.Second

var errHangs = errors.New("the WireGuard process hangs; kill it (wireguard.pid in the agent's run directory has its pid), and the agent starts it again")

// callLimiter limits the duration of calls that cannot be cancelled. A call that exceeds the limit goes on in the
// background, and no other call starts before it has ended. So a process that hangs blocks one goroutine, not a growing
// number.
type callLimiter struct {
	limit time.Duration

	mu    sync.Mutex
	ended chan struct{} // closed when the call that exceeded the limit has ended; nil: there is none
}

func (c *callLimiter) do(f func() error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended != nil {
		select {
		case <-c.ended:
			c.ended = nil
		default:
			return errHangs
		}
	}
	outcome, ended := make(chan error, 1), make(chan struct{})
	go func() {
		outcome <- f()
		close(ended)
	}()
	late := time.NewTimer(c.limit)
	defer late.Stop()
	select {
	case err := <-outcome:
		return err
	case <-late.C:
		c.ended = ended
		return fmt.Errorf("no answer within %v: %w", c.limit, errHangs)
	}
}

// device returns the current state of the WireGuard device.
func (o *Overlay) device() (*wgtypes.Device, error) {
	var device *wgtypes.Device
	client := o.control
	err := o.calls.do(func() (err error) {
		device, err = client.Device(Device)
		return err
	})
	if err != nil {
		return nil, err // the call may still write device
	}
	return device, nil
}

func (o *Overlay) configure(config wgtypes.Config) error {
	client := o.control
	return o.calls.do(func() error { return client.ConfigureDevice(Device, config) })
}
