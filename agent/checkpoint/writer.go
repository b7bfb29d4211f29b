package checkpoint

// writer.go - writes a state in a separate process, at the lowest CPU priority. Compressing a guest's memory takes much CPU
// time, and the guest and its cluster's program must not be slowed down.

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

// Job describes the writing of one state.
type Job struct {
	Path      string
	Recipient string // an age recipient
	Limit     int64  // Limit, Spare and Layout: see Options
	Spare     int64
	Layout    Layout
	Base      *Stored // the file on which this one may build; nil: write the whole state
}

// writerAnswer is a message of the writing process. The first says that it is ready, the second how the writing ended.
type writerAnswer struct {
	File   *File  `json:",omitempty"`
	Error  string `json:",omitempty"`
	NoRoom bool   `json:",omitempty"` // the error is an ErrNoRoom
}

func (a writerAnswer) err() error {
	switch {
	case a.Error == "":
		return nil
	case a.NoRoom:
		return &noRoomError{a.Error}
	}
	return errors.New(a.Error)
}

// noRoomError is an ErrNoRoom that the writing process reported.
type noRoomError struct{ text string }

func (e *noRoomError) Error() string { return e.text }

func (e *noRoomError) Is(target error) bool { return target == ErrNoRoom }

// frameSize is the largest frame. A state reaches the writing process in frames: a length of four bytes, and as many bytes.
// A frame of length 0 ends the state.
const frameSize = 256 << 10

// Serve runs in the writing process: it reads a Job and a state, and writes the state to the job's file. If in ends too
// early, for example because the agent died, Serve removes what it has written.
func Serve(ctx context.Context, in io.Reader, out io.Writer) error {
	from := bufio.NewReaderSize(in, frameSize)
	say := func(a writerAnswer) error { return json.NewEncoder(out).Encode(a) }
	line, err := from.ReadBytes('\n')
	if err != nil {
		return nil // the agent no longer wants the state
	}
	var job Job
	if err := json.Unmarshal(line, &job); err != nil {
		return err
	}
	o := Options{Limit: job.Limit, Spare: job.Spare, Layout: job.Layout}
	if o.Recipient, err = age.ParseX25519Recipient(job.Recipient); err != nil {
		return say(writerAnswer{Error: err.Error()})
	}
	if job.Base != nil {
		o.Base = LoadBase(*job.Base)
	}
	if err := say(writerAnswer{}); err != nil {
		return err
	}
	f, err := Write(ctx, job.Path, &frames{from: from}, o)
	if err != nil {
		return say(writerAnswer{Error: err.Error(), NoRoom: errors.Is(err, ErrNoRoom)})
	}
	return say(writerAnswer{File: &f})
}

// frames reads a state from frames. It returns io.EOF only after the frame of length 0.
type frames struct {
	from *bufio.Reader
	left uint32 // bytes left of the present frame
	over bool   // the frame of length 0 has come
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

// Writer is a process that writes a state. One goroutine may use it.
type Writer struct {
	command *exec.Cmd
	in      io.WriteCloser
	out     *json.Decoder
}

// readyTime is how long the writing process may take to start and to load the index of the base, and how long it may take to
// end.
const readyTime = 20 * time.Second

// StartWriter starts a process that calls Serve, and returns when the process is ready. It then sets the process to the
// lowest CPU priority. The caller must call Close.
func StartWriter(command *exec.Cmd, job Job) (*Writer, error) {
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
	a := &Writer{command: command, in: in, out: json.NewDecoder(out)}
	late := time.AfterFunc(readyTime, func() { _ = command.Process.Kill() })
	defer late.Stop()
	text, err := json.Marshal(job)
	if err == nil {
		_, err = in.Write(append(text, '\n'))
	}
	if err == nil {
		err = a.readAnswer(&writerAnswer{})
	}
	if err != nil {
		a.Close()
		return nil, fmt.Errorf("start the process that writes a checkpoint: %w", err)
	}
	a.setNice(lowest)
	return a, nil
}

func (a *Writer) readAnswer(answer *writerAnswer) error {
	if err := a.out.Decode(answer); err != nil {
		return fmt.Errorf("it ended: %w", err)
	}
	return answer.err()
}

// Write sends a state to the process, and returns the result of the package's Write. When ctx ends, or the state cannot be
// read, the process discards the file.
func (a *Writer) Write(ctx context.Context, state io.Reader) (File, error) {
	stop := context.AfterFunc(ctx, func() { a.in.Close() }) // the process then removes what it has written
	defer stop()
	failed := a.pass(state)
	if failed != nil {
		a.in.Close()
	}
	var answer writerAnswer
	err := a.readAnswer(&answer)
	switch {
	case ctx.Err() != nil:
		return File{}, ctx.Err()
	case err != nil && failed != nil && !errors.Is(failed, unix.EPIPE) && !errors.Is(failed, os.ErrClosed):
		return File{}, failed // the process's error follows from this one
	case err != nil:
		return File{}, err
	case answer.File == nil:
		return File{}, errors.New("the process that writes a checkpoint reported no file")
	}
	return *answer.File, nil
}

// pass sends a state in frames.
func (a *Writer) pass(state io.Reader) error {
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

// lowest is the lowest CPU priority: the process gets hardly more CPU time than others leave idle (nice(1)).
const lowest = 19

// Hurry gives the process normal CPU priority: the writing no longer waits for idle CPU time.
func (a *Writer) Hurry() { a.setNice(0) }

func (a *Writer) setNice(niceness int) {
	for range 2 { // twice: a thread inherits its creator's niceness, and the creator may have been changed only after this thread was made
		threads, _ := os.ReadDir(fmt.Sprintf("/proc/%d/task", a.command.Process.Pid))
		for _, thread := range threads {
			if id, err := strconv.Atoi(thread.Name()); err == nil {
				_ = unix.Setpriority(unix.PRIO_PROCESS, id, niceness) // the thread may have ended
			}
		}
	}
}

// Close ends the process. It kills a process that has not ended after readyTime.
func (a *Writer) Close() {
	a.in.Close()
	late := time.AfterFunc(readyTime, func() { _ = a.command.Process.Kill() })
	defer late.Stop()
	_ = a.command.Wait()
}
