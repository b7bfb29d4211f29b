package api

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"watari/manager/auditlog"
	"watari/manager/blob"
)

// strangersCalls are calls of each kind: of one message, of streams, of blobs, and of the web console.
var strangersCalls = []string{
	"POST /watari.v1.JoinService/Join", "POST /watari.v1.ControlService/CreateCluster", "POST /watari.v1.ControlService/Events",
	"POST /watari.v1.ControlService/PutFile", "POST /watari.v1.ControlService/GuestExec", "PUT /blobs/sha256:00", "POST /console/session",
	"POST /console/api/watari.v1.ControlService/ListHosts", "POST /x",
}

// countingReader is a body without end.
type countingReader struct{ read int }

func (c *countingReader) Read(b []byte) (int, error) {
	c.read += len(b)
	return len(b), nil
}

func TestLittleIsReadOfAStrangersCall(t *testing.T) {
	audit, err := auditlog.Open(t.TempDir(), slog.Default())
	if err != nil {
		t.Fatal(err)
	}
	defer audit.Close()
	handler := New(Options{Store: openStore(t), AuditLog: audit, Leading: func() bool { return true }}).Handler()
	for _, call := range strangersCalls {
		method, path, _ := strings.Cut(call, " ")
		for _, kind := range []string{"application/proto", "application/connect+proto", "application/json", "application/grpc"} {
			body := &countingReader{}
			r := httptest.NewRequest(method, path, body)
			r.Proto, r.ProtoMajor, r.ProtoMinor = "HTTP/2.0", 2, 0 // streams of both directions need it
			r.Header.Set("Content-Type", kind)
			handler.ServeHTTP(httptest.NewRecorder(), r)
			if body.read > 4<<10+1 { // with the byte that shows that it is too long
				t.Errorf("%s as %s: %d bytes were read", call, kind, body.read)
			}
		}
	}
}

func TestAStrangerWhoSendsSlowlyIsNotWaitedFor(t *testing.T) {
	if strangersTime != 10*time.Second {
		t.Errorf("a stranger is waited for for %v, and the page on threats says 10 s", strangersTime)
	}
	before := strangersTime
	defer func() { strangersTime = before }()
	strangersTime = 200 * time.Millisecond
	s := openStore(t)
	blobs, err := blob.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	audit, err := auditlog.Open(t.TempDir(), slog.Default())
	if err != nil {
		t.Fatal(err)
	}
	defer audit.Close()
	server := httptest.NewServer(New(Options{Store: s, Blobs: blobs, AuditLog: audit, Leading: func() bool { return true }}).Handler())
	defer server.Close()
	for _, call := range []string{"POST /watari.v1.JoinService/Join", "POST /watari.v1.ControlService/ListHosts", "PUT /blobs/sha256:00", "POST /console/session", "DELETE /console/session",
		"GET /console/", "POST /console/api/watari.v1.ControlService/ListHosts", "POST /console/x", "POST //x", "POST /x"} {
		conn, err := net.Dial("tcp", server.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		fmt.Fprintf(conn, "%s HTTP/1.1\r\nHost: manager\r\nContent-Type: application/proto\r\nContent-Length: 100\r\n\r\nx", call)
		conn.SetDeadline(time.Now().Add(20 * time.Second))
		begun := time.Now()
		if answer, err := io.ReadAll(conn); err != nil { // to the end of the connection
			t.Errorf("%s: after %v %v, answered with %q", call, time.Since(begun), err, answer)
		}
	}
}

// A few bytes that decompress to megabytes would be decompressed before the call is refused.
func TestAStrangerCannotSendCompressedCalls(t *testing.T) {
	audit, err := auditlog.Open(t.TempDir(), slog.Default())
	if err != nil {
		t.Fatal(err)
	}
	defer audit.Close()
	server := httptest.NewServer(New(Options{Store: openStore(t), AuditLog: audit, Leading: func() bool { return true }}).Handler())
	defer server.Close()
	var body bytes.Buffer
	compress := gzip.NewWriter(&body)
	compress.Write(make([]byte, 1<<20))
	compress.Close()
	for _, call := range strangersCalls {
		for _, header := range []string{"Content-Encoding", "Connect-Content-Encoding", "Grpc-Encoding"} {
			method, path, _ := strings.Cut(call, " ")
			r, err := http.NewRequest(method, server.URL+path, bytes.NewReader(body.Bytes()))
			if err != nil {
				t.Fatal(err)
			}
			r.Header.Set("Content-Type", "application/proto")
			r.Header.Set(header, "gzip")
			answer, err := http.DefaultClient.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			answer.Body.Close()
			if answer.StatusCode != http.StatusUnsupportedMediaType {
				t.Errorf("%s with %s: %s", call, header, answer.Status)
			}
		}
	}
}
