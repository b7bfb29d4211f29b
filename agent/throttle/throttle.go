// Package throttle makes guests give way to other programs of their host. All threads of a limited guest's QEMU are
// SCHED_IDLE: they run last among the threads of their control group. The threads that run guest code (vCPUs) also have a
// bounded share of processor time. The other threads carry migrations, which may use any idle time.
//
// Throttle writes to the control groups of these threads directly, not through libvirt, for three reasons. libvirt changes
// no domain that it is migrating, and guests must be slowed down above all while they leave. A limit that libvirt knows
// would travel with the guest. And a guest must give way to its host's owner even if libvirt's daemon hangs.
package throttle

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

	v1 "watari/api/watariv1"
)

// Throttle limits guests of one host. It needs no memory across a restart: it reads the limits in force from the kernel.
type Throttle struct {
	proc string // /proc except in tests

	mu      sync.Mutex
	made    map[string]bool // groups that this package made and that may still exist
	limited map[string]bool // pids of processes that are limited
}

// New returns a throttle of this host's guests.
func New() *Throttle {
	return &Throttle{proc: "/proc", made: map[string]bool{}, limited: map[string]bool{}}
}

// Limit applies limits to a guest's process; nil removes them. It may be called again with the same limits. A process that
// has ended, or has no vCPU yet, is no error. If the host cannot bound processor time, Limit returns an *IncapableError; the
// guest's threads are SCHED_IDLE all the same.
func (t *Throttle) Limit(pid int, limits *v1.GuestLimits) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if limits.GetCpuWeight() == 0 && limits.GetCpuPermille() == 0 {
		limits = nil
	}
	hierarchy, err := t.hierarchy()
	if err != nil {
		return err
	}
	threads, err := t.threads(pid)
	if err != nil {
		return fmt.Errorf("slow a guest down: %w", err)
	}
	t.note(pid, limits != nil)
	var failed error
	for _, thread := range threads {
		err := cmp.Or(t.limitThread(hierarchy, pid, thread, limits), setIdle(thread.PID, limits != nil))
		if err != nil && !t.ended(thread.PID) {
			failed = err // the host's reason is the same for all threads
		}
	}
	return failed
}

// note records whether a process is limited, and removes processes that have ended from the record.
func (t *Throttle) note(pid int, limited bool) {
	for process := range t.limited {
		if id, _ := strconv.Atoi(process); t.ended(id) {
			delete(t.limited, process)
		}
	}
	if limited {
		t.limited[strconv.Itoa(pid)] = true
	} else {
		delete(t.limited, strconv.Itoa(pid))
	}
}

// behind is the niceness of this process while it gives way: other processes have nine times its weight. This process must
// not stop: it has to move guests away even if the owner's programs use all processors.
const behind = 10

// GiveWay lowers this process's priority, or restores it. A new thread inherits the priority of the thread that makes it.
// When GiveWay restores the priority, it also restores the weight of the groups above guests, because no guest that lowered
// it may be left.
func (t *Throttle) GiveWay(giveWay bool) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	nice := 0
	if giveWay {
		nice = behind
	}
	threads, err := t.threads(os.Getpid())
	for _, thread := range threads {
		if setErr := unix.Setpriority(unix.PRIO_PROCESS, thread.PID, nice); setErr != nil && !errors.Is(setErr, unix.ESRCH) {
			err = fmt.Errorf("set the priority of thread %d of this process: %w", thread.PID, setErr)
		}
	}
	if giveWay {
		return err
	}
	hierarchy, failed := t.hierarchy()
	err = cmp.Or(err, failed)
	for _, name := range []string{"machine.slice", "machine"} {
		err = cmp.Or(err, hierarchy.restore(group{filepath.Join(hierarchy.mount, name), hierarchy.v2}))
	}
	return err
}

// Sweep removes the control groups of guests that have ended, and reports whether groups that this package made are left.
// The kernel refuses to remove a group with threads.
func (t *Throttle) Sweep() (left bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for dir := range t.made {
		if err := os.Remove(dir); err == nil || errors.Is(err, fs.ErrNotExist) {
			delete(t.made, dir)
		}
	}
	return len(t.made) > 0
}

// IncapableError means that a host cannot bound the processor time of guests.
type IncapableError struct{ Reason error }

func (e *IncapableError) Error() string {
	return fmt.Sprintf("guests cannot be slowed down: %v; their processors run when nothing else does. "+
		"Let libvirt use the control group controller cpu (cgroup_controllers in /etc/libvirt/qemu.conf), and the agent write to /sys/fs/cgroup",
		e.Reason)
}

// Unwrap returns the reason.
func (e *IncapableError) Unwrap() error { return e.Reason }

// limitThread applies limits to one of QEMU's threads, through its control group.
func (t *Throttle) limitThread(h hierarchy, pid int, thread procfs.Proc, limits *v1.GuestLimits) error {
	err := t.limitGroup(h, pid, thread, limits)
	if err == nil || limits == nil && errors.Is(err, errNoController) {
		return nil
	}
	return &IncapableError{err}
}

// limitGroup applies limits to a thread's control group. If libvirt uses the cpu controller, each domain has a group with
// groups for its vCPUs. Otherwise limitGroup makes a group for each vCPU below the group of the thread.
func (t *Throttle) limitGroup(h hierarchy, pid int, thread procfs.Proc, limits *v1.GuestLimits) error {
	g, err := h.groupOf(thread)
	if err != nil {
		return err
	}
	if !t.isVCPU(pid, thread.PID) {
		return nil // with a low weight, the threads that carry a move would start it seconds later
	}
	base := filepath.Base(g.dir)
	ours := ownGroup.MatchString(base)
	switch {
	case ours && limits == nil:
		return g.dissolve(thread.PID)
	case ours:
		t.made[g.dir] = true
		return g.set(limits)
	case libvirtsGroup.MatchString(base) && g.bounds():
		return cmp.Or(g.bound(limits), t.weigh(h, g.domain(), limits))
	case limits == nil:
		t.find(g)
		return nil
	}
	own, err := g.make(thread.PID)
	if err != nil {
		return err
	}
	t.made[own.dir] = true
	if err := own.set(limits); err != nil {
		return err
	}
	return own.enter(thread.PID)
}

// weigh gives a domain's group its weight. While the groups above contain only limited guests, it lowers their weight, too.
func (t *Throttle) weigh(h hierarchy, domain group, limits *v1.GuestLimits) error {
	if err := domain.setWeight(limits.GetCpuWeight()); err != nil {
		return err
	}
	if limits == nil {
		return h.restore(domain.parent())
	}
	return h.setAside(domain.parent(), t.limited)
}

// ended reports whether a process or a thread has ended.
func (t *Throttle) ended(id int) bool {
	_, err := os.Stat(filepath.Join(t.proc, strconv.Itoa(id)))
	return errors.Is(err, fs.ErrNotExist)
}

// find adds groups that an earlier agent made for guests to t.made.
func (t *Throttle) find(parent group) {
	left, _ := filepath.Glob(filepath.Join(parent.dir, ownPrefix+"*"))
	for _, dir := range left {
		t.made[dir] = true
	}
}

// threads returns the threads of a process; none: the process has ended.
func (t *Throttle) threads(pid int) ([]procfs.Proc, error) {
	proc, err := procfs.NewFS(t.proc)
	if err != nil {
		return nil, err
	}
	all, err := proc.AllThreads(pid)
	if err != nil {
		if t.ended(pid) {
			return nil, nil
		}
		return nil, fmt.Errorf("list the threads of process %d: %w", pid, err)
	}
	return all, nil
}

// isVCPU reports whether a thread of a QEMU process runs guest code, by the name that QEMU gives it. Under TCG one thread may
// run all vCPUs.
func (t *Throttle) isVCPU(pid, tid int) bool {
	name, err := os.ReadFile(filepath.Join(t.proc, strconv.Itoa(pid), "task", strconv.Itoa(tid), "comm"))
	return err == nil && (strings.HasPrefix(string(name), "CPU ") || strings.HasPrefix(string(name), "ALL CPUs"))
}
