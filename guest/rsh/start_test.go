package rsh

import (
	"context"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"syscall"
	"testing"

	"connectrpc.com/connect"

	v1 "watari/api/watariv1"
	"watari/api/watariv1/watariv1connect"
)

// startedAnew is a restarted peer: its first connection is reset, as a connection to its earlier copy is.
type startedAnew struct {
	calls   atomic.Int32
	handler http.Handler
}

func (p *startedAnew) RoundTrip(r *http.Request) (*http.Response, error) {
	if p.calls.Add(1) == 1 {
		return nil, connect.NewError(connect.CodeCanceled, syscall.ECONNRESET)
	}
	recorder := httptest.NewRecorder()
	p.handler.ServeHTTP(recorder, r)
	return recorder.Result(), nil
}

// starter starts all processes.
type starter struct {
	watariv1connect.UnimplementedProcessServiceHandler
}

func (starter) StartProcess(context.Context, *connect.Request[v1.StartProcessRequest]) (*connect.Response[v1.StartProcessResponse], error) {
	return connect.NewResponse(&v1.StartProcessResponse{}), nil
}

func TestAStartIsRepeatedWhenThePeerWasStartedAnew(t *testing.T) {
	_, handler := watariv1connect.NewProcessServiceHandler(starter{})
	peer := &startedAnew{handler: handler}
	s := &session{client: watariv1connect.NewProcessServiceClient(&http.Client{Transport: peer}, "http://guest")}
	if code, err := s.start(t.Context(), arguments{command: "true"}); code != 0 || err != nil || peer.calls.Load() != 2 {
		t.Errorf("status %d, %v after %d calls", code, err, peer.calls.Load())
	}
}
