// Shares of CPU time: the processes of each host are in control groups, which count their CPU time, and limit it if the host
// should be slower than this machine.

package lab

import (
	"cmp"
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
	"syscall"
	"time"
)

const (
	cgroupRoot = "/sys/fs/cgroup"
	// cgroupFolder holds the control groups of all labs.
	cgroupFolder = "watari-lab"
	// quotaPeriod is the period of the CPU quota, in microseconds. It is short, because a host pauses for the rest of each
	// period once its quota is used up, and programs on several such hosts wait for each other. The kernel's default is
	// longPeriod.
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
// limiting CPU time (cpu, the first) and another for counting it (cpuacct).
type hierarchies struct {
	roots []string
	v2    bool // version 2
}

// findHierarchies finds the hierarchies of the controllers that a share needs; there may be none.
func findHierarchies(root string) hierarchies {
	var h hierarchies
	var last os.FileInfo
	for _, controller := range []string{"cpu", "cpuacct"} {
		dir := filepath.Join(root, controller)
		info, err := os.Stat(dir)
		if _, missing := os.Stat(filepath.Join(dir, "cgroup.procs")); err != nil || missing != nil || os.SameFile(info, last) {
			continue
		}
		h.roots, last = append(h.roots, dir), info
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

// groups returns the paths of the control groups of a host's processes, one below each root. If limiting and counting use
// different hierarchies, hosts that are not alone share a group for limiting, those of all labs: a kernel may let a group wait for
// seconds while others run (docs/results/README.md), and programs on several hosts wait for each other.
func (h hierarchies) groups(lab, host string, alone bool) []string {
	paths := slices.Repeat([]string{groupPath(lab, host)}, len(h.roots))
	if len(paths) > 1 && !alone {
		paths[0] = cgroupFolder
	}
	return paths
}

// alone reports whether a host's processes have their own group for limiting.
func (h hierarchies) alone(lab, host string) bool {
	if len(h.roots) == 0 {
		return false
	}
	_, err := os.Stat(filepath.Join(h.roots[0], groupPath(lab, host)))
	return err == nil
}

// prepare makes a host's control groups, with a limit, and moves the host's processes into them; share 0 means no limit. A
// host with a limit is alone.
func (h hierarchies) prepare(ctx context.Context, lab, host string, share float64, alone bool) error {
	if len(h.roots) == 0 {
		if share == 0 {
			return nil
		}
		return fmt.Errorf("the kernel has no control groups for CPU time at %s: omit --cpus", cgroupRoot)
	}
	alone = alone || share > 0
	paths := h.groups(lab, host, alone)
	for i, root := range h.roots {
		dir := root
		for name := range strings.SplitSeq(paths[i], "/") {
			if h.v2 { // allows the groups below to use the controller
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
	if err := h.limit(paths[0], share); err != nil {
		return err
	}
	if len(h.roots) == 1 {
		return nil
	}
	if alone {
		return h.gather(ctx, lab, host)
	}
	return removeGroup(ctx, filepath.Join(h.roots[0], groupPath(lab, host)), filepath.Join(h.roots[0], paths[0]))
}

// gather moves the processes that are counted as a host's into the group in which the host is alone. Meanwhile new processes
// may begin. One that ends cannot be moved, and is listed until the kernel has freed its memory.
func (h hierarchies) gather(ctx context.Context, lab, host string) error {
	files := h.members(lab, host, true)
	var failed error
	err := waitFor(ctx, 10*time.Second, "processes of host "+host+" to be in control group "+filepath.Dir(files[0]), func() bool {
		counted, _ := os.ReadFile(files[1])
		present, _ := os.ReadFile(files[0])
		there := strings.Fields(string(present))
		elsewhere := slices.DeleteFunc(strings.Fields(string(counted)), func(pid string) bool { return slices.Contains(there, pid) })
		for _, pid := range elsewhere {
			if err := os.WriteFile(files[0], []byte(pid), 0); err != nil && !errors.Is(err, syscall.ESRCH) { // it may have ended
				failed = err
			}
		}
		return failed != nil || len(elsewhere) == 0
	})
	return cmp.Or(failed, err)
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

// enter moves a process into a host's control groups. The processes that it starts later are in them, too.
func (h hierarchies) enter(lab, host string, pid int) error {
	for _, file := range h.members(lab, host, h.alone(lab, host)) {
		if err := os.WriteFile(file, []byte(strconv.Itoa(pid)), 0); err != nil {
			return err
		}
	}
	return nil
}

// members returns the files to which the id of a process is written so that it enters a host's groups.
func (h hierarchies) members(lab, host string, alone bool) (files []string) {
	for i, path := range h.groups(lab, host, alone) {
		files = append(files, filepath.Join(h.roots[i], path, "cgroup.procs"))
	}
	return files
}

// remove removes a lab's control groups. Their processes must have ended.
func (h hierarchies) remove(ctx context.Context, lab string) (removed int, err error) {
	for _, root := range h.roots {
		dir := filepath.Join(root, groupPath(lab, ""))
		hosts, _ := filepath.Glob(filepath.Join(dir, "*", "cgroup.procs"))
		for _, file := range hosts {
			err = errors.Join(err, removeGroup(ctx, filepath.Dir(file), ""))
			removed++
		}
		if _, missing := os.Stat(dir); missing == nil {
			err = errors.Join(err, removeGroup(ctx, dir, ""))
		}
	}
	for _, root := range h.roots {
		_ = os.Remove(filepath.Join(root, cgroupFolder)) // if this was the last lab
	}
	return removed, err
}

// removeGroup removes a control group. Its processes have ended, or removeGroup moves them to the group into. It retries
// until the kernel allows the removal: a group stays busy for a moment after its last process has ended. It also removes the
// groups below, because a host's agent makes one for each vCPU of a guest that it slows down.
func removeGroup(ctx context.Context, dir, into string) error {
	return waitFor(ctx, 10*time.Second, "control group "+dir+" to be empty", func() bool {
		below, _ := filepath.Glob(filepath.Join(dir, "*", "cgroup.procs"))
		for _, file := range append(below, filepath.Join(dir, "cgroup.procs")) {
			if into != "" {
				present, _ := os.ReadFile(file)
				for pid := range strings.FieldsSeq(string(present)) {
					_ = os.WriteFile(filepath.Join(into, "cgroup.procs"), []byte(pid), 0) // fails if the process has ended
				}
			}
			_ = os.Remove(filepath.Dir(file))
		}
		_, err := os.Stat(dir)
		return errors.Is(err, fs.ErrNotExist)
	})
}

func writeControl(dir, name, value string) error {
	if err := os.WriteFile(filepath.Join(dir, name), []byte(value), 0o644); err != nil {
		return fmt.Errorf("set a host's limit of CPU time: %w", err)
	}
	return nil
}

// applyShares makes each host's control groups and sets its limit. A new limit applies to a running host at once.
func (l *Lab) applyShares(ctx context.Context) error {
	for _, host := range l.Hosts() {
		present := l.hostProcess(host.Name) != 0 && len(l.ownerActivities(host.Name)) > 0
		if err := l.applyShare(ctx, host.Name, present); err != nil {
			return err
		}
	}
	return nil
}

// applyShare makes the control groups of one host and sets its limit. A host whose owner is present is alone in its group:
// there its guests yield to the owner, and not to guests of other hosts.
func (l *Lab) applyShare(ctx context.Context, host string, present bool) error {
	if err := findHierarchies(cgroupRoot).prepare(ctx, l.Name(), host, l.state.CPUs[host], present); err != nil {
		return fmt.Errorf("host %s: %w", host, err)
	}
	return nil
}

// enterShare moves a host's first process into the host's control groups, before it starts others.
func (l *Lab) enterShare(ctx context.Context, host string, pid int) error {
	if err := l.applyShare(ctx, host, false); err != nil { // after a reboot of this machine the groups are gone
		return err
	}
	if err := findHierarchies(cgroupRoot).enter(l.Name(), host, pid); err != nil {
		return fmt.Errorf("put host %s into its control groups: %w", host, err)
	}
	return nil
}

// inShare makes a command start in a host's control groups.
func (l *Lab) inShare(host string, command *exec.Cmd) *exec.Cmd {
	groups := findHierarchies(cgroupRoot)
	files := groups.members(l.Name(), host, groups.alone(l.Name(), host))
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
