package nethost

import (
	"net/netip"
	"os"
	"sync"
	"testing"

	"watari/overlay"
)

// A main thread that has entered a namespace does not end with its goroutine. It would keep the namespace of a host that
// was killed, and its cables.
func TestTheMainThreadEntersNoNamespace(t *testing.T) {
	if missing := Missing(); missing != "" {
		t.Skipf("namespaces need %s", missing)
	}
	before, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	guest, err := NewGuest(overlay.Guest{Address: netip.MustParseAddr("10.77.1.10")}, overlay.DefaultMTU)
	if err != nil {
		t.Fatal(err)
	}
	defer guest.Close()
	var calls sync.WaitGroup
	for range 1000 {
		calls.Go(func() {
			if err := inNamespace(guest.namespace, func() error { return nil }); err != nil {
				t.Error(err)
			}
		})
	}
	calls.Wait()
	if after, err := os.Readlink("/proc/self/ns/net"); err != nil || after != before {
		t.Errorf("the main thread is in namespace %s, not %s (%v)", after, before, err)
	}
}
