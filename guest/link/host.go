package link

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"time"
)

// Dial opens a session over a channel to a guest. It takes ownership of the channel, which is closed when the session
// ends. It sends hello frames until the guest answers or ctx ends. An earlier session of the guest ends.
func Dial(ctx context.Context, channel io.ReadWriteCloser) (net.Conn, error) {
	return dial(ctx, channel, hostTiming)
}

// DialUnix opens a session through the Unix socket that QEMU makes for a guest's channel.
func DialUnix(ctx context.Context, path string) (net.Conn, error) {
	var d net.Dialer
	channel, err := d.DialContext(ctx, "unix", path)
	if err != nil {
		return nil, fmt.Errorf("open guest channel: %w", err)
	}
	return Dial(ctx, channel)
}

func dial(ctx context.Context, channel io.ReadWriteCloser, t timing) (net.Conn, error) {
	var id [8]byte
	rand.Read(id[:])
	c := newConn(&wire{w: channel}, binary.LittleEndian.Uint64(id[:]), t)
	welcome := make(chan struct{})
	ended := make(chan struct{})
	c.onEnd = func() {
		channel.Close()
		close(ended)
	}
	go readHost(c, channel, welcome)
	// A write to the channel may block while the guest does not read, so a separate goroutine greets.
	done := make(chan struct{})
	go greet(c, done)
	defer close(done)
	select {
	case <-welcome:
		go c.run()
		return c, nil
	case <-ended:
		return nil, fmt.Errorf("greet guest agent: %w", c.reason())
	case <-ctx.Done():
		c.end(ctx.Err())
		return nil, fmt.Errorf("greet guest agent: no answer: %w", context.Cause(ctx))
	}
}

// greet sends hello frames, at growing intervals, until done is closed.
func greet(c *conn, done <-chan struct{}) {
	for wait := c.timing.resend / 4; ; wait = min(2*wait, 5*c.timing.resend/2) {
		hello := frame{kind: kindHello, session: c.session, window: windowSize}
		if err := c.wire.send(&hello); err != nil {
			return // readHost notices the end of the channel, too
		}
		select {
		case <-done:
			return
		case <-time.After(wait):
		}
	}
}

// readHost reads frames from the channel until it ends.
func readHost(c *conn, channel io.Reader, welcome chan struct{}) {
	d := newDecoder(channel)
	welcomed := false
	for {
		f, garbled, err := d.next()
		if err != nil {
			c.end(fmt.Errorf("link: channel to the guest ended: %w", eofIsUnexpected(err)))
			return
		}
		if f.session != c.session || f.kind == kindHello {
			continue // a frame of an earlier session
		}
		if !welcomed {
			if f.kind == kindReset {
				continue // the guest has not received a hello yet; another one follows
			}
			welcomed = true
			close(welcome)
		}
		c.handle(f, garbled)
	}
}
