package tunnel

// blobs.go - blobs that one host fetches from another.

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"

	"watari/ca"
)

// ErrAbsent says that a host has no byte of a blob yet.
var ErrAbsent = errors.New("that host has no byte of it yet")

// Fetch opens a blob of another host at an offset in bytes. The stream ends where that host's copy ends, so the caller
// must check length and hash. It may fail with ErrAbsent.
func (t *Tunnels) Fetch(ctx context.Context, from Peer, digest string, offset int64) (io.ReadCloser, error) {
	conn, err := t.connect(ctx, from, blob, digest+" "+strconv.FormatInt(offset, 10))
	if err != nil {
		return nil, err
	}
	return blobConn{conn}, nil
}

// blobConn is a connection whose Close sends no TLS close_notify. The other end does not wait for one.
type blobConn struct{ *tls.Conn }

// Close ends the connection.
func (c blobConn) Close() error { return c.NetConn().Close() }

// serveBlob sends a blob to another host. It ends when that host closes the connection.
func (t *Tunnels) serveBlob(ctx context.Context, conn *tls.Conn, id ca.Identity, text string) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	content, err := t.openBlob(ctx, id, text)
	if err != nil {
		if !errors.Is(err, ErrAbsent) {
			t.config.Log.Warn("a blob was refused", "to", id.String(), "error", err)
		}
		answer(conn, err)
		return
	}
	defer content.Close()
	answer(conn, nil)
	conn.NetConn().SetDeadline(time.Time{})
	go func() {
		io.Copy(io.Discard, conn) // the other end sends nothing; this returns when it closes the connection
		cancel()
	}()
	stop := context.AfterFunc(ctx, func() { conn.NetConn().Close() })
	defer stop()
	if _, err := io.CopyBuffer(struct{ io.Writer }{conn}, struct{ io.Reader }{content}, make([]byte, bufferSize)); err != nil {
		if ctx.Err() == nil && !errors.Is(err, net.ErrClosed) {
			t.config.Log.Info("a blob was not sent whole", "to", id.String(), "error", err)
		}
		return
	}
	conn.CloseWrite()
}

// openBlob opens the blob that a request's header names.
func (t *Tunnels) openBlob(ctx context.Context, id ca.Identity, text string) (io.ReadCloser, error) {
	digest, number, _ := strings.Cut(text, " ")
	offset, err := strconv.ParseInt(number, 10, 64)
	switch {
	case err != nil || offset < 0:
		return nil, fmt.Errorf("%q names no blob and offset", text)
	case id.Kind != ca.KindHost:
		return nil, fmt.Errorf("%s is not a host", id)
	case t.config.Blobs == nil:
		return nil, errors.New("this host passes no blobs on")
	}
	return t.config.Blobs(ctx, id, digest, offset)
}
