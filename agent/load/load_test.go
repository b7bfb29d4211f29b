package load

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	v1 "watari/api/watariv1"
)

func tree(t *testing.T, files map[string]string) *Reader {
	t.Helper()
	root := t.TempDir()
	for path, text := range files {
		path = filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return &Reader{Root: root, Disk: root}
}

func TestTopologyOfTwoNodes(t *testing.T) {
	r := tree(t, map[string]string{
		"proc/meminfo":                           "MemTotal:       4096 kB\nMemAvailable:   1024 kB\n",
		"proc/cpuinfo":                           "processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\n",
		"sys/devices/system/cpu/online":          "0-3\n",
		"sys/devices/system/node/node0/cpulist":  "0-1\n",
		"sys/devices/system/node/node0/meminfo":  "Node 0 MemTotal:        3072 kB\n",
		"sys/devices/system/node/node10/cpulist": "2,3\n",
		"sys/devices/system/node/node10/meminfo": "Node 10 MemTotal:       1024 kB\n",
	})
	info := &v1.HostInfo{}
	if err := r.Topology(info); err != nil {
		t.Fatal(err)
	}
	if info.Cores != 4 || info.MemoryBytes != 4<<20 || info.CpuModel != "Some CPU @ 2 GHz" {
		t.Errorf("got %v", info)
	}
	if len(info.NumaNodes) != 2 || info.NumaNodes[1].Id != 10 || info.NumaNodes[1].MemoryBytes != 1<<20 ||
		!slices.Equal(info.NumaNodes[1].Cpus, []uint32{2, 3}) {
		t.Errorf("got nodes %v", info.NumaNodes)
	}
	if r.MemoryAvailable() != 1<<20 {
		t.Errorf("available: %d", r.MemoryAvailable())
	}
}

func TestAKernelWithoutNUMAHasOneNode(t *testing.T) {
	r := tree(t, map[string]string{"proc/meminfo": "MemTotal: 8 kB\n", "sys/devices/system/cpu/online": "0"})
	info := &v1.HostInfo{}
	if err := r.Topology(info); err != nil {
		t.Fatal(err)
	}
	if len(info.NumaNodes) != 1 || info.NumaNodes[0].MemoryBytes != 8<<10 || len(info.NumaNodes[0].Cpus) != 1 {
		t.Errorf("got nodes %v", info.NumaNodes)
	}
}

func TestLoadIsThatSinceTheLastSample(t *testing.T) {
	r := tree(t, map[string]string{
		"proc/meminfo": "MemTotal: 8 kB\n",
		"proc/stat":    "cpu  100 0 100 800 0 0 0 0 50 0\ncpu0 50 0 50 400 0 0 0 0 0 0\ncpu1 50 0 50 400 0 0 0 0 0 0\n",
	})
	r.Sample()
	os.WriteFile(filepath.Join(r.Root, "proc/stat"),
		[]byte("cpu  200 0 100 900 0 0 0 0 50 0\ncpu0 0 0 0 0 0 0 0 0\ncpu1 0 0 0 0 0 0 0 0\n"), 0o644)
	if got := r.Sample().CpuBusy; got != 1 {
		t.Errorf("got %v cores busy, want 1: 100 of 200 ticks on 2 CPUs", got)
	}
}

func TestAHostThatIsAControlGroupHasItsOwnLoad(t *testing.T) {
	for name, c := range map[string]struct{ before, after map[string]string }{
		"version 1": {map[string]string{
			"sys/fs/cgroup/cpu/lab/a1/cpu.cfs_quota_us":     "150000\n",
			"sys/fs/cgroup/cpu/lab/a1/cpu.cfs_period_us":    "100000\n",
			"sys/fs/cgroup/cpuacct/lab/a1/cpuacct.usage":    "7000000000\n",
			"sys/fs/cgroup/cpu/lab/other/cpu.cfs_quota_us":  "10000\n",
			"sys/fs/cgroup/cpuacct/lab/other/cpuacct.usage": "1\n",
		}, map[string]string{"sys/fs/cgroup/cpuacct/lab/a1/cpuacct.usage": "10000000000\n"}},
		"version 2": {map[string]string{
			"sys/fs/cgroup/lab/a1/cpu.max":  "150000 100000\n",
			"sys/fs/cgroup/lab/a1/cpu.stat": "usage_usec 7000000\nuser_usec 1\n",
		}, map[string]string{"sys/fs/cgroup/lab/a1/cpu.stat": "usage_usec 10000000\nuser_usec 1\n"}},
	} {
		t.Run(name, func(t *testing.T) {
			c.before["proc/meminfo"] = "MemTotal: 8388608 kB\nMemAvailable: 6291456 kB\n"
			c.before["proc/stat"] = "cpu  100 0 100 800 0 0 0 0 50 0\ncpu0 50 0 50 400 0 0 0 0 0 0\n"
			c.before["sys/devices/system/cpu/online"] = "0-3\n"
			c.before["proc/7/status"] = "Name:\tqemu\nRssAnon:\t 1048576 kB\nRssFile:\t 4096 kB\nRssShmem:\t 0 kB\n"
			r := tree(t, c.before)
			now := time.Unix(1000, 0)
			r.Cgroup, r.Memory, r.Now = "lab/a1", 2<<30, func() time.Time { return now }
			info := &v1.HostInfo{}
			if err := r.Topology(info); err != nil {
				t.Fatal(err)
			}
			if info.Cores != 2 || info.CpuShare != 1.5 {
				t.Errorf("%d cores, a share of %v", info.Cores, info.CpuShare)
			}
			r.Sample()
			now = now.Add(2 * time.Second)
			for path, text := range c.after {
				if err := os.WriteFile(filepath.Join(r.Root, path), []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if got := r.Sample(); got.CpuBusy != 1.5 || got.MemoryAvailableBytes != 1<<30 {
				t.Errorf("%v cores busy, %d bytes available", got.CpuBusy, got.MemoryAvailableBytes)
			}
		})
	}
}

func TestAControlGroupWithoutLimitHasAllProcessors(t *testing.T) {
	for _, files := range []map[string]string{
		{"sys/fs/cgroup/cpu/x/cpu.cfs_quota_us": "-1\n", "sys/fs/cgroup/cpu/x/cpu.cfs_period_us": "100000\n"},
		{"sys/fs/cgroup/x/cpu.max": "max 100000\n"},
		{},
	} {
		r := tree(t, files)
		r.Cgroup = "x"
		if share, cores := r.cpuShare(), r.ownCores(4); share != 0 || cores != 4 {
			t.Errorf("%v: a share of %v, %d cores", files, share, cores)
		}
	}
}
