package manager

import (
	"context"
	"slices"
	"testing"

	"connectrpc.com/connect"

	v1 "watari/api/watariv1"
)

// answer makes a call, and returns its error.
func answer[Q, A any](ctx context.Context, call func(context.Context, *connect.Request[Q]) (*connect.Response[A], error), request *Q) error {
	_, err := call(ctx, connect.NewRequest(request))
	return err
}

// first makes a call, and returns the error that comes instead of the first message.
func first[Q, A any](ctx context.Context, call func(context.Context, *connect.Request[Q]) (*connect.ServerStreamForClient[A], error), request *Q) error {
	stream, err := call(ctx, connect.NewRequest(request))
	if err != nil {
		return err
	}
	defer stream.Close()
	stream.Receive()
	return stream.Err()
}

func TestAUserGetsNothingOfAnotherUsersCluster(t *testing.T) {
	r, ctx := start(t, t.TempDir()), bounded(t)
	r.image("mpi")
	r.host("a1")
	ann, _ := r.user("ann", nil)
	bob, _ := r.user("bob", nil)
	if err := answer(ctx, ann.CreateCluster, &v1.CreateClusterRequest{Name: "md", Spec: spec(1)}); err != nil {
		t.Fatal(err)
	}
	if err := answer(ctx, ann.CreateRun, &v1.CreateRunRequest{Name: "r", Spec: &v1.RunSpec{Cluster: "md", Command: []string{"x"}, Hold: true}}); err != nil {
		t.Fatal(err)
	}
	exec := bob.GuestExec(ctx)
	exec.Send(&v1.GuestExecRequest{Guest: "md-0", Start: &v1.StartProcessRequest{Command: []string{"id"}}})
	_, executed := exec.Receive()
	put := bob.PutFile(ctx)
	put.Send(&v1.ControlPutFileRequest{Guest: "md-0", File: &v1.PutFileRequest{Path: "/x"}})
	_, written := put.CloseAndReceive()
	for what, err := range map[string]error{
		"exec":               executed,
		"put a file":         written,
		"get a file":         first(ctx, bob.GetFile, &v1.ControlGetFileRequest{Guest: "md-0", Path: "/x"}),
		"get a run's file":   first(ctx, bob.GetFile, &v1.ControlGetFileRequest{Run: "r", Path: "x"}),
		"console":            first(ctx, bob.GuestConsole, &v1.GuestConsoleRequest{Name: "md-0"}),
		"consoles":           answer(ctx, bob.ListGuestConsoles, &v1.ListGuestConsolesRequest{Name: "md-0"}),
		"output":             first(ctx, bob.RunOutput, &v1.RunOutputRequest{Name: "r"}),
		"show the guest":     answer(ctx, bob.ListGuests, &v1.ListGuestsRequest{Name: "md-0"}),
		"start the guest":    answer(ctx, bob.StartGuest, &v1.StartGuestRequest{Name: "md-0"}),
		"show the cluster":   answer(ctx, bob.ListClusters, &v1.ListClustersRequest{Name: "md"}),
		"resize":             answer(ctx, bob.ResizeCluster, &v1.ResizeClusterRequest{Name: "md", Guests: 2}),
		"run":                answer(ctx, bob.CreateRun, &v1.CreateRunRequest{Name: "q", Spec: &v1.RunSpec{Cluster: "md", Command: []string{"x"}}}),
		"show the run":       answer(ctx, bob.ListRuns, &v1.ListRunsRequest{Name: "r"}),
		"start the run":      answer(ctx, bob.StartRun, &v1.StartRunRequest{Name: "r"}),
		"cancel the run":     answer(ctx, bob.CancelRun, &v1.CancelRunRequest{Name: "r"}),
		"checkpoint":         answer(ctx, bob.CreateCheckpoint, &v1.CreateCheckpointRequest{Cluster: "md"}),
		"plan checkpoints":   answer(ctx, bob.PlanCheckpoints, &v1.PlanCheckpointsRequest{Cluster: "md", Plan: &v1.CheckpointPlan{}}),
		"restore":            answer(ctx, bob.RestoreCheckpoint, &v1.RestoreCheckpointRequest{Name: "md"}),
		"usage":              answer(ctx, bob.Usage, &v1.UsageRequest{Guest: "md-0"}),
		"traffic":            answer(ctx, bob.ClusterTraffic, &v1.ClusterTrafficRequest{Name: "md"}),
		"explain a decision": answer(ctx, bob.Explain, &v1.ExplainRequest{Kind: "guest", Name: "md-0"}),
	} {
		if connect.CodeOf(err) != connect.CodeNotFound || err == nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	list, err := ann.ListRuns(ctx, connect.NewRequest(&v1.ListRunsRequest{Name: "r"}))
	if err != nil || list.Msg.Runs[0].Cancel || !list.Msg.Runs[0].Spec.Hold {
		t.Errorf("the run was changed: %v, %v", list, err)
	}
}

// A machine with a copy of a host's disk has the host's key, and another boot.
func TestTheSessionOfACopyOfAHostIsRecorded(t *testing.T) {
	r := start(t, t.TempDir())
	pair, _, err := r.join(r.hostToken(), "a1")
	if err != nil {
		t.Fatal(err)
	}
	r.dial("a1", pair)
	r.boot = "copy-"
	r.dial("a1", pair)
	r.await("the copy is recorded", func() bool { return slices.Contains(r.audited(), "host a1 Session a1 permission_denied") })
}
