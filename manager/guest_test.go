package manager

// guest_test.go - calls that the API passes on to guests, with a fake guest.

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	v1 "watari/api/watariv1"
	"watari/api/watariv1/watariv1connect"

	"connectrpc.com/connect"
)

// fakeGuest has two programs, cat and mpirun, and files in memory. It outlives its host's connection.
type fakeGuest struct {
	watariv1connect.UnimplementedProcessServiceHandler
	watariv1connect.UnimplementedGuestServiceHandler

	mu        sync.Mutex
	changed   chan struct{}
	processes map[string]*fakeProcess
	files     map[string][]byte
	cut       func() // called once, after the next part of a file was sent
	attached  int
}

type fakeProcess struct {
	in, out []byte
	ended   *v1.Process
}

func newFakeGuest() *fakeGuest {
	return &fakeGuest{changed: make(chan struct{}), processes: map[string]*fakeProcess{}, files: map[string][]byte{}}
}

// with runs f locked and tells everyone that something changed.
func (g *fakeGuest) with(f func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	f()
	close(g.changed)
	g.changed = make(chan struct{})
}

func (g *fakeGuest) StartProcess(_ context.Context, r *connect.Request[v1.StartProcessRequest]) (*connect.Response[v1.StartProcessResponse], error) {
	if r.Msg.Command[0] != "cat" && r.Msg.Command[0] != "mpirun" {
		return nil, connect.NewError(connect.CodeFailedPrecondition, fmt.Errorf("%s: not found", r.Msg.Command[0]))
	}
	g.with(func() {
		if g.processes[r.Msg.Id] == nil {
			g.processes[r.Msg.Id] = &fakeProcess{}
		}
	})
	return connect.NewResponse(&v1.StartProcessResponse{}), nil
}

func (g *fakeGuest) SignalProcess(_ context.Context, r *connect.Request[v1.SignalProcessRequest]) (*connect.Response[v1.SignalProcessResponse], error) {
	g.with(func() {
		if p := g.processes[r.Msg.Id]; p != nil {
			p.ended = &v1.Process{ExitCode: 128 + r.Msg.Signal}
		}
	})
	return connect.NewResponse(&v1.SignalProcessResponse{}), nil
}

func (g *fakeGuest) ForgetProcess(_ context.Context, r *connect.Request[v1.ForgetProcessRequest]) (*connect.Response[v1.ForgetProcessResponse], error) {
	g.with(func() { delete(g.processes, r.Msg.Id) })
	return connect.NewResponse(&v1.ForgetProcessResponse{}), nil
}

func (g *fakeGuest) Attach(ctx context.Context, stream *connect.BidiStream[v1.AttachRequest, v1.AttachResponse]) error {
	first, err := stream.Receive()
	if err != nil {
		return err
	}
	g.mu.Lock()
	p := g.processes[first.Id]
	g.mu.Unlock()
	if p == nil {
		return connect.NewError(connect.CodeNotFound, errors.New("no such process"))
	}
	g.with(func() { g.attached++ })
	go g.feed(p, stream)
	offset := first.StdoutOffset
	for {
		g.mu.Lock()
		m := &v1.AttachResponse{StdoutOffset: offset, Stdout: bytes.Clone(p.out[offset:]), StdinOffset: uint64(len(p.in)), Ended: p.ended}
		changed := g.changed
		g.mu.Unlock()
		if err := stream.Send(m); err != nil || m.Ended != nil {
			return err
		}
		offset += uint64(len(m.Stdout))
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// feed gives a process its input, each byte once.
func (g *fakeGuest) feed(p *fakeProcess, stream *connect.BidiStream[v1.AttachRequest, v1.AttachResponse]) {
	for {
		m, err := stream.Receive()
		if err != nil {
			return
		}
		g.with(func() {
			if have := uint64(len(p.in)); m.StdinOffset <= have && m.StdinOffset+uint64(len(m.Stdin)) > have {
				fresh := m.Stdin[have-m.StdinOffset:]
				p.in, p.out = append(p.in, fresh...), append(p.out, fresh...)
			}
			if m.StdinClosed && p.ended == nil {
				p.ended = &v1.Process{ExitCode: 3}
			}
		})
	}
}

func (g *fakeGuest) PutFile(_ context.Context, stream *connect.ClientStream[v1.PutFileRequest]) (*connect.Response[v1.PutFileResponse], error) {
	path, data := "", []byte(nil)
	for stream.Receive() {
		if path == "" {
			path = stream.Msg().Path
		}
		data = append(data, stream.Msg().Data...)
		if stream.Msg().Directory {
			data = []byte("directory of " + stream.Msg().User)
		}
	}
	if err := stream.Err(); err != nil {
		return nil, err
	}
	g.with(func() { g.files[path] = data })
	return connect.NewResponse(&v1.PutFileResponse{Size: uint64(len(data))}), nil
}

func (g *fakeGuest) GetFile(ctx context.Context, r *connect.Request[v1.GetFileRequest], stream *connect.ServerStream[v1.GetFileResponse]) error {
	g.mu.Lock()
	data, found := g.files[r.Msg.Path]
	g.mu.Unlock()
	if !found {
		return connect.NewError(connect.CodeNotFound, fmt.Errorf("%s: no such file", r.Msg.Path))
	}
	for at := r.Msg.Offset; at < uint64(len(data)); at += 1000 {
		err := stream.Send(&v1.GetFileResponse{Size: uint64(len(data)), Data: data[at:min(at+1000, uint64(len(data)))]})
		if err != nil {
			return err
		}
		g.mu.Lock()
		cut := g.cut
		g.cut = nil
		g.mu.Unlock()
		if cut != nil {
			cut()
			<-ctx.Done()
			return ctx.Err()
		}
	}
	return nil
}

func (g *fakeGuest) ListRunProcesses(_ context.Context, r *connect.Request[v1.ListRunProcessesRequest]) (*connect.Response[v1.ListRunProcessesResponse], error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.processes[r.Msg.Run] == nil {
		return connect.NewResponse(&v1.ListRunProcessesResponse{}), nil
	}
	return connect.NewResponse(&v1.ListRunProcessesResponse{Processes: []*v1.RunProcess{
		{Pid: 40, Name: "mpirun", State: "S", MemoryBytes: 9 << 20},
		{Pid: 41, Name: "lmp\x1b[2J", State: "R", Rank: new(uint32(0)), Cpu: 0.5, CpuTimeNs: 7e9, MemoryBytes: 90 << 20}}, Omitted: 3}), nil
}

// handler serves any guest's services as this guest's.
func (g *fakeGuest) handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle(watariv1connect.NewProcessServiceHandler(g))
	mux.Handle(watariv1connect.NewGuestServiceHandler(g))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		parts := strings.SplitN(r.URL.Path, "/", 4) // "", "guest", uid, rest
		r.URL.Path = "/" + parts[3]
		mux.ServeHTTP(w, r)
	})
}

// withGuest starts a manager with one host and a ready cluster md of one guest.
func withGuest(t *testing.T) (*running, *fakeGuest) {
	t.Helper()
	r := start(t, t.TempDir())
	r.guest = newFakeGuest()
	r.image("mpi")
	r.host("a1")
	ctx := bounded(t)
	if _, err := r.admin.CreateCluster(ctx, connect.NewRequest(&v1.CreateClusterRequest{Name: "md", Spec: spec(1)})); err != nil {
		t.Fatal(err)
	}
	r.await("md-0 is ready", func() bool {
		list, err := r.admin.ListGuests(ctx, connect.NewRequest(&v1.ListGuestsRequest{Name: "md-0"}))
		return err == nil && list.Msg.Guests[0].Ready
	})
	return r, r.guest
}

func TestExecOutlivesTheConnectionToTheGuest(t *testing.T) {
	r, g := withGuest(t)
	stream := r.admin.GuestExec(bounded(t))
	send := func(m *v1.GuestExecRequest) {
		t.Helper()
		if err := stream.Send(m); err != nil {
			t.Fatal(err)
		}
	}
	got := ""
	read := func(until string) {
		t.Helper()
		for !strings.HasSuffix(got, until) {
			m, err := stream.Receive()
			if err != nil {
				t.Fatalf("after %q: %v", got, err)
			}
			got += string(m.Output.Stdout)
		}
	}
	send(&v1.GuestExecRequest{Guest: "md-0", Start: &v1.StartProcessRequest{Command: []string{"cat"}, Stdin: true}})
	for i := range 3 {
		line := fmt.Sprintf("line %d\n", i)
		send(&v1.GuestExecRequest{Input: &v1.AttachRequest{Stdin: []byte(line)}})
		read(line)
		r.drop("a1") // the connection is cut; the agent reconnects by itself
	}
	if err := stream.CloseRequest(); err != nil {
		t.Fatal(err)
	}
	for {
		m, err := stream.Receive()
		if err != nil {
			t.Fatal(err)
		}
		got += string(m.Output.Stdout)
		if m.Output.Ended != nil {
			if m.Output.Ended.ExitCode != 3 {
				t.Fatal(m.Output.Ended)
			}
			break
		}
	}
	if got != "line 0\nline 1\nline 2\n" {
		t.Fatalf("%q", got)
	}
	if _, err := stream.Receive(); !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	r.await("the process is forgotten", func() bool {
		g.mu.Lock()
		defer g.mu.Unlock()
		return len(g.processes) == 0 && g.attached >= 2
	})
}

func TestExecRefusalsAndSignals(t *testing.T) {
	r, g := withGuest(t)
	ctx := bounded(t)
	exec := func(guest string, command ...string) *connect.BidiStreamForClient[v1.GuestExecRequest, v1.GuestExecResponse] {
		stream := r.admin.GuestExec(ctx)
		if err := stream.Send(&v1.GuestExecRequest{Guest: guest, Start: &v1.StartProcessRequest{Command: command}}); err != nil {
			t.Fatal(err)
		}
		return stream
	}
	_, err := exec("md-0", "nothing").Receive()
	wantCode(t, err, connect.CodeFailedPrecondition, "nothing: not found")
	_, err = exec("md-7", "cat").Receive()
	wantCode(t, err, connect.CodeNotFound, "md-0")
	_, err = exec("md-0").Receive()
	wantCode(t, err, connect.CodeInvalidArgument)
	long := r.admin.GuestExec(ctx)
	if err := long.Send(&v1.GuestExecRequest{Guest: "md-0", Start: &v1.StartProcessRequest{Command: []string{"cat"}, HoldSeconds: 3601}}); err != nil {
		t.Fatal(err)
	}
	_, err = long.Receive()
	wantCode(t, err, connect.CodeInvalidArgument, "at most 3600 s", "watari run")

	stream := exec("md-0", "cat")
	if _, err := stream.Receive(); err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&v1.GuestExecRequest{Signal: 2}); err != nil {
		t.Fatal(err)
	}
	var ended *v1.Process
	for ended == nil {
		m, err := stream.Receive()
		if err != nil {
			t.Fatal(err)
		}
		ended = m.Output.Ended
	}
	if ended.ExitCode != 130 {
		t.Fatal(ended)
	}
	stream.CloseRequest() // it has received the end
	// The process of a caller who disconnects and does not return ends.
	gone, leave := context.WithCancel(ctx)
	left := r.admin.GuestExec(gone)
	if err := left.Send(&v1.GuestExecRequest{Guest: "md-0", Start: &v1.StartProcessRequest{Command: []string{"cat"}, HoldSeconds: 1}}); err != nil {
		t.Fatal(err)
	}
	if _, err := left.Receive(); err != nil {
		t.Fatal(err)
	}
	leave()
	left.CloseRequest()
	r.await("the process has ended with its caller", func() bool {
		g.mu.Lock()
		defer g.mu.Unlock()
		return len(g.processes) == 0
	})
}

func TestFilesOfGuestsAndRuns(t *testing.T) {
	r, g := withGuest(t)
	ctx := bounded(t)
	text := bytes.Repeat([]byte("0123456789"), 1000)
	if _, err := r.admin.CreateRun(ctx, connect.NewRequest(&v1.CreateRunRequest{Name: "r1", Spec: &v1.RunSpec{Cluster: "md", Command: []string{"x"}, Hold: true}})); err != nil {
		t.Fatal(err)
	}
	put := r.admin.PutFile(ctx)
	for at := 0; at < len(text); at += 4000 {
		m := &v1.ControlPutFileRequest{File: &v1.PutFileRequest{Data: text[at:min(at+4000, len(text))]}}
		if at == 0 {
			m.Run, m.File.Path = "r1", "in.melt"
		}
		if err := put.Send(m); err != nil {
			t.Fatal(err)
		}
	}
	resp, err := put.CloseAndReceive()
	if err != nil || resp.Msg.Size != uint64(len(text)) {
		t.Fatal(resp, err)
	}
	if !bytes.Equal(g.files["/home/watari/runs/r1/in.melt"], text) || string(g.files["/home/watari/runs/r1"]) != "directory of watari" {
		t.Fatalf("%d files", len(g.files))
	}
	events, err := r.admin.Events(ctx, connect.NewRequest(&v1.EventsRequest{Last: 1}))
	if err != nil || !events.Receive() {
		t.Fatal(err, events.Err())
	}
	if e := events.Msg().Event; e.Kind+" "+e.Name+" "+e.Actor+" "+e.Message != "guest md-0 admin file put: /home/watari/runs/r1/in.melt" {
		t.Errorf("the last event: %v", e)
	}
	// The connection breaks after the first part of the answer.
	g.with(func() { g.cut = func() { r.drop("a1") } })
	in, err := r.admin.GetFile(ctx, connect.NewRequest(&v1.ControlGetFileRequest{Guest: "md-0", Path: "/home/watari/runs/r1/in.melt", Offset: 5}))
	if err != nil {
		t.Fatal(err)
	}
	var back []byte
	for in.Receive() {
		back = append(back, in.Msg().File.Data...)
	}
	if in.Err() != nil || !bytes.Equal(back, text[5:]) {
		t.Fatalf("%d bytes, %v", len(back), in.Err())
	}
	for _, c := range []struct {
		ask  *v1.ControlGetFileRequest
		code connect.Code
	}{
		{&v1.ControlGetFileRequest{Guest: "md-0", Path: "/none"}, connect.CodeNotFound},
		{&v1.ControlGetFileRequest{Guest: "md-0", Path: "relative"}, connect.CodeInvalidArgument},
		{&v1.ControlGetFileRequest{Path: "/x"}, connect.CodeInvalidArgument},
		{&v1.ControlGetFileRequest{Run: "r9", Path: "x"}, connect.CodeNotFound},
	} {
		in, err := r.admin.GetFile(ctx, connect.NewRequest(c.ask))
		if err == nil {
			for in.Receive() {
			}
			err = in.Err()
		}
		wantCode(t, err, c.code)
	}
}

func TestAUserSeesTheProcessesOfOwnRunsWhileTheyRun(t *testing.T) {
	r, _ := withGuest(t)
	ctx := bounded(t)
	bob, _ := r.user("bob", nil)
	ask := func(who watariv1connect.ControlServiceClient) (*v1.RunProcessesResponse, error) {
		response, err := who.RunProcesses(ctx, connect.NewRequest(&v1.RunProcessesRequest{Name: "r1"}))
		if err != nil {
			return nil, err
		}
		return response.Msg, nil
	}
	if _, err := r.admin.CreateRun(ctx, connect.NewRequest(&v1.CreateRunRequest{Name: "r1", Spec: &v1.RunSpec{Cluster: "md", Command: []string{"lmp"}, Hold: true}})); err != nil {
		t.Fatal(err)
	}
	_, err := ask(r.admin)
	wantCode(t, err, connect.CodeFailedPrecondition, "run r1 has no processes", "pending")
	if _, err := r.admin.StartRun(ctx, connect.NewRequest(&v1.StartRunRequest{Name: "r1"})); err != nil {
		t.Fatal(err)
	}
	r.await("the run runs", func() bool {
		runs, err := r.admin.ListRuns(ctx, connect.NewRequest(&v1.ListRunsRequest{Name: "r1"}))
		return err == nil && runs.Msg.Runs[0].State == v1.RunState_RUN_STATE_RUNNING
	})
	_, err = ask(bob)
	wantCode(t, err, connect.CodeNotFound)
	got, err := ask(r.admin)
	if err != nil || len(got.Guests) != 1 {
		t.Fatal(got, err)
	}
	g := got.Guests[0]
	if g.Guest != "md-0" || g.Host != "a1" || g.Error != "" || g.Omitted != 3 || len(g.Processes) != 2 {
		t.Fatal(g)
	}
	if p := g.Processes[1]; p.Pid != 41 || p.Name != `lmp\x1b[2J` || p.Rank == nil || p.State != "R" || p.Cpu != 0.5 || p.CpuTimeNs != 7e9 || p.MemoryBytes != 90<<20 {
		t.Errorf("%v", p)
	}
	if g.Processes[0].Rank != nil {
		t.Errorf("the launcher is a rank: %v", g.Processes[0])
	}
}
