// Shares of CPU time: the processes of each host are in a control group, which has a limit if the host is to be slower
// than this machine.

package lab

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	cgroupRoot = "/sys/fs/cgroup"
	// cgroupFolder holds the control groups of all labs.
	cgroupFolder = "watari-lab"
	// quotaPeriod is the period of the CPU quota, in microseconds. It is short, because a host stands still for the rest of each period
	// once its quota is used up, and programs on several such hosts wait for each other. The kernel's usual one is longPeriod.
	quotaPeriod = 20_000
	longPeriod  = 100_000
	// minQuota is the smallest quota that the kernel accepts, in microseconds.
	minQuota = 1000
	// minShare is the smallest share: minQuota in longPeriod.
	minShare = 0.01
)

// ParseCPUs reads "a1=0.7,b1=1.5", the CPU time that each of these hosts may use, in CPUs. "none" means no limits.
func ParseCPUs(text string) (map[string]float64, error) {
	shares := map[string]float64{}
	if text == "none" {
		return shares, nil
	}
	for _, part := range strings.Split(text, ",") {
		host, number, ok := strings.Cut(strings.TrimSpace(part), "=")
		share, err := strconv.ParseFloat(number, 64)
		switch {
		case !ok || host == "" || err != nil:
			return nil, fmt.Errorf("CPUs %q: want HOST=NUMBER, as in a1=0.7", part)
		case !(share >= minShare && share <= 1024):
			return nil, fmt.Errorf("CPUs %q: must be %v to 1024", part, minShare)
		}
		if _, twice := shares[host]; twice {
			return nil, fmt.Errorf("CPUs %q: host %s is given twice", text, host)
		}
		shares[host] = share
	}
	return shares, nil
}

// setShares replaces the shares; nil leaves them unchanged.
func (l *Lab) setShares(shares map[string]float64) error {
	if shares == nil {
		return nil
	}
	for host := range shares {
		if _, err := l.Host(host); err != nil {
			return fmt.Errorf("limit of CPU time: %w", err)
		}
	}
	l.state.CPUs = shares
	return nil
}

// groupPath returns the path of a host's control group below the root of each hierarchy; that of the lab's group if
// host is empty.
func groupPath(lab, host string) string { return filepath.Join(cgroupFolder, lab, host) }

// hierarchies are the root directories in which a host's control group is made. Version 1 may have one hierarchy for
// limiting CPU time (cpu) and another for counting it (cpuacct).
type hierarchies struct {
	roots []string
	v2    bool // version 2
}

// findHierarchies finds the hierarchies of the controllers that a share needs; there may be none.
func findHierarchies(root string) hierarchies {
	var h hierarchies
	for _, controller := range []string{"cpu", "cpuacct"} {
		if _, err := os.Stat(filepath.Join(root, controller, "cgroup.procs")); err == nil {
			h.roots = append(h.roots, filepath.Join(root, controller))
		}
	}
	if len(h.roots) > 0 {
		return h
	}
	controllers, _ := os.ReadFile(filepath.Join(root, "cgroup.controllers"))
	if slices.Contains(strings.Fields(string(controllers)), "cpu") {
		return hierarchies{[]string{root}, true}
	}
	return h
}

// prepare makes a control group with a limit; share 0 means no limit.
func (h hierarchies) prepare(path string, share float64) error {
	if len(h.roots) == 0 {
		if share == 0 {
			return nil
		}
		return fmt.Errorf("the kernel has no control groups for CPU time at %s: omit --cpus", cgroupRoot)
	}
	for _, root := range h.roots {
		dir := root
		for name := range strings.SplitSeq(path, "/") {
			if h.v2 { // lets the groups below use the controller
				if err := writeControl(dir, "cgroup.subtree_control", "+cpu"); err != nil {
					return err
				}
			}
			dir = filepath.Join(dir, name)
			if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
				return err
			}
		}
	}
	return h.limit(path, share)
}

func (h hierarchies) limit(path string, share float64) error {
	dir, period := filepath.Join(h.roots[0], path), quotaPeriod
	if share > 0 && share*quotaPeriod < minQuota {
		period = longPeriod
	}
	quota := strconv.Itoa(int(share * float64(period)))
	if h.v2 {
		if share == 0 {
			quota = "max"
		}
		return writeControl(dir, "cpu.max", fmt.Sprintf("%s %d", quota, period))
	}
	if share == 0 {
		quota = "-1"
	}
	if err := writeControl(dir, "cpu.cfs_period_us", strconv.Itoa(period)); err != nil {
		return err
	}
	return writeControl(dir, "cpu.cfs_quota_us", quota)
}

// enter moves a process into a control group. The processes that it starts later are in the group, too.
func (h hierarchies) enter(path string, pid int) error {
	for _, file := range h.members(path) {
		if err := os.WriteFile(file, []byte(strconv.Itoa(pid)), 0); err != nil {
			return err
		}
	}
	return nil
}

// members returns the files to which the id of a process is written so that it enters the group.
func (h hierarchies) members(path string) (files []string) {
	for _, root := range h.roots {
		files = append(files, filepath.Join(root, path, "cgroup.procs"))
	}
	return files
}

// remove removes a lab's control groups. Their processes must have ended.
func (h hierarchies) remove(ctx context.Context, lab string) (removed int, err error) {
	for _, root := range h.roots {
		dir := filepath.Join(root, groupPath(lab, ""))
		hosts, _ := filepath.Glob(filepath.Join(dir, "*", "cgroup.procs"))
		for _, file := range hosts {
			err = errors.Join(err, removeGroup(ctx, filepath.Dir(file)))
			removed++
		}
		if _, missing := os.Stat(dir); missing == nil {
			err = errors.Join(err, removeGroup(ctx, dir))
		}
		_ = os.Remove(filepath.Dir(dir)) // if this was the last lab
	}
	return removed, err
}

// removeGroup retries until the kernel allows it: a group stays busy for a moment after its last process has ended. It removes
// the groups below, too: a host's agent has made one for each vCPU of a guest that it slowed down.
func removeGroup(ctx context.Context, dir string) error {
	return waitFor(ctx, 10*time.Second, "control group "+dir+" to be empty", func() bool {
		below, _ := filepath.Glob(filepath.Join(dir, "*", "cgroup.procs"))
		for _, file := range below {
			_ = os.Remove(filepath.Dir(file))
		}
		err := os.Remove(dir)
		return err == nil || errors.Is(err, fs.ErrNotExist)
	})
}

func writeControl(dir, name, value string) error {
	if err := os.WriteFile(filepath.Join(dir, name), []byte(value), 0o644); err != nil {
		return fmt.Errorf("set a host's limit of CPU time: %w", err)
	}
	return nil
}

// applyShares makes each host's control group and sets its limit. A new limit applies to a running host at once.
func (l *Lab) applyShares() error {
	groups := findHierarchies(cgroupRoot)
	for _, host := range l.Hosts() {
		if err := groups.prepare(groupPath(l.Name(), host.Name), l.state.CPUs[host.Name]); err != nil {
			return fmt.Errorf("host %s: %w", host.Name, err)
		}
	}
	return nil
}

// enterShare moves a host's first process into the host's control group, before it starts others.
func (l *Lab) enterShare(host string, pid int) error {
	groups, path := findHierarchies(cgroupRoot), groupPath(l.Name(), host)
	if err := groups.prepare(path, l.state.CPUs[host]); err != nil { // after a reboot of this machine the group is gone
		return err
	}
	if err := groups.enter(path, pid); err != nil {
		return fmt.Errorf("put host %s into its control group: %w", host, err)
	}
	return nil
}

// inShare makes a command start in a host's control group.
func (l *Lab) inShare(host string, command *exec.Cmd) *exec.Cmd {
	files := findHierarchies(cgroupRoot).members(groupPath(l.Name(), host))
	files = slices.DeleteFunc(files, func(file string) bool { _, err := os.Stat(file); return err != nil })
	if len(files) == 0 {
		return command
	}
	// The shell becomes the command, so that signals and exit status are the command's own.
	const enter = `while [ "$1" != -- ]; do echo 0 >"$1"; shift; done; shift; exec "$@"`
	args := append([]string{"-c", enter, "sh"}, files...)
	args = append(append(args, "--"), command.Args...)
	return exec.Command("sh", args...)
}

// agentGroup returns the agent's options for measuring the load of its host's control group instead of the machine's.
func (l *Lab) agentGroup(host string) []string {
	if len(findHierarchies(cgroupRoot).roots) == 0 {
		return nil
	}
	return []string{"--cgroup", groupPath(l.Name(), host)}
}

// removeShares removes the lab's control groups.
func (l *Lab) removeShares(ctx context.Context) error {
	removed, err := findHierarchies(cgroupRoot).remove(ctx, l.Name())
	if removed > 0 {
		l.say("removed %d control groups", removed)
	}
	return err
}
