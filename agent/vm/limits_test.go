package vm

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"watari/agent/throttle"
	v1 "watari/api/watariv1"
)

// emulator returns the pid of a guest's QEMU on a host.
func (h *testHost) emulator(t *testing.T, spec Spec) int {
	t.Helper()
	return h.processOf(t, "/run/libvirt/qemu/"+NamePrefix+spec.Name+".pid")
}

// busy returns the share of a processor that a process uses.
func busy(t *testing.T, pid int, during time.Duration) float64 {
	t.Helper()
	used := func() (ticks float64) {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			t.Fatal(err)
		}
		fields := strings.Fields(string(text[strings.LastIndex(string(text), ")")+1:]))
		for _, field := range fields[11:13] { // in user space, in the kernel
			var n float64
			fmt.Sscan(field, &n)
			ticks += n
		}
		return ticks
	}
	first, begun := used(), time.Now()
	time.Sleep(during)
	return (used() - first) / 100 / time.Since(begun).Seconds()
}

func TestAGuestIsSlowedDownAndMovesOnAtFullSpeed(t *testing.T) {
	p := newPair(t, "slow", "test.check=16")
	limiter := throttle.New()
	source := p.source.emulator(t, p.spec)
	free := busy(t, source, time.Second)
	limit := func(limits *v1.GuestLimits) {
		t.Helper()
		if err := limiter.Limit(source, limits); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { limiter.Sweep() })
	slow := &v1.GuestLimits{CpuWeight: 1, CpuPermille: 5}
	limit(slow)
	limited := busy(t, source, 3*time.Second)
	limit(nil)
	again := 0.0
	eventually(t, time.Minute, "the guest runs at full speed again", func() bool {
		again = busy(t, source, time.Second)
		return again > free/2
	})
	t.Logf("free %.3f, limited %.3f, free again %.3f", free, limited, again)
	if limited > 0.05 {
		t.Errorf("limited to 5 thousandths it used %.3f of a processor", limited)
	}

	p.source.killDaemon(t) // libvirt does not know the limits, and a new daemon does not change them
	waitEvent(t, p.source.driver, "")
	limit(slow)
	p.connect(t, copyStream)
	begun := time.Now()
	ended := make(chan error, 1)
	go func() { ended <- p.source.driver.Migrate(context.Background(), p.spec.UID, p.options) }()
	time.Sleep(200 * time.Millisecond)
	limit(&v1.GuestLimits{CpuWeight: 1, CpuPermille: 1}) // while libvirt migrates it
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	t.Logf("moved in %v", time.Since(begun))
	if err := p.target.driver.Resume(context.Background(), p.spec.UID); err != nil {
		t.Fatal(err)
	}
	target := p.target.emulator(t, p.spec)
	eventually(t, time.Minute, "the guest runs at full speed at the target", func() bool { return busy(t, target, time.Second) > free/2 })
	eventually(t, 10*time.Second, "no control groups are left", func() bool { return !limiter.Sweep() })
	if err := limiter.Limit(target, nil); err != nil {
		t.Error(err)
	}
}

// cpuGroups is where control groups of version 1 for processor time are mounted.
const cpuGroups = "/sys/fs/cgroup/cpu"

// If libvirt has a control group for each vCPU, that group is used and no other is made.
func TestLibvirtsOwnGroupsLimitAGuest(t *testing.T) {
	need(t)
	if _, err := os.Stat(filepath.Join(cpuGroups, "cpu.cfs_quota_us")); err != nil {
		t.Skipf("needs control groups of version 1: %v", err)
	}
	dir, err := os.MkdirTemp(cpuGroups, "wvm")
	if err != nil {
		t.Skipf("needs to make control groups: %v", err)
	}
	t.Cleanup(func() { // runs after the host has ended
		eventually(t, 10*time.Second, "no control group is left", func() bool {
			exec.Command("find", dir, "-depth", "-type", "d", "-exec", "rmdir", "{}", ";").Run()
			_, err := os.Stat(dir)
			return err != nil
		})
	})
	h, spec := startHostIn(t, "h1", filepath.Base(dir)), newSpec("own", "test.check=16")
	h.prepare(t, spec)
	if err := h.driver.Boot(context.Background(), spec); err != nil {
		t.Fatal(err)
	}
	h.counts(t, spec, 3)
	found, _ := filepath.Glob(filepath.Join(dir, "machine", "qemu-*-watari-own.*", "vcpu0"))
	if len(found) != 1 {
		t.Fatalf("libvirt's groups of vCPUs: %v", found)
	}
	value := func(name string) string {
		text, _ := os.ReadFile(filepath.Join(found[0], name))
		return strings.TrimSpace(string(text))
	}
	limiter, pid := throttle.New(), h.emulator(t, spec)
	if err := limiter.Limit(pid, &v1.GuestLimits{CpuWeight: 10, CpuPermille: 5}); err != nil {
		t.Fatal(err)
	}
	if q, p, w := value("cpu.cfs_quota_us"), value("cpu.cfs_period_us"), value("../cpu.shares"); q != "1000" || p != "200000" || w != "102" {
		t.Errorf("limited: quota %s of %s, shares %s", q, p, w)
	}
	if limited := busy(t, pid, 3*time.Second); limited > 0.05 {
		t.Errorf("limited to 5 thousandths it used %.3f of a processor", limited)
	}
	h.killDaemon(t)
	waitEvent(t, h.driver, "")
	if q := value("cpu.cfs_quota_us"); q != "1000" {
		t.Errorf("a new daemon has set the quota to %s", q)
	}
	if err := limiter.Limit(pid, nil); err != nil {
		t.Fatal(err)
	}
	if q, w := value("cpu.cfs_quota_us"), value("../cpu.shares"); q != "-1" || w != "1024" || limiter.Sweep() {
		t.Errorf("afterwards: quota %s, shares %s", q, w)
	}
}
