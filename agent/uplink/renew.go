package uplink

// renew.go - keeps the host's key, and renews its certificate before it expires.

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"connectrpc.com/connect"

	v1 "watari/api/watariv1"
	"watari/api/watariv1/watariv1connect"
	"watari/ca"
	"watari/internal/durable"
)

// joinKey returns the key of an earlier attempt to join, or a new key. The earlier attempt's answer may have been lost;
// with the same key the manager recognises the host. A new key is on disk before it is used.
func joinKey(dir string) (key, request []byte, err error) {
	path := filepath.Join(dir, "key.pem")
	key, err = os.ReadFile(path)
	if err == nil {
		if request, err := ca.NewCSR(key); err == nil {
			return key, request, nil
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return nil, nil, fmt.Errorf("read the host's key: %w", err)
	}
	if key, request, err = ca.NewKeyAndCSR(); err != nil {
		return nil, nil, fmt.Errorf("make a key: %w", err)
	}
	err = os.MkdirAll(dir, 0o700)
	if err == nil {
		err = durable.WriteFile(path, key, 0o600)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("keep the host's key: %w", err)
	}
	return key, request, nil
}

// keepSite stores the site that the token named; empty: it named none.
func keepSite(dir, site string) error {
	if err := durable.WriteFile(filepath.Join(dir, "site"), []byte(site), 0o600); err != nil {
		return fmt.Errorf("keep the host's site: %w", err)
	}
	return nil
}

// Site is the site that the host's token named; empty: it named none, and the host chooses its site.
func (u *Uplink) Site() string {
	site, err := os.ReadFile(filepath.Join(u.config.PKIDir, "site"))
	if err != nil {
		return ""
	}
	return string(site)
}

func (u *Uplink) clientTLS() *tls.Config {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.tls
}

// PeerTLS returns the TLS configuration for both ends of connections between hosts. Each handshake uses the host's
// present certificate.
func (u *Uplink) PeerTLS() (*tls.Config, error) {
	id := u.PEM()
	config, err := ca.PeerTLS(id.CA, id.Certificate, id.Key, nil)
	if err != nil {
		return nil, fmt.Errorf("use the host's certificate in %s: %w", u.config.PKIDir, err)
	}
	config.Certificates = nil
	config.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return u.certificate(), nil }
	config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return u.certificate(), nil }
	return config, nil
}

func (u *Uplink) certificate() *tls.Certificate { return &u.clientTLS().Certificates[0] }

// renewEvery is how often the uplink checks the certificate's age. A connection may last for years.
const renewEvery = time.Hour

// renewing checks the certificate every renewEvery until ctx ends.
func (u *Uplink) renewing(ctx context.Context) {
	tick := time.NewTicker(renewEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			u.mu.Lock()
			manager := u.manager
			u.mu.Unlock()
			u.renew(ctx, manager)
		}
	}
}

// renew requests a new certificate for the same key when half of the present one's lifetime has passed. After a failure
// the uplink tries again later, and at the next connection.
func (u *Uplink) renew(ctx context.Context, manager string) { u.renewAt(ctx, manager, time.Now()) }

func (u *Uplink) renewAt(ctx context.Context, manager string, now time.Time) {
	u.renewal.Lock()
	defer u.renewal.Unlock()
	old := u.PEM()
	if !ca.RenewalDue(old.Certificate, now) {
		return
	}
	id, err := renewed(ctx, manager, old, u.clientTLS())
	var config *tls.Config
	if err == nil {
		config, err = ca.ClientTLS(id.CA, id.Certificate, id.Key)
	}
	if err == nil {
		err = writePKI(u.config.PKIDir, id)
	}
	if err != nil {
		u.config.Log.Warn("the host's certificate was not renewed", "manager", manager, "error", err)
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.pem, u.tls = id, config
	u.config.Log.Info("the host's certificate was renewed", "manager", manager)
}

func renewed(ctx context.Context, manager string, old Identity, config *tls.Config) (Identity, error) {
	request, err := ca.NewCSR(old.Key)
	if err != nil {
		return Identity{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: config.Clone(), ForceAttemptHTTP2: true}}
	defer client.CloseIdleConnections()
	answer, err := watariv1connect.NewJoinServiceClient(client, manager).Join(ctx, connect.NewRequest(&v1.JoinRequest{Request: request}))
	if err != nil {
		return Identity{}, fmt.Errorf("ask for a new certificate: %w", err)
	}
	return Identity{CA: old.CA, Certificate: answer.Msg.Certificate, Key: old.Key}, nil
}
