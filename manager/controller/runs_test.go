package controller

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	v1 "watari/api/watariv1"
	"watari/manager/store"
)

func (f *fixture) runIs(name string, state v1.RunState, says string) func(*store.Snapshot) bool {
	return func(s *store.Snapshot) bool {
		return s.Runs[name].GetState() == state && strings.Contains(s.Runs[name].GetMessage(), says)
	}
}

func TestARunWaitsForGuestsThatStartAndEndsWithOneThatIsStopped(t *testing.T) {
	f := newFixture(t, "a1")
	f.hosts.with("a1", func(h *fakeHost) { h.deaf = true })
	f.cluster("md", 2, 0)
	f.txn(store.Create(&v1.Run{Meta: &v1.Meta{Name: "r1"}, Spec: &v1.RunSpec{Cluster: "md", Command: []string{"x"}}, State: v1.RunState_RUN_STATE_PENDING}))
	f.txn(store.Create(&v1.Run{Meta: &v1.Meta{Name: "held"}, Spec: &v1.RunSpec{Cluster: "md", Command: []string{"x"}, Hold: true}, State: v1.RunState_RUN_STATE_PENDING}))
	f.until("it waits", f.runIs("r1", v1.RunState_RUN_STATE_PENDING, "md-1: starting"))
	f.changeGuest("md-1", func(g *v1.Guest) { g.Stopped = true })
	f.until("it has ended", f.runIs("r1", v1.RunState_RUN_STATE_FAILED, "guest md-1 is stopped"))
	f.until("a held one waits on", f.runIs("held", v1.RunState_RUN_STATE_PENDING, "waits for its files"))
}

func TestARunIsNotBegunOnALaterClusterOfTheSameName(t *testing.T) {
	f := newFixture(t, "a1")
	f.cluster("md", 1, 0)
	f.until("ready", f.clusterIs("md", v1.ClusterState_CLUSTER_STATE_READY))
	f.txn(store.Create(&v1.Run{Meta: &v1.Meta{Name: "r1"}, Spec: &v1.RunSpec{Cluster: "md", Command: []string{"x"}}, ClusterUid: "an earlier one's",
		State: v1.RunState_RUN_STATE_PENDING}))
	f.until("it has ended", f.runIs("r1", v1.RunState_RUN_STATE_FAILED, "cluster md no longer exists"))
	if run := f.store.Snapshot().Runs["r1"]; run.Head != "" {
		t.Errorf("it had begun on %s", run.Head)
	}
}

// changeGuest changes a guest's record, even if others change it at the same time.
func (f *fixture) changeGuest(name string, change func(*v1.Guest)) {
	f.t.Helper()
	f.until(name+" is changed", func(s *store.Snapshot) bool {
		g := proto.CloneOf(s.Guests[name])
		change(g)
		return f.store.Txn(f.t.Context(), store.Update(g)) == nil
	})
}

func TestTheControllerEndsAfterItsRunners(t *testing.T) {
	f := newFixture(t, "a1")
	f.cluster("md", 1, 0)
	f.until("ready", f.clusterIs("md", v1.ClusterState_CLUSTER_STATE_READY))
	asked, answer := make(chan bool), make(chan bool)
	f.hosts.client = func() (connect.HTTPClient, error) {
		asked <- true
		<-answer
		return nil, errors.New("no guests here")
	}
	f.txn(store.Create(&v1.Run{Meta: &v1.Meta{Name: "r1"}, Spec: &v1.RunSpec{Cluster: "md", Command: []string{"x"}}, State: v1.RunState_RUN_STATE_PENDING}))
	<-asked
	ended := make(chan bool)
	go func() {
		f.stop()
		close(ended)
	}()
	select {
	case <-ended:
		t.Error("it ended before its runner")
	case <-time.After(100 * time.Millisecond):
	}
	close(answer)
	<-ended
}

// errorCounter counts logged errors.
type errorCounter struct {
	slog.Handler
	n   atomic.Int32
	end func() // is called a while after the first error
}

func (c *errorCounter) Enabled(_ context.Context, level slog.Level) bool {
	return level >= slog.LevelError
}

func (c *errorCounter) Handle(context.Context, slog.Record) error {
	if c.n.Add(1) == 1 {
		time.AfterFunc(restPause/2, c.end)
	}
	return nil
}

func TestARunThatCannotBeTakenUpIsLetBeForAWhile(t *testing.T) {
	f := newFixture(t, "a1")
	f.cluster("md", 1, 0)
	f.until("ready", f.clusterIs("md", v1.ClusterState_CLUSTER_STATE_READY))
	f.stop()
	// A record so large that etcd refuses any addition to it.
	var err error
	for size := 8 << 20; size > 8<<20-1024; size -= 16 {
		err = f.store.Txn(t.Context(), store.Create(&v1.Run{Meta: &v1.Meta{Name: "r1"}, State: v1.RunState_RUN_STATE_PENDING,
			Spec: &v1.RunSpec{Cluster: "md", Command: []string{strings.Repeat("x", size)}}}))
		if err == nil {
			break
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	counter := &errorCounter{Handler: slog.DiscardHandler, end: cancel}
	Run(ctx, Deps{Store: f.store, Sessions: f.hosts, SessionChanges: f.hosts.changed, RunsDir: t.TempDir(), Term: f.term + 1, Log: slog.New(counter)})
	if n := counter.n.Load(); n != 1 {
		t.Errorf("it failed %d times in %v", n, restPause/2)
	}
}
