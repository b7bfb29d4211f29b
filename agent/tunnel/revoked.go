package tunnel

// revoked.go - certificates of other hosts that were revoked.

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"

	"watari/ca"
)

// Revoke sets the least generations of certificates that hosts must show, by the hosts' uids. A host that is not named may show
// any. Connections to hosts that have shown an earlier certificate end.
func (t *Tunnels) Revoke(least map[string]uint32) {
	t.certificates.Lock()
	t.least = least
	var ended []net.Conn
	for conn, id := range t.shown {
		if t.revoked(id) != nil {
			ended = append(ended, conn)
		}
	}
	t.certificates.Unlock()
	for _, conn := range ended {
		conn.Close()
	}
}

// watched is a connection that Revoke may end.
type watched struct {
	net.Conn
	t *Tunnels
}

// watch has Revoke end a connection to a host that has shown a certificate, until the connection is closed. An error refuses the
// host.
func (w *watched) watch(id ca.Identity) error {
	w.t.certificates.Lock()
	defer w.t.certificates.Unlock()
	if err := w.t.revoked(id); err != nil {
		return err
	}
	w.t.shown[w] = id
	return nil
}

// Close closes the connection.
func (w *watched) Close() error {
	w.t.certificates.Lock()
	delete(w.t.shown, w)
	w.t.certificates.Unlock()
	return w.Conn.Close()
}

// revoked returns an error if a certificate was revoked. The caller holds the lock.
func (t *Tunnels) revoked(id ca.Identity) error {
	if least := t.least[id.UID]; id.Generation < least {
		return fmt.Errorf("%s shows a certificate that was revoked: its generation is %d, not %d", id, id.Generation, least)
	}
	return nil
}

// identify returns the identity that the other end has shown.
func identify(conn *tls.Conn) (ca.Identity, error) {
	certs := conn.ConnectionState().PeerCertificates
	if len(certs) == 0 {
		return ca.Identity{}, errors.New("the other end showed no certificate")
	}
	return ca.IdentityOf(certs[0])
}
