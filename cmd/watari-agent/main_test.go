package main

import (
	"strings"
	"testing"
)

func TestOwnerGuestIsADomain(t *testing.T) {
	for name, valid := range map[string]bool{"win11": true, "": true, "win 11": false, "watari-md-0": false} {
		o, err := parse([]string{"--name", "k1", "--lan-address", "192.0.2.1", "--owner-guest", name})
		if (err == nil) != valid || valid && o.ownerGuest != name || !valid && !strings.Contains(err.Error(), "--owner-guest") {
			t.Errorf("%q: %q, %v", name, o.ownerGuest, err)
		}
	}
}
