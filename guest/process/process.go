package process

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "watari/api/watariv1"
)

const (
	// drainGrace is how long the output is awaited after a process has ended: a surviving child may keep the streams
	// open forever.
	drainGrace = 300 * time.Millisecond
	// forgetGrace is the time between SIGTERM and SIGKILL for the group of a process that is to end.
	forgetGrace = 2 * time.Second
)

// Process is one process of a table.
type Process struct {
	request        *v1.StartProcessRequest
	directory      string // directory of its output
	stdout, stderr *output
	started        time.Time
	launched       chan struct{} // closed when the start has succeeded or failed; input, terminal and pid are set then
	done           chan struct{} // closed when it has ended and the result below is set

	input       *os.File      // nil: the process takes no input
	inputLock   chan struct{} // lock of the writer of input; protects inputOffset and inputOver
	inputOffset uint64
	inputOver   bool
	terminal    *os.File // nil: no terminal
	readers     sync.WaitGroup
	forgotten   atomic.Bool // Forget has been called
	unwanted    func()      // called at the end; nil: nothing to call
	forgetting  *time.Timer // of Table.forgetUnwanted; protected by mu

	mu       sync.Mutex
	pid      int       // 0: not running
	leader   int       // of the process's session, also after its end; 0: not known, or it has a terminal
	born     uint64    // when the leader began; see killSession
	asked    time.Time // when it last got SIGINT, which it may take as it likes; zero: never
	toEnd    bool      // it has got SIGTERM or SIGKILL
	exitCode int32
	message  string
	ended    time.Time
	attached int
	hold     *time.Timer
}

// launch starts the command. If that fails, the process counts as ended, with a message.
func (p *Process) launch() {
	defer close(p.launched)
	command, child, err := p.command()
	if err == nil {
		p.save() // the next agent must know of the program even if this one is killed right after the start
		err = command.Start()
		for _, file := range child {
			file.Close()
		}
	}
	if err != nil {
		p.closeInput()
		if p.terminal != nil {
			p.terminal.Close()
		}
		p.finish(startFailure(err))
		return
	}
	pid := command.Process.Pid
	p.mu.Lock()
	p.pid = pid
	if _, born, err := sessionOf(pid); err == nil && !p.request.GetTty() {
		p.leader, p.born = pid, born
	}
	p.mu.Unlock()
	// The kernel may kill programs when memory is short, but not the agent.
	os.WriteFile(filepath.Join("/proc", strconv.Itoa(pid), "oom_score_adj"), []byte("0"), 0)
	p.save()
	p.startHold()
	go p.wait(command)
}

// startFailure returns the exit code and message of a command that could not be executed, as a shell does.
func startFailure(err error) (int32, string) {
	code := int32(126)
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, os.ErrNotExist) {
		code = 127
	}
	return code, err.Error()
}

// copyOutput copies a stream to its output until no process holds the stream open.
func (p *Process) copyOutput(from *os.File, to *output) {
	p.readers.Go(func() {
		io.Copy(to, from) // a terminal ends with EIO
		if from != p.terminal {
			from.Close()
		}
		to.end()
	})
}

// wait waits until the process has ended.
func (p *Process) wait(command *exec.Cmd) {
	command.Wait()
	drained := make(chan struct{})
	go func() {
		p.readers.Wait()
		close(drained)
	}()
	select {
	case <-drained:
	case <-time.After(drainGrace):
	}
	p.closeInput()
	if p.terminal != nil {
		p.terminal.Close()
	}
	p.finish(exitCode(command.ProcessState), "")
}

// exitCode returns a process's exit code; it is 128+n if signal n ended the process.
func exitCode(state *os.ProcessState) int32 {
	if status, ok := state.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return 128 + int32(status.Signal())
	}
	return int32(state.ExitCode())
}

// finish records the end before anybody sees it, so that a killed agent cannot report another one later.
func (p *Process) finish(code int32, message string) {
	ended := time.Now()
	p.record(record{Ended: ended, ExitCode: code, Message: message})
	p.mu.Lock()
	p.pid, p.exitCode, p.message, p.ended = 0, code, message, ended
	if p.hold != nil {
		p.hold.Stop()
	}
	p.mu.Unlock()
	p.stdout.end()
	p.stderr.end()
	p.endRest()
	if close(p.done); p.unwanted != nil {
		p.unwanted()
	}
}

// restGrace is how long what is left of a process that was to be ended has to end by itself: it may save something. A process that ends
// later than twice that after SIGINT has gone on, and ends by itself.
const restGrace = 5 * time.Second

// endRest kills what is left of the process's session after restGrace, if the process has ended because it was to be ended: a program may
// have given its children groups of their own, which signals to its group do not reach.
func (p *Process) endRest() {
	p.mu.Lock()
	leader, born, ends := p.leader, p.born, p.toEnd || !p.asked.IsZero() && time.Since(p.asked) < 2*restGrace
	p.mu.Unlock()
	if leader != 0 && ends {
		time.AfterFunc(restGrace, func() { killSession(leader, born) })
	}
}

// Describe returns the current state of the process.
func (p *Process) Describe() *v1.Process {
	d := &v1.Process{
		Id: p.request.GetId(), Command: p.request.GetCommand(), Started: timestamppb.New(p.started),
		StdoutBytes: p.stdout.bytes(), StderrBytes: p.stderr.bytes(),
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	d.Running, d.ExitCode, d.Message = p.ended.IsZero(), p.exitCode, p.message
	if !p.ended.IsZero() {
		d.Ended = timestamppb.New(p.ended)
	}
	return d
}

// Signal sends a signal to the process's group. Without a terminal, SIGKILL goes to the whole session: a launcher's children have groups
// of their own, and a launcher that is killed cannot end them. It is not an error if the process has ended.
func (p *Process) Signal(signal int32) error {
	if signal < 1 || signal > 64 {
		return fmt.Errorf("%w: signal %d", ErrInvalid, signal)
	}
	<-p.launched
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pid == 0 {
		return nil
	}
	switch unix.Signal(signal) {
	case unix.SIGINT:
		p.asked = time.Now()
	case unix.SIGTERM, unix.SIGKILL:
		p.toEnd = true
	}
	if signal == int32(unix.SIGKILL) && p.leader != 0 {
		go killSession(p.leader, p.born)
	}
	if err := unix.Kill(-p.pid, unix.Signal(signal)); err != nil && err != unix.ESRCH {
		return fmt.Errorf("signal %d to process %s: %w", signal, p.request.GetId(), err)
	}
	return nil
}

// kill ends the process with SIGTERM and, if that takes longer than grace, with SIGKILL. It waits for the end.
func (p *Process) kill(grace time.Duration) {
	p.Signal(int32(unix.SIGTERM))
	select {
	case <-p.done:
		return
	case <-time.After(grace):
	}
	p.Signal(int32(unix.SIGKILL))
	<-p.done
}

// Done returns a channel that is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Attach counts a caller as attached until the caller calls detach.
func (p *Process) Attach() (detach func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.attached++
	if p.hold != nil {
		p.hold.Stop()
	}
	return sync.OnceFunc(func() {
		p.mu.Lock()
		p.attached--
		p.mu.Unlock()
		p.startHold()
	})
}

// startHold ends the process after its hold time, unless a caller attaches before.
func (p *Process) startHold() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.request.GetHoldSeconds() == 0 || p.attached > 0 || p.pid == 0 {
		return
	}
	if p.hold != nil {
		p.hold.Stop()
	}
	p.hold = time.AfterFunc(time.Duration(p.request.GetHoldSeconds())*time.Second, func() { p.kill(forgetGrace) })
}

// ReadStdout waits for bytes of standard output from an offset on; see output.read.
func (p *Process) ReadStdout(ctx context.Context, offset uint64, b []byte) (n int, from, next uint64, err error) {
	return p.stdout.read(ctx, offset, b)
}

// ReadStderr is ReadStdout for standard error.
func (p *Process) ReadStderr(ctx context.Context, offset uint64, b []byte) (n int, from, next uint64, err error) {
	return p.stderr.read(ctx, offset, b)
}

// Input writes bytes to the process's input. offset is the position of b in the stream; bytes that were written before
// are skipped. Input waits while the process does not read. It returns the offset after the last byte. If the process
// takes no input (any more), the bytes are dropped.
func (p *Process) Input(ctx context.Context, offset uint64, b []byte) (uint64, error) {
	select {
	case <-p.launched:
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	select {
	case p.inputLock <- struct{}{}:
		defer func() { <-p.inputLock }()
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	if offset > p.inputOffset {
		return p.inputOffset, fmt.Errorf("%w: input at %d, process %s had %d bytes", ErrInvalid, offset, p.request.GetId(), p.inputOffset)
	}
	if skip := p.inputOffset - offset; skip < uint64(len(b)) {
		b = b[skip:]
	} else {
		return p.inputOffset, nil
	}
	p.inputOffset += uint64(len(b))
	if p.input != nil && !p.inputOver {
		if _, err := p.input.Write(b); err != nil {
			p.inputOver = true
		}
	}
	return p.inputOffset, nil
}

// CloseInput ends the process's input. On a terminal it writes an end-of-file character.
func (p *Process) CloseInput() {
	<-p.launched
	p.inputLock <- struct{}{}
	defer func() { <-p.inputLock }()
	switch {
	case p.input == nil || p.inputOver:
	case p.input == p.terminal:
		p.input.Write([]byte{4})
	default:
		p.input.Close()
		p.inputOver = true
	}
}

// closeInput unblocks a writer of input after the process has ended.
func (p *Process) closeInput() {
	if p.input != nil && p.input != p.terminal {
		p.input.Close()
	}
}

// Resize changes the size of the terminal, if there is one.
func (p *Process) Resize(rows, columns uint32) {
	<-p.launched
	p.resize(rows, columns)
}

func (p *Process) resize(rows, columns uint32) {
	if p.terminal != nil && rows > 0 && columns > 0 {
		raw, err := p.terminal.SyscallConn() // Fd would make the file blocking
		if err != nil {
			return
		}
		raw.Control(func(fd uintptr) {
			unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Row: uint16(min(rows, 65535)), Col: uint16(min(columns, 65535))})
		})
	}
}
