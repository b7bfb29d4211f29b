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

// identify returns the identity that the other end has shown. From then on, Revoke may end the connection. It fails if the
// certificate was revoked.
func (w *watched) identify(conn *tls.Conn) (id ca.Identity, err error) {
	certs := conn.ConnectionState().PeerCertificates
	if len(certs) == 0 {
		return id, errors.New("the other end showed no certificate")
	}
	if id, err = ca.IdentityOf(certs[0]); err != nil {
		return id, err
	}
	w.t.certificates.Lock()
	defer w.t.certificates.Unlock()
	if err = w.t.revoked(id); err == nil {
		w.t.shown[w] = id
	}
	return id, err
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
