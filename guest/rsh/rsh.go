// Package rsh runs commands in other guests of the cluster, as rsh and ssh would, for MPI launchers (Open MPI's
// plm_rsh_agent, Hydra's launcher). A launcher starts watari-guest-rsh once for each guest; the guest agent serves all
// of these, so that a launcher over many guests costs the guest little memory.
package rsh

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"time"

	"connectrpc.com/connect"

	v1 "watari/api/watariv1"
	"watari/api/watariv1/watariv1connect"
)

const (
	// patience is how long a peer may be out of reach before that is an error: it may just be moving.
	patience = 2 * time.Minute
	// hold is how long the peer keeps the process when it hears nothing of us, in seconds.
	hold = 120
	// forgetPatience is how long the agent tries to tell the peer that nobody wants the command any more.
	forgetPatience = time.Minute
	// failed is the exit status of ssh when it, and not the command, fails.
	failed = 255
)

// Peers finds the ProcessService of a guest of the cluster, by name or address.
type Peers func(host string) (watariv1connect.ProcessServiceClient, error)

// session is one command in a peer.
type session struct {
	client   watariv1connect.ProcessServiceClient
	id, host string
	launcher *launcher
	outputs  [2]uint64 // offsets of what was passed on of stdout and stderr
	input    *input    // nil: the command has none
	signals  chan syscall.Signal
}

// Serve runs the command of one watari-guest-rsh, and closes the connection to it.
func Serve(ctx context.Context, conn *net.UnixConn, peers Peers) {
	defer conn.Close()
	l, err := newLauncher(conn)
	if err != nil {
		return
	}
	args, err := l.arguments()
	if errors.Is(err, errLauncherGone) {
		return
	}
	var a arguments
	if err == nil {
		a, err = parse(args)
	}
	if err != nil {
		l.fail("", err)
		return
	}
	client, err := peers(a.host)
	if err != nil {
		l.fail(a.host, err)
		return
	}
	s := &session{client: client, id: "rsh-" + rand.Text(), host: a.host, launcher: l, signals: make(chan syscall.Signal, 4)}
	if !a.noInput {
		s.input = newInput(l.ask)
	}
	code, err := s.run(ctx, a)
	switch {
	case errors.Is(err, errLauncherGone):
	case err != nil:
		l.fail(a.host, err)
	default:
		l.end(code)
	}
}

// fail ends the launcher with an error of ours.
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

// run runs the command to its end. The launcher's end is the command's, too.
func (s *session) run(ctx context.Context, a arguments) (int, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		s.launcher.listen(events{signal: s.signal, input: s.takeInput})
		cancel(errLauncherGone)
	}()
	code, err := s.start(ctx, a)
	var ended *v1.Process
	if err == nil && code == 0 {
		go s.forward(ctx)
		err = retry(ctx, func() (err error) {
			ended, err = s.attach(ctx)
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

// signal takes a signal for the command. Signals that come faster than the peer takes them are dropped.
func (s *session) signal(signal syscall.Signal) {
	select {
	case s.signals <- signal:
	default:
	}
}

func (s *session) takeInput(b []byte) {
	if s.input != nil {
		s.input.take(b)
	}
}

// start starts the command. A signal ends it before it has begun, for a peer may long be out of reach: the exit status
// is not 0 then.
func (s *session) start(ctx context.Context, a arguments) (int, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	started, watched, code := make(chan struct{}), make(chan struct{}), 0
	go func() {
		defer close(watched)
		select {
		case signal := <-s.signals:
			code = 128 + int(signal)
			cancel()
		case <-started:
		}
	}()
	err := retry(ctx, func() error {
		_, err := s.client.StartProcess(ctx, connect.NewRequest(&v1.StartProcessRequest{
			Id: s.id, Command: []string{"/bin/sh", "-c", a.command}, Stdin: s.input != nil, HoldSeconds: hold,
		}))
		return err
	})
	close(started)
	<-watched
	if code != 0 {
		return code, nil
	}
	return 0, err
}

// forget has the peer drop the process, and end it where it runs. It repeats that while the peer is out of reach.
func (s *session) forget(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, forgetPatience)
	defer cancel()
	retry(ctx, func() error {
		_, err := s.client.ForgetProcess(ctx, connect.NewRequest(&v1.ForgetProcessRequest{Id: s.id}))
		return err
	})
}

// retry repeats what fails for want of a connection until it succeeds, or patience is over.
func retry(ctx context.Context, do func() error) error {
	begun := time.Now()
	for wait := 50 * time.Millisecond; ; wait = min(2*wait, 2*time.Second) {
		tried := time.Now()
		err := do()
		if err == nil || connect.CodeOf(err) != connect.CodeUnavailable {
			return err
		}
		if time.Since(tried) > patience/4 { // it had been well before
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

// attach passes input and output until the command has ended or the connection breaks.
func (s *session) attach(ctx context.Context) (*v1.Process, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream := s.client.Attach(ctx)
	if err := stream.Send(&v1.AttachRequest{Id: s.id, StdoutOffset: s.outputs[0], StderrOffset: s.outputs[1]}); err != nil {
		return nil, broken(errors.Join(err, receiveError(stream)))
	}
	if s.input == nil {
		stream.CloseRequest() // an open one costs a buffer
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

// broken makes the end of a stream what it is here: a lost connection.
func broken(err error) error {
	switch code := connect.CodeOf(err); {
	case errors.Is(err, io.EOF), code == connect.CodeUnknown, code == connect.CodeInternal,
		code == connect.CodeCanceled, code == connect.CodeDeadlineExceeded:
		return connect.NewError(connect.CodeUnavailable, err)
	}
	return err
}

// receiveError finds out why a stream could not be sent on.
func receiveError(stream *connect.BidiStreamForClient[v1.AttachRequest, v1.AttachResponse]) error {
	_, err := stream.Receive()
	return err
}

// forward passes signals on to the command.
func (s *session) forward(ctx context.Context) {
	for {
		select {
		case signal := <-s.signals:
			ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
			s.client.SignalProcess(ctx, connect.NewRequest(&v1.SignalProcessRequest{Id: s.id, Signal: int32(signal)}))
			cancel()
		case <-ctx.Done():
			return
		}
	}
}
