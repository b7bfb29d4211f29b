// control.go speaks to the WireGuard device. Its process, where it has one, may hang, and wgctrl knows no deadline:
// whoever waits for it holds up every tap and route of the host.
package overlay

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
)

// controlTime is how long WireGuard may take to answer, on a host that is busy.
const controlTime = 30 * time.Second

var errHangs = errors.New("the WireGuard process hangs; end it (wireguard.pid in the agent's run folder), and it is started anew")

// patience bounds calls that cannot be cut short. One that is given up goes on behind the scenes; until it has ended
// there is no other, so that a process that hangs holds one of them and not ever more.
type patience struct {
	limit time.Duration

	mu    sync.Mutex
	ended chan struct{} // of the call that was given up; nil: none was
}

func (p *patience) do(f func() error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended != nil {
		select {
		case <-p.ended:
			p.ended = nil
		default:
			return errHangs
		}
	}
	outcome, ended := make(chan error, 1), make(chan struct{})
	go func() {
		outcome <- f()
		close(ended)
	}()
	late := time.NewTimer(p.limit)
	defer late.Stop()
	select {
	case err := <-outcome:
		return err
	case <-late.C:
		p.ended = ended
		return fmt.Errorf("no answer within %v: %w", p.limit, errHangs)
	}
}

// device is the WireGuard device as it is.
func (o *Overlay) device() (*wgtypes.Device, error) {
	var device *wgtypes.Device
	client := o.control
	err := o.patience.do(func() (err error) {
		device, err = client.Device(Device)
		return err
	})
	if err != nil {
		return nil, err // device may still be written
	}
	return device, nil
}

func (o *Overlay) configure(config wgtypes.Config) error {
	client := o.control
	return o.patience.do(func() error { return client.ConfigureDevice(Device, config) })
}
