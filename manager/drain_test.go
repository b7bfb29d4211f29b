package manager

import (
	"strings"
	"testing"

	v1 "watari/api/watariv1"

	"connectrpc.com/connect"
)

func TestStatusNamesGuestsThatADrainCannotMove(t *testing.T) {
	r, ctx := start(t, t.TempDir()), bounded(t)
	r.image("mpi")
	r.host("a1")
	if _, err := r.admin.CreateCluster(ctx, connect.NewRequest(&v1.CreateClusterRequest{Name: "md", Spec: spec(1)})); err != nil {
		t.Fatal(err)
	}
	problems := func() string {
		status, err := r.admin.GetStatus(ctx, connect.NewRequest(&v1.GetStatusRequest{}))
		if err != nil {
			t.Fatal(err)
		}
		return strings.Join(status.Msg.Problems, "\n")
	}
	drain := func(undo bool) {
		if _, err := r.admin.DrainHost(ctx, connect.NewRequest(&v1.DrainHostRequest{Name: "a1", Undo: undo})); err != nil {
			t.Fatal(err)
		}
	}
	r.await("all is well", func() bool { return problems() == "" })
	drain(false)
	if p := problems(); !strings.Contains(p, "a1 is being drained") || !strings.Contains(p, "md-0 cannot be moved") {
		t.Errorf("problems: %q", p)
	}
	drain(true)
	if p := problems(); p != "" {
		t.Errorf("problems after the drain was taken back: %q", p)
	}
}
