package api

// exec.go - processes in guests. Their streams survive a move of the guest.

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"time"

	"watari/api/watariv1/watariv1connect"
	"watari/manager/store"

	v1 "watari/api/watariv1"

	"connectrpc.com/connect"
)

const (
	// execHold is how long a process lives on, seconds, without the manager that follows it.
	execHold = 60
	// maxHold bounds the hold time that a caller may request, seconds, because an abandoned process uses resources.
	maxHold = 3600
	// overWait is how long a caller may take to confirm a process's end by closing its side; overHold is how long a process whose end was
	// not confirmed is remembered.
	overWait = time.Second
	overHold = time.Minute
	// maxInput bounds the input that waits for the guest, bytes.
	maxInput = 1 << 20
	// forgetTimeout bounds the clean-up after a caller is gone.
	forgetTimeout = 10 * time.Second
)

// GuestExec runs a command in a guest. The caller chooses the process's id. When the connection to the guest ends (because
// the guest moves, for example), the streams continue where they were; input is kept until the guest confirms it. A
// disconnected caller calls again with the same id, gives the output's offsets in the first message's input, and sends input
// from the first byte that the process has not received. The guest ends the process if the caller does not return within the
// hold time.
func (s *Server) GuestExec(ctx context.Context, stream *connect.BidiStream[v1.GuestExecRequest, v1.GuestExecResponse]) error {
	first, err := stream.Receive()
	if err != nil {
		return err
	}
	if len(first.GetStart().GetCommand()) == 0 {
		return fail(connect.CodeInvalidArgument, "the first message names no command")
	}
	if first.Start.HoldSeconds > maxHold {
		return fail(connect.CodeInvalidArgument, "a process is held for at most %d s after its caller is gone, not %d s; what is to go on alone is a run (`watari run --detach`)",
			maxHold, first.Start.HoldSeconds)
	}
	user := callerOf(ctx).name
	if !s.execs.enter(user, first.Resume) {
		return fail(connect.CodeResourceExhausted, "user %s has %d commands in guests under way; wait for some, or end them", user, mostExecs)
	}
	defer s.execs.leave(user)
	g, err := s.readyGuest(ctx, first.Guest)
	if err != nil {
		return err
	}
	start := first.Start
	if start.Id == "" {
		start.Id = "exec-" + store.NewUID()
	}
	if start.HoldSeconds == 0 {
		start.HoldSeconds = execHold
	}
	op := audit(ctx, "guest", first.Guest, "exec as %s: %s", orRoot(start.User), strings.Join(start.Command, " "))
	if err := s.Store.Txn(ctx, op); err != nil {
		return storeError(err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	e := &execution{s: s, name: first.Guest, uid: g.Meta.Uid, start: start, out: stream, input: newInput(), started: make(chan struct{}), left: make(chan struct{})}
	if first.Resume {
		close(e.started)
	}
	e.outs, e.errs = first.Input.GetStdoutOffset(), first.Input.GetStderrOffset()
	if first.Input != nil {
		e.input.add(first.Input)
	}
	defer e.input.close() // ends receive
	s.execs.begin(e.process())
	defer e.end()
	go e.receive(ctx, cancel)
	if err := s.retry(ctx, e.name, e.uid, func(g *v1.Guest, alive func()) error { return e.attempt(ctx, g, alive) }); err != nil {
		return wrapError(err, "run %s on guest %s", start.Command[0], first.Guest)
	}
	return nil
}

func orRoot(user string) string {
	if user == "" {
		return "root"
	}
	return user
}

// execution is one process and the caller's streams.
type execution struct {
	s          *Server
	name, uid  string // of the guest
	start      *v1.StartProcessRequest
	out        *connect.BidiStream[v1.GuestExecRequest, v1.GuestExecResponse]
	input      *input
	started    chan struct{} // closed when the process has been started
	left       chan struct{} // closed when the caller has closed its side
	over       bool          // the process's end was sent to the caller
	confirmed  bool          // the caller has received it
	outs, errs uint64        // bytes passed on
}

// receive takes the caller's later messages until the caller ends. When the caller closes its sending side, receive closes
// the process's input. When the caller disconnects, ctx ends by itself.
func (e *execution) receive(ctx context.Context, cancel context.CancelFunc) {
	for {
		m, err := e.out.Receive()
		if errors.Is(err, io.EOF) {
			e.input.close()
			close(e.left)
			return
		}
		if err != nil {
			cancel()
			return
		}
		if m.Input != nil {
			e.input.add(m.Input)
		}
		if m.Signal != 0 {
			e.signal(ctx, m.Signal)
		}
	}
}

// signal sends a signal to the process, as soon as that has been started.
func (e *execution) signal(ctx context.Context, signal int32) {
	select {
	case <-e.started:
	case <-ctx.Done():
		return
	}
	err := e.s.retry(ctx, e.name, e.uid, func(g *v1.Guest, _ func()) error {
		client, err := e.s.processes(g)
		if err == nil {
			_, err = client.SignalProcess(ctx, connect.NewRequest(&v1.SignalProcessRequest{Id: e.start.Id, Signal: signal}))
		}
		return err
	})
	if err != nil && ctx.Err() == nil {
		e.s.Log.Warn("a signal did not reach a process", "guest", e.name, "error", err)
	}
}

// attempt starts the process if it has not been started, and follows it on one connection. It returns nil when the process
// has ended.
func (e *execution) attempt(ctx context.Context, g *v1.Guest, alive func()) error {
	client, err := e.s.processes(g)
	if err != nil {
		return err
	}
	select {
	case <-e.started:
	default:
		if _, err := client.StartProcess(ctx, connect.NewRequest(e.start)); err != nil {
			return err
		}
		close(e.started)
		alive()
		if err := e.out.Send(&v1.GuestExecResponse{Output: &v1.AttachResponse{}}); err != nil { // the caller need not start it again
			return final{err}
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	attached := client.Attach(ctx)
	defer attached.CloseResponse() // after cancel: it returns what was not read to the connection's flow control
	var sending sync.WaitGroup
	defer sending.Wait()
	defer cancel()
	if err := attached.Send(&v1.AttachRequest{Id: e.start.Id, StdoutOffset: e.outs, StderrOffset: e.errs}); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	sending.Go(func() { e.input.send(ctx, attached) })
	for {
		m, err := attached.Receive()
		if err != nil {
			return e.lost(err)
		}
		alive()
		e.input.taken(m.StdinOffset)
		if err := e.out.Send(&v1.GuestExecResponse{Output: e.fresh(m)}); err != nil {
			return final{err}
		}
		if m.Ended != nil {
			e.over = true
			select {
			case <-e.left:
				e.confirmed = true
			case <-time.After(overWait):
			}
			return nil
		}
	}
}

// lost turns the error about a process that the guest no longer knows into one for people.
func (e *execution) lost(err error) error {
	if connect.IsWireError(err) && connect.CodeOf(err) == connect.CodeNotFound {
		return final{fail(connect.CodeAborted, "guest %s does not know the process any more: the guest was restarted, or the caller was away for too long", e.name)}
	}
	return err
}

// fresh cuts off output that was passed on before, and counts the rest.
func (e *execution) fresh(m *v1.AttachResponse) *v1.AttachResponse {
	m.Stdout, m.StdoutOffset = cut(m.Stdout, m.StdoutOffset, e.outs)
	m.Stderr, m.StderrOffset = cut(m.Stderr, m.StderrOffset, e.errs)
	e.outs, e.errs = m.StdoutOffset+uint64(len(m.Stdout)), m.StderrOffset+uint64(len(m.Stderr))
	return m
}

func cut(data []byte, offset, have uint64) ([]byte, uint64) {
	if len(data) == 0 || offset+uint64(len(data)) <= have {
		return nil, have
	}
	if offset < have {
		return data[have-offset:], have
	}
	return data, offset
}

// end forgets the process once the caller has received its end, or if the caller does not return: for twice the hold time, or for
// overHold if the end was sent.
func (e *execution) end() {
	left, wait := e.s.execs.end(e.process()), 2*time.Duration(e.start.HoldSeconds)*time.Second
	switch {
	case e.confirmed:
		e.forget()
		return
	case left > 0:
		return
	case e.over:
		wait = min(wait, overHold)
	}
	later := &execution{s: e.s, name: e.name, uid: e.uid, start: &v1.StartProcessRequest{Id: e.start.Id}, started: e.started} // without what the caller has sent
	time.AfterFunc(wait, func() {
		if later.s.execs.count(later.process()) == 0 {
			later.forget()
		}
	})
}

// process identifies a process. Callers choose the ids, so processes of different guests may have the same id.
type process struct{ guestUID, id string }

func (e *execution) process() process { return process{e.uid, e.start.Id} }

// mostExecs bounds the commands in guests that a user has under way: each holds up to maxInput and a message.
const mostExecs = 256

// callers counts the attached callers of each process, and those of each user.
type callers struct {
	users tally

	mu sync.Mutex
	of map[process]int
}

// enter counts one more caller of a user. It returns false if the user has mostExecs already, or twice as many if the caller resumes: it
// may be counted already, by a connection that has broken.
func (c *callers) enter(user string, resumes bool) bool {
	most := mostExecs
	if resumes {
		most *= 2
	}
	return c.users.enter(user, most)
}

// leave undoes enter.
func (c *callers) leave(user string) { c.users.leave(user) }

func (c *callers) begin(p process)     { c.add(p, 1) }
func (c *callers) end(p process) int   { return c.add(p, -1) }
func (c *callers) count(p process) int { return c.add(p, 0) }

func (c *callers) add(p process, n int) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.of == nil {
		c.of = map[process]int{}
	}
	c.of[p] += n
	left := c.of[p]
	if left == 0 {
		delete(c.of, p)
	}
	return left
}

// forget ends the process if it still runs, and drops its output.
func (e *execution) forget() {
	select {
	case <-e.started:
	default:
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), forgetTimeout)
	defer cancel()
	g, err := e.s.guestByUID(e.name, e.uid)
	if err != nil {
		return
	}
	client, err := e.s.processes(g)
	if err == nil {
		_, err = client.ForgetProcess(ctx, connect.NewRequest(&v1.ForgetProcessRequest{Id: e.start.Id}))
	}
	if err != nil {
		e.s.Log.Warn("a process was not forgotten; the guest ends it by itself", "guest", e.name, "error", err)
	}
}

// input is the part of the caller's input that the guest has not confirmed.
type input struct {
	mu            sync.Mutex
	changed       chan struct{} // closed and replaced at each change
	data          []byte
	offset        uint64 // of data's first byte
	closed        bool
	begun         bool // some input has arrived: from then on, the caller sets data's offset
	rows, columns uint32
}

func newInput() *input { return &input{changed: make(chan struct{})} }

func (in *input) change(f func()) {
	in.mu.Lock()
	defer in.mu.Unlock()
	f()
	close(in.changed)
	in.changed = make(chan struct{})
}

// add takes a message of the caller, and waits while too much input is held.
func (in *input) add(m *v1.AttachRequest) {
	for {
		in.mu.Lock()
		room, changed := len(in.data) < maxInput || in.closed, in.changed
		in.mu.Unlock()
		if room {
			break
		}
		<-changed
	}
	in.change(func() {
		if (len(m.Stdin) > 0 || m.StdinClosed) && !in.begun {
			in.begun, in.offset = true, max(in.offset, m.StdinOffset)
		}
		in.data = append(in.data, m.Stdin...)
		in.closed = in.closed || m.StdinClosed
		if m.Rows != 0 || m.Columns != 0 {
			in.rows, in.columns = m.Rows, m.Columns
		}
	})
}

func (in *input) close() { in.change(func() { in.closed = true }) }

// taken drops the input that the guest has confirmed: all bytes before offset.
func (in *input) taken(offset uint64) {
	in.change(func() {
		if offset > in.offset {
			n := min(offset-in.offset, uint64(len(in.data)))
			in.data, in.offset = in.data[n:], in.offset+n
		}
	})
}

// send sends the held input, and new input until ctx ends. It begins with the first unconfirmed byte.
func (in *input) send(ctx context.Context, to *connect.BidiStreamForClient[v1.AttachRequest, v1.AttachResponse]) {
	defer to.CloseRequest()
	var sent uint64
	var rows, columns uint32
	for {
		in.mu.Lock()
		m := &v1.AttachRequest{}
		sent = max(sent, in.offset)
		m.StdinOffset, m.Stdin = sent, append([]byte(nil), in.data[sent-in.offset:]...)
		m.StdinClosed = in.closed
		if in.rows != rows || in.columns != columns {
			rows, columns = in.rows, in.columns
			m.Rows, m.Columns = rows, columns
		}
		changed := in.changed
		in.mu.Unlock()
		if len(m.Stdin) > 0 || m.StdinClosed || m.Rows != 0 || m.Columns != 0 {
			if err := to.Send(m); err != nil {
				return
			}
			sent += uint64(len(m.Stdin))
		}
		if m.StdinClosed {
			<-ctx.Done()
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

var _ watariv1connect.ControlServiceHandler = (*Server)(nil)
