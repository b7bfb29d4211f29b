package api

// runs.go - creating, starting, cancelling and listing runs, and their output.

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"watari/core"

	v1 "watari/api/watariv1"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"
)

// CreateRun makes a run. The run waits for its cluster, and, with hold, also for StartRun.
func (s *Server) CreateRun(ctx context.Context, r *connect.Request[v1.CreateRunRequest]) (*connect.Response[v1.CreateRunResponse], error) {
	name := ""
	err := s.admit(ctx, func(a *core.Admission) (change core.Change, err error) {
		change, name, err = a.CreateRun(r.Msg)
		return change, err
	})
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&v1.CreateRunResponse{Run: s.Store.Snapshot().Runs[name]}), nil
}

// StartRun releases a run that was created with hold.
func (s *Server) StartRun(ctx context.Context, r *connect.Request[v1.StartRunRequest]) (*connect.Response[v1.StartRunResponse], error) {
	err := s.admit(ctx, func(a *core.Admission) (core.Change, error) { return a.StartRun(r.Msg.Name) })
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&v1.StartRunResponse{Run: s.Store.Snapshot().Runs[r.Msg.Name]}), nil
}

// signalName returns a signal's name, or its number if it has no name.
func signalName(s syscall.Signal) string {
	return cmp.Or(unix.SignalName(s), fmt.Sprintf("signal %d", int(s)))
}

// CancelRun ends a run, or sends it one signal. A run that has ended does not change.
func (s *Server) CancelRun(ctx context.Context, r *connect.Request[v1.CancelRunRequest]) (*connect.Response[v1.CancelRunResponse], error) {
	name, signal := r.Msg.Name, r.Msg.Signal
	run, err := s.admission(ctx, s.Store.Snapshot()).RunToSignal(name, signal)
	if err != nil {
		return nil, withCode(err)
	}
	if run != nil {
		return s.signalRun(ctx, run, signal)
	}
	err = s.admit(ctx, func(a *core.Admission) (core.Change, error) {
		return a.CancelRun(name, signal, signalName(syscall.Signal(signal)))
	})
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&v1.CancelRunResponse{Run: s.Store.Snapshot().Runs[name]}), nil
}

// RemoveRun forgets a run that has ended, with its output.
func (s *Server) RemoveRun(ctx context.Context, r *connect.Request[v1.RemoveRunRequest]) (*connect.Response[v1.RemoveRunResponse], error) {
	var run *v1.Run
	err := s.admit(ctx, func(a *core.Admission) (core.Change, error) {
		run = a.Runs[r.Msg.Name]
		return a.RemoveRun(r.Msg.Name)
	})
	if err != nil {
		return nil, err
	}
	// Remaining output is removed later, with the output of all runs that no longer exist.
	if err := os.RemoveAll(filepath.Join(s.RunsDir, run.Meta.Uid)); err != nil {
		s.Log.Warn("remove a run's output", "run", r.Msg.Name, "error", err)
	}
	return connect.NewResponse(&v1.RemoveRunResponse{}), nil
}

// signalRun sends a signal to a run's process, on the present host of its head guest.
func (s *Server) signalRun(ctx context.Context, run *v1.Run, signal int32) (*connect.Response[v1.CancelRunResponse], error) {
	g, err := s.guestByUID(run.Head, run.HeadUid)
	if err != nil {
		return nil, err
	}
	client, err := s.processes(g)
	if err != nil {
		return nil, err
	}
	_, err = client.SignalProcess(ctx, connect.NewRequest(&v1.SignalProcessRequest{Id: run.Meta.Uid, Signal: signal}))
	if err != nil {
		return nil, wrapError(err, "signal run %s on guest %s", run.Meta.Name, run.Head)
	}
	if err := s.Store.Txn(ctx, audit(ctx, "run", run.Meta.Name, "sent signal %d", signal)); err != nil {
		s.Log.Warn("an event could not be written", "error", err)
	}
	return connect.NewResponse(&v1.CancelRunResponse{Run: run}), nil
}

// ListRuns lists the caller's runs, oldest first.
func (s *Server) ListRuns(ctx context.Context, r *connect.Request[v1.ListRunsRequest]) (*connect.Response[v1.ListRunsResponse], error) {
	mine := own(callerOf(ctx), s.Store.Snapshot().Runs)
	if r.Msg.Name != "" && mine[r.Msg.Name] == nil {
		return nil, missing("run", r.Msg.Name, mine)
	}
	resp := &v1.ListRunsResponse{}
	for name, run := range mine {
		if (r.Msg.Name == "" || r.Msg.Name == name) && (r.Msg.Cluster == "" || r.Msg.Cluster == run.Spec.GetCluster()) {
			resp.Runs = append(resp.Runs, run)
		}
	}
	slices.SortFunc(resp.Runs, func(a, b *v1.Run) int {
		return cmp.Or(a.Meta.Created.AsTime().Compare(b.Meta.Created.AsTime()), strings.Compare(a.Meta.Name, b.Meta.Name))
	})
	return connect.NewResponse(resp), nil
}

const (
	// outputPace is the interval at which a followed run's files are read.
	outputPace = 100 * time.Millisecond
	// outputPart bounds one message, bytes for each of the two streams.
	outputPart = 256 << 10
)

// RunOutput streams a run's kept output from offsets, and with follow until the run has ended.
func (s *Server) RunOutput(ctx context.Context, r *connect.Request[v1.RunOutputRequest], stream *connect.ServerStream[v1.RunOutputResponse]) error {
	run, err := find(callerOf(ctx), "run", r.Msg.Name, s.Store.Snapshot().Runs)
	if err != nil {
		return err
	}
	uid := run.Meta.Uid
	dir := filepath.Join(s.RunsDir, uid)
	out := &tail{path: filepath.Join(dir, "stdout"), offset: int64(min(r.Msg.StdoutOffset, math.MaxInt64))}
	errs := &tail{path: filepath.Join(dir, "stderr"), offset: int64(min(r.Msg.StderrOffset, math.MaxInt64))}
	defer out.close()
	defer errs.close()
	// The caller learns at once that the stream works, even if there is no output for long.
	if err := stream.Send(&v1.RunOutputResponse{}); err != nil {
		return err
	}
	for {
		// The state is read first: after a run has ended, its files do not grow.
		run := s.Store.Snapshot().Runs[r.Msg.Name]
		if run == nil || run.Meta.Uid != uid {
			return fail(connect.CodeNotFound, "run %s was removed", r.Msg.Name)
		}
		out.cut, errs.cut = run.Restores > 0, run.Restores > 0
		if err := sendOutput(out, errs, stream); err != nil {
			return err
		}
		if core.RunEnded(run.State) {
			if _, err := os.Stat(dir); run.Started != nil && !r.Msg.Follow && errors.Is(err, fs.ErrNotExist) {
				return fail(connect.CodeNotFound, "the output of run %s is not here: the manager that led then has it, or it was not in the copy from which the state was restored; %s",
					run.Meta.Name, endOf(run))
			}
			return stream.Send(&v1.RunOutputResponse{Ended: run})
		}
		if !r.Msg.Follow {
			return nil
		}
		if err := s.mustLead(ctx); err != nil {
			return err
		}
		select {
		case <-time.After(outputPace):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// endOf says for people how a run has ended.
func endOf(run *v1.Run) string {
	return fmt.Sprintf("the run is %s, with status %d", core.StateName(run.State.String()), run.ExitCode)
}

// sendOutput sends all output beyond the offsets.
func sendOutput(out, errs *tail, stream *connect.ServerStream[v1.RunOutputResponse]) error {
	for {
		a, err := out.next()
		if err != nil {
			return connect.NewError(connect.CodeInternal, err)
		}
		b, err := errs.next()
		if err != nil {
			return connect.NewError(connect.CodeInternal, err)
		}
		if len(a)+len(b) == 0 {
			return nil
		}
		part := &v1.RunOutputResponse{Stdout: a, Stderr: b, StdoutOffset: out.begin(a), StderrOffset: errs.begin(b)}
		if err := stream.Send(part); err != nil {
			return err
		}
	}
}

// tail reads a growing file that may not exist yet.
type tail struct {
	path   string
	offset int64
	file   *os.File
	cut    bool // the run was restored from a checkpoint, so the file may have been truncated
}

// next returns the following bytes, or nothing at the present end.
func (t *tail) next() ([]byte, error) {
	if t.file == nil {
		f, err := os.Open(t.path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, nil
		}
		if err != nil {
			return nil, fmt.Errorf("read a run's output: %w", err)
		}
		t.file = f
	}
	info, err := t.file.Stat()
	if err != nil {
		return nil, fmt.Errorf("read a run's output: %w", err)
	}
	if t.cut {
		t.offset = min(t.offset, info.Size())
	}
	if info.Size() <= t.offset {
		return nil, nil
	}
	data := make([]byte, min(outputPart, info.Size()-t.offset))
	n, err := t.file.ReadAt(data, t.offset)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("read a run's output: %w", err)
	}
	t.offset += int64(n)
	return data[:n], nil
}

// begin returns the offset of data, which next has returned.
func (t *tail) begin(data []byte) *uint64 { return new(uint64(t.offset) - uint64(len(data))) }

func (t *tail) close() {
	if t.file != nil {
		t.file.Close()
	}
}
