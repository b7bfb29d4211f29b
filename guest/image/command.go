package image

// command.go - runs the programs that a build uses.

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// command is a program to run as a step of a build.
type command struct {
	name  string
	args  []string
	dir   string // "": the current directory
	env   []string
	stdin io.Reader
	// stdout receives the standard output; nil: it is read line by line, together with standard error.
	stdout io.Writer
	line   func(string) // called with each line
	status *os.File     // file descriptor 3
	// contained runs the program in its own mount and PID namespaces, so that no process or mount outlives it, however
	// it or this process ends. It needs root.
	contained bool
}

// commandError is the failure of a program, with the last lines of its output.
type commandError struct {
	name string
	err  error
	tail []string
}

func (e *commandError) Unwrap() error { return e.err }

func (e *commandError) Error() string {
	said := slices.Clone(e.tail)
	if marked := slices.DeleteFunc(slices.Clone(e.tail), func(l string) bool { return !strings.HasPrefix(l, "E: ") }); len(marked) > 0 {
		said = marked
	}
	said = said[max(0, len(said)-6):]
	if len(said) == 0 {
		return fmt.Sprintf("%s: %v", e.name, e.err)
	}
	return fmt.Sprintf("%s: %v: %s", e.name, e.err, strings.Join(said, "; "))
}

// run runs c until it ends. When ctx is cancelled, run asks c to end, kills it after ten seconds, and returns the
// context's cause. A contained program is killed at once: only files need to be cleaned up after it.
func run(ctx context.Context, c command) error {
	line, end := append([]string{c.name}, c.args...), syscall.SIGTERM
	if c.contained {
		line, end = append([]string{"unshare", "--mount", "--pid", "--mount-proc", "--fork", "--kill-child", "--"}, line...), syscall.SIGKILL
	}
	// Files of an image must be readable for all users, whatever our own umask is.
	process := exec.CommandContext(ctx, "/bin/sh", append([]string{"-c", `umask 022; exec "$0" "$@"`}, line...)...)
	if _, err := exec.LookPath(c.name); err != nil {
		return fmt.Errorf("%s is not installed: apt-get install %s", c.name, packageOf(c.name))
	}
	process.Dir, process.Stdin = c.dir, c.stdin
	process.Env = append(environment(), c.env...)
	tail := &tailWriter{line: c.line}
	process.Stdout, process.Stderr = tail, tail
	if c.stdout != nil {
		process.Stdout = c.stdout
	}
	if c.status != nil {
		process.ExtraFiles = []*os.File{c.status}
	}
	process.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: end}
	process.Cancel = func() error { return syscall.Kill(-process.Process.Pid, end) }
	process.WaitDelay = 10 * time.Second
	if err := process.Start(); err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return fmt.Errorf("%s: %w", c.name, err)
	}
	err := process.Wait()
	if err != nil {
		_ = syscall.Kill(-process.Process.Pid, syscall.SIGKILL) // kills remaining children
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err != nil {
		return &commandError{name: c.name, err: err, tail: tail.last()}
	}
	return nil
}

// environment returns our environment without variables that would make builds differ.
func environment() []string {
	kept := slices.DeleteFunc(os.Environ(), func(variable string) bool {
		name, _, _ := strings.Cut(variable, "=")
		return strings.HasPrefix(name, "LC_") || name == "LANG" || name == "SOURCE_DATE_EPOCH" || name == "APT_CONFIG"
	})
	return append(kept, "LC_ALL=C", "LANGUAGE=C")
}

// packageOf returns the Debian package that contains a program.
func packageOf(program string) string {
	switch program {
	case "mksquashfs":
		return "squashfs-tools"
	case "dpkg-deb":
		return "dpkg"
	case "apt-get", "apt-cache":
		return "apt"
	case "xz":
		return "xz-utils"
	}
	return program
}

// output runs c and returns its standard output.
func output(ctx context.Context, c command) (string, error) {
	var out bytes.Buffer
	c.stdout = &out
	err := run(ctx, c)
	return out.String(), err
}

// tailWriter splits its input into lines and keeps the last lines.
type tailWriter struct {
	mutex   sync.Mutex
	line    func(string)
	partial []byte
	kept    []string
}

const keptLines = 40

func (t *tailWriter) Write(p []byte) (int, error) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	t.partial = append(t.partial, p...)
	for {
		end := bytes.IndexAny(t.partial, "\n\r")
		if end < 0 {
			return len(p), nil
		}
		t.take(string(t.partial[:end]))
		t.partial = t.partial[end+1:]
	}
}

func (t *tailWriter) take(line string) {
	if line = strings.TrimSpace(line); line == "" {
		return
	}
	if t.kept = append(t.kept, line); len(t.kept) > keptLines {
		t.kept = t.kept[1:]
	}
	if t.line != nil {
		t.line(line)
	}
}

func (t *tailWriter) last() []string {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	if len(t.partial) > 0 {
		t.take(string(t.partial))
		t.partial = nil
	}
	return slices.Clone(t.kept)
}

// statusPipe returns a file to write to. It passes each line to take, until done is called.
func statusPipe(take func(string)) (write *os.File, done func(), err error) {
	read, write, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	finished := make(chan struct{})
	go func() {
		defer close(finished)
		for scanner := bufio.NewScanner(read); scanner.Scan(); {
			take(scanner.Text())
		}
	}()
	return write, func() { write.Close(); <-finished; read.Close() }, nil
}
