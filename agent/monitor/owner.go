package monitor

// owner.go - whether somebody is logged in, and when somebody typed or moved the mouse last.

import (
	"os"
	"path/filepath"
	"slices"
	"syscall"
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
		if idle, known := m.terminalIdle(l.Line, now); known {
			a.TerminalIdle = sooner(a.TerminalIdle, idle)
		}
	}
	slices.Sort(a.Users)
	if last, known := m.inputs.last(); known {
		a.InputIdle = sooner(nil, now.Sub(last))
	}
	return a
}

// sooner returns the shorter of two times, in seconds.
func sooner(known *float64, idle time.Duration) *float64 {
	seconds := max(0, idle.Seconds())
	if known != nil && *known < seconds {
		return known
	}
	return &seconds
}

// logins returns who is logged in. An entry whose process has ended is one of a session that broke off.
func (m *Monitor) logins() (all []utmp.Entry) {
	data, _ := os.ReadFile(filepath.Join(m.config.Root, "run/utmp"))
	for _, entry := range utmp.Parse(data) {
		if _, alive := m.processes[entry.PID]; entry.Kind == utmp.UserProcess && alive {
			all = append(all, entry)
		}
	}
	return all
}

// terminalIdle returns for how long nobody has typed on a terminal, by its access time, which the kernel notes to 8 seconds
// (drivers/tty/tty_io.c, tty_update_time).
func (m *Monitor) terminalIdle(name string, now time.Time) (time.Duration, bool) {
	info, err := os.Stat(filepath.Join(m.config.Root, "dev", filepath.Clean("/"+name)))
	if err != nil || info.Mode()&os.ModeCharDevice == 0 {
		return 0, false
	}
	read := info.Sys().(*syscall.Stat_t).Atim
	return now.Sub(time.Unix(read.Sec, read.Nsec)), true
}
