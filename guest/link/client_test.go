package link

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	rpc "connectrpc.com/connect"

	v1 "watari/api/watariv1"
	"watari/api/watariv1/watariv1connect"
)

// silentBody is a body that never ends. Closing it does not interrupt a read.
type silentBody struct{ until <-chan struct{} }

func (b silentBody) Read([]byte) (int, error) { <-b.until; return 0, io.EOF }
func (silentBody) Close() error               { return nil }

func TestAnswerEndsWithItsSessionThoughTheCallerSendsNothing(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	channels := make(chan io.ReadWriteCloser, 1)
	open := func() (io.ReadWriteCloser, error) {
		select {
		case c := <-channels:
			return c, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	})
	go serve(ctx, open, handler, quick)
	client := NewClient(func(ctx context.Context) (net.Conn, error) {
		guestEnd, hostEnd := net.Pipe()
		channels <- guestEnd
		return dial(ctx, hostEnd, quick)
	})
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://guest/", silentBody{ctx.Done()})
	if err != nil {
		t.Fatal(err)
	}
	answer, err := client.RoundTrip(request)
	if err != nil {
		t.Fatal(err)
	}
	client.Close()
	if _, err := io.ReadAll(answer.Body); err == nil || ctx.Err() != nil {
		t.Errorf("reading the answer: %v, %v", err, ctx.Err())
	}
}

// When a unary call fails, Connect reuses the message, after it has waited until no goroutine reads it.
func TestCallEndsWhenThereIsNoSession(t *testing.T) {
	refused := errors.New("refused")
	client := NewClient(func(context.Context) (net.Conn, error) {
		time.Sleep(10 * time.Millisecond) // let the reader of the message begin
		return nil, refused
	})
	ended := make(chan error, 1)
	go func() {
		_, err := watariv1connect.NewProcessServiceClient(client, "http://guest").StartProcess(context.Background(),
			rpc.NewRequest(&v1.StartProcessRequest{Id: "x"}))
		ended <- err
	}()
	select {
	case err := <-ended:
		if !errors.Is(err, refused) {
			t.Errorf("the call failed with %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("the call does not end")
	}
}

// A call without a deadline opens the session, and the guest does not answer. Other calls wait for that session, too.
func TestCallDoesNotWaitForEverForAnothersSession(t *testing.T) {
	dialing := make(chan struct{}, 10)
	client := NewClient(func(ctx context.Context) (net.Conn, error) {
		dialing <- struct{}{}
		<-ctx.Done()
		return nil, ctx.Err()
	})
	client.dialTimeout = 50 * time.Millisecond
	ended := make(chan error, 2)
	call := func() {
		request, _ := http.NewRequest(http.MethodGet, "http://guest/", nil)
		_, err := client.RoundTrip(request)
		ended <- err
	}
	go call()
	<-dialing
	go call()
	for range 2 {
		select {
		case err := <-ended:
			if err == nil {
				t.Error("a call without a session succeeded")
			}
		case <-time.After(10 * time.Second):
			t.Fatal("the call does not end")
		}
	}
}
