// Package dialer connects to machines on networks that are cut off now and then.
package dialer

import (
	"context"
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// repetitions is how often the kernel repeats its first packet to an address. It does so after 1, 3, 7 and 15 s; without an answer
// to the first of these, the attempt ends after 3 s. After a cut of the network, the caller's next attempt is sooner.
const repetitions = 1

// New returns a dialer whose attempts end soon if an address does not answer. The dialer sets no limit to looking up a name.
func New() *net.Dialer {
	return &net.Dialer{ControlContext: func(_ context.Context, _, _ string, c syscall.RawConn) (err error) {
		if failed := c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_SYNCNT, repetitions) }); failed != nil {
			return failed
		}
		return err
	}}
}
