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

	mu      sync.Mutex
	made    map[string]bool // groups that were made here, and perhaps are still there
	limited map[string]bool // processes that are limited, by id
}

// New returns a throttle of this host's guests.
func New() *Throttle {
	return &Throttle{proc: "/proc", made: map[string]bool{}, limited: map[string]bool{}}
}

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

// note notes whether a process is limited, and forgets those that have ended.
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

// behind is how nice this process is while it gives way: others have nine times its weight. It has to go on, so that guests can
// leave also if the owner's programs use all processors.
const behind = 10

// GiveWay lets this process give way to others, or ends that. New threads are like those that make them. Its end is also that of
// the low weight of all guests' groups: the guests may have left.
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

// limitThread brings the limits of one of QEMU's threads into force.
func (t *Throttle) limitThread(h hierarchy, pid int, thread procfs.Proc, limits *v1.GuestLimits) error {
	err := t.limitGroup(h, pid, thread, limits)
	if err == nil || limits == nil && errors.Is(err, errNoController) {
		return nil
	}
	return &IncapableError{err}
}

// limitGroup does it by the thread's control group. If libvirt has the controller, there is a group for each domain with groups
// for its parts; otherwise a group for each vCPU is made below the group in which the thread is.
func (t *Throttle) limitGroup(h hierarchy, pid int, thread procfs.Proc, limits *v1.GuestLimits) error {
	g, err := h.groupOf(thread)
	if err != nil {
		return err
	}
	if !t.isVCPU(pid, thread.PID) {
		return nil // in a group of little weight, the threads that carry a move would begin it seconds later
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

// weigh gives a domain its weight. While no other machine is in the groups above, they give way, too.
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
