// Package throttle makes guests give way to other programs of their host. All threads of a bounded guest's QEMU run last among
// the threads of their control group (SCHED_IDLE). The threads that run guest code (vCPUs) have a bounded share of time besides;
// the others carry migrations, which use whatever time is left.
//
// It writes to the control groups of these threads by itself, and not through libvirt, for three reasons. libvirt changes no
// domain that it migrates, and guests have to be slowed down above all while they leave. What libvirt knows of it would travel
// with the guest. And a guest has to make way for its host's owner even if libvirt's daemon hangs.
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

// Throttle bounds guests of one host. It remembers nothing that it needs after a restart: it looks at what is in force.
type Throttle struct {
	proc string // /proc but in tests

	mu   sync.Mutex
	made map[string]bool // groups that were made here, and perhaps are still there
}

// New returns a throttle of this host's guests.
func New() *Throttle { return &Throttle{proc: "/proc", made: map[string]bool{}} }

// Limit brings the limits of a guest's process into force; nil: none, as usual. It may be repeated. A process that has ended,
// or has no vCPU yet, is no error. If the host cannot bound processor time, Limit returns an *IncapableError; the guest gives
// way all the same.
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
	var failed error
	for _, thread := range threads {
		err := setIdle(thread.PID, limits != nil)
		if t.isVCPU(pid, thread.PID) {
			err = cmp.Or(t.limitVCPU(hierarchy, thread, limits), err)
		}
		if err != nil && !t.ended(thread.PID) {
			failed = err // the host's reason is the same for all threads
		}
	}
	return failed
}

// behind is how nice this process is while it gives way: others have nine times its weight. It has to go on, so that guests can
// leave also if the owner's programs use all processors.
const behind = 10

// GiveWay lets this process give way to others, or ends that. New threads are like those that make them.
func (t *Throttle) GiveWay(giveWay bool) error {
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
	return err
}

// Sweep removes the control groups of guests that have ended, and reports whether others, which were made here, are left. The
// kernel refuses to remove a group with threads.
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

// IncapableError says that a host cannot bound the processor time of guests.
type IncapableError struct{ Reason error }

func (e *IncapableError) Error() string {
	return fmt.Sprintf("guests cannot be slowed down: %v; their processors run when nothing else does. "+
		"Let libvirt use the control group controller cpu (cgroup_controllers in /etc/libvirt/qemu.conf), and the agent write to /sys/fs/cgroup",
		e.Reason)
}

// Unwrap returns the reason.
func (e *IncapableError) Unwrap() error { return e.Reason }

// limitVCPU brings the limits of one vCPU into force.
func (t *Throttle) limitVCPU(h hierarchy, thread procfs.Proc, limits *v1.GuestLimits) error {
	err := t.limitGroup(h, thread, limits)
	if err == nil || limits == nil && errors.Is(err, errNoController) {
		return nil
	}
	return &IncapableError{err}
}

// limitGroup does it by the thread's control group. A group for each vCPU is there if libvirt has the controller; otherwise
// one is made below the group in which the thread is.
func (t *Throttle) limitGroup(h hierarchy, thread procfs.Proc, limits *v1.GuestLimits) error {
	group, err := h.groupOf(thread)
	if err != nil {
		return err
	}
	base := filepath.Base(group.dir)
	switch {
	case ownGroup.MatchString(base) && limits == nil:
		return group.dissolve(thread.PID)
	case ownGroup.MatchString(base):
		t.made[group.dir] = true
		return group.set(limits, group)
	case libvirtsGroup.MatchString(base) && group.bounds():
		return group.set(limits, group.domain())
	case limits == nil:
		t.find(group)
		return nil
	}
	own, err := group.make(thread.PID)
	if err != nil {
		return err
	}
	t.made[own.dir] = true
	if err := own.set(limits, own); err != nil {
		return err
	}
	return own.enter(thread.PID)
}

// ended reports whether a process or a thread has ended.
func (t *Throttle) ended(id int) bool {
	_, err := os.Stat(filepath.Join(t.proc, strconv.Itoa(id)))
	return errors.Is(err, fs.ErrNotExist)
}

// find notes groups of guests that have ended, which an earlier agent has made.
func (t *Throttle) find(parent group) {
	left, _ := filepath.Glob(filepath.Join(parent.dir, ownPrefix+"*"))
	for _, dir := range left {
		t.made[dir] = true
	}
}

// threads returns the threads of a process; none: it has ended.
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
