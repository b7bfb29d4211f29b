package tunnel

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"watari/ca"
)

const digest = "sha256:1111111111111111111111111111111111111111111111111111111111111111"

func from(h *host) Peer { return Peer{Name: "b1", UID: "uid-of-b1", Address: h.address} }

func TestABlobIsReadFromAnOffset(t *testing.T) {
	reader, holder := twoHosts(t)
	content := bytes.Repeat([]byte("content"), 100_000)
	holder.config.Blobs = func(_ context.Context, id ca.Identity, asked string, offset int64) (io.ReadCloser, error) {
		if id.Name != "a1" || id.UID != "uid-of-a1" || asked != digest {
			return nil, fmt.Errorf("%v asked for %s", id, asked)
		}
		return io.NopCloser(bytes.NewReader(content[offset:])), nil
	}
	for _, offset := range []int64{0, 12345, int64(len(content))} {
		blob, err := reader.Fetch(t.Context(), from(holder), digest, offset)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(blob); err != nil || !bytes.Equal(got, content[offset:]) {
			t.Errorf("from %d: %d bytes, %v", offset, len(got), err)
		}
		blob.Close()
	}
}

func TestWhyABlobIsNotSentIsTold(t *testing.T) {
	reader, holder := twoHosts(t)
	if _, err := reader.Fetch(t.Context(), from(holder), digest, 0); err == nil || !strings.Contains(err.Error(), "passes no blobs on") {
		t.Errorf("got %v", err)
	}
	answer := ErrAbsent
	holder.config.Blobs = func(context.Context, ca.Identity, string, int64) (io.ReadCloser, error) { return nil, answer }
	if _, err := reader.Fetch(t.Context(), from(holder), digest, 0); !errors.Is(err, ErrAbsent) {
		t.Errorf("got %v", err)
	}
	answer = errors.New("not for a1")
	if _, err := reader.Fetch(t.Context(), from(holder), digest, 0); errors.Is(err, ErrAbsent) || err == nil || !strings.Contains(err.Error(), "not for a1") {
		t.Errorf("got %v", err)
	}
	if _, err := reader.Fetch(t.Context(), from(holder), digest, -1); err == nil {
		t.Error("a negative offset was let in")
	}
	other := from(holder)
	other.UID = "uid-of-an-earlier-b1"
	if _, err := reader.Fetch(t.Context(), other, digest, 0); err == nil || !strings.Contains(err.Error(), "answers there") {
		t.Errorf("got %v", err)
	}
}

func TestOnlyHostsFetchBlobs(t *testing.T) {
	authority, err := ca.New("test")
	if err != nil {
		t.Fatal(err)
	}
	holder := newHost(t, authority, "b1")
	holder.config.Blobs = func(context.Context, ca.Identity, string, int64) (io.ReadCloser, error) {
		t.Error("a user was let in")
		return nil, ErrAbsent
	}
	pair, err := authority.IssueClient(ca.Identity{Kind: ca.KindUser, Name: "a1"})
	if err != nil {
		t.Fatal(err)
	}
	config, err := ca.PeerTLS(authority.CertificatePEM(), pair.Certificate, pair.Key, nil)
	if err != nil {
		t.Fatal(err)
	}
	user := New(Config{TLS: config})
	if _, err := user.Fetch(t.Context(), from(holder), digest, 0); err == nil || !strings.Contains(err.Error(), "is not a host") {
		t.Errorf("got %v", err)
	}
}

// A blob that its holder is still fetching has no more bytes for a while. If the reader closes its connection, the sending
// ends.
func TestAReaderThatLeavesEndsTheSending(t *testing.T) {
	reader, holder := twoHosts(t)
	ended := make(chan struct{})
	holder.config.Blobs = func(ctx context.Context, _ ca.Identity, _ string, _ int64) (io.ReadCloser, error) {
		context.AfterFunc(ctx, func() { close(ended) })
		r, _ := net.Pipe() // no bytes arrive
		context.AfterFunc(ctx, func() { r.Close() })
		return r, nil
	}
	blob, err := reader.Fetch(t.Context(), from(holder), digest, 0)
	if err != nil {
		t.Fatal(err)
	}
	blob.Close()
	select {
	case <-ended:
	case <-time.After(10 * time.Second):
		t.Fatal("it goes on")
	}
}
