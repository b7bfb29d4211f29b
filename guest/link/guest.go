package link

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"golang.org/x/net/http2"
)

// listener is the guest's end of a channel. It has at most one session, the newest.
type listener struct {
	channel  io.ReadWriteCloser
	wire     *wire
	timing   timing
	sessions chan *conn
	unknown  chan uint64 // session for which a reset is to be sent
}

func newListener(channel io.ReadWriteCloser, t timing) *listener {
	return &listener{
		channel: channel, wire: &wire{w: channel}, timing: t,
		sessions: make(chan *conn), unknown: make(chan uint64, 1),
	}
}

// run reads frames from the channel until the channel or ctx ends.
func (l *listener) run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { l.channel.Close() })
	defer stop()
	defer close(l.unknown)
	defer close(l.sessions)
	go l.reset()
	d := newDecoder(l.channel)
	var current *conn
	end := func(err error) {
		if current != nil {
			current.end(err)
			current = nil
		}
	}
	for {
		f, garbled, err := d.next()
		switch {
		case errors.Is(err, ErrNoHost):
			end(ErrNoHost)
			d.reset()
			continue
		case err != nil:
			end(err)
			return err
		}
		if f.kind == kindHello && (current == nil || current.session != f.session) {
			end(ErrTakenOver)
			current = newConn(l.wire, f.session, l.timing)
			go current.run()
			select {
			case l.sessions <- current:
			case <-ctx.Done():
				end(ctx.Err())
				return ctx.Err()
			}
		}
		switch {
		case current == nil || current.session != f.session || current.over():
			if f.kind != kindReset && f.kind != kindFin {
				select {
				case l.unknown <- f.session:
				default:
				}
			}
		case f.kind == kindHello:
			current.welcome()
		default:
			current.handle(f, garbled)
		}
	}
}

// reset answers frames of unknown sessions. It is a separate goroutine because the reader must never wait for a write.
func (l *listener) reset() {
	for session := range l.unknown {
		if err := l.wire.send(&frame{kind: kindReset, session: session}); err != nil {
			return
		}
	}
}

// over reports whether the session has ended at this end.
func (c *conn) over() bool { return c.reason() != nil }

// reason returns why the session has ended, or nil.
func (c *conn) reason() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

func (c *conn) welcome() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sendSoon(kindWelcome)
}

// Serve serves HTTP/2 (prior knowledge, no TLS) to the host over the channel that open returns, session after session,
// until ctx ends. If the channel ends, Serve opens it again.
func Serve(ctx context.Context, open func() (io.ReadWriteCloser, error), handler http.Handler) error {
	return serve(ctx, open, handler, guestTiming)
}

func serve(ctx context.Context, open func() (io.ReadWriteCloser, error), handler http.Handler, t timing) error {
	for {
		channel, err := open()
		if err != nil {
			return fmt.Errorf("open channel to the host: %w", err)
		}
		l := newListener(channel, t)
		var group sync.WaitGroup
		group.Go(func() {
			for c := range l.sessions {
				group.Go(func() { serveSession(ctx, c, handler) })
			}
		})
		l.run(ctx)
		channel.Close()
		group.Wait()
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(t.resend / 4):
		}
	}
}

func serveSession(ctx context.Context, c net.Conn, handler http.Handler) {
	defer c.Close()
	server := &http2.Server{MaxReadFrameSize: 64 << 10}
	server.ServeConn(c, &http2.ServeConnOpts{Context: ctx, Handler: handler, BaseConfig: &http.Server{Protocols: http2Only()}})
}

// http2Only returns the protocols of a server with HTTP/2 without TLS.
func http2Only() *http.Protocols {
	p := new(http.Protocols)
	p.SetUnencryptedHTTP2(true)
	return p
}
