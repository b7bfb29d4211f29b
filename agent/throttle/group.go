package throttle

// group.go - control groups with the cpu controller, of version 1 or 2.

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

	v1 "watari/api/watariv1"
)

// ownPrefix begins the name of a group that this package makes for one vCPU; the thread's id follows. libvirt's names have
// the vCPU's number.
const ownPrefix = "watari-vcpu-"

var (
	ownGroup      = regexp.MustCompile(`^` + ownPrefix + `\d+$`)
	libvirtsGroup = regexp.MustCompile(`^vcpu\d+$`)
)

// Bounds of a quota's period in the kernel, microseconds, and the kernel's least quota. A short period makes short pauses. A
// paused vCPU may hold a lock of QEMU's, and other threads then wait until the period ends.
const (
	leastPeriod = 10_000
	mostPeriod  = 1_000_000
	leastQuota  = 1000
)

// Default values.
const (
	usualWeight = 100
	usualShares = 1024 // version 1's equivalent
	leastShares = 2
)

// aside is the weight of the groups above guests that give way. Only this package sets this weight.
const aside = 2

var errNoController = errors.New("the kernel has no control groups for processor time at /sys/fs/cgroup")

// hierarchy is the place where control groups with the cpu controller are mounted.
type hierarchy struct {
	mount, root string // mount point; path of the group that is mounted there
	v2          bool
}

// hierarchy finds the hierarchy with the cpu controller. A machine may have version 2 mounted beside version 1, without this
// controller.
func (t *Throttle) hierarchy() (found hierarchy, err error) {
	proc, err := procfs.NewFS(t.proc)
	if err != nil {
		return found, err
	}
	mounts, err := proc.GetMounts()
	if err != nil {
		return found, fmt.Errorf("slow a guest down: find the control groups: %w", err)
	}
	for _, m := range mounts {
		_, cpu := m.SuperOptions["cpu"]
		switch {
		case m.FSType == "cgroup" && cpu:
			return hierarchy{m.MountPoint, m.Root, false}, nil
		case m.FSType == "cgroup2":
			found = hierarchy{m.MountPoint, m.Root, true}
		}
	}
	return found, nil
}

// group is a control group.
type group struct {
	dir string
	v2  bool
}

// groupOf returns the group of a thread.
func (h hierarchy) groupOf(thread procfs.Proc) (group, error) {
	groups, err := thread.Cgroups()
	if err != nil {
		return group{}, err
	}
	if h.mount == "" {
		return group{}, errNoController
	}
	for _, g := range groups {
		if h.v2 && g.HierarchyID != 0 || !h.v2 && !slices.Contains(g.Controllers, "cpu") {
			continue
		}
		// Both paths are seen from this process's namespace of control groups.
		inside, ok := strings.CutPrefix(g.Path, strings.TrimSuffix(h.root, "/"))
		if !ok || strings.HasPrefix(inside, "/..") {
			break
		}
		found := group{filepath.Join(h.mount, inside), h.v2}
		if _, err := os.Stat(found.dir); err != nil {
			return group{}, fmt.Errorf("the control group of thread %d: %w", thread.PID, err)
		}
		return found, nil
	}
	return group{}, fmt.Errorf("the control group of thread %d is not mounted here: %w", thread.PID, errNoController)
}

// domain returns the group of the whole guest; g is libvirt's group of a vCPU. Under systemd, a group named libvirt is in
// between.
func (g group) domain() group {
	if parent := g.parent(); filepath.Base(parent.dir) != "libvirt" {
		return parent
	}
	return g.parent().parent()
}

// bounds reports whether the group can bound processor time. libvirt also makes groups for other controllers.
func (g group) bounds() bool {
	_, err := os.Stat(filepath.Join(g.dir, g.quotaFile()))
	return err == nil
}

// set applies limits to a group that this package made.
func (g group) set(limits *v1.GuestLimits) error {
	return cmp.Or(g.setWeight(limits.GetCpuWeight()), g.bound(limits))
}

func (g group) quotaFile() string {
	if g.v2 {
		return "cpu.max"
	}
	return "cpu.cfs_quota_us"
}

// bound applies a quota to a vCPU's group. It writes only files whose content changes.
func (g group) bound(limits *v1.GuestLimits) error {
	quota, period := quotaOf(limits.GetCpuPermille())
	if g.v2 {
		text := fmt.Sprintf("%d %d", quota, period)
		if quota < 0 {
			text = "max"
		}
		if have := g.read("cpu.max"); have == text || quota < 0 && strings.HasPrefix(have, "max") {
			return nil
		}
		return g.write("cpu.max", text)
	}
	if have := g.read("cpu.cfs_quota_us"); have == strconv.Itoa(quota) && (quota < 0 || g.read("cpu.cfs_period_us") == strconv.Itoa(period)) {
		return nil
	}
	// Remove the quota first. The old quota with the new period may exceed the parent's, and the kernel refuses that.
	if err := g.write("cpu.cfs_quota_us", "-1"); err != nil || quota < 0 {
		return err
	}
	if err := g.write("cpu.cfs_period_us", strconv.Itoa(period)); err != nil {
		return err
	}
	err := g.write("cpu.cfs_quota_us", strconv.Itoa(quota))
	if errors.Is(err, unix.EINVAL) {
		return nil // the parent's quota is lower
	}
	return err
}

// quotaOf returns the quota and its period, in microseconds, for a number of thousandths of a processor; a quota of -1 is
// none.
func quotaOf(permille uint32) (quota, period int) {
	if permille == 0 || permille >= 1000 {
		return -1, 100_000
	}
	period = min(max(leastQuota*1000/int(permille), leastPeriod), mostPeriod)
	return max(period*int(permille)/1000, leastQuota), period
}

// weightFile returns the name of the weight's file, and the value for a weight; 0: the default weight.
func (g group) weightFile(weight uint32) (name, value string) {
	if weight == 0 {
		weight = usualWeight
	}
	weight = min(weight, 10_000)
	if g.v2 {
		return "cpu.weight", strconv.Itoa(int(weight))
	}
	return "cpu.shares", strconv.Itoa(max(int(weight)*usualShares/usualWeight, leastShares))
}

// weighs reports whether the group has this weight.
func (g group) weighs(weight uint32) bool {
	name, value := g.weightFile(weight)
	return g.read(name) == value
}

// setWeight writes a weight. A group without the controller has the default weight.
func (g group) setWeight(weight uint32) error {
	name, value := g.weightFile(weight)
	if have := g.read(name); have == value || have == "" && weight == 0 {
		return nil
	}
	return g.write(name, value)
}

// make makes a group for a vCPU below g. In version 2 the new group is threaded: the process stays in g.
func (g group) make(tid int) (group, error) {
	own := group{filepath.Join(g.dir, ownPrefix+strconv.Itoa(tid)), g.v2}
	if err := os.Mkdir(own.dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return own, err
	}
	if g.v2 {
		if err := errors.Join(own.write("cgroup.type", "threaded"), g.write("cgroup.subtree_control", "+cpu")); err != nil {
			_ = os.Remove(own.dir)
			return own, err
		}
	}
	if !own.bounds() {
		_ = os.Remove(own.dir)
		return own, fmt.Errorf("the control group %s has no controller for processor time", g.dir)
	}
	return own, nil
}

// enter moves a thread into the group.
func (g group) enter(tid int) error {
	if g.v2 {
		return g.write("cgroup.threads", strconv.Itoa(tid))
	}
	return g.write("tasks", strconv.Itoa(tid))
}

// dissolve moves a thread out of a group that was made for it, and removes the group.
func (g group) dissolve(tid int) error {
	if err := g.parent().enter(tid); err != nil {
		return err
	}
	if err := os.Remove(g.dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove control group %s: %w", g.dir, err)
	}
	return nil
}

// upwards returns the group and the groups that contain it, without the root group.
func (h hierarchy) upwards(g group) (list []group) {
	for ; strings.HasPrefix(g.dir, h.mount+"/"); g = g.parent() {
		list = append(list, g)
	}
	return list
}

func (g group) parent() group { return group{filepath.Dir(g.dir), g.v2} }

// only reports whether the group and the groups below it have no processes but these; processes has their ids.
func (g group) only(processes map[string]bool) bool {
	err := filepath.WalkDir(g.dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil || filepath.Base(path) != "cgroup.procs" {
			return err
		}
		text, err := os.ReadFile(path)
		for _, process := range strings.Fields(string(text)) {
			if !processes[process] {
				return errors.New("another process: " + process)
			}
		}
		// A threaded group does not list its processes; the group above does.
		if errors.Is(err, unix.EOPNOTSUPP) {
			return nil
		}
		return err
	})
	return err == nil
}

// setAside lowers the weight of g and the groups above it, as long as they have only these processes. It does not change a
// weight that an administrator has set.
func (h hierarchy) setAside(g group, processes map[string]bool) error {
	for _, g := range h.upwards(g) {
		if !g.only(processes) {
			return h.restore(g) // a process of somebody else is in the group
		}
		if g.weighs(0) {
			if err := g.setWeight(aside); err != nil {
				return err
			}
		}
	}
	return nil
}

// restore undoes setAside.
func (h hierarchy) restore(g group) error {
	for _, g := range h.upwards(g) {
		if g.weighs(aside) {
			if err := g.setWeight(0); err != nil {
				return err
			}
		}
	}
	return nil
}

// read returns a file's line; "": there is no such file.
func (g group) read(name string) string {
	text, _ := os.ReadFile(filepath.Join(g.dir, name))
	return strings.TrimSpace(string(text))
}

// write writes to a file of the kernel.
func (g group) write(name, value string) error {
	file, err := os.OpenFile(filepath.Join(g.dir, name), os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		return err
	}
	defer file.Close()
	if _, err := file.WriteString(value); err != nil {
		return fmt.Errorf("write %s: %w", value, err)
	}
	return nil
}

// setIdle makes a thread run only when no other thread wants its processor, or ends that.
func setIdle(tid int, idle bool) error {
	have, err := unix.SchedGetAttr(tid, 0)
	if err != nil {
		return fmt.Errorf("ask for the priority of thread %d: %w", tid, err)
	}
	if (have.Policy == unix.SCHED_IDLE) == idle {
		return nil
	}
	policy := uint32(unix.SCHED_NORMAL)
	if idle {
		policy = unix.SCHED_IDLE
	}
	if err := unix.SchedSetAttr(tid, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: policy}, 0); err != nil {
		return fmt.Errorf("set the priority of thread %d: %w", tid, err)
	}
	return nil
}
