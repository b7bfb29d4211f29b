package root_test

// waits_test.go - commands that wait: their output, a restart of the manager, Ctrl-C.

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/creack/pty"
	"google.golang.org/protobuf/proto"

	v1 "watari/api/watariv1"
	"watari/cmd/internal/cli"
	"watari/cmd/internal/stub"
	"watari/cmd/watari/root"
)

func starting(ready uint32, states ...v1.GuestState) *v1.WatchResponse {
	cluster := &v1.Cluster{Meta: meta("md"), Prefix: "10.77.3.0/24", State: v1.ClusterState_CLUSTER_STATE_STARTING, ReadyGuests: ready,
		Spec: &v1.ClusterSpec{Guests: uint32(len(states))}}
	response := &v1.WatchResponse{Cluster: cluster}
	for i, state := range states {
		g := &v1.Guest{Meta: meta("md-" + string(rune('0'+i))), State: state, Host: "a1", Message: "fetching image 40 %"}
		if state == v1.GuestState_GUEST_STATE_RUNNING {
			g.Ready, g.Message = true, ""
		}
		response.Guests = append(response.Guests, g)
	}
	if int(ready) == len(states) {
		cluster.State = v1.ClusterState_CLUSTER_STATE_READY
	}
	return response
}

const (
	guestStarting = v1.GuestState_GUEST_STATE_STARTING
	guestRunning  = v1.GuestState_GUEST_STATE_RUNNING
)

func TestClusterCreateWaitShowsEachGuest(t *testing.T) {
	manager := (&stub.Manager{Unary: answers, OnWatch: func(_ context.Context, r *v1.WatchRequest, send func(*v1.WatchResponse) error) error {
		for _, now := range []*v1.WatchResponse{starting(0, guestStarting, guestStarting), starting(1, guestRunning, guestStarting), starting(2, guestRunning, guestRunning)} {
			if err := send(now); err != nil {
				return err
			}
		}
		return nil
	}}).Start(t)
	result := manager.Run(t, "cluster", "create", "md", "--image", "mpi", "--guests", "4", "--wait")
	want := `cluster md: 0 of 2 guests ready
  md-0: starting on a1: fetching image 40 %
  md-1: starting on a1: fetching image 40 %
cluster md: 1 of 2 guests ready
  md-0: ready on a1
cluster md: 2 of 2 guests ready
  md-1: ready on a1
cluster md is ready: 2 guests on 10.77.3.0/24, after 0 ms
`
	if result.Status != 0 || result.Err != want {
		t.Errorf("status %d, wrote:\n%s", result.Status, result.Err)
	}
}

func TestWaitOutlivesAManagersRestart(t *testing.T) {
	var watches atomic.Int32
	manager := &stub.Manager{Unary: answers}
	manager.OnWatch = func(ctx context.Context, _ *v1.WatchRequest, send func(*v1.WatchResponse) error) error {
		if watches.Add(1) > 1 {
			return send(starting(2, guestRunning, guestRunning))
		}
		if err := send(starting(0, guestStarting, guestStarting)); err != nil {
			return err
		}
		<-ctx.Done()
		return ctx.Err()
	}
	manager.Start(t)
	command := manager.Begin(t, "cluster", "create", "md", "--image", "mpi", "--wait")
	command.AwaitText(t, "md-1: starting")
	manager.Stop()
	command.AwaitText(t, "waiting for the manager: no manager answers at "+manager.URL()+": connection refused")
	manager.Resume(t)
	if result := command.Wait(t); result.Status != 0 || !strings.Contains(result.Err, "cluster md is ready") {
		t.Errorf("status %d, wrote:\n%s", result.Status, result.Err)
	}
}

// A guest can write what makes a terminal do things. A file gets what the guest wrote.
func TestAConsoleIsQuotedOnATerminalOnly(t *testing.T) {
	const text = "boot\n\x1b]0;title\a\x1b[2J\n"
	manager := (&stub.Manager{OnConsole: func(_ context.Context, _ *v1.GuestConsoleRequest, send func(*v1.GuestConsoleResponse) error) error {
		return send(&v1.GuestConsoleResponse{Data: []byte(text)})
	}}).Start(t)
	if result := manager.Run(t, "guest", "console", "md-0"); result.Out != text {
		t.Errorf("a file gets %q", result.Out)
	}
	screen, terminal, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer screen.Close()
	env := &cli.Env{In: strings.NewReader(""), Out: terminal, Err: io.Discard, Signals: make(chan os.Signal), Now: time.Now}
	if status := root.Main(t.Context(), env, []string{"--config", save(t, manager.Config()), "guest", "console", "md-0"}); status != 0 {
		t.Fatalf("status %d", status)
	}
	terminal.Close()
	shown, _ := io.ReadAll(screen) // the end is an error, since nobody has the terminal open any more
	if want := "boot\r\n\\x1b]0;title\\x07\\x1b[2J\r\n"; string(shown) != want {
		t.Errorf("a terminal gets %q, not %q", shown, want)
	}
}

func TestWhatIsFollowedGoesOnAfterTheManagerWasAwayWhichIsSaid(t *testing.T) {
	for _, words := range []string{"events -f", "guest console -f md-0", "run logs -f md-run-1"} {
		t.Run(words, func(t *testing.T) {
			t.Parallel()
			var attempts atomic.Int32
			text := func() string {
				if attempts.Add(1) == 1 {
					return "first\n"
				}
				return "second\n"
			}
			hold := func(ctx context.Context, err error) error {
				if err == nil {
					<-ctx.Done()
				}
				return ctx.Err()
			}
			manager := &stub.Manager{
				OnEvents: func(ctx context.Context, _ *v1.EventsRequest, send func(*v1.EventsResponse) error) error {
					return hold(ctx, send(&v1.EventsResponse{Event: &v1.Event{Message: text()}}))
				},
				OnConsole: func(ctx context.Context, _ *v1.GuestConsoleRequest, send func(*v1.GuestConsoleResponse) error) error {
					return hold(ctx, send(&v1.GuestConsoleResponse{Data: []byte(text())}))
				},
				OnRunOutput: func(ctx context.Context, _ *v1.RunOutputRequest, send func(*v1.RunOutputResponse) error) error {
					return hold(ctx, send(output(text(), "", nil)))
				},
			}
			manager.Start(t)
			command := manager.Begin(t, strings.Fields(words)...)
			command.AwaitText(t, "first")
			manager.Stop()
			command.AwaitText(t, "watari: waiting for the manager: no manager answers at")
			manager.Resume(t)
			command.AwaitText(t, "second")
			command.Signals <- os.Interrupt
			if result := command.Wait(t); result.Status != 130 {
				t.Errorf("%+v", result)
			}
		})
	}
}

func TestCtrlCEndsAWaitAloneAndSaysWhatGoesOn(t *testing.T) {
	block := func(ctx context.Context, r *v1.WatchRequest, send func(*v1.WatchResponse) error) error {
		now := starting(0, guestStarting)
		now.Guest, now.Host = &v1.Guest{Meta: meta("md-0"), State: guestStarting}, &v1.Host{Meta: meta("a1"), Draining: true, Guests: []string{"md-0"}}
		if err := send(now); err != nil {
			return err
		}
		<-ctx.Done()
		return ctx.Err()
	}
	unary := func(ctx context.Context, request any) (any, error) {
		switch request.(type) {
		case *v1.DeleteClusterRequest:
			return &v1.DeleteClusterResponse{}, nil
		case *v1.DrainHostRequest:
			return &v1.DrainHostResponse{}, nil
		case *v1.StartGuestRequest:
			return &v1.StartGuestResponse{}, nil
		case *v1.StopGuestRequest:
			return &v1.StopGuestResponse{}, nil
		}
		return answers(ctx, request)
	}
	manager := (&stub.Manager{Unary: unary, OnWatch: block}).Start(t)
	for _, one := range []struct{ command, shown, said string }{
		{"cluster create md --image mpi --guests 4 --wait", "md-0: starting", "is still starting; see `watari cluster show md`, undo with `watari cluster delete md`"},
		{"cluster delete md --wait", "1 guest left", "is still being deleted"},
		{"host drain a1 --wait", "1 guest left: md-0", "undo with `watari host drain a1 --undo`"},
		{"guest start md-0 --wait", "guest md-0: starting", "the start continues"},
		{"guest stop md-0 --wait", "guest md-0: starting", "the stop continues"},
	} {
		t.Run(one.command, func(t *testing.T) {
			command := manager.Begin(t, strings.Fields(one.command)...)
			command.AwaitText(t, one.shown)
			command.Signals <- os.Interrupt
			if result := command.Wait(t); result.Status != 130 || !strings.Contains(result.Err, one.said) {
				t.Errorf("status %d, wrote:\n%s", result.Status, result.Err)
			}
		})
	}
}

func TestADrainWaitsForVolumesAndNamesThoseThatStay(t *testing.T) {
	manager := (&stub.Manager{
		Unary: func(context.Context, any) (any, error) { return &v1.DrainHostResponse{}, nil },
		OnWatch: func(_ context.Context, _ *v1.WatchRequest, send func(*v1.WatchResponse) error) error {
			now := &v1.Host{Meta: meta("a1"), Draining: true, State: v1.HostState_HOST_STATE_DRAINING, Volumes: []*v1.HostVolume{
				{Name: "data", Message: "moves to host b1"}, {Name: "old", Stays: true, Message: "stays on host a1, which is drained: no room"}}}
			if err := send(&v1.WatchResponse{Host: now}); err != nil {
				return err
			}
			return send(&v1.WatchResponse{Host: &v1.Host{Meta: meta("a1"), Draining: true, State: v1.HostState_HOST_STATE_DRAINED, Volumes: now.Volumes[1:]}})
		},
	}).Start(t)
	result := manager.Run(t, "host", "drain", "a1", "--wait")
	want := `host a1: 0 guests left
  volume data moves to host b1
  volume old stays on host a1, which is drained: no room
volume old stays on host a1, which is drained: no room
host a1 is drained: no guest is on it
`
	if result.Status != 0 || result.Err != want {
		t.Errorf("status %d, wrote:\n%s", result.Status, result.Err)
	}
}

func TestChangesAreShownToProgramsAsObjects(t *testing.T) {
	manager := (&stub.Manager{
		Unary: func(_ context.Context, request any) (any, error) {
			switch request.(type) {
			case *v1.DrainHostRequest:
				return &v1.DrainHostResponse{Host: hosts[0]}, nil
			case *v1.StartGuestRequest:
				return &v1.StartGuestResponse{Guest: guests[0]}, nil
			case *v1.StopGuestRequest:
				return &v1.StopGuestResponse{Guest: guests[0]}, nil
			case *v1.CancelMigrationRequest:
				return &v1.CancelMigrationResponse{Migration: migrations[1]}, nil
			case *v1.CancelRunRequest:
				return &v1.CancelRunResponse{Run: runs[0]}, nil
			}
			return nil, errors.New("not asked for")
		},
		OnWatch: func(_ context.Context, _ *v1.WatchRequest, send func(*v1.WatchResponse) error) error {
			return send(&v1.WatchResponse{Guest: guests[0], Host: &v1.Host{Meta: meta("a1"), State: v1.HostState_HOST_STATE_DRAINED}})
		},
	}).Start(t)
	for command, name := range map[string]string{
		"host drain a1": "a1", "host drain a1 --undo": "a1", "host drain a1 --wait": "a1", "guest start md-0": "md-0", "guest start md-0 --wait": "md-0",
		"guest stop md-0": "md-0", "migrate cancel md-1": "md-1-m1", "run cancel md-run-1": "md-run-1",
	} {
		result := manager.Run(t, append(strings.Fields(command), "-o", "json")...)
		var object struct{ Meta struct{ Name string } }
		if err := json.Unmarshal([]byte(result.Out), &object); err != nil || object.Meta.Name != name || result.Status != 0 || result.Err != "" {
			t.Errorf("%s: status %d, %v, wrote %q and %q", command, result.Status, err, result.Out, result.Err)
		}
		if result = manager.Run(t, strings.Fields(command)...); result.Out != "" || result.Err == "" {
			t.Errorf("%s wrote %q and %q", command, result.Out, result.Err)
		}
	}
}

func TestSeveralClustersAreDeletedAtOnce(t *testing.T) {
	var asked atomic.Int32
	manager := (&stub.Manager{
		Unary: func(_ context.Context, request any) (any, error) {
			if request.(*v1.DeleteClusterRequest).Name == "no" {
				return nil, connect.NewError(connect.CodeNotFound, errors.New("there is no cluster no"))
			}
			asked.Add(1)
			return &v1.DeleteClusterResponse{}, nil
		},
		OnWatch: func(ctx context.Context, _ *v1.WatchRequest, send func(*v1.WatchResponse) error) error {
			if asked.Load() == 1 {
				return send(&v1.WatchResponse{Gone: true})
			}
			if err := send(starting(0, guestStarting)); err != nil {
				return err
			}
			<-ctx.Done()
			return ctx.Err()
		},
	}).Start(t)
	result := manager.Run(t, "cluster", "delete", "no", "md", "--wait")
	if want := "cluster md is deleted\nwatari: delete cluster no: there is no cluster no\n"; result.Status != 1 || result.Err != want {
		t.Errorf("status %d, wrote:\n%s", result.Status, result.Err)
	}
	asked.Store(1)
	command := manager.Begin(t, "cluster", "delete", "md", "me", "--wait")
	command.AwaitText(t, "1 guest left")
	if asked.Load() != 3 {
		t.Errorf("the second is not asked for before the first has gone")
	}
	command.Signals <- os.Interrupt
	if result := command.Wait(t); result.Status != 130 || !strings.Contains(result.Err, "cluster md, me is still being deleted") {
		t.Errorf("status %d, wrote:\n%s", result.Status, result.Err)
	}
	if result := manager.Run(t, "cluster", "delete", "md", "No!"); result.Status != 2 || asked.Load() != 3 {
		t.Errorf("status %d, asked %d times: %s", result.Status, asked.Load(), result.Err)
	}
}

func TestCtrlCBeforeTheManagerHasAnsweredEndsWithItsOwnStatus(t *testing.T) {
	for command, said := range map[string]string{
		"migrate md-1":       "`watari migrate list` shows whether guest md-1 is moving",
		"run md -- hostname": "`watari run list md` shows whether the run exists",
		"cluster list":       "",
	} {
		t.Run(command, func(t *testing.T) {
			asked := make(chan struct{}, 1)
			manager := (&stub.Manager{Unary: func(ctx context.Context, _ any) (any, error) {
				asked <- struct{}{}
				<-ctx.Done()
				return nil, ctx.Err()
			}}).Start(t)
			begun := manager.Begin(t, strings.Fields(command)...)
			<-asked
			begun.Signals <- os.Interrupt
			if result := begun.Wait(t); result.Status != 130 || !strings.Contains(result.Err, said) {
				t.Errorf("status %d, wrote:\n%s", result.Status, result.Err)
			}
		})
	}
}

// moves is a manager whose migration ends with the last stage, either by itself or when it is cancelled.
func moves(cancelled chan struct{}, stages ...*v1.Migration) *stub.Manager {
	return &stub.Manager{
		Unary: func(ctx context.Context, request any) (any, error) {
			if _, ok := request.(*v1.CancelMigrationRequest); ok {
				close(cancelled)
				return &v1.CancelMigrationResponse{Migration: migrations[1]}, nil
			}
			return answers(ctx, request)
		},
		OnWatch: func(ctx context.Context, _ *v1.WatchRequest, send func(*v1.WatchResponse) error) error {
			for i, stage := range stages {
				if i == len(stages)-1 && cancelled != nil {
					select {
					case <-cancelled:
					case <-ctx.Done():
						return ctx.Err()
					}
				}
				if stage == nil {
					<-ctx.Done()
					return ctx.Err()
				}
				if err := send(&v1.WatchResponse{Migration: stage}); err != nil {
					return err
				}
			}
			return nil
		},
	}
}

func stage(state v1.MigrationState, message string) *v1.Migration {
	return &v1.Migration{Meta: meta("md-1-m1"), Guest: "md-1", Source: "b1", Target: "a1", State: state, Message: message,
		TotalMs: 4510, DowntimeMs: 69, SendingMs: 40, Progress: &v1.MigrationProgress{TotalBytes: 512 << 20, RemainingBytes: 128 << 20, TransferredBytes: 213 << 20, Iteration: 2, DowntimeMs: 40}}
}

const (
	reserving    = v1.MigrationState_MIGRATION_STATE_RESERVING
	transferring = v1.MigrationState_MIGRATION_STATE_TRANSFERRING
	done         = v1.MigrationState_MIGRATION_STATE_DONE
	failed       = v1.MigrationState_MIGRATION_STATE_FAILED
	cancelled    = v1.MigrationState_MIGRATION_STATE_CANCELLED
)

func TestMigrateReports(t *testing.T) {
	manager := moves(nil, stage(reserving, ""), stage(transferring, ""), stage(done, "")).Start(t)
	result := manager.Run(t, "migrate", "md-1", "--to", "a1")
	if want := "md-1 moved from b1 to a1: total 4.5 s, downtime 69 ms (40 ms sending, 29 ms hand-over), 213 MiB sent\n"; result.Status != 0 || result.Out != want {
		t.Errorf("status %d, wrote %q", result.Status, result.Out)
	}
	for _, want := range []string{"md-1: b1 to a1: the target makes room\n", "md-1: b1 to a1: 75 %  384 MiB of 512 MiB, pass 2 over what the guest has changed\n"} {
		if !strings.Contains(result.Err, want) {
			t.Errorf("no line %q in:\n%s", want, result.Err)
		}
	}
}

func TestMigrateSaysWhyItFailed(t *testing.T) {
	manager := moves(nil, stage(failed, "target a1 died")).Start(t)
	result := manager.Run(t, "migrate", "md-1")
	if result.Status != 1 || !strings.Contains(result.Err, "failed: target a1 died; `watari guest show md-1` says where the guest is") {
		t.Errorf("status %d, wrote:\n%s", result.Status, result.Err)
	}
}

func TestCtrlCCancelsAMigrationAndWaitsForItsEnd(t *testing.T) {
	manager := moves(make(chan struct{}), stage(transferring, ""), stage(cancelled, "")).Start(t)
	command := manager.Begin(t, "migrate", "md-1")
	command.AwaitText(t, "75 %")
	command.Signals <- os.Interrupt
	if result := command.Wait(t); result.Status != 130 || !strings.Contains(result.Err, "was cancelled; guest md-1 goes on at b1") {
		t.Errorf("status %d, wrote:\n%s", result.Status, result.Err)
	}
}

func TestSecondCtrlCLeavesAMigration(t *testing.T) {
	asked := make(chan struct{})
	manager := moves(asked, stage(transferring, ""), nil).Start(t)
	command := manager.Begin(t, "migrate", "md-1")
	command.AwaitText(t, "75 %")
	command.Signals <- os.Interrupt
	<-asked
	command.Signals <- syscall.SIGINT
	if result := command.Wait(t); result.Status != 130 || !strings.Contains(result.Err, "see `watari migrate show md-1-m1`") {
		t.Errorf("status %d, wrote:\n%s", result.Status, result.Err)
	}
}

func TestAResizeThatWaitsOutlivesAManagersRestart(t *testing.T) {
	var busy atomic.Bool
	busy.Store(true)
	manager := (&stub.Manager{Unary: func(_ context.Context, request any) (any, error) {
		r := request.(*v1.ResizeClusterRequest)
		if busy.Load() {
			return &v1.ResizeClusterResponse{Runs: []string{"md-run-1", "md-run-2"}}, nil
		}
		return &v1.ResizeClusterResponse{Cluster: &v1.Cluster{Meta: meta(r.Name)}}, nil
	}}).Start(t)
	command := manager.Begin(t, "cluster", "resize", "md", "--guests", "2", "--when-idle")
	command.AwaitText(t, "cluster md: waits for md-run-1, md-run-2")
	manager.Stop()
	command.AwaitText(t, "waiting for the manager: no manager answers at")
	busy.Store(false)
	manager.Resume(t)
	if result := command.Wait(t); result.Status != 0 || !strings.Contains(result.Err, "is being resized to 2 guests") {
		t.Errorf("%+v", result)
	}
	busy.Store(true)
	if result := manager.Run(t, "cluster", "resize", "md", "--guests", "2"); result.Status != 1 || !strings.Contains(result.Err, "`watari run cancel md-run-1 md-run-2`") {
		t.Errorf("%+v", result)
	}
	manager.Stop()
	if result := manager.Run(t, "cluster", "resize", "md", "--guests", "2"); result.Status != 1 || strings.Contains(result.Err, "waiting") {
		t.Errorf("without --when-idle: %+v", result)
	}
}

func TestSeveralRunsAreCancelledAtOnce(t *testing.T) {
	var asked []string
	manager := (&stub.Manager{Unary: func(_ context.Context, request any) (any, error) {
		r := request.(*v1.CancelRunRequest)
		if r.Name == "no" {
			return nil, connect.NewError(connect.CodeNotFound, errors.New("there is no run no"))
		}
		asked = append(asked, r.Name)
		return &v1.CancelRunResponse{Run: &v1.Run{Meta: meta(r.Name)}}, nil
	}}).Start(t)
	result := manager.Run(t, "run", "cancel", "r1", "no", "r2")
	if result.Status != 1 || strings.Join(asked, " ") != "r1 r2" || !strings.Contains(result.Err, "run r2 is being ended") || !strings.Contains(result.Err, "cancel run no: there is no run no") {
		t.Errorf("asked for %v: %+v", asked, result)
	}
	for command, want := range map[string]byte{"run cancel r1 -o json": '{', "run cancel r1 r2 -o json": '['} {
		if result := manager.Run(t, strings.Fields(command)...); result.Status != 0 || result.Err != "" || result.Out == "" || result.Out[0] != want {
			t.Errorf("%s: %+v", command, result)
		}
	}
	asked = nil
	if result := manager.Run(t, "run", "cancel", "r1", "R2!"); result.Status != 2 || len(asked) > 0 {
		t.Errorf("asked for %v: %+v", asked, result)
	}
}

func TestARestoreThatCannotEndIsNotWaitedFor(t *testing.T) {
	cluster := &v1.Cluster{Meta: meta("md"), Spec: &v1.ClusterSpec{Guests: 2}, Restore: &v1.Restore{Checkpoint: "md-c1", State: v1.RestoreState_RESTORE_STATE_DONE}}
	lost := &v1.Guest{Meta: meta("md-1"), State: v1.GuestState_GUEST_STATE_FAILED, Failure: "it crashed 5 times"}
	stopped := proto.CloneOf(cluster)
	stopped.State, stopped.Message = v1.ClusterState_CLUSTER_STATE_STOPPED, "all its guests are stopped"
	for said, now := range map[string]*v1.WatchResponse{
		"restore cluster md: guest md-1: it crashed 5 times": {Cluster: cluster, Guests: []*v1.Guest{{Meta: meta("md-0")}, lost}},
		"restore cluster md: all its guests are stopped":     {Cluster: stopped},
	} {
		manager := (&stub.Manager{
			Unary: func(context.Context, any) (any, error) { return &v1.RestoreCheckpointResponse{Cluster: cluster}, nil },
			OnWatch: func(ctx context.Context, _ *v1.WatchRequest, send func(*v1.WatchResponse) error) error {
				if err := send(now); err != nil {
					return err
				}
				<-ctx.Done()
				return ctx.Err()
			},
		}).Start(t)
		if result := manager.Run(t, "checkpoint", "restore", "md"); result.Status != 1 || !strings.Contains(result.Err, said) {
			t.Errorf("%+v", result)
		}
	}
}

func TestCtrlCEndsAForwardWithItsStatus(t *testing.T) {
	manager := (&stub.Manager{OnExec: func(ctx context.Context, both *connect.BidiStream[v1.GuestExecRequest, v1.GuestExecResponse]) error {
		for {
			if _, err := both.Receive(); err != nil {
				return err
			}
		}
	}}).Start(t)
	command := manager.Begin(t, "guest", "forward", "md-0", "0:8888")
	command.AwaitText(t, "-> md-0:8888")
	command.Signals <- os.Interrupt
	if result := command.Wait(t); result.Status != 130 {
		t.Errorf("%+v", result)
	}
}
