package monitor

// processes.go - attributes processor time to guests, the owner and the system.

import (
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/procfs"

	v1 "watari/api/watariv1"
	"watari/internal/qemuprocesses"
)

// whose tells to whom a process belongs.
type whose int

const (
	systems     whose = iota // the kernel's, a daemon's, Watari's own
	owners                   // the owner's
	guests                   // a guest's QEMU
	ownersGuest              // the QEMU of Config.OwnerGuest, outside the owner's login sessions
)

// Range of the user ids of people, by Debian's /etc/login.defs. Other ids belong to daemons.
const (
	firstPerson = 1000
	lastPerson  = 60000
)

// kernelThread is a process flag (PF_KTHREAD in the kernel's sched.h).
const kernelThread = 0x00200000

// tick is the unit of processor time in /proc (USER_HZ, which is 100 on Linux's architectures).
const tick = 10 * time.Millisecond

// process is what the last sample found out about a process.
type process struct {
	started uint64 // clock ticks since boot: tells a process from a later one with the same pid
	name    string // if name or terminal changes, the process runs another program and may belong to somebody else
	tty     int
	whose   whose
	guest   qemuprocesses.Process // the guest, if the process is a guest's QEMU
	used    time.Duration
	lately  time.Duration // used between the last two samples
	vcpus   vcpus         // of a guest's QEMU
}

// measureProcesses fills in the host's processor time by whom it belongs to, and returns the guests by uid.
//
// A process that begins and ends between two samples is seen only in the host's total. Its time counts as the owner's,
// because the owner's programs (make, shells) start other programs. It does not if a control group tells the owner's time: to
// that only the owner's guest is added.
func (m *Monitor) measureProcesses(s *v1.HostSample, since time.Duration) map[string]*v1.GuestSample {
	before := m.processes
	m.processes = map[int]process{}
	found := map[string]*v1.GuestSample{}
	var spent [ownersGuest + 1]time.Duration
	list, _ := m.fs.AllProcs()
	for _, p := range list {
		stat, err := p.Stat()
		if err != nil {
			continue // the process has ended
		}
		is := m.process(p.PID, stat, before)
		was, old := before[p.PID]
		if old && was.started == is.started {
			is.lately = max(0, is.used-was.used)
		} else if since > 0 {
			is.lately = min(is.used, since*time.Duration(max(1, stat.NumThreads)))
		}
		spent[is.whose] += is.lately
		if is.whose == guests {
			waited := is.vcpus.waited(m.fs, p.PID, stat.NumThreads)
			found[is.guest.UID] = &v1.GuestSample{Uid: is.guest.UID, Name: is.guest.Name, Cpu: cores(is.lately, since),
				CpuWait: cores(waited, since), MemoryBytes: uint64(max(0, stat.RSS)) * uint64(os.Getpagesize())}
		}
		m.processes[p.PID] = is
	}
	for pid, was := range before {
		if is, still := m.processes[pid]; was.whose == guests && (!still || is.started != was.started) {
			spent[guests] += was.lately // the guest has ended; assume that it used as much again
		}
	}
	total, interrupts, inSessions, known, grouped := m.totals()
	if since == 0 || !known {
		return found
	}
	spent[guests] = min(spent[guests], total)
	if grouped {
		spent[owners] = min(inSessions+spent[ownersGuest], total-spent[guests])
	} else {
		spent[owners] = max(0, total-spent[guests]-spent[systems])
	}
	s.CpuGuests, s.CpuOwner = cores(spent[guests], since), cores(spent[owners], since)
	s.CpuSystem = cores(interrupts+total-spent[guests]-spent[owners], since)
	return found
}

// totals returns the growth of the host's processor time since the last sample, and that of its login sessions if that is
// known (grouped). A value is known only if both samples could read it.
func (m *Monitor) totals() (programs, interrupts, sessions time.Duration, known, grouped bool) {
	used, usedKnown := m.config.Host.Used()
	inSessions, sessionsKnown := m.config.Host.Sessions()
	programs, interrupts, sessions = used.Programs-m.used.Programs, max(0, used.Interrupts-m.used.Interrupts), inSessions-m.sessions
	known = usedKnown && m.known && programs >= 0
	grouped = sessionsKnown && m.grouped && sessions >= 0
	m.used, m.known, m.sessions, m.grouped = used, usedKnown, inSessions, sessionsKnown
	if sessionsKnown && !grouped {
		known = false // otherwise this sample would take the owner's time from another source
	}
	return programs, interrupts, sessions, known, grouped
}

// process returns a process with its processor time. It determines the owner once for each program that the process runs.
func (m *Monitor) process(pid int, stat procfs.ProcStat, before map[int]process) process {
	is, old := before[pid]
	becomes := isQEMU(stat.Comm) && is.whose != guests && is.whose != ownersGuest // the process may have become QEMU just now
	if !old || is.started != stat.Starttime || is.name != stat.Comm || is.tty != stat.TTY || becomes {
		is = process{started: stat.Starttime, name: stat.Comm, tty: stat.TTY}
		is.whose, is.guest = m.whoseIs(pid, stat)
	}
	is.used, is.lately = time.Duration(stat.UTime+stat.STime)*tick, 0
	return is
}

func isQEMU(name string) bool { return strings.HasPrefix(name, "qemu") }

// Names and uids of guests. Other programs than QEMU may have such arguments, with any bytes.
var (
	guestName = regexp.MustCompile(`^[a-z][a-z0-9-]{0,62}$`)
	guestUID  = regexp.MustCompile(`^[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}$`)
)

// whoseIs returns to whom a process belongs, and the guest if the process is a guest's QEMU.
func (m *Monitor) whoseIs(pid int, stat procfs.ProcStat) (whose, qemuprocesses.Process) {
	if stat.Flags&kernelThread != 0 {
		return systems, qemuprocesses.Process{}
	}
	info, err := os.Stat(filepath.Join(m.config.Root, "proc", strconv.Itoa(pid)))
	if err != nil {
		return systems, qemuprocesses.Process{}
	}
	if m.config.OwnerGuest != "" && isQEMU(stat.Comm) {
		name, is := qemuprocesses.Domain(filepath.Join(m.config.Root, "proc"), pid)
		if is && name == m.config.OwnerGuest && !m.inSession(pid) {
			return ownersGuest, qemuprocesses.Process{}
		}
	}
	user := info.Sys().(*syscall.Stat_t).Uid
	if user >= firstPerson && user <= lastPerson || stat.TTY != 0 && stat.Comm != "agetty" {
		return owners, qemuprocesses.Process{}
	}
	if isQEMU(stat.Comm) {
		guest, is := qemuprocesses.Of(filepath.Join(m.config.Root, "proc"), pid)
		if is && guestName.MatchString(guest.Name) && guestUID.MatchString(guest.UID) {
			return guests, guest
		}
	}
	return systems, qemuprocesses.Process{}
}

// inSession reports whether a process is in the control group of all login sessions, which already has its time.
func (m *Monitor) inSession(pid int) bool {
	groups, _ := os.ReadFile(filepath.Join(m.config.Root, "proc", strconv.Itoa(pid), "cgroup"))
	return strings.Contains(string(groups), ":/user.slice/")
}

func cores(used, since time.Duration) float64 {
	if since <= 0 {
		return 0
	}
	return used.Seconds() / since.Seconds()
}
