package monitor

// return.go - notices between two samples that the owner comes back.

import (
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"watari/internal/utmp"
)

const (
	// lookForOwnerEvery is the time between two checks of terminals and logins. Keyboards and mice report events by
	// themselves.
	lookForOwnerEvery = 100 * time.Millisecond
	// awayFor is how long an owner must have been inactive for the next activity to count as a return.
	awayFor = 5 * time.Second
)

// watch tells the owner's return from continuous activity.
type watch struct {
	root   string
	inputs *inputs
	logind *logind

	begun    bool      // the first check was made; its findings are not a return
	active   time.Time // when the owner was last seen to do something
	noted    time.Time // modification time and size of utmp at the last read
	size     int64
	logins   []utmp.Entry
	answered bool // logind has answered; the sessions of its first answer are not a return
	sessions []session
	typed    map[string]time.Time // access times of the logins' terminals
}

// returned checks for new activity (a key, the mouse, a terminal, or a login), and reports whether the owner has come back.
// It reads only the times of a few files, unless somebody has logged in or out.
func (w *watch) returned(now time.Time) bool {
	sessions, answered := w.logind.sessions()
	did := w.loggedIn()
	did = answered && w.sessionBegan(sessions) || did
	did = w.hasTyped() || did
	if last, known := lastInput(now, w.inputs, sessions); known && last.After(w.active) {
		did = true
	}
	if !w.begun {
		w.begun, w.active = true, now
		return false
	}
	if !did {
		return false
	}
	away := now.Sub(w.active)
	w.active = now
	return away >= awayFor
}

// loggedIn reports whether utmp has a new login since the last check.
func (w *watch) loggedIn() (is bool) {
	path := filepath.Join(w.root, "run/utmp")
	info, err := os.Stat(path)
	if err != nil || info.ModTime().Equal(w.noted) && info.Size() == w.size {
		return false
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return false
	}
	w.noted, w.size = info.ModTime(), info.Size()
	before := w.logins
	w.logins = slices.DeleteFunc(utmp.Parse(data), func(e utmp.Entry) bool { return e.Kind != utmp.UserProcess })
	return slices.ContainsFunc(w.logins, func(e utmp.Entry) bool { return !slices.Contains(before, e) })
}

// sessionBegan reports whether logind has a new session since its last answer.
func (w *watch) sessionBegan(sessions []session) (is bool) {
	before, again := w.sessions, w.answered
	w.sessions, w.answered = sessions, true
	return again && slices.ContainsFunc(sessions, func(s session) bool {
		return !slices.ContainsFunc(before, func(b session) bool { return b.id == s.id })
	})
}

// hasTyped reports whether the access time of a terminal has changed since the last check. The kernel updates it on a read
// from the terminal, at most once in each 8 seconds of its clock, and rounds it to a full second. So the first key after 8
// seconds or more is seen at once. A key after 5 to 8 seconds is seen at the latest with the keys of the next 8 seconds. The
// modification time, which changes on output to the terminal, is no sign of people.
func (w *watch) hasTyped() (is bool) {
	before := w.typed
	w.typed = map[string]time.Time{}
	_, terminals := present(w.logins, w.sessions)
	for _, terminal := range terminals {
		read, known := terminalRead(w.root, terminal)
		if !known {
			continue
		}
		w.typed[terminal] = read
		was, old := before[terminal]
		is = is || old && read.After(was)
	}
	return is
}

// terminalRead returns the access time of a terminal; false: there is no such terminal.
func terminalRead(root, name string) (time.Time, bool) {
	info, err := os.Stat(filepath.Join(root, "dev", filepath.Clean("/"+name)))
	if err != nil || info.Mode()&os.ModeCharDevice == 0 {
		return time.Time{}, false
	}
	read := info.Sys().(*syscall.Stat_t).Atim
	return time.Unix(read.Sec, read.Nsec), true
}
