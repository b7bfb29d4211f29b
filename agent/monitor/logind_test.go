package monitor

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "watari/api/watariv1"
	"watari/internal/utmp"
)

// stubBus is a logind whose sessions the test sets.
type stubBus struct {
	new chan struct{}

	mu     sync.Mutex
	list   []session
	err    error
	silent bool // it does not answer
	opened int
	closed int
}

func (b *stubBus) sessions(ctx context.Context) ([]session, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.silent {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return slices.Clone(b.list), b.err
}

func (b *stubBus) begun() <-chan struct{} { return b.new }

func (b *stubBus) close() { b.closed++ }

// logind gives the host a logind.
func (f *fake) logind() *stubBus {
	b := &stubBus{new: make(chan struct{}, 1)}
	f.write("run/dbus/system_bus_socket", "")
	f.write("run/systemd/sessions/1", "")
	f.monitor.logind.open = func() (bus, error) {
		b.opened++
		return b, nil
	}
	return b
}

func TestLoginsOfUtmpAndLogindAreJoined(t *testing.T) {
	f := newFake(t)
	b := f.logind()
	f.run(program{pid: 61, name: "bash", user: 1000})
	f.run(program{pid: 62, name: "bash", user: 1001})
	f.terminal("pts/3", f.now.Add(-40*time.Second))
	f.terminal("pts/4", f.now.Add(-30*time.Second))
	f.terminal("tty1", f.now.Add(-20*time.Second))
	f.write("run/utmp", utmpEntry(utmp.UserProcess, 61, "pts/3", "ann")+utmpEntry(utmp.UserProcess, 62, "pts/4", "ben"))
	b.list = []session{{id: "1", user: "ann", tty: "pts/3"}, {id: "2", user: "eva", tty: "tty1"}, {id: "3", user: "ann", tty: "pts/9"}}
	f.monitor.logind.ask(t.Context())
	a := f.sample(0).Owner
	if !slices.Equal(a.Users, []string{"ann", "ben", "eva"}) {
		t.Errorf("users: %v", a.Users)
	}
	near(t, "terminal idle", a.GetTerminalIdle(), 21)
	sessions, known := f.monitor.logind.sessions()
	if _, terminals := present(f.monitor.logins(), sessions); !known || !slices.Equal(terminals, []string{"pts/3", "pts/4", "pts/9", "tty1"}) {
		t.Errorf("terminals: %v", terminals)
	}
	b.list = nil
	f.monitor.logind.ask(t.Context())
	if a := f.sample(0).Owner; !slices.Equal(a.Users, []string{"ann", "ben"}) {
		t.Errorf("users by utmp alone: %v", a.Users)
	}
}

// sshd allocates the terminal after it has told logind of the login.
func TestTheTerminalsOfALoginOverSSH(t *testing.T) {
	f := newFake(t)
	b := f.logind()
	b.list = []session{{id: "3", user: "ann", uid: 1000, scope: "session-3.scope"}}
	f.write("sys/fs/cgroup/user.slice/user-1000.slice/session-3.scope/cgroup.procs", "61\n62\n63\n64\n65\n")
	f.run(program{pid: 61, name: "sshd"})
	f.run(program{pid: 62, name: "bash", user: 1000, tty: 136<<8 | 3})
	f.run(program{pid: 63, name: "make", user: 1000, tty: 136<<8 | 3})
	f.run(program{pid: 65, name: "bash", user: 1000, tty: 1<<20 | 136<<8 | 44}) // 64 has ended
	f.terminal("pts/3", f.now.Add(-time.Minute))
	f.terminal("pts/300", f.now.Add(-10*time.Second))
	f.monitor.logind.ask(t.Context())
	if list, _ := f.monitor.logind.sessions(); len(list) != 1 || !slices.Equal(list[0].terminals, []string{"pts/3", "pts/300"}) {
		t.Errorf("sessions: %+v", list)
	}
	near(t, "terminal idle", f.sample(0).Owner.GetTerminalIdle(), 11)
}

func TestDesktopsTellWhetherTheyAreUsed(t *testing.T) {
	const unknown = -1
	for name, c := range map[string]struct {
		session session
		watched bool // the agent reads the host's keyboard
		want    float64
	}{
		"used now":                     {session{idle: false}, false, 0},
		"idle for a minute":            {session{idle: true}, false, 60},
		"used now, with a keyboard":    {session{idle: false}, true, 0},
		"at the keyboard":              {session{seated: true}, true, unknown},
		"at a keyboard that is unread": {session{seated: true}, false, 0},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake(t)
			if in := &f.monitor.inputs; c.watched {
				in.open, in.opened = map[string]*os.File{"event0": nil}, time.Now()
			}
			s := c.session
			s.user, s.graphical, s.began, s.idleSince = "ann", true, f.now.Add(-time.Hour), f.now.Add(-59*time.Second)
			f.monitor.logind.note([]session{s}, nil)
			a := f.sample(0).Owner
			if c.want == unknown {
				if a.InputIdle != nil {
					t.Errorf("idle for %v", a.GetInputIdle())
				}
				return
			}
			near(t, "input idle", a.GetInputIdle(), c.want)
			if a.InputIdle == nil || a.TerminalIdle != nil {
				t.Errorf("activity: %v", a)
			}
		})
	}
	f := newFake(t)
	f.monitor.logind.note([]session{{graphical: true, began: f.now.Add(-2 * time.Minute)}}, nil)
	near(t, "a desktop that tells nothing", f.sample(0).Owner.GetInputIdle(), 121)
}

func TestTheOwnersReturnIsToldByLogind(t *testing.T) {
	f := newFake(t)
	look := f.watches()
	ann := session{id: "1", user: "ann", terminals: []string{"pts/3"}}
	ben := session{id: "2", user: "ben"}
	f.terminal("pts/3", f.now)
	look("logind has not answered yet", 0, false)
	f.monitor.logind.note([]session{ann}, nil)
	look("who is there at the beginning", time.Minute, false)

	f.terminal("pts/3", f.now)
	look("a key on a terminal", 200*time.Millisecond, true)
	f.terminal("pts/3", f.now)
	look("another key soon after", time.Second, false)

	f.monitor.logind.note([]session{ann, ben}, nil)
	look("a login", 6*time.Second, true)
	look("nothing", 6*time.Second, false)
	f.monitor.logind.at = time.Now().Add(-2 * keepAnswer)
	f.terminal("pts/3", f.now)
	look("a key while logind does not answer", 6*time.Second, true)
	f.monitor.logind.note([]session{ann, ben}, nil)
	look("logind answers again", 6*time.Second, false)
	f.monitor.logind.note([]session{ben}, nil)
	look("a logout", 6*time.Second, false)

	desktop := session{id: "3", graphical: true, idle: true, idleSince: f.now.Add(-time.Hour)}
	f.monitor.logind.note([]session{ben, desktop}, nil)
	look("a remote desktop's login", 6*time.Second, true)
	look("the desktop is idle", 6*time.Second, false)
	desktop.idle, desktop.idleSince = false, f.now
	f.monitor.logind.note([]session{ben, desktop}, nil)
	look("the desktop is used", 6*time.Second, true)
	look("and used on", time.Second, false)
}

func TestALogindThatDoesNotAnswer(t *testing.T) {
	f := newFake(t)
	b, l := f.logind(), f.monitor.logind
	b.list = []session{{id: "1", user: "ann"}}
	l.ask(t.Context())
	b.silent = true
	begun := time.Now()
	l.ask(t.Context())
	if took := time.Since(begun); took > 10*answerTime || b.closed != 1 {
		t.Errorf("asked for %v, closed %d times", took, b.closed)
	}
	if list, known := l.sessions(); !known || len(list) != 1 || l.problem() != "" {
		t.Errorf("the last answer: %v, %v; problem %q", list, known, l.problem())
	}
	l.at = l.at.Add(-keepAnswer)
	if list, known := l.sessions(); known || !strings.Contains(l.problem(), "no answer within 1s") {
		t.Errorf("an old answer: %v, %v; problem %q", list, known, l.problem())
	}
	b.silent, b.err = false, errors.New("access denied")
	l.ask(t.Context())
	if !slices.ContainsFunc(f.monitor.Problems(), func(p string) bool { return strings.Contains(p, "access denied") }) {
		t.Errorf("problems: %q", f.monitor.Problems())
	}
	b.err = nil
	l.ask(t.Context())
	if list, known := l.sessions(); !known || len(list) != 1 || l.problem() != "" || b.opened != 3 {
		t.Errorf("connected again: %v, %v; problem %q; connected %d times", list, known, l.problem(), b.opened)
	}
}

func TestABusThatHangsDelaysNoSample(t *testing.T) {
	f := newFake(t)
	f.logind()
	release := make(chan struct{})
	defer close(release)
	f.monitor.logind.open = func() (bus, error) {
		<-release
		return nil, errors.New("released")
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go f.monitor.Run(ctx)
	for range 2 {
		_, next := f.monitor.Latest()
		select {
		case <-next:
		case <-time.After(10 * time.Second):
			t.Fatal("no sample")
		}
	}
	l := f.monitor.logind
	l.mu.Lock()
	l.at = l.at.Add(-2 * keepAnswer)
	l.mu.Unlock()
	if p := l.problem(); !strings.Contains(p, "does not answer") {
		t.Errorf("problem %q", p)
	}
}

func TestAHostWithoutLogindHasNoProblem(t *testing.T) {
	f := newFake(t)
	l := f.monitor.logind
	l.open = func() (bus, error) { return nil, errors.New("asked") }
	f.write("run/dbus/system_bus_socket", "")
	l.at = time.Now().Add(-2 * keepAnswer)
	if p := l.problem(); p != "" {
		t.Errorf("problem %q", p)
	}
	l.ask(t.Context())
	if list, known := l.sessions(); !known || len(list) != 0 || l.err != nil {
		t.Errorf("sessions %v, %v; %v", list, known, l.err)
	}
}

func TestALoginIsSeenAtOnce(t *testing.T) {
	f := newFake(t)
	b := f.logind()
	go f.monitor.Run(t.Context())
	await := func(limit time.Duration, is func(*v1.HostSample) bool) {
		t.Helper()
		for end := time.After(limit); ; {
			s, next := f.monitor.Latest()
			if s != nil && is(s) {
				return
			}
			select {
			case <-next:
			case <-end:
				t.Fatalf("not within %v: %v", limit, s)
			}
		}
	}
	are := func(list ...session) {
		b.mu.Lock()
		b.list = list
		b.mu.Unlock()
		b.new <- struct{}{}
	}
	took := time.Hour
	for try := 0; try < 5 && took > time.Second; try++ { // a machine that stands still may make one try late
		are()
		await(20*time.Second, func(s *v1.HostSample) bool { return len(s.Owner.Users) == 0 })
		time.Sleep(awayFor + 500*time.Millisecond)
		begun := time.Now()
		are(session{id: "1", user: "ann"})
		await(20*time.Second, func(s *v1.HostSample) bool { return slices.Equal(s.Owner.Users, []string{"ann"}) })
		took = time.Since(begun)
		t.Logf("seen after %v", took)
	}
	if took > time.Second {
		t.Errorf("seen after %v", took)
	}
}
