package evidence

// proc.go - reads from /proc the QEMU processes of guests, and the run times of their CPU threads.

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A process may become QEMU by exec(2). So young processes are checked each time, others now and then.
const (
	youngLooks = 50
	otherLooks = 20
)

// templatePrefix begins the names of guests of which templates are made. Two hosts may make the same template at the
// same time. Then both guests have the same uid, which derives from the template's key.
const templatePrefix = "watari-template."

// Proc reads /proc. It keeps what it knows of processes between calls.
type Proc struct {
	lab   string // empty: all labs
	known map[int]*process
	looks int
}

// process is what is known of one process.
type process struct {
	looks   int    // number of checks so far
	uid     string // uid of the guest; empty: not a guest's process
	name    string
	self    Process
	threads []string // schedstat files of the CPU threads
}

// OpenProc starts watching the guests that have a process in a lab, with all processes that these guests have on this
// machine. Without a lab's name it watches all guests. The error says why it would see nothing.
func OpenProc(lab string) (*Proc, error) {
	if _, err := threadTime("/proc/self/schedstat"); err != nil {
		return nil, fmt.Errorf("watch what guests' processors use: the kernel keeps no times of threads: %w", err)
	}
	return &Proc{lab: lab, known: map[int]*process{}}, nil
}

// Look returns all guests that now have a QEMU process. A process that ends meanwhile may be missing.
func (p *Proc) Look() ([]Guest, error) {
	folder, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	names, err := folder.Readdirnames(-1)
	folder.Close()
	if err != nil {
		return nil, err
	}
	p.looks++
	known, guests := make(map[int]*process, len(names)), map[string]*Guest{}
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		one := p.known[pid]
		if one == nil {
			one = &process{}
		}
		known[pid] = one
		if copy, ok := p.look(pid, one); ok {
			g := guests[one.uid]
			if g == nil {
				g = &Guest{UID: one.uid, Name: one.name}
				guests[one.uid] = g
			}
			g.Copies = append(g.Copies, copy)
		}
	}
	p.known = known // drops processes that are gone
	list := make([]Guest, 0, len(guests))
	for _, g := range guests {
		if p.lab != "" && !slices.ContainsFunc(g.Copies, func(c Copy) bool { return c.Host != "" }) {
			continue // the guest has no process in the lab
		}
		slices.SortFunc(g.Copies, func(a, b Copy) int { return a.PID - b.PID })
		list = append(list, *g)
	}
	return list, nil
}

// look checks one process; false if it is not a guest's process or has ended.
func (p *Proc) look(pid int, one *process) (Copy, bool) {
	one.looks++
	if one.uid == "" {
		if one.looks > youngLooks && (pid+p.looks)%otherLooks != 0 || !p.identify(pid, one) {
			return Copy{}, false
		}
	}
	state, started, err := stateOf(pid)
	if err != nil || state == "Z" || state == "X" {
		return Copy{}, false
	}
	if one.self.Started == 0 {
		one.self.Started = started
	}
	if one.self.Started != started { // a new process has the id of one that has ended
		*one = process{}
		return Copy{}, false
	}
	if one.threads == nil || one.looks <= youngLooks { // QEMU starts its threads one after the other
		one.threads = processorThreads(pid)
	}
	c := Copy{Process: one.self, Threads: len(one.threads)}
	for _, path := range one.threads {
		used, err := threadTime(path)
		if err != nil {
			return Copy{}, false // the process is ending
		}
		c.Used += used
	}
	return c, true
}

// identify determines whether a process is a guest's.
func (p *Proc) identify(pid int, one *process) bool {
	folder := filepath.Join("/proc", strconv.Itoa(pid))
	comm, err := os.ReadFile(filepath.Join(folder, "comm"))
	if err != nil || !bytes.HasPrefix(comm, []byte("qemu-system")) {
		return false
	}
	line, err := os.ReadFile(filepath.Join(folder, "cmdline"))
	if err != nil {
		return false
	}
	uid, name := guestOf(strings.Split(string(line), "\x00"))
	groups, _ := os.ReadFile(filepath.Join(folder, "cgroup"))
	lab, host := labOf(string(groups))
	if uid == "" || strings.HasPrefix(name, templatePrefix) || p.lab != "" && lab != "" && lab != p.lab {
		return false
	}
	one.uid, one.name, one.self = uid, strings.TrimPrefix(name, "watari-"), Process{PID: pid, Host: host}
	return true
}

// guestOf returns the uid and the domain's name of the guest on QEMU's command line; empty if there is none.
func guestOf(words []string) (uid, name string) {
	for i := range len(words) - 1 {
		switch words[i] {
		case "-uuid":
			uid = words[i+1]
		case "-name":
			name, _, _ = strings.Cut(words[i+1], ",")
			name = strings.TrimPrefix(name, "guest=")
		}
	}
	if !strings.HasPrefix(name, "watari-") {
		return "", ""
	}
	return uid, name
}

// A lab's host is a control group that contains all its processes.
var labGroup = regexp.MustCompile(`/watari-lab/([^/\n]+)/([^/\n]+)`)

// labOf returns the lab and the host of a process with these control groups; empty if there is none.
func labOf(groups string) (lab, host string) {
	if m := labGroup.FindStringSubmatch(groups); m != nil {
		return m[1], m[2]
	}
	return "", ""
}

// stateOf returns a process's state and start time from proc(5)'s stat.
func stateOf(pid int) (state string, started uint64, err error) {
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return "", 0, err
	}
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:])) // the third field and those after it
	if len(fields) < 20 {
		return "", 0, fmt.Errorf("stat of process %d: %d fields after its name", pid, len(fields))
	}
	started, err = strconv.ParseUint(fields[19], 10, 64)
	return fields[0], started, err
}

// The names of QEMU's CPU threads. libvirt asks QEMU to name its threads (debug-threads=on).
var processorThread = regexp.MustCompile(`^(CPU \d+|ALL CPUs)/(TCG|KVM)\n?$`)

func processorThreads(pid int) (files []string) {
	names, _ := filepath.Glob(filepath.Join("/proc", strconv.Itoa(pid), "task", "[0-9]*", "comm"))
	for _, path := range names {
		if name, err := os.ReadFile(path); err == nil && processorThread.Match(name) {
			files = append(files, filepath.Join(filepath.Dir(path), "schedstat"))
		}
	}
	return files
}

// threadTime returns a thread's run time with a resolution of a microsecond; utime and stime count hundredths of a
// second.
func threadTime(path string) (time.Duration, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	first, _, found := strings.Cut(string(text), " ")
	ns, err := strconv.ParseInt(first, 10, 64)
	if err != nil || !found {
		return 0, errors.Join(fmt.Errorf("%s holds %q", path, text), fs.ErrInvalid)
	}
	return time.Duration(ns), nil
}

// ProcessesOn returns the processes of a lab's host whose command lines, with spaces between words, match.
func ProcessesOn(lab, host string, pattern *regexp.Regexp) (pids []int) {
	lines, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, path := range lines {
		line, err := os.ReadFile(path)
		if err != nil || !pattern.Match(bytes.ReplaceAll(line, []byte{0}, []byte{' '})) {
			continue
		}
		groups, _ := os.ReadFile(filepath.Join(filepath.Dir(path), "cgroup"))
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if inLab, on := labOf(string(groups)); err == nil && inLab == lab && on == host {
			pids = append(pids, pid)
		}
	}
	return pids
}
