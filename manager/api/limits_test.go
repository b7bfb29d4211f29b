package api

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"watari/ca"
)

// as makes a handler see a caller.
func as(c caller, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), callerKey{}, c)))
	})
}

func TestRequestsOfOneCallerAreBounded(t *testing.T) {
	waiting, end := make(chan bool), make(chan bool)
	l := &callersLimit{}
	handler := l.limit(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/wait" {
			waiting <- true
			<-end
		}
	}))
	ann, bob := caller{kind: ca.KindUser, name: "ann", uid: "u1"}, caller{kind: ca.KindUser, name: "bob", uid: "u2"}
	ask := func(c caller, path string) int {
		w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, path, nil)
		r.Header.Set("Content-Type", "application/proto")
		as(c, handler).ServeHTTP(w, r)
		return w.Code
	}
	for range mostRequests {
		go ask(ann, "/wait")
		<-waiting
	}
	if code := ask(ann, "/"); code != http.StatusTooManyRequests {
		t.Errorf("one more request: status %d", code)
	}
	if code := ask(bob, "/"); code != http.StatusOK {
		t.Errorf("another user's request: status %d", code)
	}
	close(end)
	for deadline := time.Now().Add(10 * time.Second); ask(ann, "/") != http.StatusOK; {
		if time.Now().After(deadline) {
			t.Fatal("requests are refused after the others have ended")
		}
	}
}

func TestARequestThatArrivesSlowlyIsNotWaitedFor(t *testing.T) {
	before := requestTime
	defer func() { requestTime = before }()
	requestTime = 200 * time.Millisecond
	handler := new(callersLimit).limit(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.ReadAll(r.Body); err != nil {
			http.Error(w, err.Error(), http.StatusRequestTimeout)
			return
		}
		time.Sleep(2 * requestTime) // the answer may take longer
		if r.Context().Err() == nil {
			fmt.Fprint(w, "whole")
		}
	}))
	server := httptest.NewServer(as(caller{kind: ca.KindUser, name: "ann", uid: "u1"}, handler))
	defer server.Close()
	for body, want := range map[string]string{"x": "408 ", "whole": "200 "} {
		conn, err := net.Dial("tcp", server.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		fmt.Fprintf(conn, "POST /x HTTP/1.1\r\nHost: manager\r\nContent-Type: application/proto\r\nContent-Length: 5\r\n\r\n%s", body)
		conn.SetDeadline(time.Now().Add(20 * time.Second))
		answer := make([]byte, len("HTTP/1.1 "+want))
		if _, err := io.ReadFull(conn, answer); err != nil || string(answer) != "HTTP/1.1 "+want {
			t.Errorf("body %q: %q, %v", body, answer, err)
		}
	}
}
