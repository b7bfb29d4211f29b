package uplink

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/pem"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	v1 "watari/api/watariv1"
	"watari/api/watariv1/watariv1connect"
	"watari/ca"
	"watari/hostlink"
)

// issuer is a JoinService that certifies any key as host a1's.
type issuer struct {
	authority *ca.Authority
	asked     chan *v1.JoinRequest
}

func (i *issuer) Join(_ context.Context, r *connect.Request[v1.JoinRequest]) (*connect.Response[v1.JoinResponse], error) {
	i.asked <- r.Msg
	certificate, err := i.authority.Sign(r.Msg.Request, ca.Identity{Kind: ca.KindHost, Name: "a1"})
	return connect.NewResponse(&v1.JoinResponse{Certificate: certificate, CaCertificate: i.authority.CertificatePEM(), Name: "a1", Site: "nara"}), err
}

func startIssuer(t *testing.T) (*issuer, string) {
	t.Helper()
	authority, err := ca.New("test")
	if err != nil {
		t.Fatal(err)
	}
	pair, err := authority.IssueServer("m")
	if err != nil {
		t.Fatal(err)
	}
	config, err := ca.ServerTLS(authority.CertificatePEM(), pair.Certificate, pair.Key)
	if err != nil {
		t.Fatal(err)
	}
	i := &issuer{authority, make(chan *v1.JoinRequest, 10)}
	mux := http.NewServeMux()
	mux.Handle(watariv1connect.NewJoinServiceHandler(i))
	server := httptest.NewUnstartedServer(mux)
	server.TLS = config
	server.TLS.NextProtos = []string{"h2", "http/1.1", hostlink.Protocol}
	server.StartTLS()
	t.Cleanup(server.Close)
	return i, server.URL
}

func TestJoinKeepsItsKeyForAnotherTry(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "pki")
	first, _, err := joinKey(dir)
	if err != nil {
		t.Fatal(err)
	}
	again, _, err := joinKey(dir)
	if err != nil || !bytes.Equal(first, again) {
		t.Fatal("another key", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "key.pem"), []byte("damaged"), 0o600); err != nil {
		t.Fatal(err)
	}
	if key, _, err := joinKey(dir); err != nil || bytes.Equal(key, first) || len(key) < 100 {
		t.Fatal(string(key), err)
	}
}

// A token contains the hash of its manager's authority.
func TestAHostJoinsNoOtherManagerThanItsTokens(t *testing.T) {
	_, right := startIssuer(t)
	manager, url := startIssuer(t)
	other, err := ca.New("other")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	join := func(ctx context.Context, by *ca.Authority, managers ...string) error {
		file := filepath.Join(dir, "token")
		if err := os.WriteFile(file, []byte(by.NewToken().String()), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := Open(ctx, Config{Managers: managers, Name: "a1", PKIDir: filepath.Join(dir, "pki"), TokenFile: file, Log: slog.New(slog.DiscardHandler)})
		return err
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := join(ctx, other, url, right); !errors.Is(err, context.DeadlineExceeded) || len(manager.asked) > 0 {
		t.Errorf("a manager of another authority: %v, asked %d times", err, len(manager.asked))
	}
	// This one has the right key for the connection, and answers with another authority.
	by := manager.authority
	manager.authority = other
	if err := join(t.Context(), by, url); connect.CodeOf(errors.Unwrap(err)) != connect.CodePermissionDenied {
		t.Errorf("an answer with another authority: %v", err)
	}
	if _, err := os.Stat(filepath.Join(dir, "pki", "certificate.pem")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a certificate is kept: %v", err)
	}
}

// A host that has joined talks only to managers of its authority, also when it renews its certificate.
func TestAHostTalksToNoManagerOfAnotherAuthority(t *testing.T) {
	manager, url := startIssuer(t)
	imposter, elsewhere := startIssuer(t)
	dir := t.TempDir()
	token := filepath.Join(dir, "token")
	if err := os.WriteFile(token, []byte(manager.authority.NewToken().String()), 0o600); err != nil {
		t.Fatal(err)
	}
	u, err := Open(t.Context(), Config{Managers: []string{url}, Name: "a1", PKIDir: filepath.Join(dir, "pki"), TokenFile: token, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	before := u.PEM()
	u.renewAt(t.Context(), elsewhere, time.Now().AddDate(0, 7, 0))
	if len(imposter.asked) > 0 || !bytes.Equal(before.Certificate, u.PEM().Certificate) {
		t.Error("it asked another authority's manager for a certificate")
	}
	var unknown *tls.CertificateVerificationError
	if err := hostlink.Dial(t.Context(), elsewhere, u.clientTLS(), http.NotFoundHandler()); !errors.As(err, &unknown) {
		t.Errorf("its session with another authority's manager: %v", err)
	}
}

func TestCertificateIsRenewedInTime(t *testing.T) {
	manager, url := startIssuer(t)
	dir := t.TempDir()
	token := filepath.Join(dir, "token")
	if err := os.WriteFile(token, []byte(manager.authority.NewToken().String()), 0o600); err != nil {
		t.Fatal(err)
	}
	config := Config{Managers: []string{url}, Name: "a1", PKIDir: filepath.Join(dir, "pki"), TokenFile: token, Log: slog.New(slog.DiscardHandler)}
	s, err := Open(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	if r := <-manager.asked; r.Token == "" {
		t.Fatal("joined without the token")
	}
	if s.Site() != "nara" {
		t.Fatalf("site %q", s.Site())
	}
	before := s.PEM()
	s.renew(t.Context(), url)
	if !bytes.Equal(before.Certificate, s.PEM().Certificate) {
		t.Fatal("a new certificate was asked for long before it was due")
	}
	old := s.clientTLS()
	peer, err := s.PeerTLS()
	if err != nil {
		t.Fatal(err)
	}
	shown(t, peer, before.Certificate)
	s.renewAt(t.Context(), url, time.Now().AddDate(0, 7, 0))
	if r := <-manager.asked; r.Token != "" {
		t.Fatal("renewed by a token")
	}
	after := s.PEM()
	if bytes.Equal(before.Certificate, after.Certificate) || !bytes.Equal(before.Key, after.Key) || s.clientTLS() == old {
		t.Fatal("not renewed")
	}
	shown(t, peer, after.Certificate)
	kept, err := readPKI(config.PKIDir)
	if err != nil || !bytes.Equal(kept.Certificate, after.Certificate) {
		t.Fatal("the new certificate was not kept", err)
	}
}

// shown checks that both ends of a connection between hosts show a certificate, PEM.
func shown(t *testing.T, config *tls.Config, want []byte) {
	t.Helper()
	a, b := net.Pipe()
	server, client := tls.Server(a, config), tls.Client(b, config)
	defer a.Close()
	defer b.Close()
	failed := make(chan error, 1)
	go func() { failed <- server.HandshakeContext(t.Context()) }()
	if err := errors.Join(client.HandshakeContext(t.Context()), <-failed); err != nil {
		t.Fatal(err)
	}
	for _, end := range []*tls.Conn{server, client} {
		got := end.ConnectionState().PeerCertificates[0].Raw
		if block, _ := pem.Decode(want); !bytes.Equal(got, block.Bytes) {
			t.Error("another certificate was shown")
		}
	}
}

// Of several managers, a host tries those of its configuration, and the leader that one of them has named.
func TestTheLeaderThatAManagerNamesIsTried(t *testing.T) {
	u := &Uplink{config: Config{Managers: []string{"https://a", "https://b"}}}
	lost := errors.New("lost")
	var tried []string
	next := "https://a"
	for _, err := range []error{lost, &hostlink.Refusal{Leader: "https://c"}, lost, lost, lost, &hostlink.Refusal{Leader: "ftp://d"}} {
		next = u.after(next, err)
		tried = append(tried, strings.TrimPrefix(next, "https://"))
	}
	if got := strings.Join(tried, ""); got != "bcabca" {
		t.Errorf("tried %s", got)
	}
}
