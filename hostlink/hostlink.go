// Package hostlink is the connection between an agent and a manager. The agent dials, so that it works behind NAT, with
// TLS and the ALPN protocol watari-agent/1. Then the agent serves HTTP/2 on this connection: the manager is the client
// of AgentService, and of the guests behind the agent.
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

	"watari/internal/protocol"
)

const (
	// Protocol is the ALPN protocol of an agent's connection.
	Protocol = "watari-agent/1"
	// BaseURL is the base URL of requests to an agent.
	BaseURL = "http://agent"

	// An end pings a connection on which it has received nothing for pingAfter, and closes it if pingTimeout passes
	// without an answer.
	pingAfter   = 2 * time.Second
	pingTimeout = 3 * time.Second
)

// GuestURL returns the base URL of requests that an agent forwards to a guest.
func GuestURL(uid string) string { return BaseURL + "/guest/" + uid }

// GuestLimit bounds one message from a guest. A guest's owner may have replaced its agent, so the message may be
// anything. The limit is above that of any request to a guest, because answers repeat requests.
func GuestLimit() connect.ClientOption { return connect.WithReadMaxBytes(16 << 20) }

// How a manager sends a refusal.
const (
	refusalPath = "/watari-refusal"
	// removedHeader is "true" in a refusal if the host was removed.
	removedHeader = "Watari-Removed"
)

// Refusal is why a manager does not serve an agent.
type Refusal struct {
	Reason string
	Leader string // URL of the manager to dial instead; empty: unknown
	// Removed: the host was removed. Its guests may run elsewhere, so the host must end its own copies.
	Removed bool
}

func (r *Refusal) Error() string { return r.Reason }

// All calls of a manager to an agent share one connection, and with it the connection's flow control. So that calls which nobody reads
// cannot hold up the others, the connection takes more bytes than all its calls together may leave unread.
const (
	// mostCalls is how many calls a connection carries at a time.
	mostCalls = 1000
	// mostForUsers is how many of them may be users' calls. The rest is for the manager's own: orders, leases, runs.
	mostForUsers = 900
	// unreadByAgent and unreadByManager are how many bytes of one call may wait for a reader there. More lets a file travel faster over
	// a distant link; all of a connection's calls together use as much memory.
	unreadByAgent   = 512 << 10
	unreadByManager = 1 << 20
	// unreadByAgentInAll is more than mostCalls times unreadByAgent. A manager's connection takes 1 GiB (net/http's default), which is
	// more than mostCalls times unreadByManager.
	unreadByAgentInAll = 768 << 20
)

// NewTransport returns the manager's end: an HTTP/2 client on exactly this connection.
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
			StrictMaxConcurrentRequests: true, MaxReceiveBufferPerStream: unreadByManager,
		},
		DisableCompression: true,
	}
	t.Protocols.SetUnencryptedHTTP2(true) // the encryption is below
	return t
}

// plainConn hides from net/http that a connection is a *tls.Conn. Otherwise net/http would examine its ALPN protocol.
type plainConn struct{ net.Conn }

// Refuse tells an agent why the manager does not serve it. It sends one request, which Dial answers.
func Refuse(t *http.Transport, reason error) {
	defer t.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(context.Background(), pingTimeout)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, BaseURL+refusalPath, strings.NewReader(reason.Error()))
	if err != nil {
		return
	}
	if to, ok := reason.(*Refusal); ok {
		r.Header.Set(protocol.LeaderHeader, to.Leader)
		r.Header.Set(removedHeader, strconv.FormatBool(to.Removed))
	}
	resp, err := t.RoundTrip(r)
	if err != nil {
		return
	}
	io.Copy(io.Discard, resp.Body)
	resp.Body.Close()
}
