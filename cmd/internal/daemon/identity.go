package daemon

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"

	"watari/internal/durable"
)

// identity identifies one process of this machine for all time: by its id, its start time, and the boot.
type identity struct {
	PID   int
	Start string // start time in clock ticks after boot, field 22 of /proc/PID/stat (proc(5))
	Boot  string
}

func identify(pid int) (identity, error) {
	start, err := startTime(pid)
	if err != nil {
		return identity{}, err
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return identity{}, err
	}
	return identity{pid, start, strings.TrimSpace(string(boot))}, nil
}

// startTime returns "" for a zombie.
func startTime(pid int) (string, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", err
	}
	// The second field, a name in brackets, may contain anything. The state is the third field, the start the 22nd.
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	if len(fields) < 20 {
		return "", fmt.Errorf("read /proc/%d/stat: too few fields", pid)
	}
	if fields[0] == "Z" || fields[0] == "X" {
		return "", nil
	}
	return fields[19], nil
}

// alive reports whether this very process is running.
func (i identity) alive() bool {
	now, err := identify(i.PID)
	return err == nil && now == i
}

// signal sends a signal to this very process. It is not an error if the process has ended.
func (i identity) signal(signal syscall.Signal) error {
	process, err := os.FindProcess(i.PID) // uses a pidfd, so that the id cannot be reused meanwhile
	if err != nil {
		return err
	}
	defer process.Release()
	if !i.alive() {
		return nil
	}
	if err := process.Signal(signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	return nil
}

// write writes a pid file: only the id on the first line, as usual, then start time and boot.
func (i identity) write(path string) error {
	return durable.WriteFile(path, fmt.Appendf(nil, "%d\n%s %s\n", i.PID, i.Start, i.Boot), 0o644)
}

// ErrDamaged means that a pid file does not say which process it is for.
var ErrDamaged = errors.New("it does not contain a pid, a start time and a boot id")

func read(path string) (identity, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return identity{}, err
	}
	fields := strings.Fields(string(text))
	if len(fields) != 3 {
		return identity{}, ErrDamaged
	}
	pid, err := strconv.Atoi(fields[0])
	if err != nil {
		return identity{}, ErrDamaged
	}
	return identity{pid, fields[1], fields[2]}, nil
}
