package ca

import (
	"bytes"
	"crypto/x509"
	"errors"
	"testing"
)

func TestStatementsAreBoundToAuthorityContextAndText(t *testing.T) {
	a, other := authority(t), authority(t)
	message := []byte("term 7")
	signature := must[[]byte](t)(a.SignMessage("stamp", message))
	if err := VerifyMessage(a.Certificate(), "stamp", message, signature); err != nil {
		t.Fatal(err)
	}
	for name, err := range map[string]error{
		"another context":   VerifyMessage(a.Certificate(), "term", message, signature),
		"another text":      VerifyMessage(a.Certificate(), "stamp", []byte("term 8"), signature),
		"another authority": VerifyMessage(other.Certificate(), "stamp", message, signature),
		"no signature":      VerifyMessage(a.Certificate(), "stamp", message, nil),
		"a damaged one":     VerifyMessage(a.Certificate(), "stamp", message, signature[:len(signature)-1]),
	} {
		if !errors.Is(err, ErrSignature) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if VerifyMessage(nil, "stamp", message, signature) == nil {
		t.Error("verified without a certificate")
	}
}

func TestAClustersAuthorityFollowsFromItsUID(t *testing.T) {
	a := authority(t)
	first := must[*Authority](t)(a.ClusterAuthority("md", "uid-1"))
	again := must[*Authority](t)(must[*Authority](t)(Load(a.CertificatePEM(), a.KeyPEM())).ClusterAuthority("md", "uid-1"))
	if !bytes.Equal(first.KeyPEM(), again.KeyPEM()) {
		t.Fatal("the same cluster has another key")
	}
	for name, different := range map[string]*Authority{
		"another cluster":   must[*Authority](t)(a.ClusterAuthority("md", "uid-2")),
		"another authority": must[*Authority](t)(authority(t).ClusterAuthority("md", "uid-1")),
	} {
		if bytes.Equal(first.KeyPEM(), different.KeyPEM()) {
			t.Errorf("%s has the same key", name)
		}
	}
	// A guest that was started before the recovery trusts guests that are started afterwards, and they trust it.
	old := must[*x509.Certificate](t)(ParseCertificate(must[KeyPair](t)(first.IssueGuest("md", "md-0", 0)).Certificate))
	roots := x509.NewCertPool()
	roots.AddCert(again.Certificate())
	if _, err := old.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}}); err != nil {
		t.Fatal(err)
	}
}
