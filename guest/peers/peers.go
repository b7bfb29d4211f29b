// Package peers computes the hash of a cluster's list of guests, on which host and guest must agree.
package peers

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	v1 "watari/api/watariv1"
)

// Hash returns the hash of a list of peers. A guest reports the hash of its list (Describe's peers_hash).
func Hash(peers []*v1.Peer, homeServer string) string {
	h := sha256.New()
	for _, p := range peers {
		fmt.Fprintf(h, "%s %s %d\n", p.GetName(), p.GetAddress(), p.GetSlots())
	}
	fmt.Fprintf(h, "home %s\n", homeServer)
	return hex.EncodeToString(h.Sum(nil)[:16])
}
