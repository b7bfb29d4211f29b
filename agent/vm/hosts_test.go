package vm

// hosts_test.go - hosts for the tests: namespaces, each with a libvirt daemon of its own, and a small guest.

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"

	v1 "watari/api/watariv1"
)

// hostScript is run in new namespaces as: bash -c hostScript host FOLDER NAME [GROUP]. It starts libvirtd again when it ends.
// With GROUP, libvirt has the controller cpu of control groups of version 1, of which it sees only that group.
const hostScript = `
set -e
d=$1
hostname $2
ip link set lo up
for pair in run:/run etc:/etc/libvirt lib:/var/lib/libvirt log:/var/log/libvirt cache:/var/cache/libvirt; do
	mkdir -p $d/${pair%%:*} ${pair#*:}
	mount --bind $d/${pair%%:*} ${pair#*:}
done
mkdir -p /run/libvirt /run/guests /run/tunnel /etc/libvirt/qemu
mount -t tmpfs tmpfs /dev/shm
controllers=
if [ "$3" ]; then
	mount --bind /sys/fs/cgroup/cpu/$3 /sys/fs/cgroup/cpu
	umount /sys/fs/cgroup/unified 2>/dev/null || true # libvirt cannot do with a version 2 that has no controllers
	controllers='"cpu"'
fi
cat > /etc/libvirt/libvirtd.conf <<X
host_uuid = "$(cat /proc/sys/kernel/random/uuid)"
auth_unix_rw = "none"
log_outputs = "3:file:/var/log/libvirt/libvirtd.log"
X
cat > /etc/libvirt/qemu.conf <<X
user = "root"
group = "root"
security_driver = "none"
cgroup_controllers = [ $controllers ]
namespaces = []
stdio_handler = "file"
remember_owner = 0
dynamic_ownership = 0
X
while :; do
	/usr/sbin/libvirtd -p /run/libvirtd.pid || true
	while [ -e $d/hold ]; do sleep 0.05; done
	sleep 0.2
done
`

// testHost is one such host. Its /run is folder/run, its guests' files are under /run/guests.
type testHost struct {
	folder string
	init   *exec.Cmd
	driver *Libvirt
}

var (
	buildOnce             sync.Once
	testKernel, testGuest string
	errBuild              error
)

// need skips the test if something outside is missing, and names it.
func need(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("needs libvirtd and QEMU guests: not in -short")
	}
	if os.Getuid() != 0 {
		t.Skip("needs root, to make namespaces and guests")
	}
	for _, program := range []string{"libvirtd", "qemu-system-x86_64", "unshare", "ip"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("needs %s: %v", program, err)
		}
	}
	buildOnce.Do(func() { testKernel, testGuest, errBuild = buildGuest() })
	if errBuild != nil {
		t.Skipf("needs a kernel to boot: %v", errBuild)
	}
}

// buildGuest finds a kernel ($WATARI_TEST_KERNEL, else Debian's small one, kept in the user's cache) and makes an
// initial RAM file system of testdata/guest.
func buildGuest() (kernel, initrd string, err error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", "", err
	}
	cache = filepath.Join(cache, "watari-test")
	script := `
set -e
mkdir -p "$1/deb"
cd "$1"
if [ -z "$WATARI_TEST_KERNEL" ] && [ ! -e vmlinuz ]; then
	package=$(apt-cache depends linux-image-cloud-amd64 | sed -n 's/.*Depends: \(linux-image-[0-9]\)/\1/p' | head -n 1)
	(cd deb && apt-get download -q "$package")
	dpkg-deb --fsys-tarfile deb/*.deb | tar -x --strip-components 2 --wildcards './boot/vmlinuz-*'
	mv vmlinuz-* vmlinuz
	rm -r deb
fi
work=$(mktemp -d)
(cd "$2" && CGO_ENABLED=0 go build -ldflags '-s -w' -o "$work/init" .)
mkdir "$work/dev" && mknod "$work/dev/console" c 5 1
(cd "$work" && find . | cpio -o -H newc --quiet) > initrd.new
mv initrd.new initrd
rm -r "$work"
`
	source, err := filepath.Abs("testdata/guest")
	if err != nil {
		return "", "", err
	}
	out, err := exec.Command("bash", "-c", script, "build", cache, source).CombinedOutput()
	if err != nil {
		return "", "", fmt.Errorf("%w: %s", err, out)
	}
	if kernel = os.Getenv("WATARI_TEST_KERNEL"); kernel == "" {
		kernel = filepath.Join(cache, "vmlinuz")
	}
	return kernel, filepath.Join(cache, "initrd"), nil
}

// startHost makes a host and waits until its daemon answers.
func startHost(t *testing.T, name string) *testHost {
	t.Helper()
	return startHostIn(t, name, "")
}

// startHostIn is startHost with a control group of version 1 for processor time; "": libvirt has none.
func startHostIn(t *testing.T, name, group string) *testHost {
	t.Helper()
	folder, err := os.MkdirTemp("/var/tmp", "wvm") // short: Unix sockets' paths are at most 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	h := &testHost{folder: folder}
	h.init = exec.Command("unshare", "-m", "-n", "-u", "-i", "-p", "--propagation", "private", "--fork",
		"--kill-child=SIGKILL", "--mount-proc", "bash", "-c", hostScript, "host", folder, name, group)
	log, err := os.Create(filepath.Join(folder, "init.log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	h.init.Stdout, h.init.Stderr = log, log
	h.init.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setsid: true}
	if err := h.init.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if h.driver != nil {
			h.driver.Close()
		}
		_ = h.init.Process.Kill()
		_ = h.init.Wait()
		if t.Failed() {
			for _, file := range []string{"init.log", "log/libvirtd.log"} {
				text, _ := os.ReadFile(filepath.Join(folder, file))
				t.Logf("%s %s:\n%s", name, file, tail(text, 3000))
			}
		}
		_ = os.RemoveAll(folder)
	})
	if h.driver, err = Connect(h.uri(), Options{Acceleration: testAcceleration()}); err != nil {
		t.Fatal(err)
	}
	waitEvent(t, h.driver, "")
	return h
}

// testAcceleration is how the tests' guests run: WATARI_TEST_KVM=1 asks for KVM, on a machine that has it.
func testAcceleration() v1.AccelerationKind {
	if os.Getenv("WATARI_TEST_KVM") != "" {
		return v1.AccelerationKind_ACCELERATION_KIND_KVM
	}
	return v1.AccelerationKind_ACCELERATION_KIND_TCG
}

// patient lengthens a wait where the tests run under KVM: that machine may itself be an emulated one.
func patient(limit time.Duration) time.Duration {
	if testAcceleration() == v1.AccelerationKind_ACCELERATION_KIND_KVM {
		return 10 * limit
	}
	return limit
}

func tail(text []byte, n int) []byte { return text[max(0, len(text)-n):] }

func (h *testHost) uri() string {
	return "qemu+unix:///system?socket=" + h.path("/run/libvirt/libvirt-sock")
}

// path returns the path outside the host's namespace of a path under its /run or /var/log/libvirt.
func (h *testHost) path(inside string) string {
	if rest, ok := strings.CutPrefix(inside, "/var/log/libvirt/"); ok {
		return filepath.Join(h.folder, "log", rest)
	}
	return filepath.Join(h.folder, inside)
}

// processOf returns the pid outside the host's namespace of the process whose pid file inside is given.
func (h *testHost) processOf(t *testing.T, pidFile string) int {
	t.Helper()
	text, err := os.ReadFile(h.path(pidFile))
	if err != nil {
		t.Fatal(err)
	}
	inner := strings.TrimSpace(string(text))
	namespace, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", childOf(t, h.init.Process.Pid)))
	if err != nil {
		t.Fatal(err)
	}
	all, _ := filepath.Glob("/proc/[0-9]*/ns/mnt")
	for _, link := range all {
		if found, _ := os.Readlink(link); found != namespace {
			continue
		}
		pid := strings.Split(link, "/")[2]
		status, _ := os.ReadFile("/proc/" + pid + "/status")
		for line := range strings.Lines(string(status)) {
			fields := strings.Fields(line)
			if len(fields) == 3 && fields[0] == "NSpid:" && fields[2] == inner {
				var n int
				fmt.Sscan(pid, &n)
				return n
			}
		}
	}
	t.Fatalf("no process %s in %s", inner, h.folder)
	return 0
}

func childOf(t *testing.T, pid int) int {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	var child int
	if _, scanErr := fmt.Sscan(string(text), &child); err != nil || scanErr != nil {
		t.Fatalf("child of %d: %v %v", pid, err, scanErr)
	}
	return child
}

func (h *testHost) killDaemon(t *testing.T) {
	t.Helper()
	if err := syscall.Kill(h.processOf(t, "/run/libvirtd.pid"), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
}

func (h *testHost) killGuest(t *testing.T, name string) {
	t.Helper()
	if err := syscall.Kill(h.processOf(t, "/run/libvirt/qemu/"+NamePrefix+name+".pid"), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
}

// virsh runs a command of libvirt's shell on the host.
func virsh(t *testing.T, h *testHost, args ...string) string {
	t.Helper()
	out, err := exec.Command("virsh", append([]string{"-q", "-c", h.uri()}, args...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("virsh %v: %v: %s", args, err, out)
	}
	return string(out)
}

// newSpec is a guest of 256 MiB that counts on its console.
func newSpec(name, kernelArgs string) Spec {
	uid := uuid.NewString()
	return Spec{
		UID: uid, Name: name, VCPUs: 1, MemoryBytes: 256 << 20, Kernel: testKernel, Initrd: testGuest,
		KernelArgs: strings.TrimSpace("quiet " + kernelArgs), ImageDigest: "test",
		Channel: "/run/guests/" + uid + "/channel.sock", Console: "/run/guests/" + uid + "/console.log",
	}
}

// prepare makes the folders that a guest's files go to.
func (h *testHost) prepare(t *testing.T, spec Spec) {
	t.Helper()
	if err := os.MkdirAll(h.path(filepath.Dir(spec.Channel)), 0o755); err != nil {
		t.Fatal(err)
	}
}

// count returns the last number that the guest wrote to its console on this host; 0: none.
func (h *testHost) count(spec Spec) int {
	text, _ := os.ReadFile(h.path(spec.Console))
	at := bytes.LastIndex(text, []byte("\ncount "))
	last := 0
	if at >= 0 {
		fmt.Sscanf(string(text[at+1:]), "count %d", &last)
	}
	return last
}

// eventually waits until ok returns true, or fails the test with what.
func eventually(t *testing.T, limit time.Duration, what string, ok func() bool) {
	t.Helper()
	limit = patient(limit)
	for deadline := time.Now().Add(limit); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within %v", what, limit)
		}
	}
}

// counts waits until the guest has counted further than from.
func (h *testHost) counts(t *testing.T, spec Spec, from int) {
	t.Helper()
	eventually(t, 30*time.Second, fmt.Sprintf("guest %s counts past %d", spec.Name, from), func() bool { return h.count(spec) > from })
}

// domain is the guest's domain as listed; State is StateGone if there is none.
func (h *testHost) domain(t *testing.T, uid string) Domain {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	domains, err := h.driver.List(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range domains {
		if d.UID == uid {
			return d
		}
	}
	return Domain{UID: uid, State: StateGone, Reason: "none"}
}

// forwarding forwards connections at one Unix socket to another, as the agents' tunnel does.
type forwarding struct {
	listener net.Listener
	frozen   chan struct{} // closed: forward nothing more, and close nothing

	lock sync.Mutex
	open []net.Conn
}

// forward starts a forwarding. copy copies from one end to the other; replies tells the direction.
func forward(t *testing.T, from, to string, copy func(f *forwarding, to, from net.Conn, replies bool)) *forwarding {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(from), 0o755); err != nil {
		t.Fatal(err)
	}
	_ = os.Remove(from)
	listener, err := net.Listen("unix", from)
	if err != nil {
		t.Fatal(err)
	}
	f := &forwarding{listener: listener, frozen: make(chan struct{})}
	go func() {
		for {
			in, err := listener.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("unix", to)
			if err != nil {
				in.Close()
				continue
			}
			f.lock.Lock()
			f.open = append(f.open, in, out)
			f.lock.Unlock()
			go copy(f, out, in, false)
			go copy(f, in, out, true)
		}
	}()
	t.Cleanup(f.cut)
	return f
}

// cut breaks all connections, and accepts no new ones.
func (f *forwarding) cut() {
	f.listener.Close()
	f.lock.Lock()
	defer f.lock.Unlock()
	for _, c := range f.open {
		c.Close()
	}
}

// pass writes data, unless frozen.
func (f *forwarding) pass(to net.Conn, data []byte) error {
	select {
	case <-f.frozen:
		select {} // like a network that is cut: no error, no end
	default:
		_, err := to.Write(data)
		return err
	}
}

// copyStream passes bytes on.
func copyStream(f *forwarding, to, from net.Conn, _ bool) {
	defer to.Close()
	buffer := make([]byte, 256<<10)
	for {
		n, err := from.Read(buffer)
		if n > 0 {
			if f.pass(to, buffer[:n]) != nil {
				from.Close()
				return
			}
		}
		if err != nil {
			return
		}
	}
}
