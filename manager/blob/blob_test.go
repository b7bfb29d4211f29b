package blob

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"
)

var content = bytes.Repeat([]byte("migrating birds "), 1000)

func sumOf(b []byte) string {
	h := sha256.Sum256(b)
	return hex.EncodeToString(h[:])
}

func newServer(t *testing.T) (*Store, string) {
	t.Helper()
	s, err := Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	s.Reserve = 0
	mux := http.NewServeMux()
	mux.Handle("/blobs/{digest}", s.Handler(func(*http.Request) string { return "ann" }, func(*http.Request, map[string]int64) error { return nil }))
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return s, server.URL + "/blobs/sha256:"
}

func do(t *testing.T, method, url string, body io.Reader, headers ...string) (*http.Response, string) {
	t.Helper()
	r, err := http.NewRequest(method, url, body)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(text)
}

func TestUploadIsResumedAndVerified(t *testing.T) {
	_, url := newServer(t)
	url += sumOf(content)
	if resp, _ := do(t, "HEAD", url, nil); resp.StatusCode != 404 || resp.Header.Get(OffsetHeader) != "" {
		t.Fatal(resp.Status, resp.Header)
	}
	if resp, _ := do(t, "PUT", url, bytes.NewReader(content[:5000]), SizeHeader, "16000"); resp.StatusCode != 202 {
		t.Fatal(resp.Status)
	}
	if resp, _ := do(t, "HEAD", url, nil); resp.StatusCode != 404 || resp.Header.Get(OffsetHeader) != "5000" {
		t.Fatal(resp.Status, resp.Header)
	}
	if resp, _ := do(t, "PUT", url+"?offset=6000", bytes.NewReader(content[6000:]), SizeHeader, "16000"); resp.StatusCode != 409 || resp.Header.Get(OffsetHeader) != "5000" {
		t.Fatal(resp.Status)
	}
	if resp, _ := do(t, "PUT", url+"?offset=5000", bytes.NewReader(content[5000:]), SizeHeader, "16000"); resp.StatusCode != 201 {
		t.Fatal(resp.Status)
	}
	if resp, _ := do(t, "HEAD", url, nil); resp.StatusCode != 200 || resp.ContentLength != 16000 {
		t.Fatal(resp.Status, resp.ContentLength)
	}
	if resp, text := do(t, "GET", url, nil, "Range", "bytes=10-19"); resp.StatusCode != 206 || text != string(content[10:20]) {
		t.Fatal(resp.Status, text)
	}
	if resp, _ := do(t, "PUT", url, nil, SizeHeader, "16000"); resp.StatusCode != 201 {
		t.Fatal("putting a whole blob again:", resp.Status)
	}
}

func TestAlteredContentIsDropped(t *testing.T) {
	s, url := newServer(t)
	url += sumOf(content)
	altered := bytes.Clone(content)
	altered[7]++
	if resp, _ := do(t, "PUT", url, bytes.NewReader(altered), SizeHeader, "16000"); resp.StatusCode != 422 {
		t.Fatal(resp.Status)
	}
	if size, whole, err := s.Stat("ann", sumOf(content)); size != 0 || whole || err != nil {
		t.Fatal(size, whole, err)
	}
}

func TestBadRequests(t *testing.T) {
	_, url := newServer(t)
	for _, c := range []struct{ method, url, size string }{
		{"GET", url + "00", ""}, {"GET", url + "../../x", ""}, {"PUT", url + sumOf(content), ""},
		{"PUT", url + sumOf(content), "-1"}, {"PUT", url + sumOf(content) + "?offset=x", "3"},
	} {
		if resp, _ := do(t, c.method, c.url, strings.NewReader("abc"), SizeHeader, c.size); resp.StatusCode != 400 && resp.StatusCode != 404 {
			t.Errorf("%s %s: %s", c.method, c.url, resp.Status)
		}
	}
	if resp, _ := do(t, "DELETE", url+sumOf(content), nil); resp.StatusCode != 405 {
		t.Error(resp.Status)
	}
}

func TestFullDisk(t *testing.T) {
	s, url := newServer(t)
	s.Reserve = 1 << 62
	resp, text := do(t, "PUT", url+sumOf(content), bytes.NewReader(content), SizeHeader, "16000")
	if resp.StatusCode != 507 || !strings.Contains(text, "disk is full") {
		t.Fatal(resp.Status, text)
	}
}

func TestOneUploadAtATime(t *testing.T) {
	s, _ := newServer(t)
	r, w := io.Pipe()
	first := make(chan error, 1)
	go func() { _, err := s.Put("ann", sumOf(content), 0, 16000, r); first <- err }()
	w.Write(content[:1]) // returns when the first Put has read the byte
	if _, err := s.Put("ann", sumOf(content), 0, 16000, bytes.NewReader(content)); !errors.Is(err, ErrBusy) {
		t.Fatal(err)
	}
	go func() { w.Write(content[1:]); w.Close() }()
	if err := <-first; err != nil {
		t.Fatal(err)
	}
}

func TestDamagedBlobIsDroppedByCheck(t *testing.T) {
	s, _ := newServer(t)
	sum := sumOf(content)
	if err := s.Check(sum, 16000); !errors.Is(err, ErrNotFound) {
		t.Fatal(err)
	}
	if _, err := s.Put("ann", sum, 0, 16000, bytes.NewReader(content)); err != nil {
		t.Fatal(err)
	}
	if err := s.Check(sum, 16000); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(s.Path(sum), 100); err != nil {
		t.Fatal(err)
	}
	if err := s.Check(sum, 16000); !errors.Is(err, ErrAltered) {
		t.Fatal(err)
	}
	if _, whole, _ := s.Stat("ann", sum); whole {
		t.Fatal("the damaged blob is still there")
	}
}

func TestGarbageIsCollected(t *testing.T) {
	s, _ := newServer(t)
	used, unused, young := []byte("used"), []byte("unused"), []byte("young")
	for _, b := range [][]byte{used, unused, young} {
		if _, err := s.Put("ann", sumOf(b), 0, int64(len(b)), bytes.NewReader(b)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Put("ann", sumOf(content), 0, 16000, bytes.NewReader(content[:10])); err != nil {
		t.Fatal(err)
	}
	old := time.Now().Add(-2 * time.Hour)
	for _, path := range []string{s.Path(sumOf(used)), s.Path(sumOf(unused)), s.partial("ann", sumOf(content))} {
		if err := os.Chtimes(path, old, old); err != nil {
			t.Fatal(err)
		}
	}
	freed, err := s.Collect(time.Now().Add(-time.Hour), func() map[string]bool { return map[string]bool{sumOf(used): true} })
	if err != nil || freed != int64(len(unused))+10 {
		t.Fatal(freed, err)
	}
	for sum, want := range map[string]bool{sumOf(used): true, sumOf(unused): false, sumOf(young): true} {
		if _, whole, _ := s.Stat("ann", sum); whole != want {
			t.Errorf("%s: whole %v", sum, whole)
		}
	}
}

func TestUploadsOfTwoLeaveEachOtherAlone(t *testing.T) {
	s, _ := newServer(t)
	sum := sumOf(content)
	if _, err := s.Put("ann", sum, 0, 16000, bytes.NewReader(content[:5000])); err != nil {
		t.Fatal(err)
	}
	// If uploaders shared a file, the smaller size would delete Ann's part, and the wrong bytes would spoil it.
	if _, err := s.Put("bob", sum, 0, 4, strings.NewReader("junk")); !errors.Is(err, ErrAltered) {
		t.Fatal(err)
	}
	var wrong *OffsetError
	if _, err := s.Put("bob", sum, 5000, 16000, strings.NewReader("junk")); !errors.As(err, &wrong) || wrong.Held != 0 {
		t.Fatal(err)
	}
	if held, whole, err := s.Stat("ann", sum); held != 5000 || whole || err != nil {
		t.Fatal(held, whole, err)
	}
	if _, err := s.Put("bob", sum, 0, 16000, bytes.NewReader(content)); err != nil {
		t.Fatal(err)
	}
	if held, err := s.Put("ann", sum, 5000, 16000, bytes.NewReader(content[5000:])); held != 16000 || err != nil {
		t.Fatal(held, err)
	}
}

func TestWhatAnUploaderHasIsCountedUntilItIsRemoved(t *testing.T) {
	s, _ := newServer(t)
	used, unused, never := "used content", "unused content", "content that never came"
	var seen map[string]int64
	admit := func(content string) {
		err := s.Admit("ann", sumOf([]byte(content)), int64(len(content)), func(sizes map[string]int64) error { seen = sizes; return nil })
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, content := range []string{used, unused} {
		admit(content)
		if _, err := s.Put("ann", sumOf([]byte(content)), 0, int64(len(content)), strings.NewReader(content)); err != nil {
			t.Fatal(err)
		}
	}
	admit(never)
	if len(seen) != 3 || seen[sumOf([]byte(unused))] != int64(len(unused)) {
		t.Errorf("counted: %v", seen)
	}
	full := errors.New("full")
	if err := s.Admit("ann", sumOf([]byte("more")), 4, func(map[string]int64) error { return full }); !errors.Is(err, full) {
		t.Errorf("err %v", err)
	}
	if _, err := s.Collect(time.Now().Add(-time.Hour), func() map[string]bool { return map[string]bool{sumOf([]byte(used)): true} }); err != nil {
		t.Fatal(err)
	}
	admit(unused)
	if len(seen) != 2 {
		t.Errorf("counted after the collection: %v", seen)
	}
	if err := s.Admit("ann", sumOf([]byte(used)), 1, func(sizes map[string]int64) error { seen = sizes; return nil }); err != nil || seen[sumOf([]byte(used))] != int64(len(used)) {
		t.Errorf("said to be smaller than it is: %v, %v", seen, err)
	}
}
