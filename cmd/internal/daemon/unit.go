package daemon

// unit.go - daemons that systemd runs. The unit reads their arguments from a file:
//
//	EnvironmentFile=/var/lib/watari/up/agent.env
//	ExecStart=/usr/bin/watari-agent $ARGUMENTS

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"watari/internal/durable"
)

// unitState is the state of a unit as systemd reports it.
type unitState struct {
	loaded     bool   // systemd knows the unit
	program    string // the program that it starts
	active     bool   // it is running, starting, or about to be restarted
	restarting bool   // its last process has failed
	restarts   int    // number of automatic restarts
	pid        int    // 0: no process
}

// readUnit asks systemd for the state of a unit.
func readUnit(name string) (unitState, error) {
	out, err := systemctl("show", "--property=LoadState,ActiveState,SubState,MainPID,NRestarts,ExecStart", name)
	if err != nil {
		return unitState{}, err
	}
	return parseUnit(out), nil
}

// parseUnit parses the output of `systemctl show`.
func parseUnit(text string) unitState {
	var s unitState
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		switch key {
		case "LoadState":
			s.loaded = value == "loaded"
		case "ActiveState":
			s.active = value == "active" || value == "activating" || value == "reloading" || value == "deactivating"
		case "SubState":
			s.restarting = value == "auto-restart"
		case "MainPID":
			s.pid, _ = strconv.Atoi(value)
		case "NRestarts":
			s.restarts, _ = strconv.Atoi(value)
		case "ExecStart": // { path=/usr/bin/watari ; argv[]=... }
			_, after, _ := strings.Cut(value, "path=")
			s.program, _, _ = strings.Cut(after, " ;")
		}
	}
	return s
}

// startUnit starts a daemon by its unit, now and at each boot. It returns nil if the unit is not for this program, for
// instance if watari runs from its build directory.
func startUnit(spec Spec) (*Process, error) {
	state, err := readUnit(spec.Unit)
	if err != nil || !state.loaded || !sameFile(state.program, spec.Command[0]) {
		return nil, err
	}
	text, err := argumentsFile(spec.Command[1:])
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", spec.Name, err)
	}
	if err := os.MkdirAll(filepath.Dir(spec.argumentsPath()), 0o755); err != nil {
		return nil, fmt.Errorf("start %s: %w", spec.Name, err)
	}
	if err := durable.WriteFile(spec.argumentsPath(), []byte(text), 0o600); err != nil {
		return nil, fmt.Errorf("start %s: %w", spec.Name, err)
	}
	if _, err := systemctl("enable", "--quiet", "--now", spec.Unit); err != nil {
		return nil, fmt.Errorf("start %s: %w", spec.Name, err)
	}
	return runningUnit(spec)
}

// runningUnit finds the daemon that a unit runs; nil if it is not running.
func runningUnit(spec Spec) (*Process, error) {
	state, err := readUnit(spec.Unit)
	if err != nil || !state.active {
		return nil, err
	}
	process := &Process{spec: spec, unit: true, restarts: state.restarts}
	process.PID = state.pid
	return process, nil
}

// unitEnded reports whether a unit's process has ended, even if systemd is about to restart it.
func (p *Process) unitEnded() bool {
	state, err := readUnit(p.spec.Unit)
	return err == nil && (!state.active || state.restarting || state.restarts > p.restarts)
}

// stopUnit stops a unit's daemon and disables its start at boot.
func (p *Process) stopUnit() error {
	if _, err := systemctl("disable", "--quiet", "--now", p.spec.Unit); err != nil {
		return fmt.Errorf("end the %s: %w", p.spec.Name, err)
	}
	if err := os.Remove(p.spec.argumentsPath()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// Disarm disables the start at boot of a daemon that is not running. It reports whether the unit was enabled.
func Disarm(spec Spec) (was bool, err error) {
	if _, err := os.Stat(spec.argumentsPath()); spec.Unit == "" || err != nil {
		return false, nil
	}
	state, err := readUnit(spec.Unit)
	if err != nil || !state.loaded {
		return false, err
	}
	return true, (&Process{spec: spec, unit: true}).stopUnit()
}

// argumentsPath returns the file, beside the pid file, from which the unit reads the daemon's arguments.
func (s Spec) argumentsPath() string {
	return strings.TrimSuffix(s.PIDFile, ".pid") + ".env"
}

// argumentsFile formats arguments for an EnvironmentFile (systemd.exec(5)). The value is in single quotes, in which no
// character is special. When ExecStart splits it into words, it removes the double quotes around each.
func argumentsFile(arguments []string) (string, error) {
	words := make([]string, len(arguments))
	for i, argument := range arguments {
		if strings.ContainsAny(argument, "'\"\\\n") {
			return "", fmt.Errorf("the argument %q has a quote, a backslash or a newline, which a systemd unit cannot pass", argument)
		}
		words[i] = `"` + argument + `"`
	}
	return "# Written by watari up.\nARGUMENTS='" + strings.Join(words, " ") + "'\n", nil
}

func sameFile(a, b string) bool {
	first, err := os.Stat(a)
	if err != nil {
		return false
	}
	second, err := os.Stat(b)
	return err == nil && os.SameFile(first, second)
}

// systemctl returns the output of systemctl.
func systemctl(arguments ...string) (string, error) {
	out, err := exec.Command("systemctl", arguments...).Output()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return "", fmt.Errorf("systemctl %s: %s", strings.Join(arguments, " "), strings.TrimSpace(string(exit.Stderr)))
	}
	if err != nil {
		return "", fmt.Errorf("systemctl %s: %w", strings.Join(arguments, " "), err)
	}
	return string(out), nil
}

// journal returns the last lines of a unit's journal, indented.
func journal(unit string, lines int) string {
	out, err := exec.Command("journalctl", "--no-pager", "--output=cat", "--lines="+strconv.Itoa(lines), "--unit="+unit).Output()
	if err != nil {
		return "  (journalctl: " + err.Error() + ")"
	}
	return "  " + strings.ReplaceAll(strings.TrimRight(string(out), "\n"), "\n", "\n  ")
}
