package monitor

// logind.go - the login sessions of people that systemd-logind knows. It asks logind in the background, so that a logind that
// does not answer delays no sample.

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

const (
	// answerTime is how long logind may take to list the sessions.
	answerTime = time.Second
	// keepAnswer is how long an answer counts if later ones are missing.
	keepAnswer = 10 * time.Second
)

// session is a login session of a person.
type session struct {
	id, user string
	uid      uint32
	scope    string // name of the control group of its processes
	began    time.Time

	// Of a session in text mode.
	tty       string   // as logind knows it, without /dev/; empty: none
	terminals []string // tty, or the terminals of its processes

	// Of a graphical session.
	graphical bool
	seated    bool      // it uses the host's own keyboard and screen
	idle      bool      // its desktop says that the person is inactive
	idleSince time.Time // when the desktop last changed idle; zero: never
}

// bus is a connection to logind.
type bus interface {
	// sessions returns the sessions of people, without terminals.
	sessions(ctx context.Context) ([]session, error)
	// begun returns a channel that gets a token when a session has begun.
	begun() <-chan struct{}
	close()
}

// logind keeps logind's last answer.
type logind struct {
	root string
	fs   procfs.FS
	open func() (bus, error) // connects to logind
	bus  bus                 // nil: not connected; only run uses it

	mu       sync.Mutex
	answered bool
	answer   []session // empty if the host has no logind
	at       time.Time // of the last answer, or when run began
	err      error     // why there is no newer answer; nil: not known
}

// run asks logind every second until ctx ends, and sooner after a session has begun.
func (l *logind) run(ctx context.Context) {
	defer l.disconnect()
	l.mu.Lock()
	l.at = time.Now() // from now on, an answer is due
	l.mu.Unlock()
	for ctx.Err() == nil {
		asked := time.Now()
		l.ask(ctx)
		var begun <-chan struct{}
		if l.bus != nil {
			begun = l.bus.begun()
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Until(asked.Add(every))):
		case <-begun:
			select {
			case <-ctx.Done():
			case <-time.After(time.Until(asked.Add(atLeast))): // many logins cause few questions
			}
		}
	}
}

// ask asks logind for the sessions.
func (l *logind) ask(ctx context.Context) {
	if !l.exists() {
		l.disconnect()
		l.note(nil, nil)
		return
	}
	if l.bus == nil {
		bus, err := l.open()
		if err != nil {
			l.note(nil, err)
			return
		}
		l.bus = bus
	}
	limited, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	list, err := l.bus.sessions(limited)
	if err != nil {
		if errors.Is(err, context.DeadlineExceeded) {
			err = fmt.Errorf("no answer within %v", answerTime)
		}
		l.disconnect() // the next question connects again
		l.note(nil, err)
		return
	}
	for i := range list {
		if !list[i].graphical {
			list[i].terminals = l.terminals(list[i])
		}
	}
	l.note(list, nil)
}

func (l *logind) disconnect() {
	if l.bus != nil {
		l.bus.close()
		l.bus = nil
	}
}

// note records an answer, or why there is none.
func (l *logind) note(answer []session, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err = err; err == nil {
		l.answered, l.answer, l.at = true, answer, time.Now()
	}
}

// exists reports whether the host has a system bus, and a logind.
func (l *logind) exists() bool {
	has := func(path string) bool {
		_, err := os.Stat(filepath.Join(l.root, path))
		return err == nil
	}
	return has("run/dbus/system_bus_socket") && (has("run/systemd/seats") || has("run/systemd/sessions"))
}

// sessions returns the sessions of the last answer, which the caller may not change; false: not known.
func (l *logind) sessions() ([]session, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.answered || time.Since(l.at) > keepAnswer {
		return nil, false
	}
	return l.answer, true
}

// problem returns why logind's sessions are not known; empty: they are known, or the host has no logind.
func (l *logind) problem() string {
	l.mu.Lock()
	late, err := !l.at.IsZero() && time.Since(l.at) > keepAnswer, l.err
	l.mu.Unlock()
	if !late || !l.exists() {
		return ""
	}
	if err == nil {
		err = errors.New("it does not answer")
	}
	return fmt.Sprintf("logins of the owner may go unnoticed, because systemd-logind cannot be asked: %v", err)
}

// terminals returns the terminals of a session in text mode. logind does not know the terminal of a login over ssh, because
// sshd allocates the terminal after it has told logind of the login. (With utmp, logind finds it there.)
func (l *logind) terminals(s session) (names []string) {
	if s.tty != "" {
		return []string{s.tty}
	}
	group := filepath.Join(l.root, "sys/fs/cgroup/user.slice", fmt.Sprintf("user-%d.slice", s.uid), s.scope)
	pids, _ := os.ReadFile(filepath.Join(group, "cgroup.procs"))
	for field := range strings.FieldsSeq(string(pids)) {
		pid, err := strconv.Atoi(field)
		if err != nil {
			continue
		}
		p, err := l.fs.Proc(pid)
		if err != nil {
			continue // the process has ended
		}
		stat, err := p.Stat()
		if err != nil {
			continue
		}
		if name := pseudoTerminal(stat.TTY); name != "" && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// pseudoTerminals is the device number of pseudo-terminals (UNIX98_PTY_SLAVE_MAJOR in the kernel's major.h).
const pseudoTerminals = 136

// pseudoTerminal returns the name, without /dev/, of a process's terminal as /proc/PID/stat tells it; empty: the process has no
// terminal, or one of another kind.
func pseudoTerminal(device int) string {
	number := uint64(uint32(device))
	if unix.Major(number) != pseudoTerminals {
		return ""
	}
	return fmt.Sprintf("pts/%d", unix.Minor(number))
}

// used returns when the person last used a graphical session, as far as the desktop tells. A desktop tells only that the person
// was inactive for some minutes, or became active again. Of a desktop that has never told anything, it returns the login's time.
func (s session) used(now time.Time) time.Time {
	switch {
	case s.idleSince.IsZero():
		return s.began
	case s.idle:
		return s.idleSince
	}
	return now
}
