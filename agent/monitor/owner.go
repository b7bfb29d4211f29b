package monitor

// owner.go - whether somebody is logged in, and when somebody last typed or moved the mouse.

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	v1 "watari/api/watariv1"
	"watari/internal/utmp"
)

// activity returns what the owner does.
func (m *Monitor) activity(now time.Time) *v1.OwnerActivity {
	a := &v1.OwnerActivity{}
	for _, l := range m.logins() {
		if !slices.Contains(a.Users, l.User) {
			a.Users = append(a.Users, l.User)
		}
		if read, known := terminalRead(m.config.Root, l.Line); known {
			a.TerminalIdle = sooner(a.TerminalIdle, now.Sub(read))
		}
	}
	slices.Sort(a.Users)
	if last, known := m.inputs.last(); known {
		a.InputIdle = sooner(nil, now.Sub(last))
	}
	return a
}

// sooner returns the shorter of two idle times, in seconds.
func sooner(known *float64, idle time.Duration) *float64 {
	seconds := max(0, idle.Seconds())
	if known != nil && *known < seconds {
		return known
	}
	return &seconds
}

// logins returns who is logged in. It leaves out entries whose process has ended: their session broke off.
func (m *Monitor) logins() (all []utmp.Entry) {
	data, _ := os.ReadFile(filepath.Join(m.config.Root, "run/utmp"))
	for _, entry := range utmp.Parse(data) {
		if entry.Kind != utmp.UserProcess {
			continue
		}
		if _, err := os.Stat(filepath.Join(m.config.Root, "proc", strconv.Itoa(entry.PID))); err == nil {
			all = append(all, entry)
		}
	}
	return all
}
