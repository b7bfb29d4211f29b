package controller

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "watari/api/watariv1"
	"watari/api/watariv1/watariv1connect"
	"watari/core"
	"watari/manager/store"
)

// outOfMemory is the report of a guest whose kernel killed processes, the last one a while ago.
func outOfMemory(kills uint64, ago time.Duration) *v1.OutOfMemory {
	return &v1.OutOfMemory{Kills: kills, Process: "lmp", Pid: 123, Bytes: 140 << 20, At: timestamppb.New(time.Now().Add(-ago))}
}

func TestAGuestsMemoryThatRanOutIsAnEvent(t *testing.T) {
	f := newFixture(t, "a1")
	f.cluster("md", 1, 0)
	f.until("ready", f.clusterIs("md", v1.ClusterState_CLUSTER_STATE_READY))
	f.hosts.with("a1", func(h *fakeHost) { h.report.Guests[0].OutOfMemory = outOfMemory(1, time.Second) })
	const want = "guest md-0 ran out of memory: the kernel ended process lmp (pid 123, 140 MiB); give the cluster more memory with --memory"
	f.until("an event", func(*store.Snapshot) bool {
		for event := range f.store.Events(t.Context(), 0, false) {
			if event.GetMessage() == want {
				return true
			}
		}
		return false
	})
}

// guestsAgents answers calls to guests' agents.
type guestsAgents struct {
	watariv1connect.UnimplementedGuestServiceHandler
	says func() *v1.OutOfMemory
}

func (g guestsAgents) Describe(context.Context, *connect.Request[v1.DescribeRequest]) (*connect.Response[v1.DescribeResponse], error) {
	// The guest's clock is an hour wrong.
	off := time.Hour
	o := g.says()
	if o != nil {
		o.At = timestamppb.New(o.At.AsTime().Add(off))
	}
	return connect.NewResponse(&v1.DescribeResponse{Now: timestamppb.New(time.Now().Add(off)), OutOfMemory: o}), nil
}

func (g guestsAgents) Do(r *http.Request) (*http.Response, error) {
	_, handler := watariv1connect.NewGuestServiceHandler(g)
	return served(handler, r), nil
}

// served serves a request that the manager sends to a guest by way of the guest's host.
func served(handler http.Handler, r *http.Request) *http.Response {
	path := strings.SplitN(r.URL.Path, "/", 4) // "", guest, UID, the call
	request := httptest.NewRequest(r.Method, "/"+path[3], r.Body)
	request.Header = r.Header
	recorder := httptest.NewRecorder()
	handler.ServeHTTP(recorder, request)
	return recorder.Result()
}

func TestARunThatFailedQuotesAGuestThatRanOutOfMemoryMeanwhile(t *testing.T) {
	f := newFixture(t, "a1")
	f.cluster("md", 2, 0)
	f.until("ready", f.clusterIs("md", v1.ClusterState_CLUSTER_STATE_READY))
	run := &v1.Run{StartedEpochs: map[string]uint64{"md-0": 1, "md-1": 1}, Started: timestamppb.New(time.Now().Add(-time.Minute))}
	r := &runner{c: &Controller{Deps: Deps{Store: f.store, Sessions: f.hosts}}}
	for name, test := range map[string]struct {
		says *v1.OutOfMemory
		want string
	}{
		"meanwhile": {outOfMemory(2, 30*time.Second), core.MemoryMessage("md-0", outOfMemory(2, 0))},
		"before":    {outOfMemory(2, 2*time.Minute), ""},
		"never":     {nil, ""},
	} {
		f.hosts.client = func() (connect.HTTPClient, error) {
			return guestsAgents{says: func() *v1.OutOfMemory { return proto.CloneOf(test.says) }}, nil
		}
		if got := r.ranOut(t.Context(), run); got != test.want {
			t.Errorf("%s: %q", name, got)
		}
	}
	f.hosts.client = func() (connect.HTTPClient, error) { return nil, errors.New("cut off") }
	if got := r.ranOut(t.Context(), run); got != "" {
		t.Errorf("cut off: %q", got)
	}
}
