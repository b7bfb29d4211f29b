// Package load reads a host's topology (NUMA nodes, cores, memory, CPU model) and samples its load, from /proc
// and /sys.
package load

import (
	"bufio"
	"bytes"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"sort"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/procfs"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "watari/api/watariv1"
)

// Reader reads files under Root, which is "/" except in tests.
type Reader struct {
	Root string
	Disk string // a directory on the disk whose space is reported
	// Cgroup is the path of the host's control group, below the root of each hierarchy; empty: the host is the whole
	// machine.
	Cgroup string
	// Memory is the memory of a host in a control group, bytes; 0: all of the machine's.
	Memory uint64
	Now    func() time.Time // nil: time.Now

	mu          sync.Mutex
	busy, total uint64 // of the last sample, clock ticks over all CPUs; of a control group, nanoseconds
	memory      uint64 // of the processes of a control group at memoryAt, bytes
	memoryAt    time.Time
}

// Topology fills in the properties that do not change while the host runs.
func (r *Reader) Topology(info *v1.HostInfo) error {
	memory, err := r.meminfo("proc/meminfo")
	if err != nil {
		return fmt.Errorf("read the host's memory: %w", err)
	}
	info.MemoryBytes = memory["MemTotal"]
	info.CpuModel = r.cpuModel()
	info.KernelVersion = r.line("proc/sys/kernel/osrelease")
	online := parseList(r.line("sys/devices/system/cpu/online"))
	if len(online) == 0 {
		for cpu := range runtime.NumCPU() {
			online = append(online, uint32(cpu))
		}
	}
	info.Cores = uint32(len(online))
	if r.Cgroup != "" {
		info.Cores, info.CpuShare = r.ownCores(len(online)), r.cpuShare()
	}
	info.NumaNodes = r.nodes(online, info.MemoryBytes)
	return nil
}

// nodes returns the NUMA nodes. A kernel without NUMA has one node.
func (r *Reader) nodes(online []uint32, memory uint64) []*v1.NUMANode {
	dirs, _ := filepath.Glob(filepath.Join(r.Root, "sys/devices/system/node/node[0-9]*"))
	var nodes []*v1.NUMANode
	for _, dir := range dirs {
		id, err := strconv.ParseUint(strings.TrimPrefix(filepath.Base(dir), "node"), 10, 32)
		if err != nil {
			continue
		}
		node := &v1.NUMANode{Id: uint32(id)}
		if data, err := os.ReadFile(filepath.Join(dir, "cpulist")); err == nil {
			node.Cpus = parseList(strings.TrimSpace(string(data)))
		}
		data, _ := os.ReadFile(filepath.Join(dir, "meminfo"))
		for _, line := range strings.Split(string(data), "\n") {
			if f := strings.Fields(line); len(f) >= 4 && f[2] == "MemTotal:" { // "Node 0 MemTotal: 123 kB"
				kib, _ := strconv.ParseUint(f[3], 10, 64)
				node.MemoryBytes = kib << 10
			}
		}
		nodes = append(nodes, node)
	}
	if len(nodes) == 0 {
		return []*v1.NUMANode{{Cpus: online, MemoryBytes: memory}}
	}
	sort.Slice(nodes, func(i, j int) bool { return nodes[i].Id < nodes[j].Id })
	return nodes
}

func (r *Reader) cpuModel() string {
	data, _ := os.ReadFile(filepath.Join(r.Root, "proc/cpuinfo"))
	for _, line := range strings.Split(string(data), "\n") {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return runtime.GOARCH
}

// Sample returns the load since the last sample.
func (r *Reader) Sample() *v1.HostLoad {
	load := &v1.HostLoad{At: timestamppb.Now(), MemoryAvailableBytes: r.MemoryAvailable()}
	var disk syscall.Statfs_t
	if syscall.Statfs(r.Disk, &disk) == nil {
		load.DiskAvailableBytes = disk.Bavail * uint64(disk.Bsize)
	}
	busy, total, cpus := r.ticks()
	if r.Cgroup != "" {
		busy, total, cpus = r.groupTicks()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.total != 0 && total > r.total && busy >= r.busy {
		load.CpuBusy = float64(busy-r.busy) / float64(total-r.total) * float64(cpus)
	}
	r.busy, r.total = busy, total
	return load
}

// Used is processor time.
type Used struct {
	Programs   time.Duration // by processes and kernel threads
	Interrupts time.Duration
}

// Used returns the processor time that the host has used since its boot; false: not known. It does not include stolen time,
// which a virtual host's own host took away.
func (r *Reader) Used() (used Used, known bool) {
	if r.Cgroup != "" {
		spent, known := r.cpuTime()
		return Used{Programs: time.Duration(spent)}, known
	}
	stat, err := r.stat()
	seconds := func(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
	all := stat.CPUTotal // user time already includes that of virtual CPUs
	return Used{Programs: seconds(all.User + all.Nice + all.System), Interrupts: seconds(all.IRQ + all.SoftIRQ)}, err == nil
}

func (r *Reader) stat() (procfs.Stat, error) {
	fs, err := procfs.NewFS(filepath.Join(r.Root, "proc"))
	if err != nil {
		return procfs.Stat{}, err
	}
	return fs.Stat()
}

// MemoryAvailable returns the memory that can be used without swapping, bytes.
func (r *Reader) MemoryAvailable() uint64 {
	memory, err := r.meminfo("proc/meminfo")
	if err != nil {
		return 0
	}
	available := memory["MemAvailable"]
	if r.Cgroup != "" && r.Memory > 0 {
		available = min(available, r.Memory-min(r.Memory, r.memoryUsed()))
	}
	return available
}

// ticks returns the clock ticks since boot, summed over all CPUs.
func (r *Reader) ticks() (busy, total uint64, cpus int) {
	stat, err := r.stat()
	if err != nil {
		return 0, 0, 0
	}
	const perSecond = 100 // USER_HZ, on Linux's architectures
	ticks := func(seconds float64) uint64 { return uint64(math.Round(seconds * perSecond)) }
	all := stat.CPUTotal // user time already includes that of virtual CPUs
	busy = ticks(all.User + all.Nice + all.System + all.IRQ + all.SoftIRQ + all.Steal)
	return busy, busy + ticks(all.Idle+all.Iowait), len(stat.CPU)
}

func (r *Reader) meminfo(path string) (map[string]uint64, error) {
	data, err := os.ReadFile(filepath.Join(r.Root, path))
	if err != nil {
		return nil, err
	}
	memory := map[string]uint64{}
	lines := bufio.NewScanner(bytes.NewReader(data))
	for lines.Scan() {
		name, rest, ok := strings.Cut(lines.Text(), ":")
		if f := strings.Fields(rest); ok && len(f) > 0 {
			kib, _ := strconv.ParseUint(f[0], 10, 64)
			memory[name] = kib << 10
		}
	}
	return memory, nil
}

func (r *Reader) line(path string) string {
	data, _ := os.ReadFile(filepath.Join(r.Root, path))
	return strings.TrimSpace(string(data))
}

// parseList reads the kernel's lists of numbers, "0-3,8".
func parseList(text string) []uint32 {
	var list []uint32
	for _, part := range strings.Split(text, ",") {
		from, to, isRange := strings.Cut(strings.TrimSpace(part), "-")
		first, err := strconv.ParseUint(from, 10, 32)
		if err != nil {
			continue
		}
		last := first
		if isRange {
			if last, err = strconv.ParseUint(to, 10, 32); err != nil {
				continue
			}
		}
		for n := first; n <= last; n++ {
			list = append(list, uint32(n))
		}
	}
	return list
}
