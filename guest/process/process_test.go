package process

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "watari/api/watariv1"
)

func newTable(t *testing.T) *Table {
	table, err := NewTable(filepath.Join(t.TempDir(), "processes"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, p := range table.List() {
			table.Forget(p.GetId())
		}
	})
	return table
}

func shell(id, script string) *v1.StartProcessRequest {
	return &v1.StartProcessRequest{Id: id, Command: []string{"/bin/sh", "-c", script}}
}

func start(t *testing.T, table *Table, request *v1.StartProcessRequest) *Process {
	t.Helper()
	p, err := table.Start(request)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func ended(t *testing.T, p *Process) *v1.Process {
	t.Helper()
	select {
	case <-p.Done():
		return p.Describe()
	case <-time.After(10 * time.Second):
		t.Fatalf("%s still runs after 10 s", p.request.GetId())
		return nil
	}
}

// all reads a stream until its end.
func all(t *testing.T, read func(context.Context, uint64, []byte) (int, uint64, uint64, error), offset uint64) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	var got bytes.Buffer
	buf := make([]byte, 1000)
	for {
		n, _, next, err := read(ctx, offset, buf)
		got.Write(buf[:n])
		if offset = next; err == io.EOF {
			return got.String()
		} else if err != nil {
			t.Fatalf("read: %v", err)
		}
	}
}

func TestOutputAndExitCodeAreKept(t *testing.T) {
	p := start(t, newTable(t), shell("a", "echo out; echo err >&2; exit 7"))
	if d := ended(t, p); d.GetExitCode() != 7 || d.GetRunning() || d.GetStdoutBytes() != 4 {
		t.Errorf("%v", d)
	}
	for range 2 {
		if out := all(t, p.ReadStdout, 0); out != "out\n" {
			t.Errorf("stdout %q", out)
		}
	}
	if out := all(t, p.ReadStderr, 1); out != "rr\n" {
		t.Errorf("stderr from 1: %q", out)
	}
}

func TestStartingTwiceIsStartingOnce(t *testing.T) {
	table := newTable(t)
	first := start(t, table, shell("a", "echo $$"))
	if second := start(t, table, shell("a", "echo $$")); first != second {
		t.Error("a second process was started")
	}
	if _, err := table.Start(shell("a", "echo other")); !errors.Is(err, ErrExists) {
		t.Errorf("another command under the same id: %v", err)
	}
}

func TestBadRequestsAreRefused(t *testing.T) {
	table := newTable(t)
	for _, id := range []string{"", "..", "a/b", ".hidden", strings.Repeat("x", 65), "a b"} {
		if _, err := table.Start(shell(id, "true")); !errors.Is(err, ErrInvalid) {
			t.Errorf("id %q: %v", id, err)
		}
	}
	if _, err := table.Start(&v1.StartProcessRequest{Id: "a"}); !errors.Is(err, ErrInvalid) {
		t.Errorf("no command: %v", err)
	}
}

func TestCommandsThatCannotRunEndAsInAShell(t *testing.T) {
	table := newTable(t)
	for i, test := range []struct {
		command string
		code    int32
	}{{"no-such-program", 127}, {"/no/such/program", 127}, {"/etc/passwd", 126}, {"/etc", 126}} {
		p := start(t, table, &v1.StartProcessRequest{Id: fmt.Sprint(i), Command: []string{test.command}})
		if d := ended(t, p); d.GetExitCode() != test.code || d.GetMessage() == "" {
			t.Errorf("%s: %v", test.command, d)
		}
	}
	p := start(t, table, &v1.StartProcessRequest{Id: "u", Command: []string{"true"}, User: "no-such-user"})
	if d := ended(t, p); d.GetExitCode() != 126 || !strings.Contains(d.GetMessage(), "no-such-user") {
		t.Errorf("unknown user: %v", d)
	}
}

func TestSignalsReachTheWholeGroup(t *testing.T) {
	p := start(t, newTable(t), shell("a", "sleep 100 & echo up; wait"))
	waitFor(t, p, "up\n")
	if err := p.Signal(15); err != nil {
		t.Fatal(err)
	}
	if d := ended(t, p); d.GetExitCode() != 128+15 {
		t.Errorf("%v", d)
	}
}

// MPI's launchers give each rank a process group of its own.
func TestAKillReachesTheWholeSession(t *testing.T) {
	p := start(t, newTable(t), shell("killed", "set -m; sleep 1003 & echo up; wait"))
	waitFor(t, p, "up\n")
	if err := p.Signal(9); err != nil {
		t.Fatal(err)
	}
	ended(t, p)
	awaitMarked(t, "killed", func(list []*v1.RunProcess) bool { return len(list) == 0 })
}

// A program that is ended may have given its children groups of their own, and end before them.
func TestNothingIsLeftOfAProgramThatIsEnded(t *testing.T) {
	for name, end := range map[string]func(*Table, *Process) error{
		"by a signal":        func(_ *Table, p *Process) error { return p.Signal(15) },
		"as it is forgotten": func(table *Table, p *Process) error { table.Forget(p.request.Id); return nil },
	} {
		table := newTable(t)
		id := "ended-" + strings.ReplaceAll(name, " ", "-")
		p := start(t, table, shell(id, "set -m; sleep 1004 & trap exit TERM; echo up; wait"))
		waitFor(t, p, "up\n")
		if err := end(table, p); err != nil {
			t.Fatal(err)
		}
		ended(t, p)
		awaitMarked(t, id, func(list []*v1.RunProcess) bool { return len(list) == 0 })
	}
}

// What a program leaves running on purpose goes on when the program is forgotten, and may write.
func TestADaemonOutlivesTheCommandThatStartedIt(t *testing.T) {
	table := newTable(t)
	mark := filepath.Join(t.TempDir(), "mark")
	p := start(t, table, shell("daemon", "(for i in $(seq 10); do sleep 0.1; echo tick; done; touch "+mark+") &"))
	ended(t, p)
	table.Forget("daemon")
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		if _, err := os.Stat(mark); err == nil {
			return
		} else if time.Now().After(end) {
			t.Fatal("the daemon was ended by its output")
		}
	}
}

// The guest from which a command was started was started anew: nobody will ask for the command again.
func TestCommandsOfAnEarlierLauncherAreEnded(t *testing.T) {
	table := newTable(t)
	launched := func(id, launcher string) *Process {
		request := shell(id, "echo up; sleep 1005")
		request.Launcher = launcher
		p := start(t, table, request)
		waitFor(t, p, "up\n")
		return p
	}
	earlier, same, other := launched("earlier", "md-0/A"), launched("same", "md-0/B"), launched("other", "md-01/A")
	table.EndOfOtherLaunchers("md-0/B")
	ended(t, earlier)
	for _, p := range []*Process{same, other} {
		if !p.Describe().GetRunning() {
			t.Errorf("%s was ended, too", p.request.Id)
		}
		table.Forget(p.request.Id)
	}
}

func TestAnEndedProcessThatNobodyAsksForIsForgotten(t *testing.T) {
	table := newTable(t)
	request := shell("a", "true")
	request.HoldSeconds = 1
	p := start(t, table, request)
	ended(t, p)
	detach := p.Attach()
	soon := func() {
		table.forgetUnwanted(p)
		p.forgetting.Reset(20 * time.Millisecond)
	}
	soon()
	time.Sleep(100 * time.Millisecond)
	if _, err := table.Get("a"); err != nil {
		t.Fatalf("it is forgotten while somebody is attached: %v", err)
	}
	detach()
	soon()
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if _, err := table.Get("a"); err != nil {
			return
		} else if time.Now().After(end) {
			t.Fatal("it stays")
		}
	}
}

// waitFor waits until stdout begins with want.
func waitFor(t *testing.T, p *Process, want string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	var got []byte
	buf := make([]byte, 100)
	for !bytes.Contains(got, []byte(want)) {
		n, _, _, err := p.ReadStdout(ctx, uint64(len(got)), buf)
		if err != nil {
			t.Fatalf("want %q on stdout, have %q: %v", want, got, err)
		}
		got = append(got, buf[:n]...)
	}
}

func TestInputIsGivenOnceHoweverOftenItIsSent(t *testing.T) {
	request := shell("a", "cat")
	request.Stdin = true
	p := start(t, newTable(t), request)
	ctx := context.Background()
	for _, in := range []struct {
		offset uint64
		text   string
		after  uint64
	}{{0, "hello ", 6}, {0, "hello ", 6}, {3, "lo world", 11}} {
		if after, err := p.Input(ctx, in.offset, []byte(in.text)); err != nil || after != in.after {
			t.Errorf("input %v: %d, %v", in, after, err)
		}
	}
	if _, err := p.Input(ctx, 100, []byte("x")); !errors.Is(err, ErrInvalid) {
		t.Errorf("input after a gap: %v", err)
	}
	p.CloseInput()
	if d := ended(t, p); d.GetExitCode() != 0 {
		t.Errorf("%v", d)
	}
	if out := all(t, p.ReadStdout, 0); out != "hello world" {
		t.Errorf("stdout %q", out)
	}
}

func TestTerminal(t *testing.T) {
	p := start(t, newTable(t), &v1.StartProcessRequest{
		Id: "a", Command: []string{"/bin/sh", "-c", "tty; stty size; read x; echo got $x"}, Tty: true, Rows: 11, Columns: 77,
	})
	waitFor(t, p, "11 77")
	if _, err := p.Input(context.Background(), 0, []byte("line\n")); err != nil {
		t.Fatal(err)
	}
	if d := ended(t, p); d.GetExitCode() != 0 {
		t.Errorf("%v", d)
	}
	if out := all(t, p.ReadStdout, 0); !strings.Contains(out, "/dev/pts/") || !strings.Contains(out, "got line") {
		t.Errorf("terminal shows %q", out)
	}
}

func TestAProcessEndsThoughAChildHoldsItsStreams(t *testing.T) {
	table := newTable(t)
	p := start(t, table, shell("a", "sleep 30 & echo started"))
	begun := time.Now()
	if d := ended(t, p); d.GetExitCode() != 0 || time.Since(begun) > 20*time.Second {
		t.Errorf("%v after %v", d, time.Since(begun))
	}
	if out := all(t, p.ReadStdout, 0); out != "started\n" {
		t.Errorf("stdout %q", out)
	}
}

func TestUnattachedProcessIsEndedAfterItsHoldTime(t *testing.T) {
	request := shell("a", "echo up; sleep 100")
	request.HoldSeconds = 1
	p := start(t, newTable(t), request)
	detach := p.Attach()
	waitFor(t, p, "up\n")
	select {
	case <-p.Done():
		t.Fatal("ended while attached")
	case <-time.After(1200 * time.Millisecond): // longer than the hold time
	}
	detach()
	if d := ended(t, p); d.GetExitCode() != 128+15 {
		t.Errorf("%v", d)
	}
}

func TestForgetEndsAndDrops(t *testing.T) {
	table := newTable(t)
	p := start(t, table, shell("a", "trap '' TERM; echo up; while :; do sleep 0.1; done"))
	waitFor(t, p, "up\n")
	forgotten := make(chan struct{})
	go func() {
		table.Forget("a")
		close(forgotten)
	}()
	for running := true; running; time.Sleep(10 * time.Millisecond) {
		_, err := table.Get("a")
		if running = p.Describe().GetRunning(); running && err != nil {
			t.Fatalf("it runs and is not listed: %v", err)
		}
	}
	<-forgotten
	if d := ended(t, p); d.GetExitCode() != 128+9 {
		t.Errorf("%v", d)
	}
	if _, err := table.Get("a"); !errors.Is(err, ErrNotFound) {
		t.Errorf("get: %v", err)
	}
	if left, err := os.ReadDir(table.directory); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	table.Forget("a")
	start(t, table, shell("a", "true"))
}

func TestOldOutputIsDroppedWithANote(t *testing.T) {
	o, err := newOutput(filepath.Join(t.TempDir(), "out"), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer o.remove()
	o.limit = 2 * dropStep
	chunk := bytes.Repeat([]byte("x"), dropStep)
	for range 5 {
		if _, err := o.Write(chunk); err != nil {
			t.Skipf("the file system of the temporary directory cannot punch holes: %v", err)
		}
	}
	o.end()
	got := all(t, o.read, 100)
	if !strings.Contains(got, "bytes of output were dropped") || strings.Count(got, "x") != 2*dropStep {
		t.Errorf("%d bytes, beginning %.80q", len(got), got)
	}
	if got := all(t, o.read, 5*dropStep-3); got != "xxx" {
		t.Errorf("end of the stream: %q", got)
	}
}

func TestADaemonKeepsNoTerminalOpen(t *testing.T) {
	request := shell("a", "trap '' HUP; stty size; setsid sleep 20 & sleep 0.1")
	request.Tty, request.Rows, request.Columns = true, 20, 30
	p := start(t, newTable(t), request)
	ended(t, p)
	if out := all(t, p.ReadStdout, 0); !strings.Contains(out, "20 30") {
		t.Errorf("the terminal's size: %q", out)
	}
	open := func() (names []string) {
		files, _ := filepath.Glob("/proc/self/fd/*")
		for _, file := range files {
			if name, _ := os.Readlink(file); strings.HasSuffix(name, "ptmx") {
				names = append(names, name)
			}
		}
		return names
	}
	for deadline := time.Now().Add(5 * time.Second); len(open()) > 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("open: %v", open())
		}
	}
}
