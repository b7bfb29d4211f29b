package monitor

// processes.go - whose processor time it is.

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

// whose says to whom a process belongs.
type whose int

const (
	systems whose = iota // the kernel's, a daemon's, Watari's own
	owners               // the owner's
	guests               // a guest's QEMU
)

// Users of people, by Debian's /etc/login.defs. Others are those of daemons.
const (
	firstPerson = 1000
	lastPerson  = 60000
)

// kernelThread is a process flag (PF_KTHREAD in the kernel's sched.h).
const kernelThread = 0x00200000

// tick is the unit of processor time in /proc (USER_HZ, which is 100 on Linux's architectures).
const tick = 10 * time.Millisecond

// process is what is known of a process from the last sample.
type process struct {
	started uint64 // clock ticks since boot: tells a process from a later one with the same pid
	name    string // with another name or terminal it may be another's: it has begun another program
	tty     int
	whose   whose
	guest   qemuprocesses.Process // if it is a guest's
	used    time.Duration
	lately  time.Duration // used since the sample before
	vcpus   vcpus         // of a guest
}

// measureProcesses fills in the host's processor time by whose it is, and returns the guests by uid.
//
// Of processes that began and ended between two samples nothing is seen but what they add to the host's total. They count
// as the owner's, whose programs start others (make, shells), unless a control group tells the owner's time.
func (m *Monitor) measureProcesses(s *v1.HostSample, since time.Duration) map[string]*v1.GuestSample {
	before := m.processes
	m.processes = map[int]process{}
	found := map[string]*v1.GuestSample{}
	var spent [guests + 1]time.Duration
	list, _ := m.fs.AllProcs()
	for _, p := range list {
		stat, err := p.Stat()
		if err != nil {
			continue // it has ended
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
			spent[guests] += was.lately // it has ended, and may have used as much again
		}
	}
	total, interrupts, inSessions, known, grouped := m.totals()
	if since == 0 || !known {
		return found
	}
	spent[guests] = min(spent[guests], total)
	if grouped {
		spent[owners] = min(inSessions, total-spent[guests])
	} else {
		spent[owners] = max(0, total-spent[guests]-spent[systems])
	}
	s.CpuGuests, s.CpuOwner = cores(spent[guests], since), cores(spent[owners], since)
	s.CpuSystem = cores(interrupts+total-spent[guests]-spent[owners], since)
	return found
}

// totals returns by how much the host's processor time has grown since the last sample, and that of its login sessions if it
// is known (grouped). Nothing is known unless both samples could read it.
func (m *Monitor) totals() (programs, interrupts, sessions time.Duration, known, grouped bool) {
	used, usedKnown := m.config.Host.Used()
	inSessions, sessionsKnown := m.config.Host.Sessions()
	programs, interrupts, sessions = used.Programs-m.used.Programs, max(0, used.Interrupts-m.used.Interrupts), inSessions-m.sessions
	known = usedKnown && m.known && programs >= 0
	grouped = sessionsKnown && m.grouped && sessions >= 0
	m.used, m.known, m.sessions, m.grouped = used, usedKnown, inSessions, sessionsKnown
	if sessionsKnown && !grouped {
		known = false // the owner's time would be taken from elsewhere for one sample
	}
	return programs, interrupts, sessions, known, grouped
}

// process returns a process with its processor time. Whose it is is found out once for each program that it runs.
func (m *Monitor) process(pid int, stat procfs.ProcStat, before map[int]process) process {
	is, old := before[pid]
	becomes := isQEMU(stat.Comm) && is.whose != guests // it has perhaps just begun to be QEMU
	if !old || is.started != stat.Starttime || is.name != stat.Comm || is.tty != stat.TTY || becomes {
		is = process{started: stat.Starttime, name: stat.Comm, tty: stat.TTY}
		is.whose, is.guest = m.whoseIs(pid, stat)
	}
	is.used, is.lately = time.Duration(stat.UTime+stat.STime)*tick, 0
	return is
}

func isQEMU(name string) bool { return strings.HasPrefix(name, "qemu") }

// Names and uids of guests. Others than QEMU may have such arguments, and any bytes in them.
var (
	guestName = regexp.MustCompile(`^[a-z][a-z0-9-]{0,62}$`)
	guestUID  = regexp.MustCompile(`^[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}$`)
)

// whoseIs returns to whom a process belongs, and the guest if it is one's QEMU.
func (m *Monitor) whoseIs(pid int, stat procfs.ProcStat) (whose, qemuprocesses.Process) {
	if stat.Flags&kernelThread != 0 {
		return systems, qemuprocesses.Process{}
	}
	info, err := os.Stat(filepath.Join(m.config.Root, "proc", strconv.Itoa(pid)))
	if err != nil {
		return systems, qemuprocesses.Process{}
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

func cores(used, since time.Duration) float64 {
	if since <= 0 {
		return 0
	}
	return used.Seconds() / since.Seconds()
}
