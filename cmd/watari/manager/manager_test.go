package manager

import (
	"crypto/tls"
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"

	"watari/ca"
)

// A machine between the manager and etcd has no certificate of the authority that --etcd-ca names.
func TestEtcdMustHaveACertificateOfTheNamedAuthority(t *testing.T) {
	authority := func() *ca.Authority {
		a, err := ca.New("test")
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	named, another := authority(), authority()
	path := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(path, named.CertificatePEM(), 0o600); err != nil {
		t.Fatal(err)
	}
	config, err := (&flags{etcdCA: path}).etcdTLS()
	if err != nil {
		t.Fatal(err)
	}
	config.ServerName = ca.ServerName
	call := func(of *ca.Authority) error {
		pair, err := of.IssueServer("etcd")
		if err != nil {
			t.Fatal(err)
		}
		cert, err := tls.X509KeyPair(pair.Certificate, pair.Key)
		if err != nil {
			t.Fatal(err)
		}
		here, there := net.Pipe()
		defer here.Close()
		defer there.Close()
		go func() { _ = tls.Server(there, &tls.Config{Certificates: []tls.Certificate{cert}}).Handshake() }()
		return tls.Client(here, config).Handshake()
	}
	if err := call(named); err != nil {
		t.Error(err)
	}
	var unknown *tls.CertificateVerificationError
	if err := call(another); !errors.As(err, &unknown) {
		t.Errorf("with a certificate of another authority: %v", err)
	}
}
