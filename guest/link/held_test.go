package link

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"time"
)

// heldPipe is a channel whose other end stops reading when hold is closed.
type heldPipe struct {
	net.Conn
	hold   chan struct{}
	closed chan struct{}
	once   sync.Once
}

func (p *heldPipe) Write(b []byte) (int, error) {
	select {
	case <-p.hold:
		<-p.closed
		return 0, io.ErrClosedPipe
	default:
		return p.Conn.Write(b)
	}
}

func (p *heldPipe) Close() error {
	p.once.Do(func() { close(p.closed) })
	return p.Conn.Close()
}

// held opens a session to a guest that then stops reading while bytes are sent to it.
func held(t *testing.T, timing timing) (net.Conn, *heldPipe) {
	guestEnd, hostEnd := net.Pipe()
	pipe := &heldPipe{Conn: hostEnd, hold: make(chan struct{}), closed: make(chan struct{})}
	l := newListener(guestEnd, timing)
	go l.run(t.Context())
	go func() { <-l.sessions }()
	h, err := dial(t.Context(), pipe, timing)
	if err != nil {
		t.Fatal(err)
	}
	close(pipe.hold)
	if _, err := h.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	return h, pipe
}

func TestPeerThatDoesNotReadIsSilent(t *testing.T) {
	timing := quick
	timing.peerTimeout = 100 * time.Millisecond
	h, pipe := held(t, timing)
	h.SetReadDeadline(time.Now().Add(5 * time.Second))
	if _, err := h.Read(make([]byte, 1)); !errors.Is(err, ErrSilent) {
		t.Errorf("read: %v", err)
	}
	select {
	case <-pipe.closed:
	case <-time.After(5 * time.Second):
		t.Error("the channel stays open")
	}
}

func TestCloseClosesTheChannelToAPeerThatDoesNotRead(t *testing.T) {
	timing := quick
	timing.peerTimeout, timing.linger = time.Hour, 50*time.Millisecond
	h, pipe := held(t, timing)
	h.Close()
	select {
	case <-pipe.closed:
	case <-time.After(5 * time.Second):
		t.Error("the channel stays open")
	}
}

func TestDialEndsWithItsChannel(t *testing.T) {
	guestEnd, hostEnd := net.Pipe()
	guestEnd.Close()
	ended := make(chan error, 1)
	go func() {
		_, err := dial(context.Background(), hostEnd, quick)
		ended <- err
	}()
	select {
	case err := <-ended:
		if err == nil {
			t.Error("a session over a closed channel")
		}
	case <-time.After(5 * time.Second):
		t.Error("dial does not end")
	}
}
