package monitor

// owner.go - who is logged in, and when somebody last typed or moved the mouse.

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
	sessions, _ := m.logind.sessions()
	users, terminals := present(m.logins(), sessions)
	a.Users = users
	for _, terminal := range terminals {
		if read, known := terminalRead(m.config.Root, terminal); known {
			a.TerminalIdle = sooner(a.TerminalIdle, now.Sub(read))
		}
	}
	if last, known := lastInput(now, &m.inputs, sessions); known {
		a.InputIdle = sooner(nil, now.Sub(last))
	}
	return a
}

// present returns the users who are logged in and their terminals, sorted. A login that both utmp and logind list counts once.
func present(entries []utmp.Entry, sessions []session) (users, terminals []string) {
	for _, e := range entries {
		users, terminals = append(users, e.User), append(terminals, e.Line)
	}
	for _, s := range sessions {
		users, terminals = append(users, s.user), append(terminals, s.terminals...)
	}
	slices.Sort(users)
	slices.Sort(terminals)
	return slices.Compact(users), slices.Compact(terminals)
}

// lastInput returns when a key was last pressed or the mouse last moved, at the host or in a remote desktop; false: not known.
// The desktop of a session at the host's own keyboard counts only if the agent can read no keyboard or mouse: it tells of
// activity less exactly.
func lastInput(now time.Time, in *inputs, sessions []session) (last time.Time, known bool) {
	last, known = in.last()
	watched := in.watched()
	for _, s := range sessions {
		if !s.graphical || s.seated && watched {
			continue
		}
		if used := s.used(now); !known || used.After(last) {
			last, known = used, true
		}
	}
	return last, known
}

// sooner returns the shorter of two idle times, in seconds.
func sooner(known *float64, idle time.Duration) *float64 {
	seconds := max(0, idle.Seconds())
	if known != nil && *known < seconds {
		return known
	}
	return &seconds
}

// logins returns who is logged in, by utmp. It leaves out entries whose process has ended: their session broke off.
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
