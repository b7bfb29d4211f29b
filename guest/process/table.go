// Package process keeps a guest's table of processes: each is started once under an identifier, its output is
// kept in memory files that can be read from any offset, and it is signalled as a group.
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

	v1 "watari/api/watariv1"
)

// Errors that callers turn into codes.
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

// NewTable makes a table that keeps output in a directory, which ought to be on a memory file system. Processes of a
// table that was there before, in a program that has died, are ended and kept as such.
func NewTable(directory string) (*Table, error) {
	if err := os.MkdirAll(directory, 0o700); err != nil {
		return nil, fmt.Errorf("make room for process output: %w", err)
	}
	t := &Table{directory: directory, processes: make(map[string]*Process)}
	return t, t.takeOver()
}

// Start starts a process, or finds it where the identifier is taken by an equal request. A command that cannot
// be executed makes a process that has ended, with exit code 127 or 126 and a message, as a shell would.
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
		p.launch() // may wait for a home whose server is away; the table must not
	}
	<-p.launched
	return p, nil
}

// enter finds the process of a request, or makes one that is to be launched.
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
	return p, true, nil
}

// prepare makes a process with room for its output; t.mu is held.
func (t *Table) prepare(request *v1.StartProcessRequest) (*Process, error) {
	directory := filepath.Join(t.directory, request.GetId())
	if err := os.Mkdir(directory, 0o700); err != nil {
		return nil, err
	}
	p := &Process{
		request: request, directory: directory, started: time.Now(), done: make(chan struct{}),
		launched: make(chan struct{}), inputTurn: make(chan struct{}, 1),
	}
	var err error
	if p.stdout, err = newOutput(filepath.Join(directory, "stdout")); err != nil {
		return nil, errors.Join(err, os.RemoveAll(directory))
	}
	if p.stderr, err = newOutput(filepath.Join(directory, "stderr")); err != nil {
		p.stdout.remove()
		return nil, errors.Join(err, os.RemoveAll(directory))
	}
	return p, nil
}

// Get finds a process.
func (t *Table) Get(id string) (*Process, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if p := t.processes[id]; p != nil {
		return p, nil
	}
	return nil, fmt.Errorf("%w: %s", ErrNotFound, id)
}

// List describes all processes, the oldest first.
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

// Forget ends a process where it still runs, and drops its output. Forgetting what is not there is no error.
func (t *Table) Forget(id string) {
	t.mu.Lock()
	p := t.processes[id]
	delete(t.processes, id)
	t.mu.Unlock()
	if p == nil {
		return
	}
	p.kill(forgetGrace)
	p.stdout.remove()
	p.stderr.remove()
	os.RemoveAll(p.directory)
}
