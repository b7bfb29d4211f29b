package tunnel

import (
	"context"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"watari/ca"
)

// Certificates of generation 3 are accepted until they are revoked, in both directions. Then open connections end, too.
func TestRevokedCertificatesOpenNoTunnel(t *testing.T) {
	reader, holder := twoHosts(t)
	ended := make(chan struct{}, 1)
	holder.config.Blobs = func(ctx context.Context, _ ca.Identity, _ string, _ int64) (io.ReadCloser, error) {
		r, _ := net.Pipe() // no bytes arrive
		context.AfterFunc(ctx, func() { r.Close(); ended <- struct{}{} })
		return r, nil
	}
	await := func(what string) {
		t.Helper()
		select {
		case <-ended:
		case <-time.After(10 * time.Second):
			t.Fatal(what)
		}
	}
	holder.Revoke(map[string]uint32{"uid-of-a1": 3, "uid-of-a2": 9})
	open, err := reader.Fetch(t.Context(), from(holder), digest, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	holder.Revoke(map[string]uint32{"uid-of-a1": 4})
	await("a connection with a revoked certificate stays open")
	refused := func(whose string) {
		t.Helper()
		if blob, err := reader.Fetch(t.Context(), from(holder), digest, 0); err == nil || !strings.Contains(err.Error(), "revoked") {
			t.Errorf("with a revoked certificate of %s: %v", whose, err)
			if err == nil {
				blob.Close()
			}
		}
	}
	refused("the reader")
	holder.Revoke(nil)
	reader.Revoke(map[string]uint32{"uid-of-b1": 4})
	refused("the holder")
	reader.Revoke(nil)
	dialled, err := reader.Fetch(t.Context(), from(holder), digest, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer dialled.Close()
	reader.Revoke(map[string]uint32{"uid-of-b1": 4})
	await("a connection to a host with a revoked certificate stays open")
	for range 100 {
		reader.certificates.Lock()
		left := len(reader.shown)
		reader.certificates.Unlock()
		if left == 0 {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	t.Error("closed connections are remembered")
}
