package controller

import (
	"strings"
	"testing"

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

// changeGuest changes a guest's record, whatever else changes it.
func (f *fixture) changeGuest(name string, change func(*v1.Guest)) {
	f.t.Helper()
	f.until(name+" is changed", func(s *store.Snapshot) bool {
		g := proto.CloneOf(s.Guests[name])
		change(g)
		return f.store.Txn(f.t.Context(), store.Update(g)) == nil
	})
}
