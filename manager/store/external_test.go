package store

// external_test.go - several managers on one outside etcd. The test's etcd listens on a Unix socket.

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "watari/api/watariv1"

	"go.etcd.io/etcd/server/v3/embed"
)

// outside starts a separate etcd and returns its endpoint.
func outside(t *testing.T) (endpoint string, server *embed.Etcd) {
	t.Helper()
	return outsideWith(t, maxTxnOps)
}

func outsideWith(t *testing.T, ops uint) (endpoint string, server *embed.Etcd) {
	t.Helper()
	dir := t.TempDir()
	cfg := embeddedConfig(dir)
	cfg.MaxTxnOps = ops
	socket := url.URL{Scheme: "unix", Path: filepath.Join(dir, "etcd.sock")}
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = []url.URL{socket}, []url.URL{socket}
	server, err := embed.StartEtcd(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	select {
	case <-server.Server.ReadyNotify():
	case <-time.After(30 * time.Second):
		t.Fatal("etcd does not start")
	}
	return socket.String(), server
}

func connectTo(t *testing.T, endpoint string) *Store {
	t.Helper()
	s, err := Open(testContext(t), Config{Endpoints: []string{endpoint}})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestTwoManagersOneLeads(t *testing.T) {
	endpoint, _ := outside(t)
	ctx := testContext(t)
	m1, m2 := connectTo(t, endpoint), connectTo(t, endpoint)
	defer m2.Close()
	term1, lost1, err := m1.Lead(ctx, "https://m1")
	if err != nil {
		t.Fatal(err)
	}
	if err := Users.Create(ctx, m1, &v1.User{Meta: named("ann")}); err != nil {
		t.Fatal(err)
	}
	type won struct {
		term uint64
		err  error
	}
	second := make(chan won, 1)
	go func() {
		term, _, err := m2.Lead(ctx, "https://m2")
		second <- won{term, err}
	}()
	// The other manager sees who leads, and all writes.
	for m2.Snapshot().Leader != "https://m1" || m2.Snapshot().Users["ann"] == nil {
		if err := m2.cache.wait(ctx, m2.Snapshot().Revision+1); err != nil {
			t.Fatal(err)
		}
	}
	select {
	case w := <-second:
		t.Fatalf("both lead: %+v", w)
	case <-lost1:
		t.Fatal("the first lost its office without cause")
	default:
	}
	m1.Close()
	w := <-second
	if w.err != nil || w.term <= term1 {
		t.Fatalf("%+v after term %d", w, term1)
	}
}

func TestTheOfficeIsGivenUpWithItsContext(t *testing.T) {
	endpoint, _ := outside(t)
	ctx := testContext(t)
	m := connectTo(t, endpoint)
	defer m.Close()
	office, resign := context.WithCancel(ctx)
	term, _, err := m.Lead(office, "https://m")
	if err != nil {
		t.Fatal(err)
	}
	resign()
	if again, _, err := m.Lead(ctx, "https://m"); err != nil || again <= term {
		t.Fatalf("term %d after %d: %v", again, term, err)
	}
}

// TestDeposedLeaderCannotWrite makes the first leader's lease end unnoticed.
func TestDeposedLeaderCannotWrite(t *testing.T) {
	endpoint, _ := outside(t)
	ctx := testContext(t)
	m1, m2 := connectTo(t, endpoint), connectTo(t, endpoint)
	defer m1.Close()
	defer m2.Close()
	if _, _, err := m1.Lead(ctx, "https://m1"); err != nil {
		t.Fatal(err)
	}
	leases, err := m2.client.Leases(ctx)
	if err != nil || len(leases.Leases) != 1 {
		t.Fatal(leases, err)
	}
	if _, err := m2.client.Revoke(ctx, leases.Leases[0].ID); err != nil {
		t.Fatal(err)
	}
	if _, _, err := m2.Lead(ctx, "https://m2"); err != nil {
		t.Fatal(err)
	}
	if err := Users.Create(ctx, m1, &v1.User{Meta: named("ann")}); !errors.Is(err, ErrNotLeader) {
		t.Fatalf("the deposed leader wrote: %v", err)
	}
	if err := m1.AddEvent(ctx, &v1.Event{Message: "still here"}); !errors.Is(err, ErrNotLeader) {
		t.Fatalf("the deposed leader wrote an event: %v", err)
	}
	if err := Users.Create(ctx, m2, &v1.User{Meta: named("ann")}); err != nil {
		t.Fatal(err)
	}
}

func TestLostLeaseIsTold(t *testing.T) {
	endpoint, _ := outside(t)
	ctx := testContext(t)
	m := connectTo(t, endpoint)
	defer m.Close()
	_, lost, err := m.Lead(ctx, "https://m")
	if err != nil {
		t.Fatal(err)
	}
	leases, err := m.client.Leases(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.client.Revoke(ctx, leases.Leases[0].ID); err != nil {
		t.Fatal(err)
	}
	select {
	case <-lost:
	case <-ctx.Done():
		t.Fatal("the loss was not told")
	}
}

func TestTwoManagersShareOneAuthority(t *testing.T) {
	endpoint, _ := outside(t)
	ctx := context.Background()
	m1, m2 := connectTo(t, endpoint), connectTo(t, endpoint)
	defer m1.Close()
	defer m2.Close()
	make := func(text string) func() ([]byte, []byte, error) {
		return func() ([]byte, []byte, error) { return []byte(text), []byte(text), nil }
	}
	for _, m := range []*Store{m1, m2} {
		certificate, _, err := m.Authority(ctx, make("m1's"))
		if err != nil || string(certificate) != "m1's" {
			t.Fatalf("%s %v", certificate, err)
		}
	}
	if certificate, _, err := m2.Authority(ctx, make("m2's")); err != nil || string(certificate) != "m1's" {
		t.Fatalf("%s %v", certificate, err)
	}
}

// TestABatchFitsIntoAnyEtcd uses an etcd whose transactions are small.
func TestABatchFitsIntoAnyEtcd(t *testing.T) {
	endpoint, _ := outsideWith(t, outsideTxnOps)
	ctx := testContext(t)
	s := connectTo(t, endpoint)
	defer s.Close()
	if _, _, err := s.Lead(ctx, "https://m"); err != nil {
		t.Fatal(err)
	}
	var changes []Change
	for i, size := range []int{1, s.MaxOps(), 60, 64, 65, 1, s.MaxOps() + 1} {
		var change Change
		for j := range size {
			change = append(change, Create(&v1.Guest{Meta: named(fmt.Sprintf("md%d-%d", i, j))}))
		}
		changes = append(changes, change)
	}
	for i := range 300 {
		changes = append(changes, Change{Create(&v1.Run{Meta: named(fmt.Sprintf("r%d", i))}), Record(&v1.Event{Message: "made"})})
	}
	errs := s.Batch(ctx, changes)
	for i, err := range errs {
		if (err == nil) != (i != 6) {
			t.Errorf("change %d: %v", i, err)
		}
	}
	if errs[6] == nil || !strings.Contains(errs[6].Error(), "operations") {
		t.Error(errs[6])
	}
}

// A machine between the manager and etcd has no certificate that the manager trusts.
func TestTheManagerTalksOnlyToAnEtcdWhoseCertificateItTrusts(t *testing.T) {
	other := httptest.NewTLSServer(nil) // only for its certificate
	defer other.Close()
	listener, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: other.TLS.Certificates, NextProtos: []string{"h2"}})
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	handshakes := make(chan error, 100)
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			handshakes <- conn.(*tls.Conn).Handshake()
			conn.Close()
		}
	}()
	for what, config := range map[string]*tls.Config{"named authorities": {RootCAs: x509.NewCertPool()}, "the system's authorities": nil} {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		s, err := Open(ctx, Config{Endpoints: []string{"https://" + listener.Addr().String()}, TLS: config})
		if err == nil {
			s.Close()
			t.Fatalf("with %s, it was taken for etcd", what)
		}
		select {
		case err := <-handshakes:
			if err == nil || !strings.Contains(err.Error(), "bad certificate") {
				t.Errorf("with %s, the handshake ended with %v", what, err)
			}
		default:
			t.Errorf("with %s, the manager did not connect", what)
		}
		for len(handshakes) > 0 {
			<-handshakes
		}
	}
}
