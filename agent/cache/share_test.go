package cache

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	v1 "watari/api/watariv1"
)

// lan is several hosts' caches that reach each other, and one manager.
type lan struct {
	t       *testing.T
	manager *manager
	image   *v1.Image
	caches  map[string]*Cache
	// pass may change what one host sends to another; nil: it changes nothing.
	pass func(from string, content io.ReadCloser) (io.ReadCloser, error)
	sent atomic.Int64 // bytes between hosts
}

func newLAN(t *testing.T, names ...string) *lan {
	l := &lan{t: t, manager: &manager{blobs: map[string][]byte{}}, caches: map[string]*Cache{}}
	l.image = testImage(l.manager)
	for _, name := range names {
		l.start(name, filepath.Join(t.TempDir(), name))
	}
	return l
}

// start starts a host's cache, or restarts it.
func (l *lan) start(name, dir string) {
	c, err := New(dir, Config{Get: l.manager.get, Ask: func(ctx context.Context, peer *v1.BlobPeer, digest string, offset int64) (io.ReadCloser, error) {
		content, err := l.caches[peer.Name].Open(ctx, name, "uid-of-"+name, digest, offset)
		if err != nil {
			return nil, err
		}
		if l.pass != nil {
			if content, err = l.pass(peer.Name, content); err != nil {
				return nil, err
			}
		}
		return counted{content, &l.sent}, nil
	}})
	if err != nil {
		l.t.Fatal(err)
	}
	l.caches[name] = c
}

type counted struct {
	io.ReadCloser
	n *atomic.Int64
}

func (c counted) Read(p []byte) (int, error) {
	n, err := c.ReadCloser.Read(p)
	c.n.Add(int64(n))
	return n, err
}

func peer(name string) *v1.BlobPeer { return &v1.BlobPeer{Name: name, Uid: "uid-of-" + name} }

// tell sets from which hosts a host gets all parts of the image; empty: from the manager.
func (l *lan) tell(host string, from []string, to ...string) {
	var shares []*v1.BlobShare
	for _, blob := range []*v1.Blob{l.image.Kernel, l.image.Initrd, l.image.Root} {
		share := &v1.BlobShare{Digest: blob.Digest, FromManager: len(from) == 0}
		for _, name := range from {
			share.Sources = append(share.Sources, peer(name))
		}
		for _, name := range to {
			share.Readers = append(share.Readers, peer(name))
		}
		shares = append(shares, share)
	}
	l.caches[host].Share(true, shares)
}

// ensure has hosts fetch the image at the same time.
func (l *lan) ensure(hosts ...string) {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(l.t.Context(), 20*time.Second)
	defer cancel()
	var group sync.WaitGroup
	for _, host := range hosts {
		group.Go(func() {
			files, err := l.caches[host].Ensure(ctx, l.image, func(string) {})
			if err != nil {
				l.t.Errorf("%s: %v", host, err)
				return
			}
			if data, err := os.ReadFile(files.Root); err != nil || digestOf(data) != l.image.Root.Digest {
				l.t.Errorf("%s: root is wrong: %v", host, err)
			}
		})
	}
	group.Wait()
}

// gate is a manager that sends the first bytes of each blob and the rest once it is opened.
func (l *lan) gate(first int) (open func()) {
	opened := make(chan struct{})
	for _, c := range l.caches {
		c.Get = func(ctx context.Context, path string, offset int64) (*http.Response, error) {
			response, err := l.manager.get(ctx, path, offset)
			if err == nil {
				all, _ := io.ReadAll(response.Body)
				n := min(first, len(all))
				response.Body = io.NopCloser(io.MultiReader(bytes.NewReader(all[:n]), &waiting{ctx, opened, bytes.NewReader(all[n:])}))
			}
			return response, err
		}
	}
	return sync.OnceFunc(func() { close(opened) })
}

type waiting struct {
	ctx  context.Context
	open <-chan struct{}
	rest io.Reader
}

func (w *waiting) Read(p []byte) (int, error) {
	select {
	case <-w.ctx.Done():
		return 0, w.ctx.Err()
	case <-w.open:
		return w.rest.Read(p)
	}
}

// until waits for something that happens in another goroutine.
func until(t *testing.T, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !done(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within 10 s: %s", what)
		}
	}
}

func (l *lan) imageSize() int64 {
	return int64(l.image.Kernel.Size + l.image.Initrd.Size + l.image.Root.Size)
}

func TestHostsFetchWhatAnotherIsOnlyJustFetching(t *testing.T) {
	l := newLAN(t, "a1", "a2", "a3")
	l.tell("a1", nil, "a2", "a3")
	l.tell("a2", []string{"a1"}, "a3")
	l.tell("a3", []string{"a2", "a1"})
	open := l.gate(100)
	done := make(chan struct{})
	go func() {
		defer close(done)
		l.ensure("a1", "a2", "a3")
	}()
	until(t, "a3 has the first bytes, by a2", func() bool { return have(l.caches["a3"]) == 100 })
	if blobs := l.caches["a1"].Blobs(); len(blobs) != 1 || blobs[0].HaveBytes != 100 || !blobs[0].FromOutside {
		t.Errorf("a1 reports %v", blobs)
	}
	open()
	<-done
	if l.manager.asked.Load() != 3 || l.sent.Load() != 2*l.imageSize() {
		t.Errorf("%d requests to the manager, %d bytes between hosts", l.manager.asked.Load(), l.sent.Load())
	}
}

// have returns how many bytes of a blob that is being fetched a cache has.
func have(c *Cache) uint64 {
	for _, b := range c.Blobs() {
		if !b.Whole {
			return b.HaveBytes
		}
	}
	return 0
}

func TestASourceThatDiesInTheMiddleIsReplaced(t *testing.T) {
	l := newLAN(t, "a1", "a2", "a3")
	l.tell("a1", nil)
	l.tell("a2", nil)
	l.ensure("a1", "a2")
	l.tell("a1", nil, "a3")
	l.tell("a2", nil, "a3")
	l.tell("a3", []string{"a1", "a2"})
	l.pass = func(from string, content io.ReadCloser) (io.ReadCloser, error) {
		if from == "a1" {
			return struct {
				io.Reader
				io.Closer
			}{io.MultiReader(io.LimitReader(content, 1000), failing{}), content}, nil
		}
		return content, nil
	}
	asked := l.manager.asked.Load()
	l.ensure("a3")
	if l.manager.asked.Load() != asked || l.sent.Load() != l.imageSize() {
		t.Errorf("%d more requests to the manager, %d bytes between hosts", l.manager.asked.Load()-asked, l.sent.Load())
	}
}

// newImpatientLAN has a host a3 that is to fetch from a1, or else from a2, and waits only briefly for either.
func newImpatientLAN(t *testing.T) *lan {
	l := newLAN(t, "a1", "a2", "a3")
	l.ensure("a1", "a2") // without orders: from the manager
	l.tell("a1", nil, "a3")
	l.tell("a2", nil, "a3")
	l.tell("a3", []string{"a1", "a2"})
	l.caches["a3"].peerStall = 200 * time.Millisecond
	return l
}

func TestASourceThatHangsIsReplaced(t *testing.T) {
	l := newImpatientLAN(t)
	l.pass = func(from string, content io.ReadCloser) (io.ReadCloser, error) {
		if from == "a1" {
			r, w := io.Pipe()
			t.Cleanup(func() { w.Close() })
			return r, nil
		}
		return content, nil
	}
	l.ensure("a3")
	if l.sent.Load() != l.imageSize() {
		t.Errorf("%d bytes between hosts", l.sent.Load())
	}
}

// TestASourceThatTricklesIsReplaced: a host that sends a byte now and then must not delay its site.
func TestASourceThatTricklesIsReplaced(t *testing.T) {
	l := newImpatientLAN(t)
	l.pass = func(from string, content io.ReadCloser) (io.ReadCloser, error) {
		if from != "a1" {
			return content, nil
		}
		r, w := io.Pipe()
		go func() {
			for one := make([]byte, 1); ; time.Sleep(10 * time.Millisecond) {
				if _, err := io.ReadFull(content, one); err != nil {
					return
				}
				if _, err := w.Write(one); err != nil {
					return
				}
			}
		}()
		return r, nil
	}
	asked := l.manager.asked.Load()
	l.ensure("a3")
	if l.manager.asked.Load() != asked {
		t.Errorf("%d more requests to the manager", l.manager.asked.Load()-asked)
	}
}

func TestDamagedContentOnlyCausesItToBeFetchedElsewhere(t *testing.T) {
	l := newLAN(t, "a1", "a2")
	l.ensure("a1")
	l.tell("a1", nil, "a2")
	l.tell("a2", []string{"a1"})
	l.pass = func(_ string, content io.ReadCloser) (io.ReadCloser, error) {
		data, err := io.ReadAll(content)
		data[0] ^= 1
		return io.NopCloser(bytes.NewReader(data)), err
	}
	l.ensure("a2")
	if l.manager.asked.Load() != 6 {
		t.Errorf("%d requests to the manager for three parts each", l.manager.asked.Load())
	}
}

func TestAHostThatFindsItsCopyDamagedPassesItOnNoMore(t *testing.T) {
	l := newLAN(t, "a1", "a2")
	l.ensure("a1")
	l.tell("a1", nil, "a2")
	l.tell("a2", []string{"a1"})
	sum, _ := hexDigest(l.image.Root.Digest)
	if err := os.WriteFile(l.caches["a1"].blobPath(sum), bytes.Repeat([]byte("evil"), 1000), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := l.caches["a1"].Open(t.Context(), "a2", "uid-of-a2", l.image.Root.Digest, 0); !errors.Is(err, ErrAbsent) {
		t.Fatalf("got %v", err)
	}
	if len(l.caches["a1"].Blobs()) != 2 {
		t.Errorf("it still reports %v", l.caches["a1"].Blobs())
	}
}

func TestABlobIsOpenedOnlyForThoseWhoMayFetchIt(t *testing.T) {
	l := newLAN(t, "a1")
	l.ensure("a1")
	c := l.caches["a1"]
	c.Share(true, []*v1.BlobShare{{Digest: l.image.Root.Digest, Readers: []*v1.BlobPeer{peer("a2")}}})
	for _, who := range []struct{ name, uid, digest string }{
		{"a2", "uid-of-a2", l.image.Kernel.Digest}, // another blob
		{"a3", "uid-of-a3", l.image.Root.Digest},
		{"a2", "uid-of-an-earlier-a2", l.image.Root.Digest},
		{"a2", "", l.image.Root.Digest},
		{"a2", "uid-of-a2", "../../pki/key.pem"},
	} {
		if content, err := c.Open(t.Context(), who.name, who.uid, who.digest, 0); err == nil {
			content.Close()
			t.Errorf("opened for %v", who)
		}
	}
	content, err := c.Open(t.Context(), "a2", "uid-of-a2", l.image.Root.Digest, 10)
	if err != nil {
		t.Fatal(err)
	}
	defer content.Close()
	if data, err := io.ReadAll(content); err != nil || len(data) != int(l.image.Root.Size)-10 {
		t.Errorf("%d bytes, %v", len(data), err)
	}
	c.Share(false, nil)
	if _, err := c.Open(t.Context(), "a2", "uid-of-a2", l.image.Root.Digest, 0); !errors.Is(err, ErrRefused) {
		t.Errorf("sharing was ended: %v", err)
	}
}

// An agent that was killed leaves a partial blob; the next one goes on there, from another host.
func TestAKilledTransferIsTakenUpFromAnotherHost(t *testing.T) {
	l := newLAN(t, "a1", "a2")
	l.ensure("a1")
	dir := l.caches["a2"].dir
	sum, _ := hexDigest(l.image.Root.Digest)
	if err := os.WriteFile(filepath.Join(dir, ".blobs", sum+".partial"), l.manager.blobs[l.image.Root.Digest][:3000], 0o644); err != nil {
		t.Fatal(err)
	}
	l.start("a2", dir)
	l.tell("a1", nil, "a2")
	l.tell("a2", []string{"a1"})
	l.ensure("a2")
	if l.sent.Load() != l.imageSize()-3000 || l.manager.asked.Load() != 3 {
		t.Errorf("%d bytes between hosts, %d requests to the manager", l.sent.Load(), l.manager.asked.Load())
	}
	// The partial blob may also be damaged. Then everything is fetched again, and no host is blamed.
	root := filepath.Join(dir, strings.TrimPrefix(l.image.Digest, "sha256:"), "root")
	os.Remove(root)
	os.Remove(filepath.Join(dir, ".blobs", sum))
	if err := os.WriteFile(filepath.Join(dir, ".blobs", sum+".partial"), []byte("evil"), 0o644); err != nil {
		t.Fatal(err)
	}
	l.start("a2", dir)
	l.tell("a2", []string{"a1"})
	l.ensure("a2")
	if l.manager.asked.Load() != 3 {
		t.Error("the manager was asked")
	}
}

func TestAHostThatIsRelievedGoesOnFromTheOther(t *testing.T) {
	l := newLAN(t, "a1", "a2")
	l.ensure("a1")
	l.tell("a1", nil, "a2")
	l.tell("a2", nil)
	open := l.gate(100)
	defer open()
	done := make(chan struct{})
	go func() {
		defer close(done)
		l.ensure("a2")
	}()
	until(t, "a2 fetches from the manager", func() bool { return have(l.caches["a2"]) == 100 })
	l.tell("a2", []string{"a1"})
	<-done
	if l.sent.Load() != l.imageSize()-100 {
		t.Errorf("%d bytes between hosts", l.sent.Load())
	}
}

func TestTwoThatBothBelieveToBeFirstBothGetIt(t *testing.T) {
	l := newLAN(t, "a1", "a2")
	l.tell("a1", nil, "a2")
	l.tell("a2", nil, "a1")
	l.ensure("a1", "a2")
	if l.manager.asked.Load() != 6 {
		t.Errorf("%d requests to the manager", l.manager.asked.Load())
	}
}

func TestAFullDiskEndsTheTransferAndBlamesNobody(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=16k"); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatalf("mount a small file system: %v", err)
		}
		t.Skipf("a small file system cannot be mounted (root can): %v", err)
	}
	t.Cleanup(func() { syscall.Unmount(dir, syscall.MNT_DETACH) })
	l := newLAN(t, "a1")
	l.image.Root.Size = 1 << 20
	data := bytes.Repeat([]byte{7}, 1<<20)
	l.image.Root.Digest = digestOf(data)
	l.manager.blobs[l.image.Root.Digest] = data
	l.start("a2", dir)
	l.ensure("a1")
	l.tell("a1", nil, "a2")
	l.tell("a2", []string{"a1"})
	_, err := l.caches["a2"].Ensure(t.Context(), l.image, func(string) {})
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("got %v", err)
	}
	if seen := l.caches["a2"].seenOf(digestHex(l.image.Root.Digest)); len(seen) > 0 && seen["a1"].Damaged {
		t.Errorf("a1 is blamed: %v", seen)
	}
}

func digestHex(digest string) string { return strings.TrimPrefix(digest, "sha256:") }

func TestBandwidthIsBounded(t *testing.T) {
	m := &manager{blobs: map[string][]byte{}}
	data := bytes.Repeat([]byte{7}, 3*chunk)
	m.blobs[digestOf(data)] = data
	c, err := New(t.TempDir(), Config{Get: m.get, Bandwidth: 4 * chunk})
	if err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	if err := c.ensureBlob(t.Context(), filepath.Join(c.dir, "x"), &v1.Blob{Digest: digestOf(data), Size: uint64(len(data))}, false, func(uint64, string) {}); err != nil {
		t.Fatal(err)
	}
	// The first chunk is free.
	if took := time.Since(begun); took < 450*time.Millisecond {
		t.Errorf("%d bytes at %d per second took %v", len(data), 4*chunk, took)
	}
}

func TestATemplateTravelsPacked(t *testing.T) {
	l := newLAN(t, "a1", "a2")
	a1, a2 := l.caches["a1"], l.caches["a2"]
	content := append(bytes.Repeat([]byte{0}, 3<<20), []byte("saved state")...)
	saved := filepath.Join(a1.dir, "t.save")
	if err := os.WriteFile(saved, content, 0o600); err != nil {
		t.Fatal(err)
	}
	blob, err := a1.Pack(t.Context(), saved, filepath.Join(a1.dir, "t.zst"))
	if err != nil || blob.Size > 1<<20 {
		t.Fatal(blob, err)
	}
	a1.Share(true, []*v1.BlobShare{{Digest: blob.Digest, Readers: []*v1.BlobPeer{peer("a2")}}})
	a2.Share(true, []*v1.BlobShare{{Digest: blob.Digest, Sources: []*v1.BlobPeer{peer("a1")}}})
	packed, fetched := filepath.Join(a2.dir, "t.zst"), filepath.Join(a2.dir, "t.save")
	if err := a2.Fetch(t.Context(), blob, packed, func(string) {}); err != nil {
		t.Fatal(err)
	}
	if err := a2.Unpack(t.Context(), packed, fetched, 1<<20); err == nil {
		t.Error("more was unpacked than is allowed")
	}
	if _, err := os.Stat(fetched); !errors.Is(err, os.ErrNotExist) {
		t.Error("a part of it is there")
	}
	if err := a2.Unpack(t.Context(), packed, fetched, 4<<20); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(fetched); err != nil || !bytes.Equal(got, content) {
		t.Error("it was altered", err)
	}
	// Where all hosts send damaged content, the template is given up: the manager does not have it.
	other := &v1.Blob{Digest: digestOf([]byte("other")), Size: 5}
	l.pass = func(string, io.ReadCloser) (io.ReadCloser, error) {
		return io.NopCloser(strings.NewReader("evil!")), nil
	}
	sum := digestHex(other.Digest)
	a1.mu.Lock()
	a1.whole[sum] = true
	a1.mu.Unlock()
	if err := os.WriteFile(a1.blobPath(sum), []byte("other"), 0o600); err != nil {
		t.Fatal(err)
	}
	a1.Share(true, []*v1.BlobShare{{Digest: other.Digest, Readers: []*v1.BlobPeer{peer("a2")}}})
	a2.Share(true, []*v1.BlobShare{{Digest: other.Digest, Sources: []*v1.BlobPeer{peer("a1")}}})
	if err := a2.Fetch(t.Context(), other, filepath.Join(a2.dir, "o.zst"), func(string) {}); err == nil || !strings.Contains(err.Error(), "damaged") {
		t.Errorf("got %v", err)
	}
	if l.manager.asked.Load() != 0 {
		t.Error("the manager was asked")
	}
}
