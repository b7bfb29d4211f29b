// Package peers holds what host and guest must agree on about a cluster's list of guests.
package peers

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	v1 "watari/api/watariv1"
)

// Hash tells two lists of peers apart; a guest reports that of the list it was told (Describe's peers_hash).
func Hash(peers []*v1.Peer, homeServer string) string {
	h := sha256.New()
	for _, p := range peers {
		fmt.Fprintf(h, "%s %s %d\n", p.GetName(), p.GetAddress(), p.GetSlots())
	}
	fmt.Fprintf(h, "home %s\n", homeServer)
	return hex.EncodeToString(h.Sum(nil)[:16])
}
