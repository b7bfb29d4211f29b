package process

// record.go - what is kept of each process beside its output, for an agent that is started anew: the processes of the
// one before it have lost their streams with it. They are ended, and their ends reported.

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	v1 "watari/api/watariv1"
)

// lostMessage is what is said of a process whose agent was ended under it.
const lostMessage = "the guest agent was ended and started anew, and the program with it"

type record struct {
	Request  []byte // protobuf
	PID      int
	Born     uint64 // clock ticks after boot, which tells it from a later process of that number
	Started  time.Time
	Ended    time.Time // zero: it runs
	ExitCode int32
	Message  string
}

// save keeps the process's record. Without one its end would go unreported after a crash of the agent, no more.
func (p *Process) save() {
	request, err := proto.Marshal(p.request)
	if err != nil {
		return
	}
	p.mu.Lock()
	r := record{Request: request, PID: p.pid, Started: p.started, Ended: p.ended, ExitCode: p.exitCode, Message: p.message}
	p.mu.Unlock()
	if _, born, err := sessionOf(r.PID); err == nil {
		r.Born = born
	}
	text, err := json.Marshal(r)
	if err != nil {
		return
	}
	path := filepath.Join(p.directory, "record")
	if os.WriteFile(path+".new", text, 0o600) == nil {
		os.Rename(path+".new", path)
	}
}

// takeOver takes up what a table before this one left in the directory.
func (t *Table) takeOver() error {
	entries, err := os.ReadDir(t.directory)
	if err != nil {
		return fmt.Errorf("take over processes: %w", err)
	}
	for _, entry := range entries {
		directory := filepath.Join(t.directory, entry.Name())
		p, err := reopen(directory)
		if err != nil { // it was being started or forgotten
			if err := os.RemoveAll(directory); err != nil {
				return fmt.Errorf("take over processes: %w", err)
			}
			continue
		}
		t.processes[p.request.GetId()] = p
	}
	return nil
}

// reopen makes a process that has ended of what is kept of it. If it runs, it is ended first.
func reopen(directory string) (*Process, error) {
	text, err := os.ReadFile(filepath.Join(directory, "record"))
	if err != nil {
		return nil, err
	}
	var r record
	if err := json.Unmarshal(text, &r); err != nil {
		return nil, err
	}
	p := &Process{
		request: &v1.StartProcessRequest{}, directory: directory, started: r.Started, done: make(chan struct{}),
		launched: make(chan struct{}), inputTurn: make(chan struct{}, 1), exitCode: r.ExitCode, message: r.Message, ended: r.Ended,
	}
	if err := proto.Unmarshal(r.Request, p.request); err != nil {
		return nil, err
	}
	if p.stdout, err = reopenOutput(filepath.Join(directory, "stdout")); err != nil {
		return nil, err
	}
	if p.stderr, err = reopenOutput(filepath.Join(directory, "stderr")); err != nil {
		return nil, err
	}
	if p.ended.IsZero() {
		killSession(r.PID, r.Born)
		p.exitCode, p.message, p.ended = 128+int32(unix.SIGKILL), lostMessage, time.Now()
		p.save()
	}
	close(p.launched)
	close(p.done)
	return p, nil
}

// killSession ends all processes of the session that a process began, whether it is still there itself or not.
func killSession(leader int, born uint64) {
	if leader == 0 {
		return
	}
	if _, now, err := sessionOf(leader); err == nil && now != born {
		return // another process has its number, which it could not while one of the session was left
	}
	processes, _ := filepath.Glob("/proc/[0-9]*")
	for _, path := range processes {
		pid, _ := strconv.Atoi(filepath.Base(path))
		if session, _, err := sessionOf(pid); err == nil && session == leader {
			unix.Kill(pid, unix.SIGKILL)
		}
	}
}

// sessionOf is a process's session and when it began, in clock ticks after boot (proc(5), stat).
func sessionOf(pid int) (session int, born uint64, err error) {
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return 0, 0, err
	}
	// The name, in brackets, may hold anything; the third field follows it.
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	if len(fields) < 20 {
		return 0, 0, fmt.Errorf("unexpected %s", text)
	}
	if session, err = strconv.Atoi(fields[6-3]); err != nil {
		return 0, 0, err
	}
	born, err = strconv.ParseUint(fields[22-3], 10, 64)
	return session, born, err
}
