package daemon

// unit.go - daemons that systemd runs. Their arguments are in a file that the unit reads:
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

// unitState is what systemd says of a unit.
type unitState struct {
	loaded     bool   // systemd knows the unit
	program    string // that it starts
	active     bool   // it runs, or starts, or is about to be started again
	restarting bool   // its last process has failed
	restarts   int    // how often systemd has started it again by itself
	pid        int    // 0: no process now
}

// readUnit asks systemd for a unit.
func readUnit(name string) (unitState, error) {
	out, err := systemctl("show", "--property=LoadState,ActiveState,SubState,MainPID,NRestarts,ExecStart", name)
	if err != nil {
		return unitState{}, err
	}
	return parseUnit(out), nil
}

// parseUnit reads what `systemctl show` prints.
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

// startUnit starts a daemon by its unit, now and at each boot. It returns nil where the unit is not for this program, as
// when watari runs from the folder it was built in.
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

// runningUnit finds the daemon that a unit runs; nil where it does not run.
func runningUnit(spec Spec) (*Process, error) {
	state, err := readUnit(spec.Unit)
	if err != nil || !state.active {
		return nil, err
	}
	process := &Process{spec: spec, unit: true, restarts: state.restarts}
	process.PID = state.pid
	return process, nil
}

// unitEnded says whether a unit's process has ended, also where systemd is about to start it again.
func (p *Process) unitEnded() bool {
	state, err := readUnit(p.spec.Unit)
	return err == nil && (!state.active || state.restarting || state.restarts > p.restarts)
}

// stopUnit ends a unit's daemon, which is not started at boot any more.
func (p *Process) stopUnit() error {
	if _, err := systemctl("disable", "--quiet", "--now", p.spec.Unit); err != nil {
		return fmt.Errorf("end the %s: %w", p.spec.Name, err)
	}
	if err := os.Remove(p.spec.argumentsPath()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// Disarm keeps systemd from starting at the next boot a daemon that does not run now. It says whether it would have.
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

// argumentsPath is the file that the unit reads the daemon's arguments from, beside the pid file.
func (s Spec) argumentsPath() string {
	return strings.TrimSuffix(s.PIDFile, ".pid") + ".env"
}

// argumentsFile writes arguments as systemd.exec(5) reads an EnvironmentFile: the value stands in single quotes, within
// which nothing is special; when ExecStart splits it into words, it takes off the double quotes.
func argumentsFile(arguments []string) (string, error) {
	words := make([]string, len(arguments))
	for i, argument := range arguments {
		if strings.ContainsAny(argument, "'\"\\\n") {
			return "", fmt.Errorf("the argument %q has a quote, a backslash or a line's end, which a systemd unit cannot be given", argument)
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

// systemctl returns what systemctl prints.
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

// journal is the end of what a unit has logged, indented.
func journal(unit string, lines int) string {
	out, err := exec.Command("journalctl", "--no-pager", "--output=cat", "--lines="+strconv.Itoa(lines), "--unit="+unit).Output()
	if err != nil {
		return "  (journalctl: " + err.Error() + ")"
	}
	return "  " + strings.ReplaceAll(strings.TrimRight(string(out), "\n"), "\n", "\n  ")
}
