package controller

// runs.go - drives each run from its creation to its end: a goroutine a run, which may be ended at any point
// and begun again by the next manager, since the process in the guest has the run's uid and its output is read
// by offset.

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"connectrpc.com/connect"
	"github.com/cenkalti/backoff/v5"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "watari/api/watariv1"
	"watari/api/watariv1/watariv1connect"
	"watari/hostlink"
	"watari/manager/store"
	"watari/manager/view"
)

// Signals sent to a run that is cancelled, one after the other while it does not end. One that has lost a guest
// begins with the second: its launcher waits for the lost one at the first.
var cancelSignals = []int32{2, 15, 9}

// cancelPatience is how long a run may take to end after each of them.
const cancelPatience = 5 * time.Second

// runnerPause is how long a run is let be after what drives it has failed.
const runnerPause = time.Second

type runner struct {
	c    *Controller
	name string
	uid  string
}

// startRunners begins to drive the runs that nobody drives yet.
func (c *Controller) startRunners(ctx context.Context, s *store.Snapshot) {
	for name, run := range s.Runs {
		if view.RunEnded(run.State) || c.runs[run.Meta.Uid] != nil {
			continue
		}
		r := &runner{c: c, name: name, uid: run.Meta.Uid}
		c.runs[r.uid] = r
		c.driving.Go(func() {
			if err := r.drive(ctx); err != nil && ctx.Err() == nil {
				c.Log.Error("run", "name", r.name, "error", err)
				// It is begun again at once when it is done; a full disk, say, lasts longer.
				select {
				case <-time.After(runnerPause):
				case <-ctx.Done():
				}
			}
			select {
			case c.done <- r.uid:
			case <-ctx.Done():
			}
		})
	}
}

// run is the stored record, nil once it is gone.
func (r *runner) run() *v1.Run {
	run := r.c.Store.Snapshot().Runs[r.name]
	if run == nil || run.Meta.Uid != r.uid {
		return nil
	}
	return run
}

// update changes the stored record, on top of whatever else changed it.
func (r *runner) update(ctx context.Context, change func(*v1.Run)) error {
	for {
		stored := r.run()
		if stored == nil {
			return store.ErrNotFound
		}
		update := proto.CloneOf(stored)
		change(update)
		err := r.c.Store.Txn(ctx, store.Update(update))
		if !errors.Is(err, store.ErrConflict) {
			return err
		}
	}
}

func (r *runner) end(ctx context.Context, state v1.RunState, exitCode int32, format string, a ...any) error {
	message := fmt.Sprintf(format, a...)
	err := r.update(ctx, func(run *v1.Run) {
		run.State, run.ExitCode, run.Message, run.Ended = state, exitCode, message, timestamppb.Now()
	})
	if err == nil {
		severity := v1.Severity_SEVERITY_INFO
		if state == v1.RunState_RUN_STATE_FAILED {
			severity = v1.Severity_SEVERITY_ERROR
		}
		r.c.event(ctx, severity, "run", r.name, "%s, status %d %s", view.StateName(state.String()), exitCode, message)
	}
	return err
}

func (r *runner) drive(ctx context.Context) error {
	changes := r.c.Store.Subscribe(ctx)
	for {
		run := r.run()
		if run == nil || view.RunEnded(run.State) {
			return nil
		}
		s := r.c.Store.Snapshot()
		cluster, halted := view.Cluster(s, r.c.live, run.Spec.Cluster), view.Halted(s, run.Spec.Cluster)
		switch {
		case run.State == v1.RunState_RUN_STATE_STARTING || run.State == v1.RunState_RUN_STATE_RUNNING:
			return r.execute(ctx, run)
		case run.Cancel:
			return r.end(ctx, v1.RunState_RUN_STATE_CANCELLED, 0, "cancelled before it was started")
		case cluster == nil || cluster.State == v1.ClusterState_CLUSTER_STATE_DELETING || !view.IsRunOf(run, cluster):
			return r.end(ctx, v1.RunState_RUN_STATE_FAILED, 0, "cluster %s exists no more", run.Spec.Cluster)
		case !run.Spec.Hold && halted != "": // since it was asked for; a person has to act, and may not for days
			return r.end(ctx, v1.RunState_RUN_STATE_FAILED, 0, "a run needs all guests of cluster %s: %s", run.Spec.Cluster, halted)
		case !run.Spec.Hold && allReady(cluster):
			err := r.update(ctx, func(run *v1.Run) {
				run.State, run.Message, run.Directory = v1.RunState_RUN_STATE_STARTING, "", view.RunDirectory(run)
				run.Head, run.HeadUid = view.RunHead(s, run)
				run.StartedEpochs = startedEpochs(s, run.Spec.Cluster)
			})
			if err != nil {
				return fmt.Errorf("take up: %w", err)
			}
			continue
		}
		if err := r.explain(ctx, run, cluster); err != nil {
			return err
		}
		// Readiness is an observation, not a stored change: it is looked at again after a while. A run that is held waits
		// for a change of its record alone, and may do so for days.
		var later <-chan time.Time
		if !run.Spec.Hold {
			later = time.After(200 * time.Millisecond)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changes:
		case <-later:
		}
	}
}

// allReady: every guest of the cluster answers. A guest that is on the move counts.
func allReady(cluster *v1.Cluster) bool {
	return cluster.ReadyGuests == cluster.Spec.Guests || cluster.State == v1.ClusterState_CLUSTER_STATE_READY
}

func (r *runner) explain(ctx context.Context, run *v1.Run, cluster *v1.Cluster) error {
	message := "waits for cluster " + run.Spec.Cluster + ": " + cluster.Message
	if run.Spec.Hold {
		message = "waits for its files"
	}
	return r.say(ctx, message)
}

// say puts a message into the record, where it is another one.
func (r *runner) say(ctx context.Context, message string) error {
	if run := r.run(); run == nil || run.Message == message {
		return nil
	}
	return r.update(ctx, func(run *v1.Run) { run.Message = message })
}

// processes calls the head guest's ProcessService, wherever the guest is now.
func (r *runner) processes(run *v1.Run) (watariv1connect.ProcessServiceClient, error) {
	return GuestProcesses(r.c.Store.Snapshot(), r.c.live, run.Head, run.HeadUid)
}

// GuestProcesses is a client for a guest's ProcessService through its host's agent.
func GuestProcesses(s *store.Snapshot, sessions Sessions, guest, uid string) (watariv1connect.ProcessServiceClient, error) {
	g := s.Guests[guest]
	if g == nil || uid != "" && g.Meta.Uid != uid {
		return nil, fmt.Errorf("guest %s exists no more", guest)
	}
	client, err := sessions.HTTPClient(g.Host)
	if err != nil {
		return nil, fmt.Errorf("reach guest %s: %w", guest, err)
	}
	return watariv1connect.NewProcessServiceClient(client, "http://agent/guest/"+g.Meta.Uid, hostlink.GuestLimit()), nil
}

var errRunOver = errors.New("the run is over")

// execute starts the process where that was not done, and follows it to its end through moves, lost connections
// and restarts of anything.
func (r *runner) execute(ctx context.Context, run *v1.Run) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	go r.endEarly(ctx)
	wait := backoff.NewExponentialBackOff()
	wait.InitialInterval, wait.MaxInterval = 50*time.Millisecond, 2*time.Second
	for {
		err := r.attempt(ctx)
		if errors.Is(err, errRunOver) {
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		run := r.run()
		if run == nil {
			return nil
		}
		g := r.c.Store.Snapshot().Guests[run.Head]
		if g == nil || g.Meta.Uid != run.HeadUid {
			return r.end(ctx, v1.RunState_RUN_STATE_FAILED, 0, "its head guest %s exists no more", run.Head)
		}
		if lost := lostGuest(r.c.Store.Snapshot(), run); lost == run.Head {
			return r.end(ctx, v1.RunState_RUN_STATE_FAILED, 0, "%s", lostMessage(lost))
		}
		r.c.Log.Debug("run: connection to the head guest ended", "run", r.name, "error", err)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(wait.NextBackOff()):
		}
	}
}

// attempt is one connection's worth of following; errRunOver once the run has its end.
func (r *runner) attempt(ctx context.Context) error {
	run := r.run()
	if run == nil {
		return errRunOver
	}
	client, err := r.processes(run)
	if err != nil {
		return err
	}
	if run.State == v1.RunState_RUN_STATE_STARTING {
		start, err := startRequest(r.c.Store.Snapshot(), run)
		if err == nil {
			_, err = client.StartProcess(ctx, connect.NewRequest(start))
		}
		if code := connect.CodeOf(err); err != nil && (code == connect.CodeInvalidArgument || code == connect.CodeFailedPrecondition) {
			return r.over(ctx, r.end(ctx, v1.RunState_RUN_STATE_FAILED, 127, "could not be started on %s: %s", run.Head, message(err)))
		}
		if err != nil {
			return err
		}
		err = r.update(ctx, func(run *v1.Run) { run.State, run.Started = v1.RunState_RUN_STATE_RUNNING, timestamppb.Now() })
		if err != nil {
			return err
		}
		r.c.event(ctx, v1.Severity_SEVERITY_INFO, "run", r.name, "started on cluster %s: %q", run.Spec.Cluster, run.Spec.Command)
	}
	return r.follow(ctx, client, run)
}

func (r *runner) over(ctx context.Context, err error) error {
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return err
	}
	return errRunOver
}

func message(err error) string {
	var ce *connect.Error
	if errors.As(err, &ce) {
		return ce.Message()
	}
	return err.Error()
}

// follow copies output to the run's files until the process has ended.
func (r *runner) follow(ctx context.Context, client watariv1connect.ProcessServiceClient, run *v1.Run) error {
	out, err := openOutput(filepath.Join(r.c.RunsDir, r.uid))
	if err != nil {
		return fmt.Errorf("keep the output of run %s: %w", r.name, err)
	}
	defer out.close()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	stream := client.Attach(ctx)
	if err := stream.Send(&v1.AttachRequest{Id: r.uid, StdoutOffset: out.size(0), StderrOffset: out.size(1)}); err != nil {
		return err
	}
	if err := stream.CloseRequest(); err != nil {
		return err
	}
	for {
		m, err := stream.Receive()
		if connect.CodeOf(err) == connect.CodeNotFound && err != nil {
			return r.over(ctx, r.end(ctx, v1.RunState_RUN_STATE_FAILED, 0, "its head guest %s was started anew, and the run ended with it", run.Head))
		}
		if err != nil {
			return err
		}
		err = out.write(m)
		full := ""
		if errors.Is(err, errOutputFull) {
			full = err.Error()
		}
		if err := r.say(ctx, full); err != nil {
			return err
		}
		if err != nil {
			return fmt.Errorf("keep the output of run %s: %w", r.name, err)
		}
		if m.Ended != nil {
			return r.ended(ctx, client, m.Ended)
		}
	}
}

func (r *runner) ended(ctx context.Context, client watariv1connect.ProcessServiceClient, p *v1.Process) error {
	state, message := v1.RunState_RUN_STATE_EXITED, p.Message
	if run := r.run(); run != nil {
		lost := lostGuest(r.c.Store.Snapshot(), run)
		switch {
		case run.Cancel:
			state = v1.RunState_RUN_STATE_CANCELLED
		case lost != "" && p.ExitCode != 0:
			state, message = v1.RunState_RUN_STATE_FAILED, lostMessage(lost)
		}
	}
	if err := r.over(ctx, r.end(ctx, state, p.ExitCode, "%s", message)); !errors.Is(err, errRunOver) {
		return err
	}
	_, err := client.ForgetProcess(ctx, connect.NewRequest(&v1.ForgetProcessRequest{Id: r.uid}))
	if err != nil {
		r.c.Log.Debug("a run's process was not forgotten", "run", r.name, "error", err)
	}
	return errRunOver
}

// endEarly ends a run that is cancelled, or has lost a guest, by signals, harsher ones after a while. Its launcher
// may not notice a lost guest for as long as nobody sends to it.
func (r *runner) endEarly(ctx context.Context) {
	changes := r.c.Store.Subscribe(ctx)
	i := 0
	for {
		run := r.run()
		if run == nil || run.Cancel {
			break
		}
		if lostGuest(r.c.Store.Snapshot(), run) != "" {
			i = 1
			break
		}
		select {
		case <-ctx.Done():
			return
		case <-changes:
		}
	}
	for ctx.Err() == nil {
		run := r.run()
		if run == nil {
			return
		}
		if client, err := r.processes(run); err == nil && run.State == v1.RunState_RUN_STATE_RUNNING {
			_, err = client.SignalProcess(ctx, connect.NewRequest(&v1.SignalProcessRequest{Id: r.uid, Signal: cancelSignals[i]}))
			if err == nil {
				i = min(i+1, len(cancelSignals)-1)
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(cancelPatience):
		}
	}
}
