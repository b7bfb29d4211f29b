package tunnel

// volumes.go - connections to volumes that other hosts serve.

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"time"

	"watari/ca"
)

// Volume forwards a local connection to a volume of another host, until either end closes it or ctx ends.
func (t *Tunnels) Volume(ctx context.Context, local net.Conn, from Peer, uid string) error {
	remote, err := t.connect(ctx, from, volume, uid)
	if err != nil {
		return err
	}
	defer remote.Close()
	stop := context.AfterFunc(ctx, func() { remote.NetConn().Close(); local.Close() })
	defer stop()
	splice(remote, local, copyAll, copyAll)
	return nil
}

// serveVolume forwards another host's connection to a volume of this host.
func (t *Tunnels) serveVolume(ctx context.Context, conn *tls.Conn, id ca.Identity, uid string) {
	local, allowed, err := t.openVolume(ctx, id, uid)
	if err != nil {
		t.config.Log.Warn("a volume was refused", "to", id.String(), "volume", uid, "error", err)
		answer(conn, err)
		return
	}
	defer local.Close()
	answer(conn, nil)
	conn.NetConn().SetDeadline(time.Time{})
	for _, until := range []context.Context{ctx, allowed} {
		stop := context.AfterFunc(until, func() { conn.NetConn().Close(); local.Close() })
		defer stop()
	}
	splice(conn, local, copyAll, copyAll)
}

func (t *Tunnels) openVolume(ctx context.Context, id ca.Identity, uid string) (net.Conn, context.Context, error) {
	switch {
	case id.Kind != ca.KindHost:
		return nil, nil, fmt.Errorf("%s is not a host", id)
	case t.config.Volume == nil:
		return nil, nil, errors.New("this host has no volumes")
	}
	socket, allowed, err := t.config.Volume(id, uid)
	if err != nil {
		return nil, nil, err
	}
	local, err := new(net.Dialer).DialContext(ctx, "unix", socket)
	return local, allowed, err
}
