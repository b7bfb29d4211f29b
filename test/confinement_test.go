package test

// confinement_test.go - what keeps a guest's QEMU from its host.

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

func TestQEMURunsUnprivileged(t *testing.T) {
	newCluster(t, "caged", 1)
	settled(t, "caged", 1)
	status := qemuStatus(t, "watari-caged-0")
	for _, want := range []string{
		`(?m)^Uid:\s+[1-9]`,  // not root
		`(?m)^CapEff:\s+0+$`, // no capability
		`(?m)^Seccomp:\s+2$`, // a filter of system calls (proc(5))
	} {
		if !regexp.MustCompile(want).MatchString(status) {
			t.Errorf("QEMU's status does not match %s:\n%s", want, status)
		}
	}
}

// qemuStatus is /proc/<pid>/status of the QEMU that runs a domain.
func qemuStatus(t *testing.T, domain string) string {
	t.Helper()
	paths, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, path := range paths {
		line, err := os.ReadFile(path)
		if err != nil || !strings.Contains(string(line), "\x00guest="+domain+",") {
			continue
		}
		status, err := os.ReadFile(filepath.Join(filepath.Dir(path), "status"))
		if err != nil {
			t.Fatal(err)
		}
		return string(status)
	}
	t.Fatalf("no process runs domain %s", domain)
	return ""
}
