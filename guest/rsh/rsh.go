// Package rsh runs commands in other guests of the cluster, as rsh and ssh would, for MPI launchers (Open MPI's
// plm_rsh_agent, Hydra's launcher). A launcher starts watari-guest-rsh once for each guest; the guest agent serves all
// of these, so that a launcher over many guests costs the guest little memory.
package rsh

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	v1 "watari/api/watariv1"
	"watari/api/watariv1/watariv1connect"
)

const (
	// patience is how long a peer may be unreachable before the start of a command fails. The peer may be moving.
	patience = 2 * time.Minute
	// attachPatience is the same for a command that runs: longer than most leases. If a guest is lost, the manager ends the run.
	attachPatience = time.Hour
	// hold is how long the peer keeps the process without a connection, in seconds.
	hold = 3600 + 120
	// argumentsTime is how long a launcher may take to send its command line.
	argumentsTime = 30 * time.Second
	// forgetPatience is how long the agent tries to make the peer drop a command that has lost its launcher.
	forgetPatience = hold * time.Second
	// worked is how long a call takes at least that had reached the peer: longer than the attempt to connect.
	worked = 30 * time.Second
	// failed is the exit status of ssh when it, and not the command, fails.
	failed = 255
)

// Peers reaches the guests of a cluster. One client serves them all, which saves memory.
type Peers struct {
	Client watariv1connect.ProcessServiceClient
	// Call returns a context for the client's calls to a guest, given by name or address.
	Call func(ctx context.Context, host string) (context.Context, error)
	// May returns an error if a user of the guest may not start processes in others.
	May func(uid uint32) error
	// Launcher identifies this guest's memory to its peers: NAME/ID.
	Launcher func() string
	// Env returns environment variables for the command that a process of the guest starts in a peer; nil: none.
	Env func(pid int32) []string
}

// session is one command in a peer.
type session struct {
	client   watariv1connect.ProcessServiceClient
	id, host string
	env      []string
	from     string       // Peers.Launcher
	gone     func() error // why the peer is no guest of the cluster any more; nil: it is one
	launcher *launcher
	outputs  [2]uint64 // bytes of stdout and stderr that were passed on
	input    *input    // nil: the command has none
	signals  signals
}

// Serve runs the command of one watari-guest-rsh, and closes the connection to it.
func (p Peers) Serve(ctx context.Context, conn *net.UnixConn) {
	defer conn.Close()
	l, err := newLauncher(conn)
	if err != nil {
		return
	}
	var a arguments
	env, refused := p.admit(conn)
	conn.SetReadDeadline(time.Now().Add(argumentsTime))
	args, err := l.arguments(refused == nil) // nothing is kept of what others send
	if errors.Is(err, errLauncherGone) {
		return
	}
	conn.SetReadDeadline(time.Time{})
	if err = cmp.Or(refused, err); err == nil {
		a, err = parse(args)
	}
	if err != nil {
		l.fail("", err)
		return
	}
	gone := func() error {
		_, err := p.Call(context.WithoutCancel(ctx), a.host)
		return err
	}
	calls, err := p.Call(ctx, a.host)
	if err != nil {
		l.fail(a.host, err)
		return
	}
	s := &session{client: p.Client, id: "rsh-" + rand.Text(), host: a.host, env: env, launcher: l, gone: gone}
	if p.Launcher != nil {
		s.from = p.Launcher()
	}
	if !a.noInput {
		s.input = newInput(l.ask)
	}
	code, err := s.run(calls, a)
	switch {
	case errors.Is(err, errLauncherGone):
	case err != nil:
		l.fail(a.host, err)
	default:
		l.end(code)
	}
}

// admit asks the kernel which user's process is at the other end, and May whether that user is admitted. It returns the
// environment variables for the command.
func (p Peers) admit(conn *net.UnixConn) (env []string, err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	var who *unix.Ucred
	var asked error
	if err := raw.Control(func(fd uintptr) { who, asked = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); err != nil {
		return nil, err
	}
	if asked != nil {
		return nil, fmt.Errorf("ask who calls: %w", asked)
	}
	if err := p.May(who.Uid); err != nil || p.Env == nil {
		return nil, err
	}
	return p.Env(who.Pid), nil
}

// fail ends the launcher with an error of the agent.
func (l *launcher) fail(host string, err error) {
	l.complain(host, err.Error())
	l.end(failed)
}

// complain writes a message on the launcher's error output.
func (l *launcher) complain(host, message string) {
	if host != "" {
		host += ": "
	}
	l.write(packetError, fmt.Appendf(nil, "watari-guest rsh: %s%s\n", host, message))
}

// run runs the command to its end. If the launcher ends, run ends the command.
func (s *session) run(ctx context.Context, a arguments) (int, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		s.launcher.listen(events{signal: s.signals.take, input: s.takeInput})
		cancel(errLauncherGone)
	}()
	code, err := s.start(ctx, a)
	var ended *v1.Process
	if err == nil && code == 0 {
		s.signals.passTo(func(signal syscall.Signal) { s.pass(ctx, signal) })
		err = retry(ctx, attachPatience, func() (err error) {
			ended, err = s.attach(ctx)
			if gone := s.gone(); err != nil && gone != nil {
				return gone
			}
			return err
		})
	}
	go s.forget(context.WithoutCancel(ctx))
	if errors.Is(context.Cause(ctx), errLauncherGone) {
		err = errLauncherGone
	}
	if m := ended.GetMessage(); m != "" {
		s.launcher.complain(s.host, m)
	}
	if code == 0 {
		code = int(ended.GetExitCode())
	}
	return code, err
}

func (s *session) takeInput(b []byte) {
	if s.input != nil {
		s.input.take(b)
	}
}

// start starts the command. A signal cancels the start, because a peer may be unreachable for long; the exit status is
// not 0 then.
func (s *session) start(ctx context.Context, a arguments) (code int, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	s.signals.passTo(func(signal syscall.Signal) { cancel(signalled(signal)) })
	err = retry(ctx, patience, func() error {
		_, err := s.client.StartProcess(ctx, connect.NewRequest(&v1.StartProcessRequest{
			Id: s.id, Command: []string{"/bin/sh", "-c", a.command}, Env: s.env, Stdin: s.input != nil, HoldSeconds: hold, Launcher: s.from,
		}))
		if err != nil && ctx.Err() == nil {
			// A restarted peer resets the kept connection to its earlier copy. Starting a process again under the same id is
			// safe: it starts once.
			return broken(err)
		}
		return err
	})
	s.signals.passTo(nil) // later signals wait for the next passTo
	if signal, ok := context.Cause(ctx).(signalled); ok {
		return 128 + int(signal), nil
	}
	return 0, err
}

// signalled is the signal that cancelled a start.
type signalled syscall.Signal

func (s signalled) Error() string { return syscall.Signal(s).String() }

// forget makes the peer drop the process, and end it if it runs. It retries while the peer is unreachable.
func (s *session) forget(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, forgetPatience)
	defer cancel()
	retry(ctx, forgetPatience, func() error {
		_, err := s.client.ForgetProcess(ctx, connect.NewRequest(&v1.ForgetProcessRequest{Id: s.id}))
		return err
	})
}

// retry repeats do after lost connections, until do succeeds or patience has passed.
func retry(ctx context.Context, patience time.Duration, do func() error) error {
	begun := time.Now()
	for wait := 50 * time.Millisecond; ; wait = min(2*wait, 2*time.Second) {
		tried := time.Now()
		err := do()
		if err == nil || connect.CodeOf(err) != connect.CodeUnavailable {
			return err
		}
		if time.Since(tried) > worked { // the connection had worked: begin a new period of patience
			begun = time.Now()
		}
		if time.Since(begun) > patience {
			return err
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// attach passes on input and output until the command has ended or the connection breaks.
func (s *session) attach(ctx context.Context) (*v1.Process, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream := s.client.Attach(ctx)
	if err := stream.Send(&v1.AttachRequest{Id: s.id, StdoutOffset: s.outputs[0], StderrOffset: s.outputs[1]}); err != nil {
		return nil, broken(errors.Join(err, receiveError(stream)))
	}
	if s.input == nil {
		stream.CloseRequest() // an open request occupies a buffer
	} else {
		go func() {
			s.input.send(ctx, stream.Send)
			stream.CloseRequest()
		}()
	}
	for {
		m, err := stream.Receive()
		if err != nil {
			return nil, broken(err)
		}
		for i, out := range []struct {
			kind byte
			b    []byte
			from uint64
		}{{packetOutput, m.GetStdout(), m.GetStdoutOffset()}, {packetError, m.GetStderr(), m.GetStderrOffset()}} {
			if len(out.b) == 0 {
				continue
			}
			s.outputs[i] = out.from + uint64(len(out.b))
			if err := s.launcher.write(out.kind, out.b); err != nil {
				return nil, err
			}
		}
		if s.input != nil {
			s.input.had(m.GetStdinOffset())
		}
		if m.GetEnded() != nil {
			return m.GetEnded(), nil
		}
	}
}

// broken turns the end of a stream into the error of a lost connection.
func broken(err error) error {
	switch code := connect.CodeOf(err); {
	case errors.Is(err, io.EOF), code == connect.CodeUnknown, code == connect.CodeInternal,
		code == connect.CodeCanceled, code == connect.CodeDeadlineExceeded:
		return connect.NewError(connect.CodeUnavailable, err)
	}
	return err
}

// receiveError returns the reason for which sending on a stream failed.
func receiveError(stream *connect.BidiStreamForClient[v1.AttachRequest, v1.AttachResponse]) error {
	_, err := stream.Receive()
	return err
}

// pass sends a signal to the command.
func (s *session) pass(ctx context.Context, signal syscall.Signal) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	s.client.SignalProcess(ctx, connect.NewRequest(&v1.SignalProcessRequest{Id: s.id, Signal: int32(signal)}))
}
