package checkpoint

// apart.go - writes a state in another process, which takes only the processors' time that nobody else wants. Compressing a
// guest's memory takes much of it, while the guest and its cluster's program are to go on.

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"time"

	"filippo.io/age"
	"golang.org/x/sys/unix"
)

// Job is the writing of one state.
type Job struct {
	Path      string
	Recipient string // age's
	Limit     int64  // see Options
	Spare     int64
	Layout    Layout
	Base      *Stored // a file on which this one may build; nil: it has all of the state
}

// apartAnswer is what the other process says: that it is ready, and then how the writing has ended.
type apartAnswer struct {
	File   *File  `json:",omitempty"`
	Error  string `json:",omitempty"`
	NoRoom bool   `json:",omitempty"` // the error is an ErrNoRoom
}

func (a apartAnswer) err() error {
	switch {
	case a.Error == "":
		return nil
	case a.NoRoom:
		return &noRoomError{a.Error}
	}
	return errors.New(a.Error)
}

// noRoomError is an ErrNoRoom of the other process.
type noRoomError struct{ text string }

func (e *noRoomError) Error() string { return e.text }

func (e *noRoomError) Is(target error) bool { return target == ErrNoRoom }

// The state goes to the other process in frames: a length of four bytes, and as many bytes. The length 0 says that it was all.
const frameSize = 256 << 10

// Serve is the other process's work: it reads a Job and a state, and writes the state. It discards what it has written if in ends
// too early, as it does when the process dies that wants it.
func Serve(ctx context.Context, in io.Reader, out io.Writer) error {
	from := bufio.NewReaderSize(in, frameSize)
	say := func(a apartAnswer) error { return json.NewEncoder(out).Encode(a) }
	line, err := from.ReadBytes('\n')
	if err != nil {
		return nil // it is not wanted any more
	}
	var job Job
	if err := json.Unmarshal(line, &job); err != nil {
		return err
	}
	o := Options{Limit: job.Limit, Spare: job.Spare, Layout: job.Layout}
	if o.Recipient, err = age.ParseX25519Recipient(job.Recipient); err != nil {
		return say(apartAnswer{Error: err.Error()})
	}
	if job.Base != nil {
		o.Base = LoadBase(*job.Base)
	}
	if err := say(apartAnswer{}); err != nil {
		return err
	}
	f, err := Write(ctx, job.Path, &frames{from: from}, o)
	if err != nil {
		return say(apartAnswer{Error: err.Error(), NoRoom: errors.Is(err, ErrNoRoom)})
	}
	return say(apartAnswer{File: &f})
}

// frames reads a state from frames. It returns io.EOF only after the last.
type frames struct {
	from *bufio.Reader
	left uint32 // of the present frame
	over bool   // the last frame has come
}

// Read implements io.Reader.
func (f *frames) Read(p []byte) (int, error) {
	if f.over {
		return 0, io.EOF
	}
	if f.left == 0 {
		var head [4]byte
		if _, err := io.ReadFull(f.from, head[:]); err != nil {
			return 0, early(err)
		}
		if f.left = binary.BigEndian.Uint32(head[:]); f.left == 0 {
			f.over = true
			return 0, io.EOF
		}
	}
	n, err := f.from.Read(p[:min(len(p), int(f.left))])
	f.left -= uint32(n)
	return n, early(err)
}

func early(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// Apart is a process that writes a state. One goroutine may use it.
type Apart struct {
	command *exec.Cmd
	in      io.WriteCloser
	out     *json.Decoder
}

// readyTime is how long such a process may take to start, and to read what an earlier file has.
const readyTime = 20 * time.Second

// StartApart starts a process that calls Serve, and returns when it is ready. From then on it stands back behind others. The caller closes it.
func StartApart(command *exec.Cmd, job Job) (*Apart, error) {
	in, err := command.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := command.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := command.Start(); err != nil {
		return nil, fmt.Errorf("start the process that writes a checkpoint: %w", err)
	}
	a := &Apart{command: command, in: in, out: json.NewDecoder(out)}
	late := time.AfterFunc(readyTime, func() { _ = command.Process.Kill() })
	defer late.Stop()
	text, err := json.Marshal(job)
	if err == nil {
		_, err = in.Write(append(text, '\n'))
	}
	if err == nil {
		err = a.hear(&apartAnswer{})
	}
	if err != nil {
		a.Close()
		return nil, fmt.Errorf("start the process that writes a checkpoint: %w", err)
	}
	a.setNice(lowest)
	return a, nil
}

func (a *Apart) hear(answer *apartAnswer) error {
	if err := a.out.Decode(answer); err != nil {
		return fmt.Errorf("it ended: %w", err)
	}
	return answer.err()
}

// Write passes all of a state, and returns what Write of this package does. When ctx ends, or the state cannot be read, the file is
// discarded.
func (a *Apart) Write(ctx context.Context, state io.Reader) (File, error) {
	stop := context.AfterFunc(ctx, func() { a.in.Close() }) // it notices, and removes what it has written
	defer stop()
	failed := a.pass(state)
	if failed != nil {
		a.in.Close()
	}
	var answer apartAnswer
	err := a.hear(&answer)
	switch {
	case ctx.Err() != nil:
		return File{}, ctx.Err()
	case err != nil && failed != nil && !errors.Is(failed, unix.EPIPE) && !errors.Is(failed, os.ErrClosed):
		return File{}, failed // what the other says follows from it
	case err != nil:
		return File{}, err
	case answer.File == nil:
		return File{}, errors.New("the process that writes a checkpoint says nothing of the file")
	}
	return *answer.File, nil
}

// pass passes a state.
func (a *Apart) pass(state io.Reader) error {
	frame := make([]byte, 4+frameSize)
	for {
		n, err := state.Read(frame[4:])
		if n > 0 {
			binary.BigEndian.PutUint32(frame, uint32(n))
			if _, err := a.in.Write(frame[:4+n]); err != nil {
				return err
			}
		}
		if err == io.EOF {
			_, err = a.in.Write(make([]byte, 4))
			return err
		}
		if err != nil {
			return err
		}
	}
}

// lowest is the niceness at which a process gets hardly more than what others leave of the processors (nice(1)).
const lowest = 19

// Hurry gives the process as much of the processors as others have: what it is to write does not wait any longer.
func (a *Apart) Hurry() { a.setNice(0) }

func (a *Apart) setNice(niceness int) {
	for range 2 { // new threads are as nice as the thread that makes them, which may have been another's turn
		threads, _ := os.ReadDir(fmt.Sprintf("/proc/%d/task", a.command.Process.Pid))
		for _, thread := range threads {
			if id, err := strconv.Atoi(thread.Name()); err == nil {
				_ = unix.Setpriority(unix.PRIO_PROCESS, id, niceness) // the thread may have ended
			}
		}
	}
}

// Close ends the process.
func (a *Apart) Close() {
	a.in.Close()
	late := time.AfterFunc(readyTime, func() { _ = a.command.Process.Kill() })
	defer late.Stop()
	_ = a.command.Wait()
}
