// Package watchdog ends guests whose leases end, whatever happens to the agent. The watchdog is a separate process, which
// outlives the agent; `watari-agent watchdog` runs it.
//
// The agent tells the watchdog all guests with leases, and until when each may run (Client.Keep). At that time the watchdog
// kills the guest's QEMU. It also traces QEMU's main thread (ptrace, with PTRACE_O_EXITKILL), so that the kernel kills QEMU
// if the watchdog itself dies. So a guest with a lease always has something that ends it.
package watchdog

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Request is an agent's request to a watchdog, one JSON object a line. Guests replaces the watchdog's list; nil: the agent
// only asks.
type Request struct {
	Guests map[string]time.Duration `json:"guests"` // by uid: until when the guest may run, by Clock
}

// Response is the watchdog's list after a request.
type Response struct {
	Guests map[string]time.Duration `json:"guests"`
	// Unguarded has the guests that the kernel does not kill if the watchdog dies, by uid, with the reason.
	Unguarded map[string]string `json:"unguarded,omitempty"`
	// Blind says why the watchdog does not see the processes of guests that begin now; empty: it sees them.
	Blind string `json:"blind,omitempty"`
}

// Clock returns the time since the host's boot, including time in sleep.
func Clock() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		panic(fmt.Sprintf("read the clock: %v", err)) // unreachable: every kernel has this clock
	}
	return time.Duration(t.Nano())
}

const (
	// searchTime bounds a search for guests' processes.
	searchTime = 2 * time.Second
	// lookEvery is the time between two searches for guests' processes that are not traced yet.
	lookEvery = 500 * time.Millisecond
	// endEvery is the same time while a guest whose lease has ended still runs.
	endEvery = 100 * time.Millisecond
	// idleTime is how long a watchdog runs without guests and agents.
	idleTime = 10 * time.Second
	// lateTime is how long a guest stays in the list after its lease: a hanging agent or hypervisor may start it late.
	lateTime = 15 * time.Minute
)

// Watchdog ends guests.
type Watchdog struct {
	// Processes returns the pids of guests' QEMU processes on this machine, by guest uid. It returns when ctx ends, at the latest.
	Processes func(ctx context.Context) (map[string][]int, error)
	Log       *slog.Logger

	clock func() time.Duration // nil: Clock
	kill  func(pid int) error  // nil: SIGKILL

	mu       sync.Mutex
	guests   map[string]time.Duration
	traced   map[int]string    // by pid: uids of the processes that the kernel kills if the watchdog dies
	refused  map[string]string // by uid: why a guest's process cannot be traced
	trouble  string            // of the last search of processes; empty: it was complete
	blind    string            // as Response.Blind
	agents   int               // number of connections
	idle     time.Duration     // since when there are neither guests nor agents
	wake     chan struct{}
	listener net.Listener
}

// Serve runs the watchdog. It returns when the watchdog is no longer needed. Only one process can serve a path; another one
// gets an error.
func (w *Watchdog) Serve(path string) error {
	unlock, err := lock(path + ".lock")
	if err != nil {
		return err
	}
	defer unlock()
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	old := syscall.Umask(0o077)
	w.listener, err = net.Listen("unix", path)
	syscall.Umask(old)
	if err != nil {
		return err
	}
	w.begin()
	go w.accept()
	defer w.listener.Close()
	for {
		wait, done := w.look()
		if done {
			return nil
		}
		select {
		case <-time.After(wait):
		case <-w.wake:
		}
	}
}

func (w *Watchdog) begin() {
	if w.clock == nil {
		w.clock = Clock
	}
	if w.kill == nil {
		w.kill = func(pid int) error { return syscall.Kill(pid, syscall.SIGKILL) }
	}
	w.guests, w.traced, w.refused, w.wake = map[string]time.Duration{}, map[int]string{}, map[string]string{}, make(chan struct{}, 1)
	w.idle = w.clock()
}

// lock makes sure that only one watchdog serves a path.
func lock(path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|syscall.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		f.Close()
		return nil, fmt.Errorf("another watchdog serves here: %w", err)
	}
	return func() { f.Close() }, nil
}

func (w *Watchdog) accept() {
	for {
		conn, err := w.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			time.Sleep(endEvery)
			continue
		}
		go w.serve(conn)
	}
}

// serve answers an agent's requests.
func (w *Watchdog) serve(conn net.Conn) {
	defer conn.Close()
	w.agent(1)
	defer w.agent(-1)
	decoder, encoder := json.NewDecoder(conn), json.NewEncoder(conn)
	for {
		var r Request
		if err := decoder.Decode(&r); err != nil {
			if !errors.Is(err, io.EOF) {
				w.Log.Warn("an agent's request cannot be read", "error", err)
			}
			return
		}
		if err := encoder.Encode(w.take(r)); err != nil {
			return
		}
	}
}

func (w *Watchdog) agent(change int) {
	w.mu.Lock()
	w.agents += change
	w.idle = w.clock()
	w.mu.Unlock()
}

// take carries out a request. It never shortens the time of a guest, but drops guests that the request leaves out.
func (w *Watchdog) take(r Request) Response {
	w.mu.Lock()
	if r.Guests != nil {
		for uid, was := range w.guests {
			if now, is := r.Guests[uid]; is {
				r.Guests[uid] = max(now, was)
			}
		}
		if len(w.guests) == 0 && len(r.Guests) > 0 { // without guests there are no searches
			w.blind = "no search has ended yet"
		}
		w.guests = r.Guests
		select {
		case w.wake <- struct{}{}:
		default:
		}
	}
	known := Response{Guests: map[string]time.Duration{}, Unguarded: map[string]string{}, Blind: w.blind}
	for uid, until := range w.guests {
		known.Guests[uid] = until
		if why := w.refused[uid]; why != "" {
			known.Unguarded[uid] = why
		}
	}
	w.mu.Unlock()
	return known
}

// look traces new processes, and kills those of guests whose time has come. It returns how long to wait until the next call;
// done: the watchdog is no longer needed.
func (w *Watchdog) look() (wait time.Duration, done bool) {
	w.mu.Lock()
	now := w.clock()
	for uid, until := range w.guests {
		if now-until > lateTime {
			delete(w.guests, uid)
		}
	}
	if len(w.guests) == 0 {
		defer w.mu.Unlock()
		return lookEvery, w.agents == 0 && len(w.traced) == 0 && now-w.idle > idleTime
	}
	w.idle = now
	w.end(nil) // the traced processes are known, even if the search takes long
	within := max(endEvery, w.next())
	w.mu.Unlock()

	// The search is outside the lock: a process of the owner that sleeps in the kernel can block it, and agents must get answers.
	ctx, cancel := context.WithTimeout(context.Background(), within)
	found, err := w.Processes(ctx)
	cancel()

	w.mu.Lock()
	defer w.mu.Unlock()
	w.note(found, err)
	killed := w.end(found)
	if err == nil {
		w.refused = map[string]string{}
	}
	for uid, until := range w.guests {
		for _, pid := range found[uid] {
			if until <= w.clock() {
				continue // it was killed
			}
			if err := w.trace(uid, pid); err != nil {
				w.refused[uid] = err.Error()
			}
		}
	}
	if wait = min(lookEvery, w.next()); killed {
		wait = min(wait, endEvery)
	}
	return wait, false
}

// next returns the time until the next guest's lease ends, or searchTime if that is later. The caller holds w.mu.
func (w *Watchdog) next() time.Duration {
	next := searchTime
	for _, until := range w.guests {
		if left := until - w.clock(); left > 0 {
			next = min(next, left)
		}
	}
	return next
}

// end kills the traced processes, and those that were found, of guests whose lease has ended. It reports whether there were any. The
// caller holds w.mu.
func (w *Watchdog) end(found map[string][]int) (killed bool) {
	pids := map[int]string{} // uids
	for uid, list := range found {
		for _, pid := range list {
			pids[pid] = uid
		}
	}
	maps.Copy(pids, w.traced)
	for pid, uid := range pids {
		until, leased := w.guests[uid]
		if !leased || until > w.clock() {
			continue
		}
		killed = true
		w.Log.Warn("a guest's lease has ended, and the guest with it", "guest", uid, "pid", pid)
		if err := w.kill(pid); err != nil && !errors.Is(err, syscall.ESRCH) {
			w.Log.Error("end a guest", "guest", uid, "pid", pid, "error", err)
		}
	}
	return killed
}

// note notes and logs why a search was not complete. If it found nothing, a guest that begins now would not be seen. The caller holds
// w.mu.
func (w *Watchdog) note(found map[string][]int, err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != "" && text != w.trouble {
		w.Log.Warn("guests' processes cannot be listed in full", "error", err)
	}
	w.trouble, w.blind = text, ""
	if found == nil {
		w.blind = text
	}
}

// trace makes the kernel kill a guest's process when the watchdog ends. The caller holds w.mu.
func (w *Watchdog) trace(uid string, pid int) error {
	if w.traced[pid] != "" {
		return nil
	}
	ended, err := bind(pid)
	if err != nil {
		return err
	}
	w.traced[pid] = uid
	go func() {
		<-ended
		w.mu.Lock()
		delete(w.traced, pid)
		w.mu.Unlock()
	}()
	return nil
}
