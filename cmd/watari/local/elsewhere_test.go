package local

import (
	"crypto/tls"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"watari/ca"
)

// joined returns a host that has joined a manager, and that manager's TLS configuration.
func joined(t *testing.T) (u *up, server *tls.Config) {
	t.Helper()
	authority, err := ca.New("test")
	if err != nil {
		t.Fatal(err)
	}
	host, err := authority.IssueClient(ca.Identity{Kind: ca.KindHost, Name: "k2"})
	if err != nil {
		t.Fatal(err)
	}
	pair, err := authority.IssueServer("manager")
	if err != nil {
		t.Fatal(err)
	}
	if server, err = ca.ServerTLS(authority.CertificatePEM(), pair.Certificate, pair.Key); err != nil {
		t.Fatal(err)
	}
	u = &up{layout: layout{t.TempDir()}, token: "token"}
	if err := os.MkdirAll(u.agentPKI(), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string][]byte{"ca.pem": authority.CertificatePEM(), "certificate.pem": host.Certificate, "key.pem": host.Key} {
		if err := os.WriteFile(filepath.Join(u.agentPKI(), name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return u, server
}

// TestARepeatedJoinKeepsTheCertificate unless the manager refuses it: without it the manager does not know the host and
// its guests.
func TestARepeatedJoinKeepsTheCertificate(t *testing.T) {
	_, another := joined(t)
	for name, one := range map[string]struct {
		status int // 0: no server listens
		server *tls.Config
		kept   bool
	}{
		"known":             {status: http.StatusNotFound, kept: true},
		"silent":            {kept: true},
		"starting":          {status: http.StatusServiceUnavailable, kept: true},
		"removed":           {status: http.StatusUnauthorized},
		"another manager's": {status: http.StatusNotFound, server: another},
	} {
		u, options := joined(t)
		if one.server != nil {
			options = one.server
		}
		server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(one.status) }))
		server.TLS = options
		server.StartTLS()
		u.Manager = server.URL
		if one.status == 0 {
			server.Close()
		}
		if err := u.admitElsewhere(t.Context()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if u.hasCertificate() != one.kept {
			t.Errorf("%s: the certificate is kept: %v, want %v", name, u.hasCertificate(), one.kept)
		}
		if _, err := os.Stat(u.tokenFile()); (err == nil) == one.kept {
			t.Errorf("%s: the token is handed to the agent: %v", name, err == nil)
		}
		server.Close()
	}
}
