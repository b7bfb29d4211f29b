package controller

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"sync"
	"testing"

	"connectrpc.com/connect"

	"google.golang.org/protobuf/proto"

	v1 "watari/api/watariv1"
	"watari/api/watariv1/watariv1connect"
	"watari/manager/store"
)

// forgetful forgets processes, at the second attempt.
type forgetful struct {
	watariv1connect.UnimplementedProcessServiceHandler
	mu    sync.Mutex
	asked int
	ids   []string
}

func (f *forgetful) ForgetProcess(_ context.Context, r *connect.Request[v1.ForgetProcessRequest]) (*connect.Response[v1.ForgetProcessResponse], error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.asked++; f.asked%2 == 1 {
		return nil, connect.NewError(connect.CodeUnavailable, errors.New("the guest has just been resumed"))
	}
	f.ids = append(f.ids, r.Msg.Id)
	return connect.NewResponse(&v1.ForgetProcessResponse{}), nil
}

func (f *forgetful) Do(r *http.Request) (*http.Response, error) {
	_, handler := watariv1connect.NewProcessServiceHandler(f)
	return served(handler, r), nil
}

// A restore brings back the programs of runs that were removed after the checkpoint. No run controls them.
func TestTheProgramsOfRemovedRunsAreEndedAfterARestore(t *testing.T) {
	f := newFixture(t, "a1")
	f.cluster("md", 2, 0)
	f.until("ready", f.clusterIs("md", v1.ClusterState_CLUSTER_STATE_READY))
	guest := &forgetful{}
	f.hosts.client = func() (connect.HTTPClient, error) { return guest, nil }
	for restore, strays := range map[string][]string{"one": {"r1-uid", "r2-uid"}, "two": {"r3-uid"}} {
		f.until("the restore is stored", func(s *store.Snapshot) bool {
			cluster := proto.CloneOf(s.Clusters["md"])
			cluster.Restore = &v1.Restore{Id: restore, State: v1.RestoreState_RESTORE_STATE_DONE, Strays: strays}
			return f.store.Txn(t.Context(), store.Update(cluster)) == nil
		})
		f.until("they are ended", func(*store.Snapshot) bool {
			guest.mu.Lock()
			defer guest.mu.Unlock()
			return slices.Equal(guest.ids, strays)
		})
		guest.mu.Lock()
		guest.ids = nil
		guest.mu.Unlock()
	}
}
