package main

// host.go - a host for the measurement: a namespace with a libvirt daemon of its own, and the guest that runs there.

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/google/uuid"

	"watari/agent/vm"
	v1 "watari/api/watariv1"
)

// daemonScript runs libvirt's daemon in new namespaces, with its files in a folder.
const daemonScript = `
set -e
ip link set lo up
for pair in run:/run etc:/etc/libvirt lib:/var/lib/libvirt log:/var/log/libvirt cache:/var/cache/libvirt; do
	mkdir -p $1/${pair%%:*} ${pair#*:}
	mount --bind $1/${pair%%:*} ${pair#*:}
done
mkdir -p /run/libvirt
echo 'auth_unix_rw = "none"' > /etc/libvirt/libvirtd.conf
cat > /etc/libvirt/qemu.conf <<CONF
user = "root"
group = "root"
security_driver = "none"
cgroup_controllers = []
namespaces = []
stdio_handler = "file"
remember_owner = 0
dynamic_ownership = 0
CONF
/usr/sbin/libvirtd || true # as a child: libvirt hangs as the first process of a namespace
`

// buildScript finds Debian's small kernel and makes an initial RAM file system of the tests' guest program.
const buildScript = `
set -e
cd "$1"
mkdir deb
(cd deb && apt-get download -q "$(apt-cache depends linux-image-cloud-amd64 | sed -n 's/.*Depends: \(linux-image-[0-9]\)/\1/p' | head -n 1)")
dpkg-deb --fsys-tarfile deb/*.deb | tar -x --strip-components 2 --wildcards './boot/vmlinuz-*'
mv vmlinuz-* vmlinuz
mkdir -p root/dev
(cd "$2" && CGO_ENABLED=0 go build -ldflags '-s -w' -o "$1/root/init" ./agent/vm/testdata/guest)
mknod root/dev/console c 5 1
(cd root && find . | cpio -o -H newc --quiet) > initrd
`

// host is a host with one guest.
type host struct {
	folder string
	daemon *exec.Cmd
	ended  chan struct{} // closed when the daemon has ended; nil: it was not started
	driver *vm.Libvirt
	spec   vm.Spec
}

// startHost makes a host, and its guest's boot files.
func startHost(ctx context.Context) (*host, error) {
	folder, err := os.MkdirTemp("/var/tmp", "wbc") // short: the path of a Unix socket has at most 107 bytes
	if err != nil {
		return nil, err
	}
	h := &host{folder: folder}
	here, err := os.Getwd()
	if err != nil {
		return h, err
	}
	build := exec.CommandContext(ctx, "bash", "-c", buildScript, "build", folder, here)
	build.Env = append(os.Environ(), "PATH="+filepath.Join(here, "build/bin")+":"+os.Getenv("PATH")) // for Go
	if out, err := build.CombinedOutput(); err != nil {
		return h, fmt.Errorf("make a guest to boot: %w: %s", err, out)
	}
	if err := h.startDaemon(); err != nil {
		return h, err
	}
	if h.driver, err = vm.Connect(h.uri(), vm.Options{Acceleration: v1.AccelerationKind_ACCELERATION_KIND_TCG}); err != nil {
		return h, err
	}
	for limit := time.After(time.Minute); ; {
		select {
		case e := <-h.driver.Events():
			if e.UID == "" && !e.Lost {
				return h, nil
			}
		case <-limit:
			return h, errors.New("libvirt does not answer")
		case <-ctx.Done():
			return h, ctx.Err()
		}
	}
}

// startDaemon starts libvirt's daemon. A Ctrl-C does not reach the daemon, so that close ends it in order. If this program is killed,
// the kernel kills unshare, and with it everything in the namespaces.
func (h *host) startDaemon() error {
	h.daemon = exec.Command("unshare", "-m", "-n", "-u", "-i", "-p", "--propagation", "private", "--fork",
		"--kill-child=SIGKILL", "--mount-proc", "bash", "-c", daemonScript, "daemon", h.folder)
	h.daemon.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	started, ended := make(chan error), make(chan struct{})
	go func() {
		runtime.LockOSThread() // the signal comes when the thread ends that started the daemon
		err := h.daemon.Start()
		started <- err
		if err == nil {
			_ = h.daemon.Wait()
		}
		close(ended)
	}()
	if err := <-started; err != nil {
		return err
	}
	h.ended = ended
	return nil
}

func (h *host) uri() string {
	return "qemu+unix:///system?socket=" + filepath.Join(h.folder, "run/libvirt/libvirt-sock")
}

// close ends the guest and removes everything.
func (h *host) close() {
	if h.driver != nil {
		h.driver.Close()
	}
	if h.ended != nil {
		_ = h.daemon.Process.Kill()
		<-h.ended
	}
	_ = os.RemoveAll(h.folder)
}

// boot boots the guest, and returns when the guest has filled its memory.
func (h *host) boot(ctx context.Context, memory, written int) error {
	h.spec = vm.Spec{UID: uuid.NewString(), Name: "guest", VCPUs: 1, MemoryBytes: uint64(memory) << 20,
		Kernel: filepath.Join(h.folder, "vmlinuz"), Initrd: filepath.Join(h.folder, "initrd"),
		KernelArgs: fmt.Sprintf("quiet test.random=%d test.period=2ms", written),
		Channel:    filepath.Join(h.folder, "channel.sock"), Console: h.console()}
	_ = os.Remove(h.console())
	if err := h.driver.Boot(ctx, h.spec); err != nil {
		return err
	}
	return h.await(ctx, 0)
}

func (h *host) console() string { return filepath.Join(h.folder, "console.log") }

// count returns the last number that the guest has written to its console; 0: none.
func (h *host) count() (n int) {
	text, err := os.ReadFile(h.console())
	if err != nil {
		return 0
	}
	text = text[:bytes.LastIndexByte(text, '\n')+1]
	if at := bytes.LastIndex(text, []byte("\ncount ")); at >= 0 {
		fmt.Sscanf(string(text[at+1:]), "count %d", &n)
	}
	return n
}

// await waits until the guest has counted beyond a number.
func (h *host) await(ctx context.Context, from int) error {
	for deadline := time.Now().Add(2 * time.Minute); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if err := ctx.Err(); err != nil {
			return err
		}
		if h.count() > from {
			return nil
		}
	}
	return errors.New("the guest does not count; its console: " + h.console())
}

// virsh runs a command of libvirt's shell on the host.
func (h *host) virsh(ctx context.Context, args ...string) error {
	out, err := exec.CommandContext(ctx, "virsh", append([]string{"-q", "-c", h.uri()}, args...)...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("virsh %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return nil
}
