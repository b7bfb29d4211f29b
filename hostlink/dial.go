package hostlink

// dial.go - the agent's end of a connection.

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"sync"
	"time"

	"watari/internal/dialer"
	"watari/internal/protocol"
)

const dialTimeout = 10 * time.Second

// Dial connects to a manager (https://host:port) and serves handler on the connection until it ends or
// ctx does. It always returns an error: ctx's, a *Refusal, or why the connection failed. config is ca.ClientTLS
// of the host's certificate.
func Dial(ctx context.Context, managerURL string, config *tls.Config, handler http.Handler) error {
	u, err := url.Parse(managerURL)
	if err != nil || u.Scheme != "https" || u.Host == "" {
		return fmt.Errorf("dial the manager: %q is not like https://host:7070", managerURL)
	}
	address := u.Host
	if u.Port() == "" {
		address = net.JoinHostPort(u.Hostname(), "7070")
	}
	config = config.Clone()
	config.NextProtos = []string{Protocol}
	dialCtx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	plain := dialer.New()
	plain.KeepAlive = 5 * time.Second
	secure := &tls.Dialer{NetDialer: plain, Config: config}
	conn, err := secure.DialContext(dialCtx, "tcp", address)
	if err != nil {
		return fmt.Errorf("dial the manager at %s: %w", address, err)
	}
	defer conn.Close()
	if conn.(*tls.Conn).ConnectionState().NegotiatedProtocol != Protocol {
		return fmt.Errorf("dial the manager at %s: what answers there does not speak %s", address, Protocol)
	}
	return serveConn(ctx, conn, handler)
}

// serveConn serves HTTP/2 on one connection until it ends.
func serveConn(ctx context.Context, conn net.Conn, handler http.Handler) error {
	refused := make(chan *Refusal, 1)
	mux := http.NewServeMux()
	mux.HandleFunc("POST "+refusalPath, func(w http.ResponseWriter, r *http.Request) {
		reason, err := io.ReadAll(io.LimitReader(r.Body, 4096))
		if err != nil {
			return
		}
		select {
		case refused <- &Refusal{string(reason), r.Header.Get(protocol.LeaderHeader), r.Header.Get(removedHeader) == "true"}:
		default:
		}
	})
	mux.Handle("/", handler)
	server := &http.Server{
		Handler:   mux,
		Protocols: new(http.Protocols),
		HTTP2: &http.HTTP2Config{SendPingTimeout: pingAfter, PingTimeout: pingTimeout, MaxConcurrentStreams: mostCalls,
			MaxReceiveBufferPerStream: unreadByAgent, MaxReceiveBufferPerConnection: unreadByAgentInAll},
		BaseContext: func(net.Listener) context.Context {
			return ctx
		},
	}
	server.Protocols.SetUnencryptedHTTP2(true) // TLS is in a lower layer
	one := &oneConn{conn: conn, ended: make(chan struct{})}
	stop := context.AfterFunc(ctx, func() { server.Close() })
	defer stop()
	err := server.Serve(one)
	server.Close()
	select {
	case r := <-refused:
		return r
	default:
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if errors.Is(err, io.EOF) || err == nil {
		err = errors.New("the manager ended the connection")
	}
	return err
}

// oneConn is a listener that yields one connection, and ends when that connection ends.
type oneConn struct {
	conn  net.Conn
	once  sync.Once
	close sync.Once
	ended chan struct{}
}

// Accept yields the connection, and then waits for its end.
func (l *oneConn) Accept() (net.Conn, error) {
	var c net.Conn
	l.once.Do(func() { c = &watchedConn{Conn: l.conn, ended: func() { l.Close() }} })
	if c != nil {
		return c, nil
	}
	<-l.ended
	return nil, io.EOF
}

// Close ends Accept.
func (l *oneConn) Close() error {
	l.close.Do(func() { close(l.ended) })
	return nil
}

// Addr returns the connection's local address.
func (l *oneConn) Addr() net.Addr { return l.conn.LocalAddr() }

// watchedConn is a connection whose Close ends its listener.
type watchedConn struct {
	net.Conn
	ended func()
}

// Close closes the connection and ends the listener.
func (c *watchedConn) Close() error {
	defer c.ended()
	return c.Conn.Close()
}
