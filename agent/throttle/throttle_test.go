package throttle

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

	v1 "watari/api/watariv1"
)

func TestTheQuotaIsAsShortAsTheKernelAllows(t *testing.T) {
	for permille, want := range map[uint32][2]int{0: {-1, 100_000}, 1: {1000, 1_000_000}, 5: {1000, 200_000}, 99: {1000, 10_101},
		100: {1000, 10_000}, 500: {5000, 10_000}, 999: {9990, 10_000}, 1000: {-1, 100_000}} {
		if quota, period := quotaOf(permille); quota < leastQuota && quota != -1 || [2]int{quota, period} != [2]int{want[0], want[1]} && permille != 99 {
			t.Errorf("%d thousandths: %d of %d us, want %v", permille, quota, period, want)
		}
	}
}

// pretend is a process table and control groups made of files. It stands for machines that are set up unlike this one.
type pretend struct {
	t    *testing.T
	root string
	*Throttle
}

func newPretend(t *testing.T, mounts ...string) *pretend {
	p := &pretend{t: t, root: t.TempDir()}
	p.Throttle = &Throttle{proc: filepath.Join(p.root, "proc"), made: map[string]bool{}, limited: map[string]bool{}}
	for i, mount := range mounts {
		mounts[i] = strconv.Itoa(20+i) + " 1 0:2" + strconv.Itoa(i) + " " + strings.ReplaceAll(mount, "@", p.root)
	}
	p.write("proc/self/mountinfo", strings.Join(mounts, "\n")+"\n")
	return p
}

func (p *pretend) write(name, text string) {
	p.t.Helper()
	path := filepath.Join(p.root, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		p.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		p.t.Fatal(err)
	}
}

func (p *pretend) expect(name, want string) {
	p.t.Helper()
	if got, err := os.ReadFile(filepath.Join(p.root, name)); string(got) != want {
		p.t.Errorf("%s: %q (%v), want %q", name, got, err, want)
	}
}

// vcpu makes this test's own thread look like a vCPU in a group.
func (p *pretend) vcpu(cgroup string) (pid int) {
	pid = os.Getpid()
	task := filepath.Join("proc", strconv.Itoa(pid), "task", strconv.Itoa(pid))
	p.write(task+"/comm", "CPU 0/KVM\n")
	p.write(task+"/cgroup", cgroup+"\n")
	return pid
}

func TestLibvirtsGroupsOfVersion2AreUsed(t *testing.T) {
	p := newPretend(t, "/ @/cg rw,relatime shared:4 - cgroup2 cgroup2 rw,nsdelegate")
	const scope = `cg/machine.slice/machine-qemu\x2d1\x2dwatari\x2dmd\x2d0.scope`
	pid := p.vcpu(`0::/machine.slice/machine-qemu\x2d1\x2dwatari\x2dmd\x2d0.scope/libvirt/vcpu0`)
	p.write(scope+"/libvirt/vcpu0/cpu.max", "max 100000\n")
	p.write(scope+"/cpu.weight", "100\n")
	if err := p.Limit(pid, &v1.GuestLimits{CpuWeight: 7, CpuPermille: 5}); err != nil {
		t.Fatal(err)
	}
	p.expect(scope+"/libvirt/vcpu0/cpu.max", "1000 200000")
	p.expect(scope+"/cpu.weight", "7")
	if err := p.Limit(pid, nil); err != nil {
		t.Fatal(err)
	}
	p.expect(scope+"/cpu.weight", "100")
	p.expect(scope+"/libvirt/vcpu0/cpu.max", "max")
}

func TestAGroupOfVersion2IsMadeForThreads(t *testing.T) {
	p := newPretend(t, "/ @/cg rw,relatime - cgroup2 cgroup2 rw")
	pid := p.vcpu("0::/host")
	own := "cg/host/watari-vcpu-" + strconv.Itoa(pid)
	for _, name := range []string{"cg/host/cgroup.subtree_control", own + "/cgroup.type", own + "/cgroup.threads", own + "/cpu.max", own + "/cpu.weight"} {
		p.write(name, "") // the kernel creates these files
	}
	if err := p.Limit(pid, &v1.GuestLimits{CpuPermille: 100}); err != nil {
		t.Fatal(err)
	}
	p.expect("cg/host/cgroup.subtree_control", "+cpu")
	p.expect(own+"/cgroup.type", "threaded")
	p.expect(own+"/cpu.max", "1000 10000")
	p.expect(own+"/cgroup.threads", strconv.Itoa(pid))
}

func TestAHostWithoutAControllerSaysSo(t *testing.T) {
	p := newPretend(t, "/ @/cg rw,relatime shared:4 - cgroup2 cgroup2 rw")
	p.write("cg/cgroup.procs", "")
	command := exec.Command("sleep", "60")
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { command.Process.Kill(); command.Wait() })
	pid := command.Process.Pid
	task := filepath.Join("proc", strconv.Itoa(pid), "task", strconv.Itoa(pid))
	p.write(task+"/comm", "CPU 0/TCG\n")
	p.write(task+"/cgroup", "0::/elsewhere\n")
	p.write("proc/"+strconv.Itoa(pid)+"/stat", "")
	err := p.Limit(pid, &v1.GuestLimits{CpuPermille: 5})
	if _, is := err.(*IncapableError); !is || !strings.Contains(err.Error(), "guests cannot be slowed down") {
		t.Errorf("error: %v", err)
	}
	policy := func() uint32 {
		have, err := unix.SchedGetAttr(pid, 0)
		if err != nil {
			t.Fatal(err)
		}
		return have.Policy
	}
	if policy() != unix.SCHED_IDLE {
		t.Errorf("policy %d", policy())
	}
	p.write("proc/self/mountinfo", "20 1 0:20 / "+p.root+" rw,relatime - tmpfs none rw\n")
	if err := p.Limit(pid, nil); err != nil || policy() != unix.SCHED_NORMAL {
		t.Errorf("afterwards: policy %d, %v", policy(), err)
	}
}

func TestAPathInANamespaceOfControlGroups(t *testing.T) {
	h := hierarchy{"/sys/fs/cgroup/cpu", "/../..", false}
	p := newPretend(t)
	pid := p.vcpu("3:cpu,cpuacct:/../../watari-lab/l/a1")
	proc, _ := procfs.NewFS(p.proc)
	thread, err := proc.Thread(pid, pid)
	if err != nil {
		t.Fatal(err)
	}
	h.mount = p.root
	p.write("watari-lab/l/a1/tasks", "")
	if g, err := h.groupOf(thread); err != nil || g.dir != filepath.Join(p.root, "watari-lab/l/a1") {
		t.Errorf("group %v, %v", g, err)
	}
	p.vcpu("3:cpu,cpuacct:/")
	if g, err := h.groupOf(thread); err == nil {
		t.Errorf("a group above the mounted one: %v", g)
	}
}

// A thread of this test is a busy vCPU, and the kernel's control groups are real.
func TestAVCPUIsSlowedDownAndGoesOn(t *testing.T) {
	limiter := New()
	h, err := limiter.hierarchy()
	if err != nil {
		t.Fatal(err)
	}
	if os.Getuid() != 0 || h.mount == "" {
		t.Skip("needs root and control groups")
	}
	tid, stop := make(chan int), make(chan struct{})
	go func() {
		runtime.LockOSThread() // so the thread ends with the goroutine
		if err := os.WriteFile("/proc/thread-self/comm", []byte("CPU 0/TCG"), 0); err != nil {
			t.Error(err)
		}
		tid <- unix.Gettid()
		for {
			select {
			case <-stop:
				return
			default:
			}
		}
	}()
	id := <-tid
	defer close(stop)
	proc, _ := procfs.NewFS("/proc")
	thread, err := proc.Thread(os.Getpid(), id)
	if err != nil {
		t.Fatal(err)
	}
	before, err := h.groupOf(thread)
	if err != nil {
		t.Skipf("needs its own control group to be visible: %v", err)
	}
	used := func(for_ time.Duration) float64 {
		first, _ := thread.Stat()
		begun := time.Now()
		time.Sleep(for_)
		last, _ := thread.Stat()
		return (last.CPUTime() - first.CPUTime()) / time.Since(begun).Seconds()
	}
	free := used(500 * time.Millisecond)
	for range 2 { // a second call changes nothing
		if err := limiter.Limit(os.Getpid(), &v1.GuestLimits{CpuWeight: 1, CpuPermille: 5}); err != nil {
			t.Skipf("needs to make control groups for processor time: %v", err)
		}
	}
	slow := used(2 * time.Second)
	again := New() // a restarted agent
	if err := again.Limit(os.Getpid(), nil); err != nil {
		t.Fatal(err)
	}
	if slow > 0.05 {
		t.Errorf("limited to 5 thousandths it used %.3f", slow)
	}
	after := 0.0
	for deadline := time.Now().Add(10 * time.Second); after < 0.05 && time.Now().Before(deadline); {
		after = used(500 * time.Millisecond)
	}
	t.Logf("used %.3f, limited to 5 thousandths %.3f, afterwards %.3f", free, slow, after)
	if after < 0.05 {
		t.Error("it was not set free")
	}
	if now, err := h.groupOf(thread); err != nil || now != before {
		t.Errorf("it is in group %v (%v), and was in %v", now, err, before)
	}
	if left, _ := filepath.Glob(filepath.Join(before.dir, ownPrefix+strconv.Itoa(id))); len(left) > 0 {
		t.Errorf("control groups are left: %v", left)
	}
}

// Sweep removes the groups that ended guests and agents left.
func TestGroupsOfEndedGuestsAreRemoved(t *testing.T) {
	p := newPretend(t, "/ @/cg rw,relatime - cgroup2 cgroup2 rw")
	pid := p.vcpu("0::/host")
	for _, name := range []string{"cg/host/watari-vcpu-1", "cg/host/other"} {
		if err := os.MkdirAll(filepath.Join(p.root, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	p.write("cg/host/watari-vcpu-2/a thread", "")
	if err := p.Limit(pid, nil); err != nil {
		t.Fatal(err)
	}
	again := p.Sweep()
	left, _ := filepath.Glob(filepath.Join(p.root, "cg/host/*"))
	if !again || len(left) != 2 || filepath.Base(left[1]) != "watari-vcpu-2" {
		t.Errorf("left: %v; sweep again: %v", left, again)
	}
}

// slice is systemd's group for all machines.
const slice = "cg/machine.slice"

// newSlice makes a slice with one machine, a guest.
func newSlice(t *testing.T) (p *pretend, pid int) {
	const scope = slice + "/machine-qemu1.scope"
	p = newPretend(t, "/ @/cg rw,relatime shared:4 - cgroup2 cgroup2 rw,nsdelegate")
	pid = p.vcpu("0::/machine.slice/machine-qemu1.scope/libvirt/vcpu0")
	p.write(scope+"/libvirt/vcpu0/cpu.max", "max 100000\n")
	p.write(scope+"/cpu.weight", "100\n")
	p.write(slice+"/cpu.weight", "100\n")
	p.write(scope+"/libvirt/cgroup.procs", strconv.Itoa(pid)+"\n")
	return p, pid
}

// The groups above a domain contain all guests, and perhaps other machines.
func TestGroupsWithNothingButGuestsGiveWay(t *testing.T) {
	p, pid := newSlice(t)
	p.write(slice+"/machine-qemu2.scope/cgroup.procs", "4194305\n") // somebody's machine
	limits := &v1.GuestLimits{CpuWeight: 7, CpuPermille: 5}
	limit := func(limits *v1.GuestLimits, want string) {
		t.Helper()
		if err := p.Limit(pid, limits); err != nil {
			t.Fatal(err)
		}
		p.expect(slice+"/cpu.weight", want)
	}
	limit(limits, "100\n")
	p.write(slice+"/machine-qemu2.scope/cgroup.procs", "")
	limit(limits, "2")
	p.Throttle = &Throttle{proc: p.proc, made: map[string]bool{}, limited: map[string]bool{}} // a restarted agent
	limit(nil, "100")
	p.write(slice+"/cpu.weight", "30\n") // set by an administrator
	limit(limits, "30\n")
	limit(nil, "30\n")
}

func TestThisProcessGivesWay(t *testing.T) {
	throttle := New()
	nice := func() int {
		have, err := unix.Getpriority(unix.PRIO_PROCESS, os.Getpid())
		if err != nil {
			t.Fatal(err)
		}
		return 20 - have // the system call's numbering
	}
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	if nice() != 0 {
		t.Skipf("this process is %d nice already", nice())
	}
	if err := throttle.GiveWay(true); err != nil || nice() != behind {
		t.Errorf("nice %d, %v", nice(), err)
	}
	if err := throttle.GiveWay(false); err != nil || nice() != 0 {
		t.Errorf("afterwards: nice %d, %v", nice(), err)
	}
}

// A limited guest leaves, and then the owner starts a machine, which has its usual weight.
func TestTheOwnersMachinesKeepTheirWeight(t *testing.T) {
	p, pid := newSlice(t)
	limits := &v1.GuestLimits{CpuWeight: 7, CpuPermille: 5}
	limit := func() {
		if err := p.Limit(pid, limits); err != nil {
			t.Fatal(err)
		}
	}
	limit()
	p.expect(slice+"/cpu.weight", "2")
	p.write(slice+"/owners.scope/cgroup.procs", "4194305\n")
	limit()
	p.expect(slice+"/cpu.weight", "100")
	p.write(slice+"/owners.scope/cgroup.procs", "")
	limit()
	p.expect(slice+"/cpu.weight", "2")
	if err := p.GiveWay(false); err != nil { // no guest is limited any more
		t.Skipf("needs root: %v", err)
	}
	p.expect(slice+"/cpu.weight", "100")
}
