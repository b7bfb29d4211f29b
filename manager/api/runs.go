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
	"watari/manager/store"

	v1 "watari/api/watariv1"

	"connectrpc.com/connect"
	"github.com/dustin/go-humanize"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
)

// CreateRun makes a run, which waits for its cluster, and with hold for StartRun.
func (s *Server) CreateRun(ctx context.Context, r *connect.Request[v1.CreateRunRequest]) (*connect.Response[v1.CreateRunResponse], error) {
	spec, name := r.Msg.Spec, r.Msg.Name
	if err := checkRun(name, spec); err != nil {
		return nil, err
	}
	if len(r.Msg.RequestId) > maxRequestID {
		return nil, fail(connect.CodeInvalidArgument, "the request's id has %d bytes; at most %d", len(r.Msg.RequestId), maxRequestID)
	}
	err := s.change(ctx, func(snap *store.Snapshot) ([]store.Op, error) {
		c := callerOf(ctx)
		cluster, err := find(c, "cluster", spec.Cluster, snap.Clusters)
		if err != nil {
			return nil, err
		}
		if cluster.Meta.Deleting != nil {
			return nil, fail(connect.CodeFailedPrecondition, "cluster %s is being deleted", spec.Cluster)
		}
		name = cmp.Or(r.Msg.Name, runOfRequest(c, snap, r.Msg.RequestId), freeRunName(snap, spec.Cluster))
		if have := snap.Runs[name]; have != nil {
			if !c.owns(have.Meta) || !core.IsRunOf(have, cluster) || !sameRun(have.Spec, spec) {
				return nil, fail(connect.CodeAlreadyExists, "there is another run %s; take another name", name)
			}
			return nil, nil
		}
		if err := noneHalted(snap, spec.Cluster); err != nil {
			return nil, err
		}
		if err := checkTransport(snap, cluster, spec.Transport); err != nil {
			return nil, err
		}
		if unended(snap, spec.Cluster) >= maxUnended {
			return nil, fail(connect.CodeResourceExhausted, "cluster %s has %d runs that have not ended; wait for some, or cancel them (`watari run list`)",
				spec.Cluster, maxUnended)
		}
		run := &v1.Run{Meta: &v1.Meta{Name: name, Owner: cluster.Meta.Owner, OwnerUid: cluster.Meta.OwnerUid}, Spec: proto.CloneOf(spec), State: v1.RunState_RUN_STATE_PENDING,
			RequestId: r.Msg.RequestId, ClusterUid: cluster.Meta.Uid}
		run.Directory = core.RunDirectory(run)
		return []store.Op{store.Create(run), audit(ctx, "run", name, "created on cluster %s: %s", spec.Cluster, strings.Join(spec.Command, " "))}, nil
	})
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&v1.CreateRunResponse{Run: s.Store.Snapshot().Runs[name]}), nil
}

// runOfRequest is the caller's run that a request has made already; empty: there is none.
func runOfRequest(c caller, snap *store.Snapshot, id string) string {
	for name, run := range snap.Runs {
		if id != "" && run.RequestId == id && c.owns(run.Meta) {
			return name
		}
	}
	return ""
}

// sameRun compares what was asked for; a held run that was started meanwhile is still the same.
func sameRun(a, b *v1.RunSpec) bool {
	a, b = proto.CloneOf(a), proto.CloneOf(b)
	a.Hold, b.Hold = false, false
	return proto.Equal(a, b)
}

// unended counts a cluster's runs that have not ended.
func unended(snap *store.Snapshot, cluster string) (n int) {
	for _, run := range snap.Runs {
		if run.Spec.GetCluster() == cluster && !core.RunEnded(run.State) {
			n++
		}
	}
	return n
}

// noneHalted is an error where the cluster has guests that a run would wait for in vain.
func noneHalted(snap *store.Snapshot, cluster string) error {
	if halted := core.Halted(core.GuestsOf(snap, cluster)); halted != "" {
		return fail(connect.CodeFailedPrecondition, "a run needs all guests of cluster %s: %s", cluster, halted)
	}
	return nil
}

// checkTransport is an error where PM is to carry the messages, and the cluster's image has not what that needs.
func checkTransport(snap *store.Snapshot, cluster *v1.Cluster, transport v1.Transport) error {
	if transport != v1.Transport_TRANSPORT_PM {
		return nil
	}
	for name, image := range snap.Images {
		switch {
		case image.Digest != cluster.ImageDigest:
		case !image.Pm:
			return fail(connect.CodeFailedPrecondition, "image %s of cluster %s has no PM: build it anew with `watari image build`, which finds PM's libpm-fi.so "+
				"beside watari or takes it by --pm, and make a cluster with it", name, cluster.Meta.Name)
		case slices.Contains(image.Mpi, "mpich") && !slices.Contains(image.Mpi, "openmpi"):
			return fail(connect.CodeFailedPrecondition, "image %s of cluster %s has MPICH; runs over PM want Open MPI", name, cluster.Meta.Name)
		}
	}
	return nil
}

func checkRun(name string, spec *v1.RunSpec) error {
	bad := func(format string, a ...any) error { return fail(connect.CodeInvalidArgument, format, a...) }
	if name != "" {
		if err := checkName("run", name); err != nil {
			return err
		}
	}
	switch {
	case len(spec.GetCommand()) == 0 || spec.Command[0] == "":
		return bad("the run has no program")
	case proto.Size(spec) > maxRunSpec:
		return bad("the run's command and environment have %s; at most %s", humanize.IBytes(uint64(proto.Size(spec))), humanize.IBytes(maxRunSpec))
	case spec.Ranks > maxRanks:
		return bad("%d ranks: at most %d", spec.Ranks, maxRanks)
	case v1.Transport_name[int32(spec.Transport)] == "":
		return bad("unknown transport %d", spec.Transport)
	case spec.Directory != "" && !filepath.IsAbs(spec.Directory):
		return bad("the run's directory %q is not absolute", spec.Directory)
	}
	for key := range spec.Env {
		if key == "" || strings.ContainsAny(key, "=\x00") {
			return bad("%q cannot be an environment variable's name", key)
		}
	}
	return nil
}

// freeRunName is <cluster>-run-<n>, n above that of every run kept.
func freeRunName(snap *store.Snapshot, cluster string) string {
	last := 0
	for name := range snap.Runs {
		var n int
		if rest, found := strings.CutPrefix(name, cluster+"-run-"); found {
			if _, err := fmt.Sscanf(rest, "%d", &n); err == nil {
				last = max(last, n)
			}
		}
	}
	return fmt.Sprintf("%s-run-%d", cluster, last+1)
}

// StartRun lets a run go that was created with hold.
func (s *Server) StartRun(ctx context.Context, r *connect.Request[v1.StartRunRequest]) (*connect.Response[v1.StartRunResponse], error) {
	run, err := s.changeRun(ctx, r.Msg.Name, "to be started", func(snap *store.Snapshot, run *v1.Run) (bool, error) {
		if !run.Spec.GetHold() {
			return false, nil
		}
		if core.RunEnded(run.State) || run.Cancel {
			return false, fail(connect.CodeFailedPrecondition, "run %s was cancelled", run.Meta.Name)
		}
		if err := noneHalted(snap, run.Spec.Cluster); err != nil {
			return false, err
		}
		run.Spec.Hold = false
		return true, nil
	})
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&v1.StartRunResponse{Run: run}), nil
}

// endingSignals take back a run that does not run yet; others mean something to a program alone.
var endingSignals = []syscall.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGKILL, syscall.SIGTERM}

// signalName is a signal's name, or its number where it has none.
func signalName(s syscall.Signal) string {
	return cmp.Or(unix.SignalName(s), fmt.Sprintf("signal %d", int(s)))
}

// CancelRun ends a run, or hands it one signal. A run that has ended is left as it is.
func (s *Server) CancelRun(ctx context.Context, r *connect.Request[v1.CancelRunRequest]) (*connect.Response[v1.CancelRunResponse], error) {
	if r.Msg.Signal < 0 || r.Msg.Signal > 64 {
		return nil, fail(connect.CodeInvalidArgument, "%d is not a signal's number", r.Msg.Signal)
	}
	if r.Msg.Signal != 0 {
		run, err := find(callerOf(ctx), "run", r.Msg.Name, s.Store.Snapshot().Runs)
		if err != nil {
			return nil, err
		}
		if run.State == v1.RunState_RUN_STATE_RUNNING && !run.Cancel {
			return s.signalRun(ctx, run, r.Msg.Signal)
		}
	}
	run, err := s.changeRun(ctx, r.Msg.Name, "to be cancelled", func(_ *store.Snapshot, run *v1.Run) (bool, error) {
		if core.RunEnded(run.State) || run.Cancel {
			return false, nil
		}
		if signal := syscall.Signal(r.Msg.Signal); signal != 0 && !slices.Contains(endingSignals, signal) {
			return false, fail(connect.CodeFailedPrecondition, "run %s does not run yet, so it has nothing that could take %s; send it once it runs, "+
				"or end the run with `watari run cancel %s`", run.Meta.Name, signalName(signal), run.Meta.Name)
		}
		run.Cancel = true
		return true, nil
	})
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&v1.CancelRunResponse{Run: run}), nil
}

// signalRun hands a signal to a run's process, wherever its head guest is.
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
		return nil, passOn(err, "signal run %s on guest %s", run.Meta.Name, run.Head)
	}
	if err := s.Store.Txn(ctx, audit(ctx, "run", run.Meta.Name, "sent signal %d", signal)); err != nil {
		s.Log.Warn("an event could not be written", "error", err)
	}
	return connect.NewResponse(&v1.CancelRunResponse{Run: run}), nil
}

func (s *Server) changeRun(ctx context.Context, name, what string, change func(*store.Snapshot, *v1.Run) (bool, error)) (*v1.Run, error) {
	err := s.change(ctx, func(snap *store.Snapshot) ([]store.Op, error) {
		run, err := find(callerOf(ctx), "run", name, snap.Runs)
		if err != nil {
			return nil, err
		}
		run = proto.CloneOf(run)
		changed, err := change(snap, run)
		if !changed || err != nil {
			return nil, err
		}
		return []store.Op{store.Update(run), audit(ctx, "run", name, "%s", what)}, nil
	})
	return s.Store.Snapshot().Runs[name], err
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
	// outputPace is how often a followed run's files are looked at.
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
	// The caller sees at once that the stream stands, though there may be no output for long.
	if err := stream.Send(&v1.RunOutputResponse{}); err != nil {
		return err
	}
	for {
		// The state is read first: what the files hold once it is final is all there will be.
		run := s.Store.Snapshot().Runs[r.Msg.Name]
		if run == nil || run.Meta.Uid != uid {
			return fail(connect.CodeNotFound, "run %s was removed", r.Msg.Name)
		}
		if err := sendOutput(out, errs, stream); err != nil {
			return err
		}
		if core.RunEnded(run.State) {
			return stream.Send(&v1.RunOutputResponse{Ended: run})
		}
		if !r.Msg.Follow {
			return nil
		}
		if err := s.mustLead(); err != nil {
			return err
		}
		select {
		case <-time.After(outputPace):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// sendOutput sends all that the files hold beyond the offsets.
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
		if err := stream.Send(&v1.RunOutputResponse{Stdout: a, Stderr: b}); err != nil {
			return err
		}
	}
}

// tail reads a growing file that may not exist yet.
type tail struct {
	path   string
	offset int64
	file   *os.File
}

// next returns what follows, nothing at the present end.
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

func (t *tail) close() {
	if t.file != nil {
		t.file.Close()
	}
}
