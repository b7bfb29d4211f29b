package hostlink

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// endless is a body without an end.
type endless struct{ ctx context.Context }

func (e endless) Read(p []byte) (int, error) { return len(p), e.ctx.Err() }

// TestCallsThatNobodyReadsHoldUpNoOthers has as many calls as users can have whose data nobody reads, at the agent or at the manager.
func TestCallsThatNobodyReadsHoldUpNoOthers(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	mux := http.NewServeMux()
	mux.HandleFunc("POST /deaf", func(w http.ResponseWriter, r *http.Request) {
		http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	mux.HandleFunc("GET /endless", func(w http.ResponseWriter, r *http.Request) { io.Copy(w, endless{r.Context()}) })
	mux.HandleFunc("POST /echo", func(w http.ResponseWriter, r *http.Request) { io.Copy(w, r.Body) })
	ours, theirs := net.Pipe()
	go serveConn(ctx, theirs, mux)
	transport := NewTransport(ours)
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport}
	for i := range mostCalls - 1 {
		method, path, body := http.MethodPost, "/deaf", io.Reader(endless{ctx})
		if i%2 == 0 {
			method, path, body = http.MethodGet, "/endless", nil
		}
		r, err := http.NewRequestWithContext(ctx, method, BaseURL+path, body)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
	}
	text := strings.Repeat("text", 100_000)
	for deadline := time.Now().Add(5 * time.Second); time.Now().Before(deadline); { // the others fill up meanwhile
		limited, done := context.WithTimeout(ctx, time.Minute)
		r, _ := http.NewRequestWithContext(limited, http.MethodPost, BaseURL+"/echo", strings.NewReader(text))
		resp, err := client.Do(r)
		if err != nil {
			t.Fatalf("a call among many: %v", err)
		}
		got, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if done(); err != nil || string(got) != text {
			t.Fatalf("a call among many: %d bytes come back, %v", len(got), err)
		}
	}
}

// TestUsersLeaveCallsForTheManager has as many calls of users as may be under way.
func TestUsersLeaveCallsForTheManager(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	mux := http.NewServeMux()
	mux.HandleFunc("GET /wait", func(w http.ResponseWriter, r *http.Request) {
		http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	mux.HandleFunc("GET /now", func(http.ResponseWriter, *http.Request) {})
	ours, theirs := net.Pipe()
	go serveConn(ctx, theirs, mux)
	transport := NewTransport(ours)
	defer transport.CloseIdleConnections()
	users, own := &http.Client{Transport: ForUsers(transport)}, &http.Client{Transport: transport}
	ended, end := context.WithCancel(ctx)
	for range mostForUsers { // calls that end with their context, and whose body nobody closes
		r, _ := http.NewRequestWithContext(ended, http.MethodGet, BaseURL+"/wait", nil)
		if _, err := users.Do(r); err != nil {
			t.Fatal(err)
		}
	}
	end()
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		if resp, err := users.Get(BaseURL + "/now"); err == nil {
			resp.Body.Close()
			break
		} else if time.Now().After(deadline) {
			t.Fatalf("after the calls have ended: %v", err)
		}
	}
	var last *http.Response
	for range mostForUsers {
		resp, err := users.Get(BaseURL + "/wait")
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		last = resp
	}
	if _, err := users.Get(BaseURL + "/now"); err == nil || !strings.Contains(err.Error(), "calls of users") {
		t.Errorf("one more of a user: %v", err)
	}
	if resp, err := own.Get(BaseURL + "/now"); err != nil || resp.Body.Close() != nil {
		t.Errorf("one of the manager: %v", err)
	}
	last.Body.Close()
	if resp, err := users.Get(BaseURL + "/now"); err != nil || resp.Body.Close() != nil {
		t.Errorf("after one has ended: %v", err)
	}
}
