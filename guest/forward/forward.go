// Package forward carries TCP connections into a guest over one stream: the input and output of a process in the guest,
// which `watari guest forward` starts. The stream carries many connections (yamux). Each connection has a window: if its
// reader does not read, its writer stops, and few bytes are in flight. The stream survives a move of the guest.
package forward

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"sync"
	"time"

	"github.com/hashicorp/yamux"
)

const (
	// MostConnections bounds the open connections of a stream.
	MostConnections = 64
	window          = 256 << 10 // of a connection, bytes in each direction
	// Kept is how many bytes the guest must keep that it has sent and the other end has not received.
	Kept = 2 * MostConnections * window
	// dialTime bounds how long a port in the guest may take to answer.
	dialTime = 10 * time.Second
	// stall is how long the stream may make no progress: the guest may be moving, or its host may be unreachable.
	stall = 10 * time.Minute
	// maxReason bounds the text of the reason why a port does not answer, bytes.
	maxReason = 500
)

func config() *yamux.Config {
	c := yamux.DefaultConfig()
	c.EnableKeepAlive, c.ConnectionWriteTimeout, c.StreamOpenTimeout = false, stall, stall
	c.MaxStreamWindowSize, c.AcceptBacklog = window, MostConnections
	c.StreamCloseTimeout = 24 * time.Hour // one direction may end long before the other
	c.LogOutput, c.Logger = nil, log.New(io.Discard, "", 0)
	return c
}

// Serve is the guest's end: it connects to the ports that the other end asks for, until the stream ends.
func Serve(stream io.ReadWriteCloser) error {
	session, err := yamux.Server(stream, config())
	if err != nil {
		return err
	}
	defer session.Close()
	for {
		asked, err := session.AcceptStream()
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrClosedPipe) || errors.Is(err, yamux.ErrSessionShutdown) {
			return nil
		}
		if err != nil {
			return err
		}
		go serve(asked)
	}
}

// serve carries one connection. The connection begins with the port. The answer is a length and the text of an error; the
// length is 0 if the port was reached.
func serve(asked *yamux.Stream) {
	defer asked.Close()
	var port uint16
	if err := binary.Read(asked, binary.BigEndian, &port); err != nil {
		return
	}
	conn, err := dial(port)
	reason := ""
	if err != nil {
		reason = err.Error()
		reason = reason[:min(len(reason), maxReason)]
	}
	if answer(asked, reason) != nil || err != nil {
		if conn != nil {
			conn.Close()
		}
		return
	}
	Join(asked, conn)
}

func answer(to io.Writer, reason string) error {
	_, err := to.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(reason))), reason...))
	return err
}

// dial connects to a port of the guest. Programs listen on one of the two loopback addresses or on both.
func dial(port uint16) (conn net.Conn, err error) {
	for _, host := range []string{"127.0.0.1", "::1"} {
		var failed error
		if conn, failed = net.DialTimeout("tcp", net.JoinHostPort(host, fmt.Sprint(port)), dialTime); failed == nil {
			return conn, nil
		}
		if err == nil {
			err = failed
		}
	}
	return nil, err
}

// Client is the other end of a stream.
type Client struct{ session *yamux.Session }

// NewClient returns a client over a stream to Serve.
func NewClient(stream io.ReadWriteCloser) (*Client, error) {
	session, err := yamux.Client(stream, config())
	return &Client{session}, err
}

// Open connects to a port of the guest.
func (c *Client) Open(ctx context.Context, port uint16) (net.Conn, error) {
	conn, err := c.session.OpenStream()
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	var length uint16
	if err = binary.Write(conn, binary.BigEndian, port); err == nil {
		err = binary.Read(conn, binary.BigEndian, &length)
	}
	reason := make([]byte, min(length, maxReason))
	if err == nil {
		_, err = io.ReadFull(conn, reason)
	}
	if err == nil && length > 0 {
		err = errors.New(string(reason))
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}

// Close ends all connections.
func (c *Client) Close() error { return c.session.Close() }

// Ended is closed when the stream has ended.
func (c *Client) Ended() <-chan struct{} { return c.session.CloseChan() }

// Join copies between two connections in both directions until both directions have ended, and closes the connections. It
// passes on the end of each direction separately.
func Join(a, b io.ReadWriteCloser) {
	var both sync.WaitGroup
	for _, pair := range [][2]io.ReadWriteCloser{{a, b}, {b, a}} {
		both.Go(func() {
			_, err := io.Copy(pair[0], pair[1])
			if half, can := pair[0].(interface{ CloseWrite() error }); can && err == nil {
				_ = half.CloseWrite()
			} else if stream, is := pair[0].(*yamux.Stream); is && err == nil {
				_ = stream.Close() // only this direction: data from the other end still arrives
			} else {
				pair[0].Close()
				pair[1].Close()
			}
		})
	}
	both.Wait()
	a.Close()
	b.Close()
}
