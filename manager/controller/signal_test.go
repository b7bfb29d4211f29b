package controller

import (
	"context"
	"net/http"
	"testing"
	"time"

	"connectrpc.com/connect"

	v1 "watari/api/watariv1"
	"watari/core"
	"watari/manager/store"
)

// hanging is a guest that never answers.
type hanging chan context.Context // receives the context of each call

func (h hanging) Do(r *http.Request) (*http.Response, error) {
	h <- r.Context()
	<-r.Context().Done()
	return nil, r.Context().Err()
}

func TestASignalThatIsNotAnsweredIsGivenUp(t *testing.T) {
	f := newFixture(t, "a1")
	f.cluster("md", 1, 0)
	f.until("ready", f.clusterIs("md", v1.ClusterState_CLUSTER_STATE_READY))
	f.stop()
	guest := make(hanging, 10)
	f.hosts.client = func() (connect.HTTPClient, error) { return guest, nil }
	c := &Controller{Deps: Deps{Store: f.store, Sessions: f.hosts}, runners: map[string]*runner{}, changed: make(chan struct{}, 1)}
	run := &v1.Run{Meta: &v1.Meta{Name: "r1", Uid: "r1-uid"}, Head: "md-0", State: v1.RunState_RUN_STATE_RUNNING}
	life, stop := context.WithCancel(t.Context())
	r := &runner{c: c, name: "r1", uid: "r1-uid", life: life, stop: stop}
	c.runners[r.uid] = r
	c.drive(t.Context(), &store.Snapshot{Runs: map[string]*v1.Run{"r1": run}}, []core.RunOrder{{Run: run, Signal: 15, Sent: 1}})
	call := <-guest
	if deadline, bounded := call.Deadline(); !bounded || time.Until(deadline) > signalWithin {
		t.Errorf("the call may last until %v, bounded: %v", deadline, bounded)
	}
	r.stop()
	select {
	case <-call.Done():
	case <-time.After(5 * time.Second):
		t.Fatal("the call goes on after its runner was stopped")
	}
	c.driving.Wait()
	if r.signaling {
		t.Error("no later signal is sent")
	}
}
