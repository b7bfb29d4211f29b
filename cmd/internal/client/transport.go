package client

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	dialTimeout = 5 * time.Second
	// A manager that vanished is noticed after pingAfter + pingTimeout of silence.
	pingAfter   = 10 * time.Second
	pingTimeout = 10 * time.Second
)

// Unreachable means that no manager accepted a connection. It has the reason for each.
type Unreachable struct {
	Managers []string // URLs
	Reasons  []error  // one for each manager
}

func (u *Unreachable) Error() string {
	lines := make([]string, len(u.Managers))
	for i, manager := range u.Managers {
		lines[i] = fmt.Sprintf("%s: %s", manager, plainReason(u.Reasons[i]))
	}
	return "no manager answers at " + strings.Join(lines, ", nor at ")
}

// elsewhere reports whether none of the managers is on this machine.
func (u *Unreachable) elsewhere() bool {
	return !slices.ContainsFunc(u.Managers, func(manager string) bool {
		parsed, err := url.Parse(manager)
		return err == nil && (parsed.Hostname() == "localhost" || net.ParseIP(parsed.Hostname()).IsLoopback())
	})
}

// Unwrap returns the reasons for errors.Is and errors.As.
func (u *Unreachable) Unwrap() []error { return u.Reasons }

// plainReason leaves out what the reader of "no manager answers at URL" knows already.
func plainReason(err error) string {
	var number syscall.Errno
	var timeout interface{ Timeout() bool }
	switch {
	case errors.As(err, &number):
		return number.Error()
	case errors.As(err, &timeout) && timeout.Timeout():
		return "no answer within " + dialTimeout.String()
	}
	return err.Error()
}

// transport sends requests to a manager that accepts connections, and remembers which one did.
type transport struct {
	tls *tls.Config

	mu        sync.Mutex
	managers  []string        // URLs
	addresses []string        // host:port, one for each
	hinted    bool            // the last rotation followed a hint
	first     int             // index of the manager to try first
	current   *http.Transport // nil: made when needed
}

func newTransport(managers []string, options *tls.Config) (*transport, error) {
	t := &transport{tls: options}
	for _, manager := range managers {
		if !t.add(manager) {
			return nil, fmt.Errorf("manager %q: give it as https://host:port, as in https://192.0.2.1:7070", manager)
		}
	}
	return t, nil
}

// add adds a manager. It returns false if this is no manager's URL. t.mu is held.
func (t *transport) add(manager string) bool {
	parsed, err := url.Parse(manager)
	if err != nil || parsed.Scheme != "https" || parsed.Hostname() == "" || parsed.Port() == "" {
		return false
	}
	t.managers, t.addresses = append(t.managers, manager), append(t.addresses, parsed.Host)
	return true
}

// RoundTrip implements http.RoundTripper.
func (t *transport) RoundTrip(request *http.Request) (*http.Response, error) {
	return t.use().RoundTrip(request)
}

func (t *transport) use() *http.Transport {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.current == nil {
		t.current = &http.Transport{
			DialContext:         t.dial,
			TLSClientConfig:     t.tls.Clone(),
			TLSHandshakeTimeout: dialTimeout,
			ForceAttemptHTTP2:   true,
			IdleConnTimeout:     time.Minute,
			HTTP2:               &http.HTTP2Config{SendPingTimeout: pingAfter, PingTimeout: pingTimeout},
		}
	}
	return t.current
}

// rotate makes the next request use a new connection: to the leader if the manager that answered names it, else to the next manager if
// there are several. Who answered may be cut off and name one that leads no more, so of two rotations at most one follows a hint. rotate
// returns how many managers there are. Current streams end by themselves.
func (t *transport) rotate(leader string) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	known := slices.Index(t.managers, leader)
	if known < 0 && t.add(leader) {
		known = len(t.managers) - 1
	}
	if t.hinted = !t.hinted && known >= 0; t.hinted {
		t.first = known
	} else {
		t.first = (t.first + 1) % len(t.addresses)
	}
	if t.current != nil {
		t.current.CloseIdleConnections()
		t.current = nil
	}
	return len(t.managers)
}

// dial connects to the first manager that accepts a connection.
func (t *transport) dial(ctx context.Context, network, _ string) (net.Conn, error) {
	t.mu.Lock()
	first, managers, addresses := t.first, t.managers, t.addresses
	t.mu.Unlock()
	failed := &Unreachable{}
	for i := range addresses {
		index := (first + i) % len(addresses)
		connection, err := (&net.Dialer{Timeout: dialTimeout}).DialContext(ctx, network, addresses[index])
		if err == nil {
			t.mu.Lock()
			t.first = index
			t.mu.Unlock()
			return connection, nil
		}
		failed.Managers = append(failed.Managers, managers[index])
		failed.Reasons = append(failed.Reasons, err)
	}
	return nil, failed
}
