package lab

import (
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestParseCPUs(t *testing.T) {
	got, err := ParseCPUs("a1=0.7, b1=1.5")
	if want := map[string]float64{"a1": 0.7, "b1": 1.5}; err != nil || !maps.Equal(got, want) {
		t.Errorf("got %v, %v", got, err)
	}
	if got, err := ParseCPUs("none"); err != nil || got == nil || len(got) != 0 {
		t.Errorf("none is %v, %v", got, err)
	}
	for _, text := range []string{"", "a1", "a1=", "a1=x", "a1=0", "a1=-1", "a1=NaN", "a1=1,a1=2", "=1"} {
		if got, err := ParseCPUs(text); err == nil {
			t.Errorf("%q is %v", text, got)
		}
	}
}

// fakeGroups makes a directory with the files that a kernel has at the root of its hierarchies.
func fakeGroups(t *testing.T, files map[string]string) string {
	root := t.TempDir()
	for name, text := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func TestAShareIsWrittenAsTheKernelsVersionHasIt(t *testing.T) {
	first := map[string]string{"cpu/cgroup.procs": "", "cpuacct/cgroup.procs": "", "unified/cgroup.controllers": "hugetlb\n"}
	second := map[string]string{"cgroup.procs": "", "cgroup.controllers": "cpuset cpu io\n"}
	for name, c := range map[string]struct {
		files map[string]string
		share float64
		want  map[string]string
	}{
		"version 1": {first, 0.7, map[string]string{"cpu/watari-lab/l/a1/cpu.cfs_quota_us": "14000", "cpu/watari-lab/l/a1/cpu.cfs_period_us": "20000",
			"cpu/watari-lab/l/a1/cgroup.procs": "42", "cpuacct/watari-lab/l/a1/cgroup.procs": "42"}},
		"version 1, no limit": {first, 0, map[string]string{"cpu/watari-lab/cpu.cfs_quota_us": "-1", "cpu/watari-lab/cgroup.procs": "42",
			"cpuacct/watari-lab/l/a1/cgroup.procs": "42"}},
		"version 1, one hierarchy, no limit": {map[string]string{"cpu/cgroup.procs": ""}, 0, map[string]string{"cpu/watari-lab/l/a1/cpu.cfs_quota_us": "-1",
			"cpu/watari-lab/l/a1/cgroup.procs": "42"}},
		"version 2": {second, 1.5, map[string]string{"watari-lab/l/a1/cpu.max": "30000 20000", "watari-lab/l/a1/cgroup.procs": "42",
			"cgroup.subtree_control": "+cpu", "watari-lab/l/cgroup.subtree_control": "+cpu"}},
		"version 2, no limit": {second, 0, map[string]string{"watari-lab/l/a1/cpu.max": "max 20000"}},
		"none, no limit":      {nil, 0, nil},
	} {
		t.Run(name, func(t *testing.T) {
			root := fakeGroups(t, c.files)
			groups := findHierarchies(root)
			if err := groups.prepare(t.Context(), "l", "a1", c.share, false); err != nil {
				t.Fatal(err)
			}
			for _, file := range groups.members("l", "a1", c.share > 0) { // the kernel makes this file with the group
				if err := os.WriteFile(file, nil, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if err := groups.enter("l", "a1", 42); err != nil {
				t.Fatal(err)
			}
			for name, want := range c.want {
				if got, _ := os.ReadFile(filepath.Join(root, name)); string(got) != want {
					t.Errorf("%s is %q, not %q", name, got, want)
				}
			}
		})
	}
	err := findHierarchies(t.TempDir()).prepare(t.Context(), "l", "a1", 0.5, false)
	if err == nil || !strings.Contains(err.Error(), "no control groups") {
		t.Errorf("without control groups: %v", err)
	}
}
