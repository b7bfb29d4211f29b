package monitor

// vcpus.go - how long guests' virtual CPUs waited for a processor.

import (
	"strings"
	"time"

	"github.com/prometheus/procfs"
)

// vcpus are the threads of a guest's virtual CPUs, by thread id, with the time that each has waited for a processor.
type vcpus struct {
	threads int // number of threads of the whole process when the vCPUs' threads were looked up
	wait    map[int]time.Duration
}

// vcpuThread begins the name that QEMU gives the thread of a virtual CPU.
const vcpuThread = "CPU "

// waited returns how long the virtual CPUs of a process have waited since the last call. It returns 0 on the first call, and
// if the kernel does not tell. It looks the threads up again when their number has changed.
func (v *vcpus) waited(fs procfs.FS, pid, threads int) (waited time.Duration) {
	if v.wait == nil || v.threads != threads {
		v.find(fs, pid, threads)
	}
	for id, before := range v.wait {
		now, is := waitOf(fs, pid, id)
		if !is {
			delete(v.wait, id)
			v.threads = 0 // look the threads up again
			continue
		}
		if before >= 0 {
			waited += max(0, now-before)
		}
		v.wait[id] = now
	}
	return waited
}

// find finds the threads. Known threads keep their times; new threads count from now on.
func (v *vcpus) find(fs procfs.FS, pid, threads int) {
	found := map[int]time.Duration{}
	list, _ := fs.AllThreads(pid)
	for _, t := range list {
		if name, err := t.Comm(); err != nil || !strings.HasPrefix(name, vcpuThread) {
			continue
		}
		found[t.PID] = -1
		if before, known := v.wait[t.PID]; known {
			found[t.PID] = before
		}
	}
	v.threads, v.wait = threads, found
}

// waitOf returns how long a thread has been ready to run without running.
func waitOf(fs procfs.FS, pid, id int) (time.Duration, bool) {
	t, err := fs.Thread(pid, id)
	if err != nil {
		return 0, false
	}
	s, err := t.Schedstat()
	if err != nil {
		return 0, false
	}
	return time.Duration(s.WaitingNanoseconds), true
}
