package ca

// seal.go - encrypts the authority's key for storage.

import (
	"bytes"
	"errors"
	"fmt"
	"io"

	"filippo.io/age"
)

// sealedPrefix begins each result of Seal (https://age-encryption.org/v1).
const sealedPrefix = "age-encryption.org/v1\n"

// leastSecret is the least length of a secret, in bytes.
const leastSecret = 16

// CheckSecret refuses a secret that could be guessed.
func CheckSecret(secret []byte) error {
	if len(secret) < leastSecret {
		return fmt.Errorf("the secret has %d bytes; at least %d are needed, better 32 from /dev/urandom", len(secret), leastSecret)
	}
	return nil
}

// Seal encrypts an authority's key with a secret, which may be a passphrase.
func Seal(keyPEM, secret []byte) ([]byte, error) {
	if err := CheckSecret(secret); err != nil {
		return nil, err
	}
	recipient, err := age.NewScryptRecipient(string(secret))
	if err != nil {
		return nil, fmt.Errorf("encrypt the authority's key: %w", err)
	}
	var sealed bytes.Buffer
	w, err := age.Encrypt(&sealed, recipient)
	if err == nil {
		if _, err = w.Write(keyPEM); err == nil {
			err = w.Close()
		}
	}
	if err != nil {
		return nil, fmt.Errorf("encrypt the authority's key: %w", err)
	}
	return sealed.Bytes(), nil
}

// Sealed reports whether an authority's key is encrypted.
func Sealed(key []byte) bool { return bytes.HasPrefix(key, []byte(sealedPrefix)) }

// Unseal decrypts what Seal has encrypted with this secret.
func Unseal(sealed, secret []byte) (keyPEM []byte, err error) {
	identity, err := age.NewScryptIdentity(string(secret))
	if err != nil {
		return nil, fmt.Errorf("decrypt the authority's key: %w", err)
	}
	r, err := age.Decrypt(bytes.NewReader(sealed), identity)
	if none := new(age.NoIdentityMatchError); errors.As(err, &none) {
		return nil, errors.New("decrypt the authority's key: it was encrypted with another secret")
	}
	if err == nil {
		keyPEM, err = io.ReadAll(r)
	}
	if err != nil {
		return nil, fmt.Errorf("decrypt the authority's key: %w", err)
	}
	return keyPEM, nil
}
