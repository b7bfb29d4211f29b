package load

// cgroup.go - the load of a host that is a control group of this machine: a host of a lab.

import (
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// cgroups is where control groups are mounted: each controller of version 1 in a folder, version 2 in cgroups itself.
const cgroups = "sys/fs/cgroup"

// cpuTime returns the host's processor time in nanoseconds; false: not known.
func (r *Reader) cpuTime() (uint64, bool) {
	if text := r.line(filepath.Join(cgroups, "cpuacct", r.Cgroup, "cpuacct.usage")); text != "" {
		n, err := strconv.ParseUint(text, 10, 64)
		return n, err == nil
	}
	return r.usage(r.Cgroup)
}

// usage returns the processor time of a control group of version 2 in nanoseconds; false: not known.
func (r *Reader) usage(group string) (uint64, bool) {
	for line := range strings.Lines(r.line(filepath.Join(cgroups, group, "cpu.stat"))) {
		if text, ok := strings.CutPrefix(line, "usage_usec "); ok {
			n, err := strconv.ParseUint(strings.TrimSpace(text), 10, 53) // in nanoseconds it must fit into 64
			return n * 1000, err == nil
		}
	}
	return 0, false
}

// Sessions returns the processor time of all login sessions, which systemd keeps in one control group; false: not known. A host
// that is a control group itself has none of its own.
func (r *Reader) Sessions() (time.Duration, bool) {
	if r.Cgroup != "" {
		return 0, false
	}
	used, known := r.usage("user.slice")
	return time.Duration(used), known
}

func (r *Reader) now() time.Time {
	if r.Now != nil {
		return r.Now()
	}
	return time.Now()
}

// groupTicks is the counterpart of ticks for a control group. busy is the group's processor time, total the elapsed
// time, both in nanoseconds.
func (r *Reader) groupTicks() (busy, total uint64, cpus int) {
	used, known := r.cpuTime()
	if !known {
		return 0, 0, 0
	}
	return used, uint64(r.now().UnixNano()), 1
}

// cpuShare returns the host's limit of processor time, in processors; 0: no limit.
func (r *Reader) cpuShare() float64 {
	quota := r.line(filepath.Join(cgroups, "cpu", r.Cgroup, "cpu.cfs_quota_us"))
	period := r.line(filepath.Join(cgroups, "cpu", r.Cgroup, "cpu.cfs_period_us"))
	if quota == "" {
		quota, period, _ = strings.Cut(r.line(filepath.Join(cgroups, r.Cgroup, "cpu.max")), " ")
	}
	q, errQ := strconv.ParseFloat(quota, 64) // "-1" or "max": no limit
	p, errP := strconv.ParseFloat(period, 64)
	if errQ != nil || errP != nil || q <= 0 || p <= 0 {
		return 0
	}
	return q / p
}

// ownCores returns the number of processors that the host reports as its own.
func (r *Reader) ownCores(machine int) uint32 {
	if share := r.cpuShare(); share > 0 {
		return uint32(min(math.Ceil(share), float64(machine)))
	}
	return uint32(machine)
}

// memoryFor is how long the memory of the processes is taken for unchanged: reading it of each is most of a sample's cost.
const memoryFor = 5 * time.Second

// memoryUsed returns the memory that the host's processes had at most memoryFor ago, bytes.
func (r *Reader) memoryUsed() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	if since := r.now().Sub(r.memoryAt); since < 0 || since >= memoryFor {
		r.memoryAt, r.memory = r.now(), r.memoryOfProcesses()
	}
	return r.memory
}

// memoryOfProcesses returns the memory of the host's processes without file pages, bytes. /proc is the host's own, so it shows
// only the host's processes.
func (r *Reader) memoryOfProcesses() (used uint64) {
	found, _ := filepath.Glob(filepath.Join(r.Root, "proc/[0-9]*/status"))
	for _, path := range found {
		data, err := os.ReadFile(path)
		if err != nil {
			continue // the process has ended
		}
		for line := range strings.Lines(string(data)) {
			name, value, _ := strings.Cut(line, ":")
			if f := strings.Fields(value); (name == "RssAnon" || name == "RssShmem") && len(f) > 0 {
				kib, _ := strconv.ParseUint(f[0], 10, 64)
				used += kib << 10
			}
		}
	}
	return used
}
