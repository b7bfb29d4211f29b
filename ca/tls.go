package ca

// tls.go - the TLS configurations that use the certificates.

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
)

// ClientTLS returns the configuration for calling a manager as the host or user of the certificate. All arguments are PEM.
func ClientTLS(caPEM, certPEM, keyPEM []byte) (*tls.Config, error) {
	cfg, err := base(caPEM, certPEM, keyPEM)
	if err != nil {
		return nil, err
	}
	cfg.ServerName = ServerName
	return cfg, nil
}

// ServerTLS returns the configuration for a manager (all arguments are PEM). It verifies a client's certificate, but does
// not require one, because JoinService needs none. The other handlers must check that there is one. Only one signature is
// checked of a client's certificate: certificates of others that the client sends along do not count.
func ServerTLS(caPEM, certPEM, keyPEM []byte) (*tls.Config, error) {
	cfg, err := base(caPEM, certPEM, keyPEM)
	if err != nil {
		return nil, err
	}
	// The library would search a chain in what the client sends, and check up to a hundred signatures of any kind.
	cfg.ClientAuth = tls.RequestClientCert
	cfg.VerifyConnection = func(state tls.ConnectionState) error {
		if len(state.PeerCertificates) == 0 {
			return nil
		}
		_, err := verifyPeer(state, cfg.ClientCAs, x509.ExtKeyUsageClientAuth)
		return err
	}
	return cfg, nil
}

// PeerTLS returns the configuration for both ends of a connection between two hosts, or between two guests of a cluster. It
// requires and verifies the other end's certificate, and passes the identity to accept. It is for tls.Client and tls.Server.
// A nil accept accepts any subject of the authority.
func PeerTLS(caPEM, certPEM, keyPEM []byte, accept func(Identity) error) (*tls.Config, error) {
	cfg, err := base(caPEM, certPEM, keyPEM)
	if err != nil {
		return nil, err
	}
	cfg.ClientAuth = tls.RequireAnyClientCert
	// The library's check requires a host name, which peers do not have. VerifyConnection does the rest of that check,
	// in both directions.
	cfg.InsecureSkipVerify = true
	roots := cfg.RootCAs
	cfg.VerifyConnection = func(state tls.ConnectionState) error {
		id, err := verifyPeer(state, roots, x509.ExtKeyUsageAny)
		if err != nil || accept == nil {
			return err
		}
		return accept(id)
	}
	return cfg, nil
}

// verifyPeer verifies that one of the roots has signed the peer's certificate for a use.
func verifyPeer(state tls.ConnectionState, roots *x509.CertPool, use x509.ExtKeyUsage) (Identity, error) {
	if len(state.PeerCertificates) == 0 {
		return Identity{}, errors.New("the peer showed no certificate")
	}
	leaf := state.PeerCertificates[0]
	_, err := leaf.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{use}})
	if err != nil {
		return Identity{}, fmt.Errorf("the peer's certificate: %w", err)
	}
	return IdentityOf(leaf)
}

// JoinTLS returns the configuration for a joiner, who has a token and no certificate yet. It trusts a manager whose
// authority has the token's hash.
func JoinTLS(token Token) *tls.Config {
	return &tls.Config{
		MinVersion:         tls.VersionTLS13,
		ServerName:         ServerName,
		InsecureSkipVerify: true, // VerifyConnection verifies the manager against the authority that the token names
		VerifyConnection: func(state tls.ConnectionState) error {
			_, err := verifyByHash(state, token.AuthorityHash)
			return err
		},
	}
}

// verifyByHash verifies a manager's certificate against the authority in its chain that has this hash.
func verifyByHash(state tls.ConnectionState, hash string) (*x509.Certificate, error) {
	for _, authority := range state.PeerCertificates[1:] {
		if !authority.IsCA || hashOf(authority) != hash {
			continue
		}
		roots := x509.NewCertPool()
		roots.AddCert(authority)
		_, err := state.PeerCertificates[0].Verify(x509.VerifyOptions{Roots: roots, DNSName: ServerName})
		if err != nil {
			return nil, fmt.Errorf("the manager's certificate: %w", err)
		}
		return authority, nil
	}
	return nil, errors.New("the manager is not the one the token was made by (its authority's hash differs)")
}

// CheckAuthority checks that a certificate, PEM, belongs to the authority that the token names.
func (t Token) CheckAuthority(caPEM []byte) error {
	cert, err := ParseCertificate(caPEM)
	if err != nil {
		return fmt.Errorf("the manager's authority: %w", err)
	}
	if hashOf(cert) != t.AuthorityHash {
		return errors.New("the manager's authority is not the one the token names")
	}
	return nil
}

func base(caPEM, certPEM, keyPEM []byte) (*tls.Config, error) {
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(caPEM) {
		return nil, errors.New("the authority's certificate is not PEM")
	}
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		return nil, fmt.Errorf("certificate and key: %w", err)
	}
	return &tls.Config{
		MinVersion:   tls.VersionTLS13,
		RootCAs:      pool,
		ClientCAs:    pool,
		Certificates: []tls.Certificate{pair},
	}, nil
}
