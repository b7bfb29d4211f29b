// Package ca is Watari's certificate authority. It makes and reads certificates, and makes the TLS configurations that
// use them. It does no I/O.
//
// One authority is for managers, hosts and users. Each cluster has an authority for its guests. A certificate's URI
// names its subject: watari://manager/<name>, watari://host/<name>, watari://user/<name>, or
// watari://guest/<cluster>/<name>. TLS 1.3 only.
package ca

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net/url"
	"time"
)

const (
	// ServerName is the DNS name in every manager's certificate. Clients check it instead of an address, so that
	// managers' addresses may change.
	ServerName = "watari-manager"
	// backdate is how far a verifier's clock may be behind.
	backdate = time.Hour
	// authorityYears and certificateYears are the lifetimes of certificates. A host or user requests a new one well
	// before the end (JoinService, without a token).
	authorityYears   = 20
	certificateYears = 1
	// CertificateLife is the longest lifetime of a host's or a user's certificate.
	CertificateLife = (certificateYears*366 + 1) * 24 * time.Hour
	// GuestLife is the lifetime of a guest's certificate. The manager makes a new one at each start, and after half of the
	// lifetime; the guest's host gives it to the guest.
	GuestLife = 30 * 24 * time.Hour
)

// Authority issues certificates.
type Authority struct {
	cert    *x509.Certificate
	key     crypto.Signer
	certPEM []byte
	keyPEM  []byte
	now     func() time.Time
}

// KeyPair is a certificate with its key, both PEM.
type KeyPair struct {
	Certificate []byte
	Key         []byte
}

// New makes an authority. The name is for people only.
func New(name string) (*Authority, error) {
	key, keyPEM, err := newKey()
	if err != nil {
		return nil, err
	}
	return newAuthority(name, key, keyPEM)
}

// newAuthority makes an authority with a given key.
func newAuthority(name string, key *ecdsa.PrivateKey, keyPEM []byte) (*Authority, error) {
	now := time.Now()
	template := &x509.Certificate{
		Subject:               pkix.Name{CommonName: name},
		NotBefore:             now.Add(-backdate),
		NotAfter:              now.AddDate(authorityYears, 0, 0),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
		MaxPathLenZero:        true,
	}
	var err error
	if template.SerialNumber, err = serial(); err != nil {
		return nil, err
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("make the authority's certificate: %w", err)
	}
	return Load(encodeCertificate(der), keyPEM)
}

// Load makes an authority from its certificate and key, PEM, as CertificatePEM and KeyPEM return them.
func Load(certPEM, keyPEM []byte) (*Authority, error) {
	cert, err := ParseCertificate(certPEM)
	if err != nil {
		return nil, fmt.Errorf("load the authority: %w", err)
	}
	if !cert.IsCA {
		return nil, errors.New("load the authority: its certificate is not an authority's")
	}
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		return nil, fmt.Errorf("load the authority: %w", err)
	}
	key, ok := pair.PrivateKey.(crypto.Signer)
	if !ok {
		return nil, errors.New("load the authority: its key cannot sign")
	}
	return &Authority{cert: cert, key: key, certPEM: certPEM, keyPEM: keyPEM, now: time.Now}, nil
}

// CertificatePEM is the authority's certificate.
func (a *Authority) CertificatePEM() []byte { return a.certPEM }

// KeyPEM is the authority's secret key.
func (a *Authority) KeyPEM() []byte { return a.keyPEM }

// Hash is the hex SHA-256 of the authority's certificate, DER, which join tokens hold.
func (a *Authority) Hash() string { return hashOf(a.cert) }

func hashOf(cert *x509.Certificate) string {
	sum := sha256.Sum256(cert.Raw)
	return hex.EncodeToString(sum[:])
}

// IssueServer issues a manager's certificate with a new key. It appends the authority's own certificate for joiners,
// who know only its hash.
func (a *Authority) IssueServer(name string) (KeyPair, error) {
	pair, err := a.issue(Identity{Kind: KindManager, Name: name})
	pair.Certificate = append(pair.Certificate, a.certPEM...)
	return pair, err
}

// IssueClient issues a certificate with a new key for a host or user made here (the first administrator).
func (a *Authority) IssueClient(id Identity) (KeyPair, error) { return a.issue(id) }

// IssueGuest issues a guest's certificate of a generation, with a new key; a is its cluster's authority.
func (a *Authority) IssueGuest(cluster, name string, generation uint32) (KeyPair, error) {
	return a.issue(Identity{Kind: KindGuest, Cluster: cluster, Name: name, Generation: generation})
}

func (a *Authority) issue(id Identity) (KeyPair, error) {
	key, keyPEM, err := newKey()
	if err != nil {
		return KeyPair{}, err
	}
	certPEM, err := a.sign(key.Public(), id)
	return KeyPair{certPEM, keyPEM}, err
}

// Sign issues a certificate for the key of a PEM certificate request (PKCS #10). The request's signature proves that
// the requester has the key. Sign ignores the rest of the request.
func (a *Authority) Sign(requestPEM []byte, id Identity) (certPEM []byte, err error) {
	request, err := parseRequest(requestPEM)
	if err != nil {
		return nil, fmt.Errorf("sign a certificate: %w", err)
	}
	return a.sign(request.PublicKey, id)
}

// RequestKeyHash returns the SHA-256 of the public key of a PEM certificate request. It checks the request as Sign
// does.
func RequestKeyHash(requestPEM []byte) ([]byte, error) {
	request, err := parseRequest(requestPEM)
	if err != nil {
		return nil, err
	}
	return hashOfKey(request.RawSubjectPublicKeyInfo), nil
}

// KeyHash returns the SHA-256 of a certificate's public key.
func KeyHash(cert *x509.Certificate) []byte { return hashOfKey(cert.RawSubjectPublicKeyInfo) }

func hashOfKey(info []byte) []byte {
	sum := sha256.Sum256(info)
	return sum[:]
}

func parseRequest(requestPEM []byte) (*x509.CertificateRequest, error) {
	block, _ := pem.Decode(requestPEM)
	if block == nil || block.Type != "CERTIFICATE REQUEST" {
		return nil, errors.New("there is no PEM certificate request")
	}
	request, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("read the certificate request: %w", err)
	}
	key, is := request.PublicKey.(*ecdsa.PublicKey)
	if !is || key.Curve != elliptic.P256() {
		return nil, errors.New("the certificate request's key is no ECDSA key on P-256") // others may be expensive to verify
	}
	if err := request.CheckSignature(); err != nil {
		return nil, fmt.Errorf("check the certificate request's signature: %w", err)
	}
	return request, nil
}

func (a *Authority) sign(public crypto.PublicKey, id Identity) ([]byte, error) {
	now := a.now()
	template := &x509.Certificate{
		Subject:     pkix.Name{CommonName: id.Name, SerialNumber: id.serialNumber()},
		URIs:        []*url.URL{id.url()},
		NotBefore:   now.Add(-backdate),
		NotAfter:    now.AddDate(certificateYears, 0, 0),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	switch id.Kind {
	case KindManager:
		template.DNSNames = []string{ServerName}
		template.ExtKeyUsage = append(template.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	case KindGuest:
		template.DNSNames = []string{id.Name}
		template.NotAfter = now.Add(GuestLife)
		template.ExtKeyUsage = append(template.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	case KindHost: // hosts serve each other (tunnels)
		template.ExtKeyUsage = append(template.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	case KindUser:
	default:
		return nil, fmt.Errorf("sign a certificate: unknown kind %q", id.Kind)
	}
	var err error
	if template.SerialNumber, err = serial(); err != nil {
		return nil, err
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, public, a.key)
	if err != nil {
		return nil, fmt.Errorf("sign a certificate for %s: %w", id, err)
	}
	return encodeCertificate(der), nil
}

// NewKeyAndCSR makes a key and a certificate request for it, both PEM.
func NewKeyAndCSR() (keyPEM, requestPEM []byte, err error) {
	_, keyPEM, err = newKey()
	if err != nil {
		return nil, nil, err
	}
	requestPEM, err = NewCSR(keyPEM)
	return keyPEM, requestPEM, err
}

// NewCSR makes a certificate request, PEM, for a key that NewKeyAndCSR made.
func NewCSR(keyPEM []byte) (requestPEM []byte, err error) {
	block, _ := pem.Decode(keyPEM)
	if block == nil || block.Type != "PRIVATE KEY" {
		return nil, errors.New("make a certificate request: there is no PEM key")
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("make a certificate request: %w", err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		return nil, fmt.Errorf("make a certificate request: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}), nil
}

// ParseCertificate reads the first certificate of a PEM text.
func ParseCertificate(certPEM []byte) (*x509.Certificate, error) {
	block, _ := pem.Decode(certPEM)
	if block == nil || block.Type != "CERTIFICATE" {
		return nil, errors.New("there is no PEM certificate")
	}
	return x509.ParseCertificate(block.Bytes)
}

// RenewalDue reports whether half of a certificate's lifetime has passed, so that its owner should request a new one.
// The certificate is PEM.
func RenewalDue(certPEM []byte, now time.Time) bool {
	cert, err := ParseCertificate(certPEM)
	if err != nil {
		return true
	}
	return now.After(cert.NotBefore.Add(cert.NotAfter.Sub(cert.NotBefore) / 2))
}

func newKey() (*ecdsa.PrivateKey, []byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("make a key: %w", err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, nil, fmt.Errorf("encode a key: %w", err)
	}
	return key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}

func encodeCertificate(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// serial is a random certificate serial number of 128 bits.
func serial() (*big.Int, error) {
	n, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, fmt.Errorf("make a serial number: %w", err)
	}
	return n.Add(n, big.NewInt(1)), nil
}
