package watchdog

import (
	"context"
	"encoding/json"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// TestMain runs a watchdog if the environment asks for it. The uids of its guests are pids.
func TestMain(m *testing.M) {
	if path := os.Getenv("WATCHDOG_PATH"); path != "" {
		list := func(context.Context) (map[string][]int, error) {
			var pids []int
			if err := json.Unmarshal([]byte(os.Getenv("WATCHDOG_PIDS")), &pids); err != nil {
				return nil, err
			}
			found := map[string][]int{}
			for _, pid := range pids {
				if syscall.Kill(pid, 0) == nil {
					found[strconv.Itoa(pid)] = []int{pid}
				}
			}
			return found, nil
		}
		if err := (&Watchdog{Processes: list, Log: slog.Default()}).Serve(path); err != nil {
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// guest is a process that stands in for a guest's QEMU.
type guest struct {
	uid   string
	pid   int
	ended chan *os.ProcessState
}

func startGuest(t *testing.T) guest {
	t.Helper()
	command := exec.Command("sh", "-c", `trap "exit 7" TERM; while :; do sleep 0.05; done`)
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	g := guest{strconv.Itoa(command.Process.Pid), command.Process.Pid, make(chan *os.ProcessState, 1)}
	go func() {
		_ = command.Wait()
		g.ended <- command.ProcessState
	}()
	t.Cleanup(func() { _ = command.Process.Kill() })
	return g
}

// ends waits for the guest's end.
func (g guest) ends(t *testing.T, within time.Duration) *os.ProcessState {
	t.Helper()
	select {
	case state := <-g.ended:
		g.ended <- state
		return state
	case <-time.After(within):
		t.Fatalf("guest %s did not end within %v", g.uid, within)
	}
	return nil
}

func (g guest) lives(t *testing.T, during time.Duration) {
	t.Helper()
	select {
	case state := <-g.ended:
		t.Fatalf("guest %s has ended: %v", g.uid, state)
	case <-time.After(during):
	}
}

// start returns a client of a new watchdog for guests, and the watchdog's process once Keep has been called.
func start(t *testing.T, guests ...guest) (*Client, func() *os.Process) {
	t.Helper()
	pids := []int{}
	for _, g := range guests {
		pids = append(pids, g.pid)
	}
	list, _ := json.Marshal(pids)
	path := filepath.Join(t.TempDir(), "watchdog.sock")
	var command *exec.Cmd
	c := &Client{Path: path, Command: func() *exec.Cmd {
		command = exec.CommandContext(context.Background(), os.Args[0])
		command.Env = append(os.Environ(), "WATCHDOG_PATH="+path, "WATCHDOG_PIDS="+string(list))
		command.Stderr = os.Stderr
		return command
	}}
	t.Cleanup(func() {
		if command != nil && command.Process != nil {
			_ = command.Process.Kill()
		}
	})
	return c, func() *os.Process { return command.Process }
}

func keep(t *testing.T, c *Client, guests map[string]time.Duration) {
	t.Helper()
	// The first answer may come before the watchdog has traced anything.
	for range 2 {
		unguarded, err := c.Keep(guests)
		if err != nil || len(unguarded) > 0 {
			t.Fatalf("Keep: %v, unguarded %v", err, unguarded)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

func TestAGuestEndsWithItsLease(t *testing.T) {
	a, b := startGuest(t), startGuest(t)
	c, _ := start(t, a, b)
	keep(t, c, map[string]time.Duration{a.uid: Clock() + time.Second, b.uid: Clock() + time.Minute})
	a.ends(t, 20*time.Second)
	b.lives(t, 200*time.Millisecond)
	// If the agent dies, the watchdog keeps its list, and the next agent can read it.
	c.conn.Close()
	next := &Client{Path: c.Path}
	if known, err := next.Kept(); len(known) != 2 || known[b.uid] < Clock()+30*time.Second {
		t.Errorf("the next agent learns of %v, %v", known, err)
	}
	if _, err := next.Keep(map[string]time.Duration{b.uid: Clock()}); err != nil { // a lease is never shortened
		t.Fatal(err)
	}
	b.lives(t, 300*time.Millisecond)
}

func TestAGuestEndsWithTheWatchdog(t *testing.T) {
	g := startGuest(t)
	c, process := start(t, g)
	keep(t, c, map[string]time.Duration{g.uid: Clock() + time.Hour})
	g.lives(t, 200*time.Millisecond)
	if err := process().Kill(); err != nil {
		t.Fatal(err)
	}
	if state := g.ends(t, 20*time.Second); state.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Errorf("it ended with %v, not SIGKILL", state)
	}
}

func TestAWatchedProcessGetsItsSignals(t *testing.T) {
	g := startGuest(t)
	c, _ := start(t, g)
	keep(t, c, map[string]time.Duration{g.uid: Clock() + time.Hour})
	for _, s := range []syscall.Signal{syscall.SIGSTOP, syscall.SIGCONT, syscall.SIGTERM} {
		if err := syscall.Kill(g.pid, s); err != nil {
			t.Fatal(err)
		}
		time.Sleep(100 * time.Millisecond)
	}
	if state := g.ends(t, 20*time.Second); state.ExitCode() != 7 {
		t.Errorf("it ended with %v, not by its own trap", state)
	}
}

func TestAnIdleWatchdogEndsAndIsStartedAgain(t *testing.T) {
	w := &Watchdog{Processes: func(context.Context) (map[string][]int, error) { return nil, nil }, Log: slog.Default()}
	now := time.Duration(0)
	w.clock = func() time.Duration { return now }
	w.begin()
	w.take(Request{Guests: map[string]time.Duration{"a": time.Minute}})
	for now < time.Minute+lateTime { // a hanging agent may still start the guest
		if _, done := w.look(); done {
			t.Fatalf("it ends after %v", now)
		}
		now += 10 * time.Second
	}
	now += 2 * idleTime
	w.look()
	now += 2 * idleTime
	if _, done := w.look(); !done {
		t.Error("it does not end though nothing needs it")
	}
}

func TestALateCopyIsEnded(t *testing.T) {
	running, killed := false, 0
	w := &Watchdog{Log: slog.Default(), Processes: func(context.Context) (map[string][]int, error) {
		if running {
			return map[string][]int{"a": {1 << 30}}, nil
		}
		return nil, nil
	}}
	now := time.Duration(0)
	w.clock, w.kill = func() time.Duration { return now }, func(int) error { killed++; running = false; return nil }
	w.begin()
	w.take(Request{Guests: map[string]time.Duration{"a": time.Second}})
	now = 2 * time.Second
	w.look()
	running = true
	if wait, _ := w.look(); killed != 1 || wait > lookEvery {
		t.Errorf("killed %d times, looks again after %v", killed, wait)
	}
}

func TestKeptWithoutAWatchdog(t *testing.T) {
	c := &Client{Path: filepath.Join(t.TempDir(), "none")}
	if known, err := c.Kept(); len(known) != 0 || err != nil {
		t.Errorf("Kept = %v, %v", known, err)
	}
	if _, err := c.Keep(nil); err != nil { // no guests, so no watchdog is started
		t.Error(err)
	}
}

// A process that sleeps in the kernel can block a search of the process table. The traced processes are known without it.
func TestAGuestEndsWithItsLeaseThoughProcessesCannotBeListed(t *testing.T) {
	g, blocked, killed := startGuest(t), false, 0
	w := &Watchdog{Log: slog.Default(), Processes: func(ctx context.Context) (map[string][]int, error) {
		if blocked {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		return map[string][]int{g.uid: {g.pid}}, nil
	}}
	var now atomic.Int64
	w.clock, w.kill = func() time.Duration { return time.Duration(now.Load()) }, func(pid int) error { killed = pid; return nil }
	w.begin()
	w.take(Request{Guests: map[string]time.Duration{g.uid: time.Minute}})
	w.look()
	blocked = true
	now.Store(int64(time.Minute))
	looked := make(chan bool)
	go func() {
		w.look()
		close(looked)
	}()
	time.Sleep(endEvery / 2)
	if known := w.take(Request{}); len(known.Guests) != 1 || known.Blind != "" { // an agent is answered meanwhile
		t.Errorf("the watchdog knows %v", known)
	}
	<-looked
	if known := w.take(Request{}); known.Blind == "" { // then the agent starts no guest with a lease
		t.Errorf("the watchdog sees new guests: %v", known)
	}
	if killed != g.pid {
		t.Errorf("killed process %d, not %d", killed, g.pid)
	}
}

// A watchdog that runs and does not answer is not the same as none.
func TestKeptOfAWatchdogThatDoesNotAnswer(t *testing.T) {
	c := &Client{Path: filepath.Join(t.TempDir(), "mute")}
	mute, err := net.Listen("unix", c.Path)
	if err != nil {
		t.Fatal(err)
	}
	defer mute.Close()
	if known, err := c.Kept(); err == nil {
		t.Errorf("Kept = %v", known)
	}
}
