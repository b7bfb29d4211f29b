// Package hostlink is the connection between an agent and a manager: what both ends have in common. The agent dials (so
// that it works behind NAT), TLS with the ALPN protocol watari-agent/1, and then serves HTTP/2 on the connection it dialled:
// the manager is the client of AgentService, and of the guests behind it.
package hostlink

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"
)

const (
	// Protocol is the ALPN protocol of an agent's connection.
	Protocol = "watari-agent/1"
	// BaseURL is what requests to an agent are addressed to; a guest is at BaseURL/guest/<uid>.
	BaseURL = "http://agent"

	// A connection on which nothing was heard for pingAfter is pinged, and given up pingTimeout later.
	pingAfter   = 2 * time.Second
	pingTimeout = 3 * time.Second
)

// GuestLimit bounds one message that is taken of a guest: what is in it is its owner's, who may have put anything in
// the place of its agent. More than any request to a guest may hold, which answers repeat.
func GuestLimit() connect.ClientOption { return connect.WithReadMaxBytes(16 << 20) }

// How a refusal is told.
const (
	refusalPath  = "/watari-refusal"
	leaderHeader = "Watari-Leader"
	// removedHeader has the value "true" in a refusal that tells a host that it was removed.
	removedHeader = "Watari-Removed"
)

// Refusal is why a manager did not serve an agent.
type Refusal struct {
	Reason string
	Leader string // URL of the manager to dial instead; empty: unknown
	// Removed: the host was taken out. Its guests may run elsewhere, so it is to end those that it has.
	Removed bool
}

func (r *Refusal) Error() string { return r.Reason }

// NewTransport is the manager's end: an HTTP/2 client on exactly this connection.
func NewTransport(conn net.Conn) *http.Transport {
	var once sync.Once
	dial := func(context.Context, string, string) (c net.Conn, err error) {
		err = fmt.Errorf("the agent's connection has ended: %w", net.ErrClosed)
		once.Do(func() { c, err = plainConn{conn}, nil })
		return c, err
	}
	t := &http.Transport{
		DialContext: dial,
		Protocols:   new(http.Protocols),
		HTTP2: &http.HTTP2Config{
			SendPingTimeout: pingAfter, PingTimeout: pingTimeout, WriteByteTimeout: pingTimeout,
			StrictMaxConcurrentRequests: true,
		},
		DisableCompression: true,
	}
	t.Protocols.SetUnencryptedHTTP2(true) // the encryption is below
	return t
}

// plainConn hides from net/http that a connection is a *tls.Conn whose ALPN it would look at.
type plainConn struct{ net.Conn }

// Refuse tells an agent why it is not served, by one request that Dial answers.
func Refuse(t *http.Transport, reason error) {
	defer t.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(context.Background(), pingTimeout)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, BaseURL+refusalPath, strings.NewReader(reason.Error()))
	if err != nil {
		return
	}
	if to, ok := reason.(*Refusal); ok {
		r.Header.Set(leaderHeader, to.Leader)
		r.Header.Set(removedHeader, strconv.FormatBool(to.Removed))
	}
	resp, err := t.RoundTrip(r)
	if err != nil {
		return
	}
	io.Copy(io.Discard, resp.Body)
	resp.Body.Close()
}
