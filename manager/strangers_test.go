package manager

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "watari/api/watariv1"
	"watari/api/watariv1/watariv1connect"
	"watari/manager/auditlog"
	"watari/manager/store"
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
	objects := r.deps.Load().Store
	of := func(name string) *v1.Meta {
		owner := objects.Snapshot().Clusters["md"].Meta
		return &v1.Meta{Name: name, Uid: "uid-" + name, Owner: owner.Owner, OwnerUid: owner.OwnerUid}
	}
	if err := objects.Txn(ctx,
		store.Create(&v1.Volume{Meta: of("home"), SizeBytes: 1 << 30, Host: "a1", State: v1.VolumeState_VOLUME_STATE_READY}),
		store.Create(&v1.Checkpoint{Meta: of("md-c1"), Cluster: "md", ClusterUid: objects.Snapshot().Clusters["md"].Meta.Uid, State: v1.CheckpointState_CHECKPOINT_STATE_DONE}),
		store.Create(&v1.Checkpoint{Meta: of("home-c1"), Volume: &v1.CheckpointMember{Guest: "home", GuestUid: "uid-home", File: &v1.CheckpointFile{}},
			State: v1.CheckpointState_CHECKPOINT_STATE_DONE}),
		store.Create(&v1.Migration{Meta: of("md-0-m1"), Guest: "md-0", GuestUid: objects.Snapshot().Guests["md-0"].Meta.Uid, Source: "a1", Target: "a2",
			State: v1.MigrationState_MIGRATION_STATE_DONE, Ended: timestamppb.Now()})); err != nil {
		t.Fatal(err)
	}
	if err := answer(ctx, ann.CreateRun, &v1.CreateRunRequest{Name: "r", Spec: &v1.RunSpec{Cluster: "md", Command: []string{"x"}, Hold: true}}); err != nil {
		t.Fatal(err)
	}
	with := spec(1)
	with.Volume = "home"
	exec := bob.GuestExec(ctx)
	exec.Send(&v1.GuestExecRequest{Guest: "md-0", Start: &v1.StartProcessRequest{Command: []string{"id"}}})
	_, executed := exec.Receive()
	put := bob.PutFile(ctx)
	put.Send(&v1.ControlPutFileRequest{Guest: "md-0", File: &v1.PutFileRequest{Path: "/x"}})
	_, written := put.CloseAndReceive()
	for what, err := range map[string]error{
		"exec":                executed,
		"put a file":          written,
		"get a file":          first(ctx, bob.GetFile, &v1.ControlGetFileRequest{Guest: "md-0", Path: "/x"}),
		"get a run's file":    first(ctx, bob.GetFile, &v1.ControlGetFileRequest{Run: "r", Path: "x"}),
		"console":             first(ctx, bob.GuestConsole, &v1.GuestConsoleRequest{Name: "md-0"}),
		"consoles":            answer(ctx, bob.ListGuestConsoles, &v1.ListGuestConsolesRequest{Name: "md-0"}),
		"output":              first(ctx, bob.RunOutput, &v1.RunOutputRequest{Name: "r"}),
		"show the guest":      answer(ctx, bob.ListGuests, &v1.ListGuestsRequest{Name: "md-0"}),
		"start the guest":     answer(ctx, bob.StartGuest, &v1.StartGuestRequest{Name: "md-0"}),
		"show the cluster":    answer(ctx, bob.ListClusters, &v1.ListClustersRequest{Name: "md"}),
		"resize":              answer(ctx, bob.ResizeCluster, &v1.ResizeClusterRequest{Name: "md", Guests: 2}),
		"run":                 answer(ctx, bob.CreateRun, &v1.CreateRunRequest{Name: "q", Spec: &v1.RunSpec{Cluster: "md", Command: []string{"x"}}}),
		"show the run":        answer(ctx, bob.ListRuns, &v1.ListRunsRequest{Name: "r"}),
		"start the run":       answer(ctx, bob.StartRun, &v1.StartRunRequest{Name: "r"}),
		"the run's processes": answer(ctx, bob.RunProcesses, &v1.RunProcessesRequest{Name: "r"}),
		"cancel the run":      answer(ctx, bob.CancelRun, &v1.CancelRunRequest{Name: "r"}),
		"checkpoint":          answer(ctx, bob.CreateCheckpoint, &v1.CreateCheckpointRequest{Cluster: "md"}),
		"plan checkpoints":    answer(ctx, bob.PlanCheckpoints, &v1.PlanCheckpointsRequest{Cluster: "md", Plan: &v1.CheckpointPlan{}}),
		"restore":             answer(ctx, bob.RestoreCheckpoint, &v1.RestoreCheckpointRequest{Name: "md"}),
		"usage":               answer(ctx, bob.Usage, &v1.UsageRequest{Guest: "md-0"}),
		"traffic":             answer(ctx, bob.ClusterTraffic, &v1.ClusterTrafficRequest{Name: "md"}),
		"explain a decision":  answer(ctx, bob.Explain, &v1.ExplainRequest{Kind: "guest", Name: "md-0"}),

		"remove the run":         answer(ctx, bob.RemoveRun, &v1.RemoveRunRequest{Name: "r"}),
		"show the move":          answer(ctx, bob.ListMigrations, &v1.ListMigrationsRequest{Name: "md-0-m1"}),
		"cancel the move":        answer(ctx, bob.CancelMigration, &v1.CancelMigrationRequest{Name: "md-0-m1"}),
		"cancel the guest's":     answer(ctx, bob.CancelMigration, &v1.CancelMigrationRequest{Name: "md-0"}),
		"show the checkpoint":    answer(ctx, bob.ListCheckpoints, &v1.ListCheckpointsRequest{Name: "md-c1"}),
		"list checkpoints":       answer(ctx, bob.ListCheckpoints, &v1.ListCheckpointsRequest{Cluster: "md"}),
		"list snapshots":         answer(ctx, bob.ListCheckpoints, &v1.ListCheckpointsRequest{Volume: "home"}),
		"delete the checkpoint":  answer(ctx, bob.DeleteCheckpoint, &v1.DeleteCheckpointRequest{Name: "md-c1"}),
		"pin the checkpoint":     answer(ctx, bob.ChangeCheckpoint, &v1.ChangeCheckpointRequest{Name: "md-c1", Pinned: true}),
		"verify the checkpoint":  answer(ctx, bob.VerifyCheckpoint, &v1.VerifyCheckpointRequest{Name: "md-c1"}),
		"restore the checkpoint": answer(ctx, bob.RestoreCheckpoint, &v1.RestoreCheckpointRequest{Name: "md-c1"}),
		"show the volume":        answer(ctx, bob.ListVolumes, &v1.ListVolumesRequest{Name: "home"}),
		"move the volume":        answer(ctx, bob.MoveVolume, &v1.MoveVolumeRequest{Name: "home", Host: "a1"}),
		"delete the volume":      answer(ctx, bob.DeleteVolume, &v1.DeleteVolumeRequest{Name: "home"}),
		"use the volume":         answer(ctx, bob.CreateCluster, &v1.CreateClusterRequest{Name: "bobs", Spec: with}),
		"snapshot":               answer(ctx, bob.CreateCheckpoint, &v1.CreateCheckpointRequest{Volume: "home"}),
		"plan snapshots":         answer(ctx, bob.PlanCheckpoints, &v1.PlanCheckpointsRequest{Volume: "home", Plan: &v1.CheckpointPlan{}}),
		"restore the volume":     answer(ctx, bob.RestoreCheckpoint, &v1.RestoreCheckpointRequest{Name: "home", Volume: true}),
		"restore the snapshot":   answer(ctx, bob.RestoreCheckpoint, &v1.RestoreCheckpointRequest{Name: "home-c1", Volume: true}),
		"delete the snapshot":    answer(ctx, bob.DeleteCheckpoint, &v1.DeleteCheckpointRequest{Name: "home-c1"}),
	} {
		if connect.CodeOf(err) != connect.CodeNotFound || err == nil || strings.Contains(err.Error(), "there are:") {
			t.Errorf("%s: %v", what, err)
		}
	}
	for kind, name := range map[string]string{"cluster": "md", "guest": "md-0", "run": "r", "migration": "md-0-m1", "checkpoint": "md-c1", "volume": "home"} {
		watched := &v1.WatchRequest{Kind: kind, Name: name}
		if err := first(ctx, bob.Watch, watched); connect.CodeOf(err) != connect.CodeNotFound || err == nil {
			t.Errorf("watch the %s: %v", kind, err)
		}
		if err := first(ctx, ann.Watch, watched); err != nil {
			t.Errorf("its owner does not see the %s: %v", kind, err)
		}
	}
	clusters, err := bob.ListClusters(ctx, connect.NewRequest(&v1.ListClustersRequest{}))
	if err != nil || len(clusters.Msg.Clusters) > 0 {
		t.Errorf("clusters: %v, %v", clusters, err)
	}
	guests, err := bob.ListGuests(ctx, connect.NewRequest(&v1.ListGuestsRequest{}))
	if err != nil || len(guests.Msg.Guests) > 0 {
		t.Errorf("guests: %v, %v", guests, err)
	}
	status, err := bob.GetStatus(ctx, connect.NewRequest(&v1.GetStatusRequest{}))
	if s := status.Msg; err != nil || s.Clusters+s.Guests+s.GuestsRunning+s.RunsActive+s.MigrationsActive > 0 || strings.Contains(fmt.Sprint(s.Problems), "md") {
		t.Errorf("status: %v, %v", status, err)
	}
	users, err := bob.ListUsers(ctx, connect.NewRequest(&v1.ListUsersRequest{}))
	if err != nil || len(users.Msg.Users) != 1 || users.Msg.Users[0].Meta.Name != "bob" {
		t.Errorf("users: %v, %v", users, err)
	}
	runs, err := bob.ListRuns(ctx, connect.NewRequest(&v1.ListRunsRequest{}))
	if err != nil || len(runs.Msg.Runs) > 0 {
		t.Errorf("runs: %v, %v", runs, err)
	}
	moves, err := bob.ListMigrations(ctx, connect.NewRequest(&v1.ListMigrationsRequest{Guest: "md-0"}))
	if err != nil || len(moves.Msg.Migrations) > 0 {
		t.Errorf("moves: %v, %v", moves, err)
	}
	checkpoints, err := bob.ListCheckpoints(ctx, connect.NewRequest(&v1.ListCheckpointsRequest{}))
	if err != nil || len(checkpoints.Msg.Checkpoints) > 0 {
		t.Errorf("checkpoints: %v, %v", checkpoints, err)
	}
	volumes, err := bob.ListVolumes(ctx, connect.NewRequest(&v1.ListVolumesRequest{}))
	if err != nil || len(volumes.Msg.Volumes) > 0 {
		t.Errorf("volumes: %v, %v", volumes, err)
	}
	if err := objects.AddEvent(ctx, &v1.Event{Kind: "guest", Name: "md-0", Message: "secret"}); err != nil {
		t.Fatal(err)
	}
	sees := func(who watariv1connect.ControlServiceClient) (guests []string, events int) {
		hosts, err := who.ListHosts(ctx, connect.NewRequest(&v1.ListHostsRequest{}))
		if err != nil {
			t.Fatal(err)
		}
		stream, err := who.Events(ctx, connect.NewRequest(&v1.EventsRequest{}))
		if err != nil {
			t.Fatal(err)
		}
		for stream.Receive() {
			if e := stream.Msg().Event; e.Kind != "user" && e.Kind != "host" {
				events++
			}
		}
		return hosts.Msg.Hosts[0].Guests, events
	}
	r.await("the guest is on the host", func() bool { guests, _ := sees(ann); return len(guests) == 1 })
	if guests, events := sees(bob); len(guests) > 0 || events > 0 {
		t.Errorf("bob sees guests %v and %d events", guests, events)
	}
	if _, events := sees(ann); events == 0 {
		t.Error("ann sees no events")
	}
	list, err := ann.ListRuns(ctx, connect.NewRequest(&v1.ListRunsRequest{Name: "r"}))
	if err != nil || list.Msg.Runs[0].Cancel || !list.Msg.Runs[0].Spec.Hold {
		t.Errorf("the run was changed: %v, %v", list, err)
	}
	// What still has to leave a drained host is for administrators.
	if err := answer(ctx, r.admin.DrainHost, &v1.DrainHostRequest{Name: "a1"}); err != nil {
		t.Fatal(err)
	}
	for who, sees := range map[watariv1connect.ControlServiceClient]bool{r.admin: true, bob: false} {
		hosts, err := who.ListHosts(ctx, connect.NewRequest(&v1.ListHostsRequest{}))
		if err != nil || len(hosts.Msg.Hosts[0].Volumes) > 0 != sees {
			t.Errorf("volumes on a drained host: %v, %v", hosts, err)
		}
	}
}

func TestTheManagerSendsItsAuditLogToTheServerThatIsNamed(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "log")
	listener, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	server, err := auditlog.ParseServer("unix://" + socket)
	if err != nil {
		t.Fatal(err)
	}
	r, ctx := beginWith(t, t.TempDir(), func(c *Config) { c.AuditSyslog = &server }), bounded(t)
	r.awaitLead()
	wantCode(t, answer(ctx, r.admin.RemoveHost, &v1.RemoveHostRequest{Name: "nobody"}), connect.CodeNotFound)
	listener.SetReadDeadline(time.Now().Add(30 * time.Second))
	message := make([]byte, 1<<16)
	for {
		n, err := listener.Read(message)
		if err != nil {
			t.Fatal(err)
		}
		if text := string(message[:n]); strings.Contains(text, "RemoveHost") && strings.Contains(text, "nobody") {
			return
		}
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
