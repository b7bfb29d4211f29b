// Package process keeps a guest's table of processes. Each process is started once under an identifier. Its output is
// kept in files in memory and can be read from any offset. Signals go to its process group, SIGKILL also to its session
// (see Signal).
package process

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	v1 "watari/api/watariv1"
)

// Errors that callers convert to codes.
var (
	ErrNotFound = errors.New("no such process")
	ErrInvalid  = errors.New("invalid request")
	ErrExists   = errors.New("another process has this identifier")
)

var validID = regexp.MustCompile(`^[a-zA-Z0-9_-][a-zA-Z0-9._-]{0,63}$`)

// Table is a set of processes.
type Table struct {
	directory string

	mu        sync.Mutex
	processes map[string]*Process
}

// NewTable makes a table that keeps output in a directory, which should be on a memory file system. Processes that an
// earlier table left there, in a program that has died, are ended and kept as ended processes.
func NewTable(directory string) (*Table, error) {
	if err := os.MkdirAll(directory, 0o700); err != nil {
		return nil, fmt.Errorf("make the directory for process output: %w", err)
	}
	t := &Table{directory: directory, processes: make(map[string]*Process)}
	return t, t.takeOver()
}

// Start starts a process, or returns the existing one if the identifier has an equal request. If the command cannot be
// executed, the result is an ended process with exit code 127 or 126 and a message, as in a shell.
func (t *Table) Start(request *v1.StartProcessRequest) (*Process, error) {
	if !validID.MatchString(request.GetId()) {
		return nil, fmt.Errorf("%w: process id %q: want 1 to 64 of [a-zA-Z0-9._-]", ErrInvalid, request.GetId())
	}
	if len(request.GetCommand()) == 0 || request.GetCommand()[0] == "" {
		return nil, fmt.Errorf("%w: process %s has no command", ErrInvalid, request.GetId())
	}
	p, fresh, err := t.enter(request)
	if err != nil {
		return nil, err
	}
	if fresh {
		p.launch() // may wait for the server of the home directory, so not under the table's lock
	}
	<-p.launched
	return p, nil
}

// enter returns the process of a request, or makes one that the caller must launch.
func (t *Table) enter(request *v1.StartProcessRequest) (p *Process, fresh bool, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if p := t.processes[request.GetId()]; p != nil {
		if !slices.Equal(p.request.GetCommand(), request.GetCommand()) || p.request.GetUser() != request.GetUser() {
			return nil, false, fmt.Errorf("%w: %s runs %s", ErrExists, request.GetId(), strings.Join(p.request.GetCommand(), " "))
		}
		return p, false, nil
	}
	p, err = t.prepare(request)
	if err != nil {
		return nil, false, fmt.Errorf("start process %s: %w", request.GetId(), err)
	}
	t.processes[request.GetId()] = p
	p.unwanted = func() { t.forgetUnwanted(p) }
	return p, true, nil
}

// prepare makes a process and its output files. The caller holds t.mu.
func (t *Table) prepare(request *v1.StartProcessRequest) (*Process, error) {
	directory := filepath.Join(t.directory, request.GetId())
	if err := os.Mkdir(directory, 0o700); err != nil {
		return nil, err
	}
	p := &Process{
		request: request, directory: directory, started: time.Now(), done: make(chan struct{}),
		launched: make(chan struct{}), inputLock: make(chan struct{}, 1),
	}
	var err error
	if p.stdout, err = newOutput(filepath.Join(directory, "stdout"), request.GetKeepBytes()); err != nil {
		return nil, errors.Join(err, os.RemoveAll(directory))
	}
	if p.stderr, err = newOutput(filepath.Join(directory, "stderr"), request.GetKeepBytes()); err != nil {
		p.stdout.remove()
		return nil, errors.Join(err, os.RemoveAll(directory))
	}
	return p, nil
}

// EndOfOtherLaunchers ends the processes that the launcher's guest started with another memory: before it was started anew. launcher is
// NAME/ID.
func (t *Table) EndOfOtherLaunchers(launcher string) {
	guest, _, _ := strings.Cut(launcher, "/")
	t.mu.Lock()
	defer t.mu.Unlock()
	for id, p := range t.processes {
		if other := p.request.GetLauncher(); other != launcher && strings.HasPrefix(other, guest+"/") {
			go func() {
				p.Signal(int32(unix.SIGKILL)) // the ranks of the next run are about to begin
				t.Forget(id)
			}()
		}
	}
}

// Get returns a process.
func (t *Table) Get(id string) (*Process, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if p := t.processes[id]; p != nil {
		return p, nil
	}
	return nil, fmt.Errorf("%w: %s", ErrNotFound, id)
}

// List describes all processes, oldest first.
func (t *Table) List() []*v1.Process {
	t.mu.Lock()
	defer t.mu.Unlock()
	var list []*v1.Process
	for _, p := range t.processes {
		list = append(list, p.Describe())
	}
	slices.SortFunc(list, func(a, b *v1.Process) int {
		return a.GetStarted().AsTime().Compare(b.GetStarted().AsTime())
	})
	return list
}

// unwantedAfter is how long, beside twice the hold time, a process that has ended is kept though nobody is attached.
const unwantedAfter = 10 * time.Minute

// forgetUnwanted forgets a process with a hold time that has ended, once nobody has been attached for a while: whoever should have
// forgotten it has gone away.
func (t *Table) forgetUnwanted(p *Process) {
	hold := time.Duration(p.request.GetHoldSeconds()) * time.Second
	if hold == 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.forgetting = time.AfterFunc(2*hold+unwantedAfter, func() {
		p.mu.Lock()
		wanted := p.attached > 0
		p.mu.Unlock()
		if wanted {
			t.forgetUnwanted(p)
		} else if same, err := t.Get(p.request.GetId()); err == nil && same == p {
			t.Forget(p.request.GetId())
		}
	})
}

// Forget ends a process if it is running, and deletes its output. The process is listed until it has ended. An unknown id is not an
// error, nor one that is being forgotten.
func (t *Table) Forget(id string) {
	p, err := t.Get(id)
	if err != nil || !p.forgotten.CompareAndSwap(false, true) {
		return
	}
	p.kill(forgetGrace)
	p.mu.Lock()
	if p.forgetting != nil {
		p.forgetting.Stop()
	}
	p.mu.Unlock()
	t.mu.Lock()
	delete(t.processes, id)
	t.mu.Unlock()
	p.stdout.remove()
	p.stderr.remove()
	os.RemoveAll(p.directory)
}
