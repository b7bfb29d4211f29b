// Supervising a host's daemons, and reaping orphans, which is the duty of a first process.

package lab

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"
	"syscall"
)

// A daemon that ends is restarted at once. After quickDeaths ends in a row, each within steadyAfter of its start,
// restarts are delayed by a pause, which doubles up to longestPause.
const (
	steadyAfter  = 5 * time.Second
	quickDeaths  = 5
	firstPause   = 250 * time.Millisecond
	longestPause = 8 * time.Second
)

// daemon is a supervised daemon.
type daemon struct {
	Name   string    `json:"name"`
	PID    int       `json:"pid"` // in the host; 0: not running
	Starts int       `json:"starts"`
	Since  time.Time `json:"since"` // of the last start
	Error  string    `json:"error,omitempty"`

	command []string
	quick   int       // ends in a row, each within steadyAfter of its start
	due     time.Time // time of the next start, if it is not running
}

type supervisor struct {
	daemons []*daemon
	now     func() time.Time
}

func newSupervisor() *supervisor { return &supervisor{now: time.Now} }

// run returns only on a signal to end; then the kernel ends all processes of the host. One goroutine starts and reaps,
// so that no daemon can end before its process id is recorded.
func (s *supervisor) run(signals <-chan os.Signal) error {
	if err := s.load(); err != nil {
		return err
	}
	for {
		next := s.startDue()
		s.report()
		timer := time.NewTimer(next)
		select {
		case sig := <-signals:
			switch sig {
			case unix.SIGHUP:
				if err := s.load(); err != nil {
					slog.Error("read host.json again", "error", err)
				}
			case unix.SIGTERM, unix.SIGINT:
				slog.Info("host ends", "signal", sig)
				return nil
			}
		case <-timer.C:
		}
		timer.Stop()
		s.reap()
	}
}

// load adds the daemons that host.json names and that are not known yet.
func (s *supervisor) load() error {
	var config hostConfig
	if err := readJSON(inHost+"/host/host.json", &config); err != nil {
		return err
	}
	for name, command := range map[string][]string{"libvirtd": config.Libvirtd, "agent": config.Agent} {
		known := slices.IndexFunc(s.daemons, func(d *daemon) bool { return d.Name == name })
		switch {
		case len(command) == 0:
		case known >= 0:
			s.daemons[known].command = command // used from its next start on
		default:
			s.daemons = append(s.daemons, &daemon{Name: name, command: command, due: s.now()})
		}
	}
	return nil
}

// startDue starts the daemons that are due and returns the time until the next start.
func (s *supervisor) startDue() time.Duration {
	next := time.Hour
	for _, d := range s.daemons {
		if d.PID != 0 {
			continue
		}
		if wait := d.due.Sub(s.now()); wait > 0 {
			next = min(next, wait)
			continue
		}
		pid, err := startDaemon(d.Name, d.command)
		d.Starts++
		d.Since = s.now()
		if err != nil {
			slog.Error("start daemon", "name", d.Name, "error", err)
			d.Error = err.Error()
			d.ended(s.now())
			next = min(next, d.due.Sub(s.now()))
			continue
		}
		slog.Info("daemon started", "name", d.Name, "pid", pid, "starts", d.Starts)
		d.PID, d.Error = pid, ""
	}
	return max(next, 0)
}

// ended sets the time of a daemon's next start.
func (d *daemon) ended(now time.Time) {
	d.PID = 0
	if now.Sub(d.Since) >= steadyAfter {
		d.quick = 0
	} else {
		d.quick++
	}
	d.due = now
	if over := d.quick - quickDeaths; over >= 0 {
		d.due = now.Add(min(firstPause<<min(over, 10), longestPause))
	}
}

// reap reaps all processes that have ended: daemons, and orphans such as QEMU.
func (s *supervisor) reap() {
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, unix.WNOHANG, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || pid <= 0 {
			return
		}
		for _, d := range s.daemons {
			if d.PID == pid {
				d.Error = describe(status)
				slog.Warn("daemon ended", "name", d.Name, "pid", pid, "how", d.Error)
				d.ended(s.now())
			}
		}
	}
}

func describe(status unix.WaitStatus) string {
	if status.Signaled() {
		return fmt.Sprintf("killed by %s", status.Signal())
	}
	return fmt.Sprintf("exited with status %d", status.ExitStatus())
}

// startDaemon starts a process in a session of its own and appends its output to its log.
func startDaemon(name string, command []string) (pid int, err error) {
	path, err := exec.LookPath(command[0])
	if err != nil {
		return 0, err
	}
	log, err := os.OpenFile(filepath.Join(inHost, "host", "log", name+".log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return 0, err
	}
	defer log.Close()
	null, err := os.Open(os.DevNull)
	if err != nil {
		return 0, err
	}
	defer null.Close()
	// os/exec cannot be used: its Wait would compete with reap.
	return syscall.ForkExec(path, command, &syscall.ProcAttr{
		Dir: "/", Env: os.Environ(), Files: []uintptr{null.Fd(), log.Fd(), log.Fd()}, Sys: &syscall.SysProcAttr{Setsid: true},
	})
}

// report writes the daemons' state to the file that Status reads.
func (s *supervisor) report() {
	if err := writeJSON(statusFile, s.daemons); err != nil {
		slog.Error("report status", "error", err)
	}
}
