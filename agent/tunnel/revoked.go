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
// any. Connections that were accepted with an earlier certificate end.
func (t *Tunnels) Revoke(least map[string]uint32) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.least = least
	for conn, id := range t.accepted {
		if t.revoked(id) != nil {
			conn.Close()
		}
	}
}

// accept keeps an incoming connection among those that Revoke may end, until the returned function is called. An error refuses
// the connection.
func (t *Tunnels) accept(raw net.Conn, id ca.Identity) (done func(), err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.revoked(id); err != nil {
		return nil, err
	}
	t.accepted[raw] = id
	return func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		delete(t.accepted, raw)
	}, nil
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
