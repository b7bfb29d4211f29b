package ca

// derive.go - uses the authority's key for signed statements and for clusters' authorities.

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
)

// ErrSignature means that the authority did not sign a statement, or that the statement was changed afterwards.
var ErrSignature = errors.New("it is not signed by the authority")

// statementPrefix begins every signed statement. A certificate's signed part begins with the byte 0x30, so the
// signature of a statement is never valid for a certificate.
const statementPrefix = "watari statement: "

// statementDigest returns the digest that is signed. The context separates statements of different kinds. It must not
// contain a zero byte.
func statementDigest(context string, message []byte) []byte {
	h := sha256.New()
	h.Write([]byte(statementPrefix + context + "\x00"))
	h.Write(message)
	return h.Sum(nil)
}

// SignMessage signs a manager's statement. Statements of different kinds need different contexts.
func (a *Authority) SignMessage(context string, message []byte) ([]byte, error) {
	signature, err := a.key.Sign(rand.Reader, statementDigest(context, message), crypto.SHA256)
	if err != nil {
		return nil, fmt.Errorf("sign a %s: %w", context, err)
	}
	return signature, nil
}

// VerifyMessage checks that the authority with this certificate signed a statement in this context. It returns ErrSignature
// if the signature is wrong.
func VerifyMessage(authority *x509.Certificate, context string, message, signature []byte) error {
	if authority == nil {
		return errors.New("the authority's certificate is not known")
	}
	key, ok := authority.PublicKey.(*ecdsa.PublicKey)
	if !ok || !ecdsa.VerifyASN1(key, statementDigest(context, message), signature) {
		return ErrSignature
	}
	return nil
}

// secret returns the secret from which other keys are derived.
func (a *Authority) secret() ([]byte, error) {
	own, ok := a.key.(*ecdsa.PrivateKey)
	if !ok {
		return nil, errors.New("the authority's key is of a kind that no key can be derived from")
	}
	return own.Bytes()
}

// MAC returns a message's HMAC-SHA256 with a key that is derived from the authority's. Equal calls have equal results. Messages of
// different kinds need different contexts.
func (a *Authority) MAC(context string, message []byte) ([]byte, error) {
	secret, err := a.secret()
	if err != nil {
		return nil, err
	}
	key, err := hkdf.Key(sha256.New, secret, nil, "watari mac "+context, sha256.Size)
	if err != nil {
		return nil, err
	}
	h := hmac.New(sha256.New, key)
	h.Write(message)
	return h.Sum(nil), nil
}

// Certificate is the authority's certificate.
func (a *Authority) Certificate() *x509.Certificate { return a.cert }

// ClusterAuthority makes the authority of a cluster's guests. It derives the key from a's key and the cluster's uid, so
// that a recovered cluster has the authority that its guests know. The certificate is new each time. Certificates
// issued under an earlier one verify under it, too.
func (a *Authority) ClusterAuthority(name, uid string) (*Authority, error) {
	key, keyPEM, err := a.clusterKey(uid)
	if err != nil {
		return nil, fmt.Errorf("make the authority of cluster %s: %w", name, err)
	}
	return newAuthority("watari cluster "+name, key, keyPEM)
}

// clusterKey derives a P-256 key by HKDF-SHA256. The number that HKDF returns is not a key if it is zero or not below the
// curve's order, which happens once in 2^32 times. Then clusterKey takes the next number.
func (a *Authority) clusterKey(uid string) (*ecdsa.PrivateKey, []byte, error) {
	secret, err := a.secret()
	if err != nil {
		return nil, nil, err
	}
	for n := range 256 {
		scalar, err := hkdf.Key(sha256.New, secret, nil, fmt.Sprintf("watari cluster authority\x00%s\x00%d", uid, n), 32)
		if err != nil {
			return nil, nil, err
		}
		key, err := ecdsa.ParseRawPrivateKey(elliptic.P256(), scalar)
		if err != nil {
			continue
		}
		der, err := x509.MarshalPKCS8PrivateKey(key)
		if err != nil {
			return nil, nil, fmt.Errorf("encode a key: %w", err)
		}
		return key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
	}
	return nil, nil, errors.New("no key could be derived")
}
