package auditlog

// syslog.go - also sends entries to a syslog server.

import (
	"context"
	"errors"
	"fmt"
	"log/syslog"
	"net/url"
	"time"

	"github.com/cenkalti/backoff/v5"
)

const (
	// queued is how many entries wait for a server that does not answer. Further entries are not sent.
	queued = 1000
	// retryPause is the pause after a failure.
	retryPause = 5 * time.Second
)

// Server is a syslog server.
type Server struct {
	network, address string // as package net has them; empty: this machine's own
}

// ParseServer reads "local", "udp://HOST:PORT", "tcp://HOST:PORT" or "unix:///PATH" (a datagram socket).
func ParseServer(text string) (Server, error) {
	if text == "local" {
		return Server{}, nil
	}
	u, err := url.Parse(text)
	switch {
	case err != nil:
	case (u.Scheme == "udp" || u.Scheme == "tcp") && u.Hostname() != "" && u.Port() != "" && u.Path == "":
		return Server{u.Scheme, u.Host}, nil
	case u.Scheme == "unix" && u.Host == "" && u.Path != "":
		return Server{"unixgram", u.Path}, nil
	}
	return Server{}, fmt.Errorf("%q is not a syslog server; give local, udp://HOST:PORT, tcp://HOST:PORT or unix:///PATH", text)
}

// Forward sends new entries to a server until ctx ends. A slow or unreachable server delays no call: up to queued entries
// wait, and further entries are only in the file.
func (l *Log) Forward(ctx context.Context, to Server) {
	l.mu.Lock()
	l.forward = make(chan string, queued)
	lines := l.forward
	l.mu.Unlock()
	go l.send(ctx, to, lines)
}

func (l *Log) send(ctx context.Context, to Server, lines <-chan string) {
	var w *syslog.Writer
	write := func(line string) (err error) {
		if w == nil {
			w, err = syslog.Dial(to.network, to.address, syslog.LOG_AUTHPRIV|syslog.LOG_NOTICE, "watari-audit")
		}
		if err == nil {
			_, err = w.Write([]byte(line))
		}
		return err
	}
	for {
		select {
		case <-ctx.Done():
			return
		case line := <-lines:
			failures := 0
			_, _ = backoff.Retry(ctx, func() (bool, error) { return true, write(line) }, // it fails only when ctx ends
				backoff.WithBackOff(backoff.NewConstantBackOff(retryPause)), backoff.WithMaxElapsedTime(0),
				backoff.WithNotify(func(err error, _ time.Duration) {
					if failures++; failures == 1 {
						l.log.Error("the syslog server cannot be reached; entries stay in the file, and are not sent if it stays unreachable", "error", err)
					}
				}))
		}
	}
}

// errQueueFull says that an entry was not forwarded because too many entries wait.
var errQueueFull = errors.New("too many entries wait for the syslog server")

// enqueue queues an entry for the syslog server, if there is one.
func (l *Log) enqueue(line []byte) error {
	if l.forward == nil {
		return nil
	}
	select {
	case l.forward <- string(line):
		return nil
	default:
		return errQueueFull
	}
}
