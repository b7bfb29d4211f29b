package monitor

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	v1 "watari/api/watariv1"
	"watari/internal/utmp"
)

// terminal makes a terminal whose access time is read.
func (f *fake) terminal(name string, read time.Time) {
	f.t.Helper()
	path := filepath.Join(f.root, "dev", name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		f.t.Fatal(err)
	}
	if err := unix.Mknod(path, unix.S_IFCHR|0o600, int(unix.Mkdev(1, 3))); err != nil && !os.IsExist(err) {
		f.t.Skipf("needs root, to make a terminal: %v", err)
	}
	if err := os.Chtimes(path, read, f.now); err != nil {
		f.t.Fatal(err)
	}
}

// watches returns a function that lets a time pass, and checks whether the owner has come back then.
func (f *fake) watches() (look func(what string, after time.Duration, want bool)) {
	w := &watch{root: f.root, inputs: &f.monitor.inputs, logind: f.monitor.logind}
	return func(what string, after time.Duration, want bool) {
		f.t.Helper()
		f.now = f.now.Add(after)
		if got := w.returned(f.now); got != want {
			f.t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
}

func TestTheOwnersReturnIsTold(t *testing.T) {
	f := newFake(t)
	look := f.watches()
	f.terminal("pts/3", f.now)
	f.write("run/utmp", utmpEntry(utmp.UserProcess, 61, "pts/3", "ann"))
	look("who is there at the beginning", 0, false)
	look("nothing", time.Minute, false)

	f.terminal("pts/3", f.now)
	look("a key on a terminal", 200*time.Millisecond, true)
	look("nothing more", 200*time.Millisecond, false)
	f.terminal("pts/3", f.now)
	look("another key soon after", time.Second, false)
	f.terminal("pts/3", f.now)
	look("a key after a while", 5*time.Second, true)

	f.terminal("pts/4", f.now)
	entries := utmpEntry(utmp.UserProcess, 61, "pts/3", "ann") + utmpEntry(utmp.UserProcess, 62, "pts/4", "ben")
	f.write("run/utmp", entries)
	look("a login", 6*time.Second, true)
	f.write("run/utmp", utmpEntry(utmp.UserProcess, 61, "pts/3", "ann"))
	look("a logout", 6*time.Second, false)

	f.monitor.inputs.mu.Lock()
	f.monitor.inputs.noteLocked(f.now.Add(time.Second))
	f.monitor.inputs.mu.Unlock()
	look("the mouse", 2*time.Second, true)
	look("the mouse stands still", 10*time.Second, false)
	if err := os.Chtimes(filepath.Join(f.root, "dev/pts/3"), time.Time{}, f.now); err != nil {
		t.Fatal(err)
	}
	look("a program writes to the terminal", 10*time.Second, false)
}

// The first key is reported at once, the keys after it are not.
func TestAKeyWakes(t *testing.T) {
	f := newFake(t)
	in := &f.monitor.inputs
	woken := func() bool {
		select {
		case <-in.arrived:
			return true
		default:
			return false
		}
	}
	in.noteLocked(f.now)
	first := woken()
	in.noteLocked(f.now.Add(time.Second))
	second := woken()
	in.noteLocked(f.now.Add(time.Minute))
	if third := woken(); !first || second || !third {
		t.Errorf("woken: %v %v %v", first, second, third)
	}
}

// An early sample shows the owner's activity. It has no rates, and does not change the rates of the next sample.
func TestASampleAtAGlanceLeavesRatesAlone(t *testing.T) {
	f := newFake(t)
	f.run(qemu(70, uidA, "md-0", 0))
	f.sample(0)
	f.monitor.publish(f.monitor.Sample(f.now.Add(time.Millisecond)))
	f.now = f.now.Add(time.Millisecond)
	f.run(qemu(70, uidA, "md-0", time.Second))
	f.run(program{pid: 61, name: "bash", user: 1000})
	f.terminal("pts/3", f.now.Add(-time.Second))
	f.write("run/utmp", utmpEntry(utmp.UserProcess, 61, "pts/3", "ann"))
	s := f.monitor.glance(f.now.Add(200 * time.Millisecond))
	cpu(t, s, 0, 0, 0)
	if s.Seconds != 0 || !slices.Equal(s.Owner.Users, []string{"ann"}) || s.Owner.TerminalIdle == nil || len(s.Guests) != 1 || s.Guests[0].Cpu != 0 {
		t.Errorf("sample: %v", s)
	}
	cpu(t, f.sample(time.Second), 1, 0, 0)
}

// While Run runs, the owner's return makes a sample within 200 ms.
func TestTheOwnersReturnIsSampledAtOnce(t *testing.T) {
	f := newFake(t)
	f.now = time.Now()
	f.run(program{pid: 61, name: "bash", user: 1000})
	f.terminal("pts/3", f.now.Add(-time.Hour))
	f.write("run/utmp", utmpEntry(utmp.UserProcess, 61, "pts/3", "ann"))
	go f.monitor.Run(t.Context())
	await := func(limit time.Duration, is func(*v1.HostSample) bool) time.Duration {
		t.Helper()
		begun := time.Now()
		for {
			s, next := f.monitor.Latest()
			if s != nil && is(s) {
				return time.Since(begun)
			}
			select {
			case <-next:
			case <-time.After(limit):
				t.Fatalf("not within %v: %v", limit, s)
			}
		}
	}
	var took time.Duration
	var now *v1.HostSample
	for range 5 { // a machine that stands still may make one try late
		f.terminal("pts/3", time.Now().Add(-time.Hour))
		await(20*time.Second, func(s *v1.HostSample) bool { return s.Owner.GetTerminalIdle() > 3000 })
		time.Sleep(awayFor + 500*time.Millisecond)
		s, _ := f.monitor.Latest()
		f.terminal("pts/3", time.Now())
		took = await(20*time.Second, func(s *v1.HostSample) bool { return s.Owner.GetTerminalIdle() < 3000 })
		now, _ = f.monitor.Latest()
		t.Logf("seen after %v, %v after the sample before, with rates over %.3f s", took, now.At.AsTime().Sub(s.At.AsTime()), now.Seconds)
		if took <= 500*time.Millisecond {
			break
		}
	}
	if took > 500*time.Millisecond { // 200 ms on a machine that is not busy
		t.Errorf("seen after %v", took)
	}
	if now.Seconds != 0 && now.Seconds < atLeast.Seconds() {
		t.Errorf("rates over %v s", now.Seconds)
	}
}

func TestSilenceSinceTheAgentBegan(t *testing.T) {
	in := &inputs{root: t.TempDir(), open: map[string]*os.File{"event0": nil}, opened: time.Now().Add(-silence / 2)}
	if at, known := in.last(); known {
		t.Errorf("half a minute after the agent began, the last key was at %v", at)
	}
	in.opened = time.Now().Add(-2 * silence)
	if at, known := in.last(); !known || !at.Equal(in.opened) {
		t.Errorf("two minutes after the agent began: %v, %v", at, known)
	}
	in.came = time.Now()
	if at, known := in.last(); !known || !at.Equal(in.came) {
		t.Errorf("after a key: %v, %v", at, known)
	}
}
