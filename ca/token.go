package ca

// token.go - join tokens: watari1.<hex SHA-256 of the authority's certificate, DER>.<secret, base32>.

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base32"
	"errors"
	"strings"
)

const tokenPrefix = "watari1"

var tokenEncoding = base32.StdEncoding.WithPadding(base32.NoPadding)

// Token lets its holder join once. The holder trusts the authority with the token's hash.
type Token struct {
	AuthorityHash string // hex
	Secret        []byte
}

// NewToken makes a token of 160 random bits for the authority.
func (a *Authority) NewToken() Token {
	secret := make([]byte, 20)
	rand.Read(secret)
	return Token{a.Hash(), secret}
}

// ParseToken parses a token's text. It ignores surrounding white space.
func ParseToken(text string) (Token, error) {
	parts := strings.Split(strings.TrimSpace(text), ".")
	if len(parts) != 3 || parts[0] != tokenPrefix || len(parts[1]) != 2*sha256.Size {
		return Token{}, errors.New("this is not a token (watari1.<hash>.<secret>); ask an administrator for one")
	}
	secret, err := tokenEncoding.DecodeString(strings.ToUpper(parts[2]))
	if err != nil || len(secret) == 0 {
		return Token{}, errors.New("the token's last part is damaged; copy the whole of it")
	}
	return Token{strings.ToLower(parts[1]), secret}, nil
}

// String is the token's text, which is a secret.
func (t Token) String() string {
	return tokenPrefix + "." + t.AuthorityHash + "." + strings.ToLower(tokenEncoding.EncodeToString(t.Secret))
}

// SecretHash returns the SHA-256 of the secret. The manager keeps only this hash.
func (t Token) SecretHash() []byte {
	sum := sha256.Sum256(t.Secret)
	return sum[:]
}
