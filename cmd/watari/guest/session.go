package guest

import (
	"context"
	"errors"
	"io"
	"os"
	"os/signal"
	"syscall"

	"connectrpc.com/connect"
	"golang.org/x/term"

	v1 "watari/api/watariv1"
	"watari/cmd/internal/cli"
	"watari/cmd/internal/client"
)

const (
	inputChunk = 32 << 10
	// inputAhead is how many bytes of input may be unacknowledged before reading stops. The manager takes no more messages, such as signals,
	// while it holds 1 MiB.
	inputAhead = 1<<20 - 2*inputChunk
)

// session is a command in a guest with its streams. It may use several connections in turn.
type session struct {
	env   *cli.Env
	guest string
	start *v1.StartProcessRequest
	leave func()
	ended *v1.Process

	stdout, stderr uint64 // bytes written to the local streams
	signals        int
	unsent         int32 // signal for the command that no connection has delivered yet; 0: none

	input   <-chan []byte // nil: no input, or no more
	closed  bool          // input has ended
	given   uint64        // bytes of input that the process has received
	pending []byte        // input after given
	sizes   chan [2]uint32
	known   bool // the command was started
}

// readInput reads until the end or an error, and then closes the channel.
func readInput(ctx context.Context, r io.Reader) <-chan []byte {
	chunks := make(chan []byte)
	go func() {
		defer close(chunks)
		for {
			chunk := make([]byte, inputChunk)
			n, err := r.Read(chunk)
			if n > 0 {
				select {
				case chunks <- chunk[:n]:
				case <-ctx.Done():
					return
				}
			}
			if err != nil {
				return
			}
		}
	}()
	return chunks
}

// watchSize reports changes of the terminal's size until stop is called.
func (s *session) watchSize(fd int) (stop func()) {
	s.sizes = make(chan [2]uint32, 1)
	changed := make(chan os.Signal, 1)
	signal.Notify(changed, syscall.SIGWINCH)
	done := make(chan struct{})
	go func() {
		for {
			select {
			case <-changed:
				if columns, rows, err := term.GetSize(fd); err == nil {
					select {
					case s.sizes <- [2]uint32{uint32(rows), uint32(columns)}:
					case <-done:
					}
				}
			case <-done:
				return
			}
		}
	}()
	return func() {
		signal.Stop(changed)
		close(done)
	}
}

type received struct {
	message *v1.GuestExecResponse
	err     error
}

type execStream = connect.BidiStreamForClient[v1.GuestExecRequest, v1.GuestExecResponse]

// attempt starts the command, or attaches to it if an earlier attempt has started it. It copies the streams until the
// command ends or the connection breaks.
func (s *session) attempt(ctx context.Context, c *client.Client, alive func()) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream := c.GuestExec(ctx)
	defer stream.CloseResponse()
	defer stream.CloseRequest()
	err := stream.Send(&v1.GuestExecRequest{Guest: s.guest, Start: s.start, Resume: s.known,
		Input: &v1.AttachRequest{Id: s.start.Id, StdoutOffset: s.stdout, StderrOffset: s.stderr}})
	if err == nil && (len(s.pending) > 0 || s.closed) {
		err = s.sendInput(stream, s.pending, s.given) // the process skips the bytes that it has received
	}
	if err == nil {
		err = s.sendSignal(stream)
	}
	if err != nil && !errors.Is(err, io.EOF) { // for EOF, Receive returns the reason
		return err
	}
	answers := make(chan received)
	go receive(ctx, stream, answers)
	for {
		input := s.input
		if len(s.pending) > inputAhead {
			input = nil
		}
		var err error
		select {
		case <-ctx.Done():
			return ctx.Err()
		case answer := <-answers:
			if errors.Is(answer.err, io.EOF) {
				return connect.NewError(connect.CodeUnavailable, errors.New("the stream ended before the command"))
			}
			if answer.err != nil {
				return answer.err
			}
			alive()
			s.known = true
			if err := s.take(answer.message.GetOutput()); err != nil || s.ended != nil {
				return err
			}
		case chunk, more := <-input:
			if !more {
				s.input, s.closed = nil, true
			}
			at := s.given + uint64(len(s.pending))
			s.pending = append(s.pending, chunk...)
			err = s.sendInput(stream, chunk, at)
		case size := <-s.sizes:
			err = stream.Send(&v1.GuestExecRequest{Input: &v1.AttachRequest{Rows: size[0], Columns: size[1]}})
		case sign := <-s.env.Signals:
			err = s.interrupt(stream, sign)
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
	}
}

func receive(ctx context.Context, stream *execStream, answers chan<- received) {
	for {
		message, err := stream.Receive()
		select {
		case answers <- received{message, err}:
		case <-ctx.Done():
			return
		}
		if err != nil {
			return
		}
	}
}

// sendInput sends input that begins at offset, in messages of moderate size.
func (s *session) sendInput(stream *execStream, data []byte, offset uint64) error {
	for {
		part := data[:min(len(data), inputChunk)]
		data = data[len(part):]
		last := len(data) == 0
		err := stream.Send(&v1.GuestExecRequest{Input: &v1.AttachRequest{
			Stdin: part, StdinOffset: offset, StdinClosed: last && s.closed}})
		if err != nil || last {
			return err
		}
		offset += uint64(len(part))
	}
}

// interrupt passes a signal to the command. A second signal detaches from the command.
func (s *session) interrupt(stream *execStream, sign os.Signal) error {
	if s.signals++; s.signals > 1 {
		s.leave()
		return nil
	}
	s.unsent = int32(syscall.SIGINT)
	if other, ok := sign.(syscall.Signal); ok {
		s.unsent = int32(other)
	}
	return s.sendSignal(stream)
}

func (s *session) sendSignal(stream *execStream) error {
	if s.unsent == 0 {
		return nil
	}
	err := stream.Send(&v1.GuestExecRequest{Signal: s.unsent})
	if err == nil {
		s.unsent = 0
	}
	return err
}

// take writes the part of the output that is new and records how much input the process has received.
func (s *session) take(part *v1.AttachResponse) error {
	err := errors.Join(writeNew(s.env.Out, part.GetStdout(), part.GetStdoutOffset(), &s.stdout),
		writeNew(s.env.Err, part.GetStderr(), part.GetStderrOffset(), &s.stderr))
	if had := part.GetStdinOffset(); had > s.given {
		s.pending = s.pending[min(had-s.given, uint64(len(s.pending))):]
		s.given = had
	}
	s.ended = part.GetEnded()
	return err
}

// writeNew writes the part of data after *written bytes of the stream. data begins at offset.
func writeNew(w io.Writer, data []byte, offset uint64, written *uint64) error {
	if end := offset + uint64(len(data)); end <= *written {
		return nil
	}
	if offset < *written {
		data = data[*written-offset:]
	} else {
		*written = offset // the guest has dropped the bytes between
	}
	n, err := w.Write(data)
	*written += uint64(n)
	return err
}
