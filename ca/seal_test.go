package ca

import (
	"bytes"
	"strings"
	"testing"
)

func TestTheAuthoritysKeyIsReadWithItsSecretAlone(t *testing.T) {
	a, err := New("watari")
	if err != nil {
		t.Fatal(err)
	}
	secret := []byte("correct horse battery staple")
	sealed, err := Seal(a.KeyPEM(), secret)
	if err != nil || !Sealed(sealed) || Sealed(a.KeyPEM()) || bytes.Contains(sealed, []byte("PRIVATE")) {
		t.Fatalf("%q, %v", sealed, err)
	}
	if key, err := Unseal(sealed, secret); err != nil || !bytes.Equal(key, a.KeyPEM()) {
		t.Errorf("with its secret: %v", err)
	}
	if _, err := Unseal(sealed, []byte("another secret of length")); err == nil || !strings.Contains(err.Error(), "another secret") {
		t.Errorf("with another secret: %v", err)
	}
	sealed[len(sealed)-1] ^= 1
	if _, err := Unseal(sealed, secret); err == nil {
		t.Error("an altered one is read")
	}
	if _, err := Seal(a.KeyPEM(), []byte("short")); err == nil {
		t.Error("a short secret is taken")
	}
}
