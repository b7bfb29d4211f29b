package agent

// processes.go - ProcessService: programs that the host or a peer starts in this guest.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"connectrpc.com/connect"

	v1 "watari/api/watariv1"
	"watari/guest/process"
)

// outputChunk is the most bytes of output in one message.
const outputChunk = 32 << 10

// processService serves ProcessService to the host, or to peers. Peers may only act as the ordinary user.
type processService struct {
	agent *Agent
	peers bool
}

// code converts an error of the process table to one with a code.
func code(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, process.ErrNotFound):
		return connect.NewError(connect.CodeNotFound, err)
	case errors.Is(err, process.ErrInvalid):
		return connect.NewError(connect.CodeInvalidArgument, err)
	case errors.Is(err, process.ErrExists):
		return connect.NewError(connect.CodeAlreadyExists, err)
	}
	return connect.NewError(connect.CodeInternal, err)
}

// get finds a process that the caller may access. Peers' identifiers form a separate name space.
func (s *processService) get(id string) (*process.Process, error) {
	p, err := s.agent.processes.Get(s.id(id))
	return p, code(err)
}

func (s *processService) id(id string) string {
	if s.peers {
		return "peer-" + id
	}
	return id
}

func (s *processService) StartProcess(ctx context.Context, r *connect.Request[v1.StartProcessRequest]) (*connect.Response[v1.StartProcessResponse], error) {
	request := r.Msg
	if s.peers {
		identity := s.agent.current()
		if identity == nil {
			return nil, connect.NewError(connect.CodeUnavailable, errors.New("guest has no identity yet"))
		}
		if request.GetUser() != "" && request.GetUser() != identity.GetUser() {
			return nil, connect.NewError(connect.CodePermissionDenied,
				fmt.Errorf("start process as %s: other guests may only start processes as %s", request.GetUser(), identity.GetUser()))
		}
		request.User = identity.GetUser()
	}
	request.Id = s.id(request.GetId())
	root := request.GetUser() == "" || request.GetUser() == "root" // may look for the reason if something is not mounted
	if err := s.agent.home.await(ctx, root); err != nil && !root {
		return nil, err
	}
	if err := s.agent.storage.await(ctx); err != nil && !root {
		return nil, connect.NewError(connect.CodeFailedPrecondition, err)
	}
	if err := ctx.Err(); err != nil {
		return nil, err // the caller has given up and may have forgotten the process, so do not start it
	}
	if s.peers && request.GetLauncher() != "" {
		s.agent.processes.EndOfOtherLaunchers(request.GetLauncher())
	}
	p, err := s.agent.processes.Start(request)
	if err != nil {
		return nil, code(err)
	}
	return connect.NewResponse(&v1.StartProcessResponse{Process: p.Describe()}), nil
}

func (s *processService) SignalProcess(_ context.Context, r *connect.Request[v1.SignalProcessRequest]) (*connect.Response[v1.SignalProcessResponse], error) {
	p, err := s.get(r.Msg.GetId())
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&v1.SignalProcessResponse{}), code(p.Signal(r.Msg.GetSignal()))
}

func (s *processService) ListProcesses(context.Context, *connect.Request[v1.ListProcessesRequest]) (*connect.Response[v1.ListProcessesResponse], error) {
	if s.peers {
		return nil, connect.NewError(connect.CodePermissionDenied, errors.New("only the host may list processes"))
	}
	return connect.NewResponse(&v1.ListProcessesResponse{Processes: s.agent.processes.List()}), nil
}

func (s *processService) ForgetProcess(_ context.Context, r *connect.Request[v1.ForgetProcessRequest]) (*connect.Response[v1.ForgetProcessResponse], error) {
	s.agent.processes.Forget(s.id(r.Msg.GetId()))
	return connect.NewResponse(&v1.ForgetProcessResponse{}), nil
}

// attachment is one Attach call.
type attachment struct {
	stream  *connect.BidiStream[v1.AttachRequest, v1.AttachResponse]
	process *process.Process
	sending sync.Mutex
	over    bool // the call has returned; guarded by sending
}

// errOver is the error of a send after the call's end. The library would panic on such a send.
var errOver = errors.New("the attachment has ended")

func (t *attachment) send(r *v1.AttachResponse) error {
	t.sending.Lock()
	defer t.sending.Unlock()
	if t.over {
		return errOver
	}
	return t.stream.Send(r)
}

// end prevents further sends.
func (t *attachment) end() {
	t.sending.Lock()
	defer t.sending.Unlock()
	t.over = true
}

func (s *processService) Attach(ctx context.Context, stream *connect.BidiStream[v1.AttachRequest, v1.AttachResponse]) error {
	first, err := stream.Receive()
	if err != nil {
		return err
	}
	p, err := s.get(first.GetId())
	if err != nil {
		return err
	}
	defer p.Attach()()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	t := &attachment{stream: stream, process: p}
	defer t.end() // receive may still be under way
	// Send the first answer at once, so that the caller knows that it is attached.
	if err := t.send(&v1.AttachResponse{StdoutOffset: first.GetStdoutOffset(), StderrOffset: first.GetStderrOffset()}); err != nil {
		return err
	}
	go t.receive(ctx, first, cancel)
	var group sync.WaitGroup
	group.Go(func() {
		t.copy(ctx, cancel, p.ReadStdout, first.GetStdoutOffset(), func(b []byte, from uint64) *v1.AttachResponse {
			return &v1.AttachResponse{Stdout: b, StdoutOffset: from}
		})
	})
	group.Go(func() {
		t.copy(ctx, cancel, p.ReadStderr, first.GetStderrOffset(), func(b []byte, from uint64) *v1.AttachResponse {
			return &v1.AttachResponse{Stderr: b, StderrOffset: from}
		})
	})
	group.Wait()
	select {
	case <-p.Done():
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return t.send(&v1.AttachResponse{Ended: p.Describe()})
}

// copy sends a stream of output until it ends.
func (t *attachment) copy(
	ctx context.Context, cancel context.CancelCauseFunc,
	read func(context.Context, uint64, []byte) (int, uint64, uint64, error), offset uint64,
	message func(b []byte, from uint64) *v1.AttachResponse,
) {
	buf := make([]byte, outputChunk)
	for {
		n, from, next, err := read(ctx, offset, buf)
		if n > 0 {
			if err := t.send(message(buf[:n], from)); err != nil {
				cancel(err)
				return
			}
		}
		if offset = next; err == io.EOF {
			return
		} else if err != nil {
			cancel(code(err))
			return
		}
	}
}

// receive passes on input until the caller's stream ends.
func (t *attachment) receive(ctx context.Context, message *v1.AttachRequest, cancel context.CancelCauseFunc) {
	for {
		t.process.Resize(message.GetRows(), message.GetColumns())
		if len(message.GetStdin()) > 0 {
			had, err := t.process.Input(ctx, message.GetStdinOffset(), message.GetStdin())
			if err == nil {
				err = t.send(&v1.AttachResponse{StdinOffset: had})
			}
			if err != nil {
				cancel(code(err))
				return
			}
		}
		if message.GetStdinClosed() {
			t.process.CloseInput()
		}
		var err error
		if message, err = t.stream.Receive(); err != nil {
			return // the end of the input, or of the call; ctx shows which
		}
	}
}
