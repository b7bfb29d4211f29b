package hold

// process.go - the agent's end: starts the holder, and exchanges lines with it.

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"
)

// ErrLate: the holder resumed guests before snapshots of all of them had begun.
var ErrLate = errors.New("guests were stopped for too long and have been resumed")

// Process is a holder. One goroutine may use it.
type Process struct {
	command *exec.Cmd
	lock    sync.Mutex // held to write to in
	in      io.WriteCloser
	lines   chan string // closed when the holder has ended
}

// Start starts a holder, and returns when it is ready to stop guests at once. The command's program must call Serve. The
// holder outlives its parent; the caller must call Done.
func Start(command *exec.Cmd, limit time.Duration) (*Process, error) {
	in, err := command.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := command.StdoutPipe()
	if err != nil {
		return nil, err
	}
	command.Dir, command.SysProcAttr = "/", &syscall.SysProcAttr{Setsid: true}
	if err := command.Start(); err != nil {
		return nil, fmt.Errorf("start the process that stops guests: %w", err)
	}
	p := &Process{command: command, in: in, lines: make(chan string, 8)}
	go func() {
		defer close(p.lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			p.lines <- s.Text()
		}
		_ = command.Wait()
	}()
	if err := p.expect("ready", limit); err != nil {
		return nil, errors.Join(fmt.Errorf("start the process that stops guests: %w", err), p.Done())
	}
	return p, nil
}

// Stop stops the guests, and returns when all are stopped. If it fails, the holder resumes those that it has stopped.
func (p *Process) Stop(limit time.Duration) error {
	if err := p.say("stop"); err != nil {
		return fmt.Errorf("stop guests: %w", err)
	}
	if err := p.expect("stopped", limit); err != nil {
		return fmt.Errorf("stop guests: %w", err)
	}
	return nil
}

// Kept returns nil if all guests were stopped from Stop until their snapshots had begun. The caller calls it when they have
// begun. After any other result the snapshots are void; after ErrLate the guests run. From Kept on, the holder discards the
// snapshots if this process hangs.
func (p *Process) Kept(limit time.Duration) error {
	if err := p.say("kept?"); err != nil {
		return err
	}
	if err := p.expect("kept", limit); err != nil {
		return err
	}
	go func() {
		for p.say("alive") == nil {
			time.Sleep(aliveTime)
		}
	}()
	return nil
}

// Whole returns nil if this process alone has read the snapshots to their end. After any other result the snapshots are
// void.
func (p *Process) Whole(limit time.Duration) error {
	if err := p.say("whole?"); err != nil {
		return err
	}
	return p.expect("whole", limit)
}

// Done ends the holder. Before Whole, it resumes the guests and discards their snapshots.
func (p *Process) Done() error {
	p.lock.Lock()
	defer p.lock.Unlock()
	return p.in.Close()
}

func (p *Process) say(line string) error {
	p.lock.Lock()
	defer p.lock.Unlock()
	_, err := fmt.Fprintln(p.in, line)
	return err
}

func (p *Process) expect(want string, limit time.Duration) error {
	late := time.NewTimer(limit)
	defer late.Stop()
	select {
	case line, alive := <-p.lines:
		reason, failed := strings.CutPrefix(line, "failed ")
		switch {
		case !alive:
			return errors.New("the process that stops guests has ended")
		case failed:
			return errors.New(reason)
		case line == want:
			return nil
		case line == "late":
			return ErrLate
		}
		return fmt.Errorf("the process that stops guests says %q instead of %q", line, want)
	case <-late.C:
		return fmt.Errorf("the process that stops guests has not said %q within %v", want, limit)
	}
}
