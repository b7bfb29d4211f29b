package load

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

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
