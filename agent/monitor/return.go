package monitor

// return.go - notices at once that the owner comes back, between two samples.

import (
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"watari/internal/utmp"
)

const (
	// lookForOwnerEvery is how often terminals and logins are looked at. Keyboards and mice tell by themselves.
	lookForOwnerEvery = 100 * time.Millisecond
	// awayFor is for how long an owner has done nothing at least who then comes back.
	awayFor = 5 * time.Second
)

// watch tells the owner's return from what the owner does all the time.
type watch struct {
	root   string
	inputs *inputs

	begun  bool      // the first look was taken: what it finds is no news
	active time.Time // when the owner was last seen to do something
	noted  time.Time // when utmp was written, and how long it was
	size   int64
	logins []utmp.Entry
	typed  map[string]time.Time // access times of the logins' terminals
}

// returned looks, and reports whether the owner has come back: by a key, the mouse, a terminal, or a login. It reads no more
// than the times of a few files, unless somebody has logged in or out.
func (w *watch) returned(now time.Time) bool {
	did := w.loggedIn()
	did = w.hasTyped() || did
	if last, known := w.inputs.last(); known && last.After(w.active) {
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

// loggedIn reports whether somebody has logged in since the last look.
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

// hasTyped reports whether the access time of a terminal has changed since the last look. The kernel changes it when something
// is read from the terminal, but only once in each 8 seconds of its clock, and then to the full second. So the first key after
// 8 seconds or more is seen at once, and one after 5 to 8 seconds at the latest with those of the next 8. What is written to a
// terminal (its modification time) is no sign of people.
func (w *watch) hasTyped() (is bool) {
	before := w.typed
	w.typed = map[string]time.Time{}
	for _, login := range w.logins {
		read, known := terminalRead(w.root, login.Line)
		if !known {
			continue
		}
		w.typed[login.Line] = read
		was, old := before[login.Line]
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
