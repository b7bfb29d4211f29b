package relay

// handshake.go - recognizes WireGuard's handshake messages, by its paper's section 5.4.

import (
	"crypto/subtle"

	"golang.org/x/crypto/blake2s"
)

// Types of WireGuard's messages, and the sizes of handshakes.
const (
	typeInitiation, sizeInitiation = 1, 148
	typeResponse, sizeResponse     = 2, 92
	macSize                        = 16
)

// checker recognizes handshakes for one host.
type checker struct{ key [32]byte }

func newChecker(public Key) checker {
	return checker{blake2s.Sum256(append([]byte("mac1----"), public[:]...))}
}

// isHandshake reports whether a packet is a handshake message.
func isHandshake(packet []byte) bool {
	return len(packet) == sizeInitiation && packet[0] == typeInitiation || len(packet) == sizeResponse && packet[0] == typeResponse
}

// handshakeFor reports whether a packet is a handshake for the host. The first of the two codes at its end is made with the
// host's public key.
func (c checker) handshakeFor(packet []byte) bool {
	if !isHandshake(packet) {
		return false
	}
	at := len(packet) - 2*macSize
	mac, err := blake2s.New128(c.key[:])
	if err != nil {
		return false
	}
	mac.Write(packet[:at])
	return subtle.ConstantTimeCompare(mac.Sum(nil), packet[at:at+macSize]) == 1
}
