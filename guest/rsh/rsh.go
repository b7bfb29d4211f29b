package rsh

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	v1 "watari/api/watariv1"
	"watari/api/watariv1/watariv1connect"
	"watari/guest/agent"
)

const (
	// patience is how long a peer may be out of reach before that is an error: it may just be moving.
	patience = 2 * time.Minute
	// hold is how long the peer keeps the process when it hears nothing of us, in seconds.
	hold = 120
	// failed is the exit status of ssh when it, and not the command, fails.
	failed = 255
)

// session is one command in a peer.
type session struct {
	client         watariv1connect.ProcessServiceClient
	id, host       string
	stdout, stderr io.Writer

	outputs [2]uint64 // offsets of what was printed of stdout and stderr

	mu     sync.Mutex
	sent   uint64 // offset of input that the peer has had
	input  []byte // input from sent on
	closed bool   // there is no more input
	more   chan struct{}
}

// Main runs `watari-guest rsh` and returns its exit status.
func Main(args []string) int { return Run(args, agent.SocketPath, os.Stdin, os.Stdout, os.Stderr) }

// Run is Main with everything it touches: the agent's socket and the standard streams.
func Run(args []string, socket string, stdin io.Reader, stdout, stderr io.Writer) int {
	a, err := parse(args)
	if err != nil {
		fmt.Fprintln(stderr, "watari-guest rsh:", err)
		return failed
	}
	code, err := run(a, socket, stdin, stdout, stderr)
	if err != nil {
		fmt.Fprintf(stderr, "watari-guest rsh: %s: %v\n", a.host, err)
		return failed
	}
	return code
}

func run(a arguments, socket string, stdin io.Reader, stdout, stderr io.Writer) (int, error) {
	s := &session{id: "rsh-" + rand.Text(), host: a.host, stdout: stdout, stderr: stderr, more: make(chan struct{}, 1)}
	door := agent.Door(socket)
	defer door.Close()
	s.client = watariv1connect.NewProcessServiceClient(door, "http://guest/peer/"+a.host)
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, unix.SIGTERM, unix.SIGINT, unix.SIGHUP, unix.SIGQUIT, unix.SIGUSR1, unix.SIGUSR2)
	ctx := context.Background()
	if code, err := s.start(ctx, a, signals); err != nil || code != 0 {
		return code, err
	}
	go s.forward(ctx, signals)
	if !a.noInput {
		go s.readInput(stdin)
	}
	var ended *v1.Process
	err := retry(ctx, func() (err error) {
		ended, err = s.attach(ctx, !a.noInput)
		return err
	})
	if err != nil {
		return 0, err
	}
	s.forget(ctx)
	if m := ended.GetMessage(); m != "" {
		fmt.Fprintf(stderr, "watari-guest rsh: %s: %s\n", a.host, m)
	}
	return int(ended.GetExitCode()), nil
}

// start starts the command. A signal ends it before it has begun, for a peer may long be out of reach: the exit status
// is not 0 then.
func (s *session) start(ctx context.Context, a arguments, signals <-chan os.Signal) (int, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	started, watched, code := make(chan struct{}), make(chan struct{}), 0
	go func() {
		defer close(watched)
		select {
		case sig := <-signals:
			number, _ := sig.(syscall.Signal)
			code = 128 + int(number)
			cancel()
		case <-started:
		}
	}()
	err := retry(ctx, func() error {
		_, err := s.client.StartProcess(ctx, connect.NewRequest(&v1.StartProcessRequest{
			Id: s.id, Command: []string{"/bin/sh", "-c", a.command}, Stdin: !a.noInput, HoldSeconds: hold,
		}))
		return err
	})
	close(started)
	<-watched
	if code != 0 {
		s.forget(context.WithoutCancel(ctx))
		return code, nil
	}
	return 0, err
}

// forget has the peer drop the process, and end it where it runs.
func (s *session) forget(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	s.client.ForgetProcess(ctx, connect.NewRequest(&v1.ForgetProcessRequest{Id: s.id}))
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
func (s *session) attach(ctx context.Context, input bool) (*v1.Process, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream := s.client.Attach(ctx)
	stream.RequestHeader().Set(agent.ProcessHeader, s.id)
	if err := stream.Send(&v1.AttachRequest{Id: s.id, StdoutOffset: s.outputs[0], StderrOffset: s.outputs[1]}); err != nil {
		return nil, broken(errors.Join(err, receiveError(stream)))
	}
	if input {
		go s.sendInput(ctx, stream)
	}
	for {
		m, err := stream.Receive()
		if err != nil {
			return nil, broken(err)
		}
		for i, out := range []struct {
			to   io.Writer
			b    []byte
			from uint64
		}{{s.stdout, m.GetStdout(), m.GetStdoutOffset()}, {s.stderr, m.GetStderr(), m.GetStderrOffset()}} {
			if len(out.b) == 0 {
				continue
			}
			s.outputs[i] = out.from + uint64(len(out.b))
			if _, err := out.to.Write(out.b); errors.Is(err, syscall.EPIPE) {
				return nil, fmt.Errorf("write output: %w", err) // whoever read it is gone
			}
		}
		s.given(m.GetStdinOffset())
		if m.GetEnded() != nil {
			return m.GetEnded(), nil
		}
	}
}

// broken makes the end of a stream what it is here: a lost connection.
func broken(err error) error {
	if code := connect.CodeOf(err); errors.Is(err, io.EOF) || code == connect.CodeUnknown || code == connect.CodeInternal || code == connect.CodeCanceled {
		return connect.NewError(connect.CodeUnavailable, err)
	}
	return err
}

// receiveError finds out why a stream could not be sent on.
func receiveError(stream *connect.BidiStreamForClient[v1.AttachRequest, v1.AttachResponse]) error {
	_, err := stream.Receive()
	return err
}

// readInput takes standard input in, as fast as the peer takes it.
func (s *session) readInput(stdin io.Reader) {
	buf := make([]byte, 32<<10)
	for {
		n, err := stdin.Read(buf)
		s.mu.Lock()
		s.input = append(s.input, buf[:n]...)
		s.closed = err != nil
		s.mu.Unlock()
		s.wake()
		if err != nil {
			return
		}
		for s.waiting() > 1<<20 {
			time.Sleep(10 * time.Millisecond)
		}
	}
}

func (s *session) wake() {
	select {
	case s.more <- struct{}{}:
	default:
	}
}

// waiting is how many bytes of input the peer has not had yet.
func (s *session) waiting() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.input)
}

// given drops input that the peer has had.
func (s *session) given(offset uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if offset > s.sent {
		s.input = s.input[min(offset-s.sent, uint64(len(s.input))):]
		s.sent = offset
	}
}

// sendInput sends input that the peer has not had, and what comes.
func (s *session) sendInput(ctx context.Context, stream *connect.BidiStreamForClient[v1.AttachRequest, v1.AttachResponse]) {
	s.mu.Lock()
	next := s.sent
	s.mu.Unlock()
	for {
		s.mu.Lock()
		m := &v1.AttachRequest{StdinOffset: next}
		if skip := next - s.sent; next >= s.sent && skip < uint64(len(s.input)) {
			m.Stdin = append([]byte(nil), s.input[skip:min(skip+32<<10, uint64(len(s.input)))]...)
		}
		next += uint64(len(m.GetStdin()))
		m.StdinClosed = s.closed && next >= s.sent+uint64(len(s.input))
		s.mu.Unlock()
		if len(m.GetStdin()) > 0 || m.GetStdinClosed() {
			if stream.Send(m) != nil || m.GetStdinClosed() {
				return
			}
			continue
		}
		select {
		case <-s.more:
		case <-ctx.Done():
			return
		}
	}
}

// forward passes signals on to the command.
func (s *session) forward(ctx context.Context, signals <-chan os.Signal) {
	for sig := range signals {
		number, ok := sig.(syscall.Signal)
		if !ok {
			continue
		}
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		s.client.SignalProcess(ctx, connect.NewRequest(&v1.SignalProcessRequest{Id: s.id, Signal: int32(number)}))
		cancel()
	}
}
