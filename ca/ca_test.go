package ca

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"
)

func authority(t *testing.T) *Authority {
	t.Helper()
	a, err := New("test")
	if err != nil {
		t.Fatal(err)
	}
	if a, err = Load(a.CertificatePEM(), a.KeyPEM()); err != nil {
		t.Fatal(err)
	}
	return a
}

// shake makes a TLS connection and returns the errors of both ends. It sends a byte, since a TLS 1.3 client learns of a
// refusal only by reading. It uses TCP: on a pipe, which buffers nothing, both ends may wait to report a refusal to each
// other.
func shake(client, server *tls.Config) (clientErr, serverErr error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err, err
	}
	defer listener.Close()
	done := make(chan error, 1)
	go func() {
		s, err := listener.Accept()
		if err != nil {
			done <- err
			return
		}
		conn := tls.Server(s, server)
		err = conn.Handshake()
		if err == nil {
			_, err = conn.Write([]byte("x"))
		}
		s.Close()
		done <- err
	}()
	c, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		return err, err
	}
	conn := tls.Client(c, client)
	clientErr = conn.Handshake()
	if clientErr == nil {
		_, clientErr = conn.Read(make([]byte, 1))
	}
	c.Close()
	return clientErr, <-done
}

func issued(t *testing.T, a *Authority, id Identity) KeyPair {
	t.Helper()
	key, request, err := NewKeyAndCSR()
	if err != nil {
		t.Fatal(err)
	}
	cert, err := a.Sign(request, id)
	if err != nil {
		t.Fatal(err)
	}
	return KeyPair{cert, key}
}

func must[T any](t *testing.T) func(v T, err error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func TestClientAndManagerKnowEachOther(t *testing.T) {
	a, other := authority(t), authority(t)
	config := must[*tls.Config](t)
	server := must[KeyPair](t)(a.IssueServer("m1"))
	serverTLS := config(ServerTLS(a.CertificatePEM(), server.Certificate, server.Key))
	host := issued(t, a, Identity{Kind: KindHost, Name: "a1", UID: "u-1"})

	var seen Identity
	verify := serverTLS.VerifyConnection
	serverTLS.VerifyConnection = func(state tls.ConnectionState) (err error) {
		if err = verify(state); err == nil {
			seen, err = IdentityOf(state.PeerCertificates[0])
		}
		return err
	}
	if c, s := shake(config(ClientTLS(a.CertificatePEM(), host.Certificate, host.Key)), serverTLS); c != nil || s != nil {
		t.Fatal(c, s)
	}
	if seen != (Identity{Kind: KindHost, Name: "a1", UID: "u-1"}) || seen.String() != "watari://host/a1" {
		t.Fatalf("seen %+v", seen)
	}
	stranger := issued(t, other, Identity{Kind: KindHost, Name: "a1"})
	if _, s := shake(config(ClientTLS(a.CertificatePEM(), stranger.Certificate, stranger.Key)), serverTLS); s == nil {
		t.Fatal("another authority's host was let in")
	}
	if c, _ := shake(config(ClientTLS(other.CertificatePEM(), host.Certificate, host.Key)), serverTLS); c == nil {
		t.Fatal("another authority's manager was believed")
	}
	// An expired certificate is refused, and so is one that is for servers only.
	refusal := func(certificate tls.Certificate) x509.InvalidReason {
		t.Helper()
		client := config(ClientTLS(a.CertificatePEM(), host.Certificate, host.Key))
		client.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &certificate, nil }
		_, err := shake(client, serverTLS)
		var invalid x509.CertificateInvalidError
		if !errors.As(err, &invalid) {
			t.Fatalf("let in, or refused for another reason: %v", err)
		}
		return invalid.Reason
	}
	a.now = func() time.Time { return time.Now().Add(-CertificateLife) }
	old := issued(t, a, Identity{Kind: KindHost, Name: "a1", UID: "u-1"})
	a.now = time.Now
	if reason := refusal(must[tls.Certificate](t)(tls.X509KeyPair(old.Certificate, old.Key))); reason != x509.Expired {
		t.Errorf("an expired certificate was refused for reason %d", reason)
	}
	key := must[*ecdsa.PrivateKey](t)(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	servers := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		URIs: []*url.URL{Identity{Kind: KindHost, Name: "a1", UID: "u-1"}.url()}}
	der := must[[]byte](t)(x509.CreateCertificate(rand.Reader, servers, a.cert, key.Public(), a.key))
	if reason := refusal(tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}); reason != x509.IncompatibleUsage {
		t.Errorf("a certificate for servers only was refused for reason %d", reason)
	}
	// A host must not pass for a manager.
	hostAsServer := config(ServerTLS(a.CertificatePEM(), host.Certificate, host.Key))
	if c, _ := shake(config(ClientTLS(a.CertificatePEM(), host.Certificate, host.Key)), hostAsServer); c == nil {
		t.Fatal("a host was believed to be the manager")
	}
}

// A chain of a hundred certificates, each of which could have signed the others, would cost as many checks.
func TestAManagerSearchesNoChainInWhatAClientSends(t *testing.T) {
	a := authority(t)
	server := must[KeyPair](t)(a.IssueServer("m1"))
	serverTLS := must[*tls.Config](t)(ServerTLS(a.CertificatePEM(), server.Certificate, server.Key))
	key := must[*ecdsa.PrivateKey](t)(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	long := tls.Certificate{PrivateKey: key}
	for n := range int64(101) {
		name := pkix.Name{CommonName: "x"}
		cert := &x509.Certificate{SerialNumber: big.NewInt(n), Subject: name, Issuer: name, NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
		long.Certificate = append(long.Certificate, must[[]byte](t)(x509.CreateCertificate(rand.Reader, cert, cert, key.Public(), key)))
	}
	client := must[*tls.Config](t)(ClientTLS(a.CertificatePEM(), server.Certificate, server.Key))
	client.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &long, nil }
	_, err := shake(client, serverTLS)
	if unknown := (x509.UnknownAuthorityError{}); !errors.As(err, &unknown) || strings.Contains(err.Error(), "limit") {
		t.Errorf("after all of the client's certificates: %v", err)
	}
}

func TestJoinerChecksTheTokensHash(t *testing.T) {
	a, other := authority(t), authority(t)
	server := must[KeyPair](t)(a.IssueServer("m1"))
	serverTLS := must[*tls.Config](t)(ServerTLS(a.CertificatePEM(), server.Certificate, server.Key))
	token := must[Token](t)(ParseToken(" " + a.NewToken().String() + "\n"))
	if c, s := shake(JoinTLS(token), serverTLS); c != nil || s != nil {
		t.Fatal(c, s)
	}
	if err := token.CheckAuthority(a.CertificatePEM()); err != nil {
		t.Fatal(err)
	}
	if c, _ := shake(JoinTLS(other.NewToken()), serverTLS); c == nil {
		t.Fatal("a manager with another hash was believed")
	}
	// Everybody knows the authority's certificate, so a false manager can show it after its own.
	imposter := must[KeyPair](t)(other.IssueServer("m1"))
	showing := slices.Concat(imposter.Certificate, a.CertificatePEM())
	if c, _ := shake(JoinTLS(token), must[*tls.Config](t)(ServerTLS(a.CertificatePEM(), showing, imposter.Key))); c == nil {
		t.Fatal("a manager with another authority's certificate was believed because it showed the token's authority")
	}
	for _, bad := range []string{"", "watari1..", "watari1.00.aa", "watari2." + strings.Repeat("0", 64) + ".aaaa", "watari1." + strings.Repeat("0", 64) + ".!!"} {
		if _, err := ParseToken(bad); err == nil {
			t.Errorf("%q passed for a token", bad)
		}
	}
}

func TestPeersSeeEachOthersIdentity(t *testing.T) {
	a := authority(t)
	a1, a2 := issued(t, a, Identity{Kind: KindHost, Name: "a1"}), issued(t, a, Identity{Kind: KindHost, Name: "a2"})
	only := func(name string) func(Identity) error {
		return func(id Identity) error {
			if id.Name != name {
				return errors.New("not " + name)
			}
			return nil
		}
	}
	config := must[*tls.Config](t)
	at2 := config(PeerTLS(a.CertificatePEM(), a2.Certificate, a2.Key, only("a1")))
	if c, s := shake(config(PeerTLS(a.CertificatePEM(), a1.Certificate, a1.Key, only("a2"))), at2); c != nil || s != nil {
		t.Fatal(c, s)
	}
	if c, _ := shake(config(PeerTLS(a.CertificatePEM(), a1.Certificate, a1.Key, only("b1"))), at2); c == nil {
		t.Fatal("the wrong host was accepted")
	}
	other := authority(t)
	x := issued(t, other, Identity{Kind: KindHost, Name: "a1"})
	if _, s := shake(config(PeerTLS(other.CertificatePEM(), x.Certificate, x.Key, nil)), at2); s == nil {
		t.Fatal("another authority's host was accepted")
	}
}

func TestGuestCertificates(t *testing.T) {
	a := authority(t)
	g := must[KeyPair](t)(a.IssueGuest("md", "md-0", 0))
	cert := must[*x509.Certificate](t)(ParseCertificate(g.Certificate))
	if err := cert.VerifyHostname("md-0"); err != nil {
		t.Fatal(err)
	}
	id := must[Identity](t)(IdentityOf(cert))
	if id != (Identity{Kind: KindGuest, Cluster: "md", Name: "md-0"}) {
		t.Fatalf("%+v", id)
	}
	now := time.Now()
	if life := cert.NotAfter.Sub(now); life > 30*24*time.Hour || life < 29*24*time.Hour {
		t.Fatalf("it is valid for %v", life)
	}
	a.now = func() time.Time { return now.AddDate(0, 0, -31) }
	old := must[KeyPair](t)(a.IssueGuest("md", "md-1", 0))
	config := must[*tls.Config](t)
	at0 := config(PeerTLS(a.CertificatePEM(), g.Certificate, g.Key, nil))
	if c, s := shake(at0, config(PeerTLS(a.CertificatePEM(), old.Certificate, old.Key, nil))); c == nil && s == nil {
		t.Fatal("a guest whose certificate has expired was accepted")
	}
	a.now = time.Now
	if RenewalDue(g.Certificate, now) || !RenewalDue(g.Certificate, now.AddDate(0, 0, 16)) {
		t.Fatal("renewal is due at the wrong time")
	}
	if !cert.NotBefore.Before(now.Add(-59 * time.Minute)) {
		t.Fatal("not backdated")
	}
}

func TestSignRefusesDamagedRequests(t *testing.T) {
	a := authority(t)
	_, request, err := NewKeyAndCSR()
	if err != nil {
		t.Fatal(err)
	}
	for name, bad := range map[string][]byte{"nothing": nil, "no PEM": []byte("x"), "another PEM": a.CertificatePEM()} {
		if _, err := a.Sign(bad, Identity{Kind: KindHost, Name: "a1"}); err == nil {
			t.Errorf("%s was signed", name)
		}
	}
	// Some signatures, such as one with a large RSA key, are expensive to verify.
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	p384, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for name, key := range map[string]crypto.Signer{"RSA": rsaKey, "P-384": p384} {
		der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
		if err != nil {
			t.Fatal(err)
		}
		der[len(der)-1] ^= 1 // the key must be refused before this wrong signature is found
		other := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
		if _, err := a.Sign(other, Identity{Kind: KindHost, Name: "a1"}); err == nil || !strings.Contains(err.Error(), "P-256") {
			t.Errorf("a request with a key of kind %s: %v", name, err)
		}
	}
	if _, err := a.Sign(request, Identity{Kind: "king", Name: "a1"}); err == nil {
		t.Error("an unknown kind was signed")
	}
}
