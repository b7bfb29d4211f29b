// Package daemon starts programs that outlive their parent, and ends them later. It uses the program's systemd unit if
// there is one, or else a pid file. The pid file identifies the process even if another process has got the same id
// since.
package daemon

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// Spec describes a program to be started as a daemon.
type Spec struct {
	// Name is the daemon's name for people: "manager".
	Name string
	// Command is the program's path and its arguments.
	Command []string
	// Env is added to the caller's environment.
	Env []string
	// PIDFile and Log are paths. Missing directories are made. Output is appended to the log.
	PIDFile, Log string
	// Unit is the systemd unit of the daemon. It is used only if it starts this very program; "": do not use systemd.
	Unit string
}

// poll is the time between two checks whether a process has ended.
const poll = 20 * time.Millisecond

// Process is a running daemon.
type Process struct {
	identity
	spec     Spec
	end      chan struct{} // closed when a child of this process has ended; nil if it is not our child
	unit     bool          // systemd runs it as spec.Unit; then identity has only the pid
	restarts int           // systemd's count of restarts when the daemon was found
}

// Start starts a daemon by its unit, or in its own session with a pid file. It does not wait until the daemon serves.
func Start(spec Spec) (*Process, error) {
	if spec.Unit != "" {
		if process, err := startUnit(spec); process != nil || err != nil {
			return process, err
		}
	}
	for _, path := range []string{spec.PIDFile, spec.Log} {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return nil, fmt.Errorf("start %s: %w", spec.Name, err)
		}
	}
	log, err := os.OpenFile(spec.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("start %s: open its log: %w", spec.Name, err)
	}
	defer log.Close()
	command := exec.Command(spec.Command[0], spec.Command[1:]...)
	command.Env = append(os.Environ(), spec.Env...)
	command.Dir = "/"
	command.Stdout, command.Stderr = log, log
	command.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := command.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", spec.Name, err)
	}
	process := &Process{spec: spec, end: make(chan struct{})}
	go func() {
		_ = command.Wait()
		close(process.end)
	}()
	if process.identity, err = identify(command.Process.Pid); err == nil {
		err = process.write(spec.PIDFile)
	}
	if err != nil {
		_ = command.Process.Kill()
		return nil, fmt.Errorf("start %s: %w; %s", spec.Name, err, LastLines(spec.Log, 3))
	}
	return process, nil
}

// Ended reports whether a daemon has ended that this process started or found.
func (p *Process) Ended() bool {
	if p.unit {
		return p.unitEnded()
	}
	select {
	case <-p.end:
		return true
	default:
		return !p.alive()
	}
}

// Died returns an error for a daemon that ended unexpectedly, with the end of its log.
func (p *Process) Died() error {
	if p.unit {
		return fmt.Errorf("the %s ended at once, and systemd keeps restarting it; its log (%s) ends with:\n%s", p.spec.Name, p.Log(), journal(p.spec.Unit, 8))
	}
	return fmt.Errorf("the %s ended at once; its log %s ends with:\n%s", p.spec.Name, p.spec.Log, LastLines(p.spec.Log, 8))
}

// Log returns where to read the daemon's log: a path or a command.
func (p *Process) Log() string {
	if p.unit {
		return "journalctl -u " + p.spec.Unit
	}
	return p.spec.Log
}

// Number describes the process's id: ", pid 7". It is empty if systemd is just starting the process, which has none yet.
func (p *Process) Number() string {
	if p.PID == 0 {
		return ""
	}
	return fmt.Sprintf(", pid %d", p.PID)
}

// Running finds the running daemon of a unit or pid file; nil if it is not running. If the pid file is damaged, the error is ErrDamaged.
func Running(spec Spec) (*Process, error) {
	if spec.Unit != "" {
		if process, err := runningUnit(spec); process != nil || err != nil {
			return process, err
		}
	}
	found, err := read(spec.PIDFile)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("the pid file %s of the %s: %w", spec.PIDFile, spec.Name, err)
	}
	if !found.alive() {
		return nil, nil
	}
	return &Process{identity: found, spec: spec}, nil
}

// Stop ends a daemon with SIGTERM, and with SIGKILL if it has not ended after grace. It removes the pid file. A unit is
// disabled and stopped; its own timeout applies.
func (p *Process) Stop(grace time.Duration) error {
	if p.unit {
		return p.stopUnit()
	}
	for _, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		if err := p.signal(signal); err != nil {
			return fmt.Errorf("end the %s (pid %d): %w", p.spec.Name, p.PID, err)
		}
		for deadline := time.Now().Add(grace); time.Now().Before(deadline); time.Sleep(poll) {
			if !p.alive() {
				return p.Forget()
			}
		}
	}
	return fmt.Errorf("end the %s: pid %d still exists after SIGKILL", p.spec.Name, p.PID)
}

// Forget removes the pid file.
func (p *Process) Forget() error {
	if err := os.Remove(p.spec.PIDFile); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// LastLines returns the last lines of a log, indented.
func LastLines(path string, n int) string {
	const most = 16 << 10
	file, err := os.Open(path)
	if err != nil {
		return "  (" + err.Error() + ")"
	}
	defer file.Close()
	if info, err := file.Stat(); err == nil && info.Size() > most {
		_, _ = file.Seek(-most, 2)
	}
	text := make([]byte, most)
	read, _ := file.Read(text)
	lines := strings.Split(strings.TrimRight(string(text[:read]), "\n"), "\n")
	return "  " + strings.Join(lines[max(0, len(lines)-n):], "\n  ")
}
