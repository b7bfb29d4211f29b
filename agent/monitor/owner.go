package monitor

// owner.go - whether somebody is logged in, and when somebody typed or moved the mouse last.

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	v1 "watari/api/watariv1"
)

// activity returns what the owner does.
func (m *Monitor) activity(now time.Time) *v1.OwnerActivity {
	a := &v1.OwnerActivity{}
	for _, l := range m.logins() {
		if !slices.Contains(a.Users, l.user) {
			a.Users = append(a.Users, l.user)
		}
		if idle, known := m.terminalIdle(l.terminal, now); known {
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

// login is somebody who is logged in.
type login struct {
	user, terminal string
}

// An entry of utmp(5) on 64-bit Linux: its size, where the fields are, and the type of a login.
const (
	utmpSize     = 384
	utmpPID      = 4
	utmpTerminal = 8
	utmpUser     = 44
	utmpLogin    = 7 // USER_PROCESS
)

// logins returns who is logged in. An entry whose process has ended is one of a session that broke off.
func (m *Monitor) logins() (all []login) {
	data, _ := os.ReadFile(filepath.Join(m.config.Root, "run/utmp"))
	for ; len(data) >= utmpSize; data = data[utmpSize:] {
		pid := int(int32(binary.NativeEndian.Uint32(data[utmpPID:])))
		if _, alive := m.processes[pid]; binary.NativeEndian.Uint16(data) != utmpLogin || !alive {
			continue
		}
		all = append(all, login{user: text(data[utmpUser : utmpUser+32]), terminal: text(data[utmpTerminal : utmpTerminal+32])})
	}
	return all
}

func text(field []byte) string {
	before, _, _ := bytes.Cut(field, []byte{0})
	return strings.ToValidUTF8(string(before), "?")
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
