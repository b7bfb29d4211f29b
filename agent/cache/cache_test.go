package cache

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	v1 "watari/api/watariv1"
)

// manager serves blobs, and counts the requests.
type manager struct {
	blobs  map[string][]byte
	asked  atomic.Int32
	cutAt  int // bytes after which an answer breaks off; 0: never
	ranges []string
	mu     sync.Mutex
}

func (m *manager) get(ctx context.Context, path string, offset int64) (*http.Response, error) {
	m.asked.Add(1)
	r := httptest.NewRequest(http.MethodGet, path, nil).WithContext(ctx)
	if offset > 0 {
		r.Header.Set("Range", "bytes="+itoa(offset)+"-")
	}
	m.mu.Lock()
	m.ranges = append(m.ranges, r.Header.Get("Range"))
	m.mu.Unlock()
	w := httptest.NewRecorder()
	data, ok := m.blobs[strings.TrimPrefix(path, "/blobs/")]
	if !ok {
		http.Error(w, "there is no such blob", http.StatusNotFound)
	} else {
		http.ServeContent(w, r, "", stampTime, bytes.NewReader(data))
	}
	response := w.Result()
	if m.cutAt > 0 {
		response.Body = io.NopCloser(io.MultiReader(io.LimitReader(response.Body, int64(m.cutAt)), failing{}))
	}
	return response, ctx.Err()
}

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, errors.New("connection lost") }

func digestOf(data []byte) string {
	sum := sha256.Sum256(data)
	return "sha256:" + hex.EncodeToString(sum[:])
}

func testImage(m *manager) *v1.Image {
	blob := func(text string) *v1.Blob {
		data := []byte(strings.Repeat(text, 1000))
		m.blobs[digestOf(data)] = data
		return &v1.Blob{Digest: digestOf(data), Size: uint64(len(data))}
	}
	return &v1.Image{Meta: &v1.Meta{Name: "mpi"}, Digest: digestOf([]byte("image")), Kernel: blob("kernel"), Initrd: blob("initrd"), Root: blob("root")}
}

func newTest(t *testing.T) (*Cache, *manager, *v1.Image) {
	m := &manager{blobs: map[string][]byte{}}
	c, err := New(t.TempDir(), Config{Get: m.get})
	if err != nil {
		t.Fatal(err)
	}
	return c, m, testImage(m)
}

func ensure(t *testing.T, c *Cache, image *v1.Image) Files {
	t.Helper()
	files, err := c.Ensure(t.Context(), image, func(string) {})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func TestAnImageIsFetchedOnceAndShared(t *testing.T) {
	c, m, image := newTest(t)
	var group sync.WaitGroup
	for range 4 {
		group.Add(1)
		go func() {
			defer group.Done()
			if _, err := c.Ensure(t.Context(), image, func(string) {}); err != nil {
				t.Error(err)
			}
		}()
	}
	group.Wait()
	files := ensure(t, c, image)
	if m.asked.Load() != 3 {
		t.Errorf("%d requests for three parts", m.asked.Load())
	}
	data, err := os.ReadFile(files.Root)
	if err != nil || digestOf(data) != image.Root.Digest {
		t.Errorf("root is wrong: %v", err)
	}
	if held := c.Held(); len(held) != 1 || held[0] != image.Digest {
		t.Errorf("held: %v", held)
	}
}

func TestATransferThatIsGivenUpFailsNobodyElse(t *testing.T) {
	c, m, image := newTest(t)
	begun, end := make(chan struct{}), make(chan struct{})
	c.Get = func(ctx context.Context, path string, offset int64) (*http.Response, error) {
		select {
		case begun <- struct{}{}: // the first request of all hangs, even when it is given up
			<-end
		default:
		}
		return m.get(ctx, path, offset)
	}
	ctx, giveUp := context.WithCancel(t.Context())
	gone := make(chan error, 1)
	go func() {
		_, err := c.Ensure(ctx, image, func(string) {})
		gone <- err
	}()
	<-begun
	giveUp()
	if err := <-gone; !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	next := make(chan error, 1)
	go func() {
		_, err := c.Ensure(t.Context(), image, func(string) {})
		next <- err
	}()
	for { // until the second one waits for its turn
		c.mu.Lock()
		f := c.fetching[strings.TrimPrefix(image.Digest, "sha256:")]
		waits := f != nil && f.wait == 1
		c.mu.Unlock()
		if waits {
			break
		}
		runtime.Gosched()
	}
	close(end)
	if err := <-next; err != nil {
		t.Fatal(err)
	}
}

func TestABrokenTransferIsTakenUp(t *testing.T) {
	c, m, image := newTest(t)
	m.cutAt = 100
	if _, err := c.Ensure(t.Context(), image, func(string) {}); err == nil || !strings.Contains(err.Error(), "100 of 6000 bytes") {
		t.Fatalf("got %v", err)
	}
	m.cutAt = 0
	ensure(t, c, image)
	if m.ranges[1] != "bytes=100-" {
		t.Errorf("ranges asked: %q", m.ranges)
	}
}

func TestATransferThatStallsIsGivenUpAndTakenUp(t *testing.T) {
	c, m, image := newTest(t)
	c.stall = 2 * time.Second
	c.Get = func(ctx context.Context, path string, offset int64) (*http.Response, error) {
		response, err := m.get(ctx, path, offset)
		if err == nil {
			response.Body = io.NopCloser(io.MultiReader(io.LimitReader(response.Body, 100), hanging{ctx}))
		}
		return response, err
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if _, err := c.Ensure(ctx, image, func(string) {}); !errors.Is(err, errStalled) || !strings.Contains(err.Error(), "100 of 6000 bytes") {
		t.Fatalf("got %v", err)
	}
	c.Get = func(ctx context.Context, _ string, _ int64) (*http.Response, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	if _, err := c.Ensure(ctx, image, func(string) {}); !errors.Is(err, errStalled) {
		t.Fatalf("got %v", err)
	}
	c.Get, c.stall = m.get, stallTime
	ensure(t, c, image)
	if m.ranges[1] != "bytes=100-" {
		t.Errorf("ranges asked: %q", m.ranges)
	}
}

// hanging is a connection that stays open and brings no bytes.
type hanging struct{ ctx context.Context }

func (h hanging) Read([]byte) (int, error) {
	<-h.ctx.Done()
	return 0, h.ctx.Err()
}

func TestAnAlteredBlobIsRefused(t *testing.T) {
	c, m, image := newTest(t)
	good := m.blobs[image.Root.Digest]
	m.blobs[image.Root.Digest] = bytes.Replace(good, []byte("root"), []byte("ROOT"), 1)
	if _, err := c.Ensure(t.Context(), image, func(string) {}); err == nil || !strings.Contains(err.Error(), "altered") {
		t.Fatalf("got %v", err)
	}
	m.blobs[image.Root.Digest] = good[:10]
	if _, err := c.Ensure(t.Context(), image, func(string) {}); err == nil || !strings.Contains(err.Error(), "10 bytes instead of") {
		t.Fatalf("got %v", err)
	}
	m.blobs[image.Root.Digest] = good
	ensure(t, c, image)
}

func TestAFileAlteredOnDiskIsFetchedAnew(t *testing.T) {
	c, m, image := newTest(t)
	for _, altered := range []func(Files) string{
		func(f Files) string { return f.Kernel }, func(f Files) string { return f.Initrd }, func(f Files) string { return f.Root },
	} {
		path := altered(ensure(t, c, image))
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		// An attacker who owns the file keeps its size and times.
		if err := os.WriteFile(path, bytes.Repeat([]byte("!"), int(info.Size())), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, time.Time{}, info.ModTime()); err != nil {
			t.Fatal(err)
		}
		good := ensure(t, c, image)
		for part, want := range map[string]string{good.Kernel: image.Kernel.Digest, good.Initrd: image.Initrd.Digest, good.Root: image.Root.Digest} {
			if data, _ := os.ReadFile(part); digestOf(data) != want {
				t.Errorf("after %s was altered, %s would be used", path, part)
			}
		}
	}
	if m.asked.Load() != 6 {
		t.Errorf("%d parts were fetched, not 3 and each altered one again", m.asked.Load())
	}
}

func TestUnwantedImagesGo(t *testing.T) {
	c, m, image := newTest(t)
	ensure(t, c, image)
	name, _ := hexDigest(image.Digest)
	c.seen[name] = c.seen[name].Add(-2 * grace)
	c.Prune(func(digest string) bool { return digest == image.Digest })
	if len(c.Held()) != 1 {
		t.Fatal("an image in use went")
	}
	c.seen[name] = c.seen[name].Add(-2 * grace)
	entries, _ := os.ReadDir(c.blobDir())
	for _, entry := range entries {
		old := stampTime
		os.Chtimes(c.blobDir()+"/"+entry.Name(), old, old)
	}
	c.Prune(func(string) bool { return false })
	entries, _ = os.ReadDir(c.blobDir())
	if len(c.Held()) != 0 || len(entries) != 0 {
		t.Errorf("left: %v, %d blobs", c.Held(), len(entries))
	}
	ensure(t, c, image)
	if m.asked.Load() != 6 {
		t.Errorf("%d requests", m.asked.Load())
	}
}

var stampTime = time.Unix(1000000000, 0)

func itoa(n int64) string { return strconv.FormatInt(n, 10) }
