package process

// record.go - the record of each process, kept beside its output. After a restart of the agent, the processes of the
// earlier agent have lost their streams. The new agent ends them and reports their ends.

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	v1 "watari/api/watariv1"
)

// lostMessage is the message of a process whose agent ended before it.
const lostMessage = "the guest agent was restarted, which ended the program"

type record struct {
	Request  []byte // protobuf
	PID      int    // 0: it is being started, or has ended
	Born     uint64 // start, in clock ticks after boot; tells it from a later process with the same id
	Started  time.Time
	Ended    time.Time // zero: it is running
	ExitCode int32
	Message  string
}

// save records the process as it is.
func (p *Process) save() {
	p.mu.Lock()
	r := record{PID: p.pid, Ended: p.ended, ExitCode: p.exitCode, Message: p.message}
	p.mu.Unlock()
	if _, born, err := sessionOf(r.PID); err == nil {
		r.Born = born
	}
	p.record(r)
}

// record writes the process's record. If that fails, the only loss is that a crash of the agent hides the process's end.
func (p *Process) record(r record) {
	request, err := proto.Marshal(p.request)
	if err != nil {
		return
	}
	r.Request, r.Started = request, p.started
	text, err := json.Marshal(r)
	if err != nil {
		return
	}
	path := filepath.Join(p.directory, "record")
	if os.WriteFile(path+".new", text, 0o600) == nil {
		os.Rename(path+".new", path)
	}
}

// takeOver adopts the processes that an earlier table left in the directory.
func (t *Table) takeOver() error {
	entries, err := os.ReadDir(t.directory)
	if err != nil {
		return fmt.Errorf("take over processes: %w", err)
	}
	for _, entry := range entries {
		directory := filepath.Join(t.directory, entry.Name())
		p, err := reopen(directory)
		if err != nil { // the process was being started or forgotten
			if err := os.RemoveAll(directory); err != nil {
				return fmt.Errorf("take over processes: %w", err)
			}
			continue
		}
		t.processes[p.request.GetId()] = p
		t.forgetUnwanted(p)
	}
	return nil
}

// reopen returns an ended process from its record. If the process is still running, reopen kills it first.
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
		launched: make(chan struct{}), inputLock: make(chan struct{}, 1), exitCode: r.ExitCode, message: r.Message, ended: r.Ended,
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
		if r.PID != 0 {
			killSession(r.PID, r.Born)
		} else {
			killMarked(p.mark())
		}
		p.exitCode, p.message, p.ended = 128+int32(unix.SIGKILL), lostMessage, time.Now()
		p.save()
	}
	close(p.launched)
	close(p.done)
	return p, nil
}

// killSession kills all processes of the session that the process leader began, even if leader itself has ended.
func killSession(leader int, born uint64) {
	if _, now, err := sessionOf(leader); err == nil && now != born {
		return // another process has this id, so no process of the session is left
	}
	killAll(func(all map[int]stat) (pids []int) {
		for pid, s := range all {
			if s.session == leader {
				pids = append(pids, pid)
			}
		}
		return pids
	})
}

// killMarked kills all processes with a mark. Other processes of the agent before may have it, too; they have lost their streams,
// and end anyway.
func killMarked(mark string) {
	killAll(func(all map[int]stat) []int {
		pids, _ := marked(all, mark)
		return pids
	})
}

// killAll kills those of all processes that are chosen, until none of them runs: a process may start others meanwhile.
func killAll(choose func(map[int]stat) []int) {
	for range 100 {
		all, left := stats(), false
		for _, pid := range choose(all) {
			if all[pid].state != "Z" && pid != os.Getpid() {
				left = unix.Kill(pid, unix.SIGKILL) == nil || left
			}
		}
		if !left {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// sessionOf returns a process's session and its start time in clock ticks after boot.
func sessionOf(pid int) (session int, born uint64, err error) {
	s, err := readStat(pid)
	return s.session, s.born, err
}
