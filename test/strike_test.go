package test

// strike_test.go - causes faults at a certain moment, and verifies that they hit it.

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"syscall"
	"testing"
	"time"

	"watari/test/evidence"
)

// attempts is the number of attempts to hit a moment.
const attempts = 5

// strikes repeats an attempt until its fault has struck at the intended moment, and fails the test if none has. A fault
// that comes too early or too late tests something else.
func strikes(t *testing.T, attempt func() (struck bool, how string)) {
	t.Helper()
	for n := range attempts {
		struck, how := attempt()
		word := "MISSED"
		if struck {
			word = "STRUCK"
		}
		t.Logf("%s in attempt %d: %s", word, n+1, how)
		if struck || t.Failed() {
			return
		}
	}
	t.Errorf("in %d attempts the fault never struck at the moment that it was meant for", attempts)
}

// processesOn returns the processes of a lab's host whose command lines match.
func processesOn(host, pattern string) []int {
	return evidence.ProcessesOn(labName, host, regexp.MustCompile(pattern))
}

// signalAll sends a signal to processes and returns whether any of them existed.
func signalAll(t *testing.T, pids []int, signal syscall.Signal) (any bool) {
	t.Helper()
	for _, pid := range pids {
		err := syscall.Kill(pid, signal)
		if err != nil && !errors.Is(err, syscall.ESRCH) {
			t.Fatalf("send %v to process %d: %v", signal, pid, err)
		}
		any = any || err == nil
	}
	return any
}

// moveLog is the manager's log, which has the time of each state of a move to the millisecond.
type moveLog struct {
	path, move string
	offset     int64
	text       []byte // what has been read from the offset on
}

// beginMove starts a move of a guest, and follows the manager's log from before the start.
func beginMove(t *testing.T, guest, to string, more ...string) *moveLog {
	t.Helper()
	l := &moveLog{path: filepath.Join(shared.state, "manager", "manager.log")}
	info, err := os.Stat(l.path)
	if err != nil {
		t.Fatal(err)
	}
	l.offset = info.Size()
	l.move = decoded[migration](t, append([]string{"migrate", guest, "--to", to, "--detach"}, more...)...).Meta.Name
	return l
}

// steps returns the steps of the move so far.
func (l *moveLog) steps(t *testing.T) []evidence.Step {
	t.Helper()
	file, err := os.Open(l.path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	buffer := make([]byte, 64<<10)
	for {
		n, _ := file.ReadAt(buffer, l.offset+int64(len(l.text)))
		l.text = append(l.text, buffer[:n]...)
		if n < len(buffer) {
			return evidence.Steps(string(l.text), l.move)
		}
	}
}

// await returns true as soon as the move is in a stage, and false if it is past the stage. It calls meanwhile from time to
// time.
func (l *moveLog) await(t *testing.T, stage string, meanwhile func()) bool {
	t.Helper()
	deadline := time.Now().Add(2 * time.Minute)
	var next time.Time
	for {
		steps := l.steps(t)
		if n := len(steps); n > 0 && steps[n-1].State == stage {
			return true
		}
		if slices.ContainsFunc(steps, func(s evidence.Step) bool { return s.State == stage }) {
			return false
		}
		if n := len(steps); n > 0 && slices.Contains([]string{"done", "failed", "cancelled"}, steps[n-1].State) {
			return false
		}
		now := time.Now()
		if now.After(deadline) {
			t.Fatalf("move %s is not %s after 2 minutes: %+v", l.move, stage, steps)
		}
		if now.After(next) {
			meanwhile()
			next = time.Now().Add(100 * time.Millisecond)
		}
		time.Sleep(300 * time.Microsecond) // the shortest stages last about 10 ms
	}
}

// struck returns, after the move has ended, whether a fault between two times hit it in a stage.
func (l *moveLog) struck(t *testing.T, stage string, begun, done time.Time) (bool, string) {
	t.Helper()
	return evidence.Struck(l.steps(t), stage, begun, done)
}

// pinned stops processes, so that they complete nothing more, and then checks whether the moment has passed. Messages
// that they sent to the manager before have arrived by then. It returns false if the moment has passed or if there is
// no such process; then the stopped processes continue.
func pinned(t *testing.T, pids []int, still func() (bool, string)) (is bool, how string) {
	t.Helper()
	if !signalAll(t, pids, syscall.SIGSTOP) {
		return false, "there is no process to be struck"
	}
	defer func() {
		if !is {
			signalAll(t, pids, syscall.SIGCONT)
		}
	}()
	time.Sleep(50 * time.Millisecond)
	return still()
}
