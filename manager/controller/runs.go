package controller

// runs.go - carries out core's orders for runs. A goroutine for each run that has begun starts the run's process and
// follows its output. The goroutine may end at any point, and the next manager may begin another, because the process
// in the guest has the run's uid and its output is read by offset.

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"connectrpc.com/connect"
	"github.com/cenkalti/backoff/v5"

	v1 "watari/api/watariv1"
	"watari/api/watariv1/watariv1connect"
	"watari/core"
	"watari/hostlink"
	"watari/internal/printable"
	"watari/manager/store"
)

// runner follows one run.
type runner struct {
	c    *Controller
	name string
	uid  string
	life context.Context // ends with stop
	stop context.CancelFunc

	mu        sync.Mutex
	seen      core.RunSeen
	signaling bool
	over      bool // the goroutine has ended
}

// runsSeen returns what the runners know of their runs.
func (c *Controller) runsSeen() map[string]core.RunSeen {
	seen := make(map[string]core.RunSeen, len(c.runners))
	for uid, r := range c.runners {
		r.mu.Lock()
		seen[uid] = r.seen
		r.mu.Unlock()
	}
	return seen
}

// drive starts a runner for each run that core orders to follow, and ends the runners of other runs.
func (c *Controller) drive(ctx context.Context, s *store.Snapshot, orders []core.RunOrder) {
	ordered := map[string]bool{}
	for _, order := range orders {
		uid := order.Run.Meta.Uid
		ordered[uid] = true
		r := c.runners[uid]
		if r != nil && r.restores() != order.Run.Restores { // the run was restored: the runner's knowledge is outdated
			if !r.end() {
				continue
			}
			r = nil
		}
		if r == nil {
			life, stop := context.WithCancel(ctx)
			r = &runner{c: c, name: order.Run.Meta.Name, uid: uid, life: life, stop: stop, seen: core.RunSeen{Restores: order.Run.Restores}}
			c.runners[uid] = r
			c.driving.Go(func() { r.follow(r.life) })
		}
		if order.Signal != 0 {
			r.signal(order)
		}
	}
	for uid, r := range c.runners {
		stored := s.Runs[r.name]
		gone := stored == nil || stored.Meta.Uid != uid
		if ordered[uid] || !gone && !core.RunEnded(stored.State) {
			continue // core has not ended the run, or its end is not stored yet
		}
		if r.end() {
			delete(c.runners, uid)
			if !gone {
				c.driving.Go(func() { r.forget(ctx, stored) })
			}
		}
	}
}

// end ends the runner's goroutine, and reports whether the goroutine has ended.
func (r *runner) end() bool {
	r.stop()
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.over
}

// restores returns Run.Restores of the run that the runner follows.
func (r *runner) restores() uint32 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.seen.Restores
}

// tell changes the runner's knowledge of the run, and wakes the loop.
func (r *runner) tell(change func(*core.RunSeen)) {
	r.mu.Lock()
	before := r.seen
	change(&r.seen)
	changed := r.seen != before
	r.mu.Unlock()
	if changed {
		r.wake()
	}
}

func (r *runner) wake() {
	select {
	case r.c.changed <- struct{}{}:
	default:
	}
}

// run returns the stored run; nil: it was deleted.
func (r *runner) run() *v1.Run {
	run := r.c.Store.Snapshot().Runs[r.name]
	if run == nil || run.Meta.Uid != r.uid {
		return nil
	}
	return run
}

// processes returns a client of the head guest's ProcessService on the guest's present host.
func (r *runner) processes(run *v1.Run) (watariv1connect.ProcessServiceClient, error) {
	return GuestProcesses(r.c.Store.Snapshot(), r.c.Sessions, run.Head, run.HeadUid)
}

// GuestProcesses returns a client of a guest's ProcessService, through the agent of the guest's host.
func GuestProcesses(s *store.Snapshot, sessions Sessions, guest, uid string) (watariv1connect.ProcessServiceClient, error) {
	g := s.Guests[guest]
	if g == nil || uid != "" && g.Meta.Uid != uid {
		return nil, fmt.Errorf("guest %s no longer exists", guest)
	}
	client, err := sessions.HTTPClient(g.Host)
	if err != nil {
		return nil, fmt.Errorf("reach guest %s: %w", guest, err)
	}
	return watariv1connect.NewProcessServiceClient(client, hostlink.GuestURL(g.Meta.Uid), hostlink.GuestLimit()), nil
}

// follow starts the process if it has not been started, and follows it to its end or until ctx ends. It continues after
// moves, lost connections and restarts.
func (r *runner) follow(ctx context.Context) {
	defer func() {
		r.mu.Lock()
		r.over = true
		r.mu.Unlock()
		r.wake()
	}()
	wait := backoff.NewExponentialBackOff()
	wait.InitialInterval, wait.MaxInterval = 50*time.Millisecond, 2*time.Second
	for ctx.Err() == nil {
		begun := time.Now()
		settled, err := r.attempt(ctx)
		if settled {
			return
		}
		r.c.Log.Debug("run: connection to the head guest ended", "run", r.name, "error", err)
		if time.Since(begun) > wait.MaxInterval {
			wait.Reset()
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait.NextBackOff()):
		}
	}
}

// attempt follows the process over one connection. settled: the process has ended, or can never start.
func (r *runner) attempt(ctx context.Context) (settled bool, err error) {
	run := r.run()
	if run == nil {
		return true, nil
	}
	client, err := r.processes(run)
	if err != nil {
		return false, err
	}
	if run.State == v1.RunState_RUN_STATE_STARTING {
		start, err := startRequest(r.c.Store.Snapshot(), run)
		if err == nil {
			_, err = client.StartProcess(ctx, connect.NewRequest(start))
		}
		if code := connect.CodeOf(err); err != nil && (code == connect.CodeInvalidArgument || code == connect.CodeFailedPrecondition) {
			r.tell(func(seen *core.RunSeen) { seen.Refused = message(err) })
			return true, nil
		}
		if err != nil {
			return false, err
		}
		r.tell(func(seen *core.RunSeen) { seen.Started = true })
	}
	return r.attach(ctx, client, run.Restores > 0)
}

// maxMessage is the number of characters that are kept of a message of a guest's agent, which its user may have altered.
const maxMessage = 500

// endOf returns what is kept of the end of a run's process.
func endOf(p *v1.Process) *v1.Process {
	return &v1.Process{ExitCode: p.ExitCode, Message: printable.Line(p.Message, maxMessage)}
}

// message returns what is kept of a refusal to start a run's process.
func message(err error) string {
	var ce *connect.Error
	if errors.As(err, &ce) {
		return printable.Line(ce.Message(), maxMessage)
	}
	return printable.Line(err.Error(), maxMessage)
}

// attach copies output to the run's files until the process has ended. restored: the run was restored from a checkpoint, so
// the files may contain output that the process will write again.
func (r *runner) attach(ctx context.Context, client watariv1connect.ProcessServiceClient, restored bool) (settled bool, err error) {
	out, err := openOutput(filepath.Join(r.c.RunsDir, r.uid))
	if err != nil {
		r.tell(func(seen *core.RunSeen) { seen.Message = fmt.Sprintf("its output cannot be kept: %v", err) })
		return false, fmt.Errorf("keep the output of run %s: %w", r.name, err)
	}
	defer out.close()
	if restored {
		if err := r.rewind(ctx, client, out); err != nil {
			return false, fmt.Errorf("cut the output of run %s: %w", r.name, err)
		}
	}
	ctx, stop := context.WithCancel(ctx)
	stream := client.Attach(ctx)
	defer stream.CloseResponse() // after stop: it returns what was not read to the connection's flow control
	defer stop()
	if err := stream.Send(&v1.AttachRequest{Id: r.uid, StdoutOffset: out[0].at(), StderrOffset: out[1].at()}); err != nil {
		return false, err
	}
	if err := stream.CloseRequest(); err != nil {
		return false, err
	}
	for {
		m, err := stream.Receive()
		if connect.CodeOf(err) == connect.CodeNotFound && err != nil {
			r.tell(func(seen *core.RunSeen) { seen.Unknown = true })
			return true, nil
		}
		if err != nil {
			return false, err
		}
		err = out.write(m, r.room)
		if len(m.Stdout)+len(m.Stderr) > 0 || m.Ended != nil {
			lacking := ""
			if errors.Is(err, errDiskFull) || errors.Is(err, errOverQuota) {
				lacking = err.Error()
			}
			r.tell(func(seen *core.RunSeen) { seen.Message = lacking })
		}
		if err != nil && !errors.Is(err, errOverQuota) {
			return false, fmt.Errorf("keep the output of run %s: %w", r.name, err)
		}
		if m.Ended != nil {
			ranOut := ""
			if run := r.run(); run != nil && m.Ended.ExitCode != 0 {
				ranOut = r.ranOut(ctx, run)
			}
			r.tell(func(seen *core.RunSeen) { seen.Ended, seen.RanOut = endOf(m.Ended), ranOut })
			return true, nil
		}
	}
}

// room returns an error if the run's output may not grow by n bytes.
func (r *runner) room(n uint64) error {
	s := r.c.Store.Snapshot()
	run := s.Runs[r.name]
	if run == nil || run.Meta.Uid != r.uid {
		return nil
	}
	return r.c.outputs.room(s, run, n)
}

// rewind truncates the run's files to the output that its process has written.
func (r *runner) rewind(ctx context.Context, client watariv1connect.ProcessServiceClient, out output) error {
	ctx, cancel := context.WithTimeout(ctx, signalWithin)
	defer cancel()
	list, err := client.ListProcesses(ctx, connect.NewRequest(&v1.ListProcessesRequest{}))
	if err != nil {
		return err
	}
	for _, p := range list.Msg.Processes {
		if p.Id == r.uid {
			return out.cut(p.StdoutBytes, p.StderrBytes)
		}
	}
	return nil // attach will report that the process is unknown
}

// signalWithin bounds an attempt to send a signal. A guest that does not answer must not keep later signals from being
// tried.
const signalWithin = 10 * time.Second

// signal sends a signal to the process, concurrently with the following of its output. It sends one signal at a time.
func (r *runner) signal(order core.RunOrder) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.signaling {
		return
	}
	r.signaling = true
	r.seen.Signalled = time.Now()
	r.c.driving.Go(func() {
		ctx, cancel := context.WithTimeout(r.life, signalWithin)
		defer cancel()
		client, err := r.processes(order.Run)
		if err == nil {
			_, err = client.SignalProcess(ctx, connect.NewRequest(&v1.SignalProcessRequest{Id: r.uid, Signal: order.Signal}))
		}
		r.mu.Lock()
		r.signaling = false
		r.mu.Unlock()
		if err == nil {
			r.tell(func(seen *core.RunSeen) { seen.Signals = order.Sent })
		}
	})
}

// forgetWithin is the time limit for reaching the guest of an ended run.
const forgetWithin = 10 * time.Second

// forget makes the guest forget the process of an ended run.
func (r *runner) forget(ctx context.Context, run *v1.Run) {
	ctx, cancel := context.WithTimeout(ctx, forgetWithin)
	defer cancel()
	client, err := r.processes(run)
	if err == nil {
		_, err = client.ForgetProcess(ctx, connect.NewRequest(&v1.ForgetProcessRequest{Id: r.uid}))
	}
	if err != nil {
		r.c.Log.Debug("a run's process was not forgotten", "run", r.name, "error", err)
	}
}
