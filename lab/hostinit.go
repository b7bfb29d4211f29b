// A host's first process: it mounts the host's own file systems, waits for the network, and keeps the daemons running.

package lab

import (
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// hostInit is process 1 of a host. args are the names of the lab and the host.
func hostInit(args []string) error {
	if len(args) != 2 || os.Getpid() != 1 {
		return fmt.Errorf("%s is for internal use by watari lab up", verbHostInit)
	}
	lab, host := args[0], args[1]
	slog.Info("host starts", "lab", lab, "host", host)
	unix.Umask(0o022)
	dir := filepath.Join(stateRoot, lab, "hosts", host)
	var config hostConfig
	if err := readJSON(filepath.Join(dir, "host.json"), &config); err != nil {
		return err
	}
	if config.Machine != nil {
		return runMachine(dir, config)
	}
	if err := unix.Sethostname([]byte(host)); err != nil {
		return fmt.Errorf("set the host name: %w", err)
	}
	if err := mountHost(dir, config.Binaries); err != nil {
		return err
	}
	if err := os.MkdirAll("/run/watari", 0o755); err != nil {
		return err
	}
	if err := os.WriteFile("/run/watari/boot-id", []byte(uuid.NewString()+"\n"), 0o444); err != nil {
		return err
	}
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, unix.SIGCHLD, unix.SIGHUP, unix.SIGTERM, unix.SIGINT)
	if err := waitForNetwork(); err != nil {
		return err
	}
	return newSupervisor().run(signals)
}

// waitForNetwork returns when lab up has connected the host to its LAN. The default route is set last, so it is the
// sign.
func waitForNetwork() error {
	if err := linkUp(ownNamespace, "lo"); err != nil {
		return err
	}
	for {
		routes, err := netlink.RouteList(nil, unix.AF_INET)
		if err != nil {
			return fmt.Errorf("list routes: %w", err)
		}
		for _, r := range routes {
			if r.Gw != nil {
				return nil
			}
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// mountHost mounts the host's own file systems. The process must have a mount namespace of its own.
func mountHost(dir, binaries string) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make the mount namespace private: %w", err)
	}
	forgetNamespaces()
	// Open the sources before new mounts hide them. They are mounted through /proc/self/fd, so /proc must be the host's
	// own by then.
	sources := mountSources{}
	defer sources.close()
	if err := sources.open(dir, binaries); err != nil {
		return err
	}
	fresh := []struct{ kind, path, options string }{
		{"proc", "/proc", ""}, {"sysfs", "/sys", ""},
		{"tmpfs", "/dev/shm", "mode=1777"}, {"tmpfs", "/tmp", "mode=1777"}, {"tmpfs", "/run", "mode=0755"},
	}
	for _, m := range fresh {
		if err := unix.Mount(m.kind, m.path, m.kind, unix.MS_NOSUID|unix.MS_NODEV, m.options); err != nil {
			return fmt.Errorf("mount own %s: %w", m.path, err)
		}
	}
	for _, path := range []string{"/run/lock", inHost + "/host", inHost + "/bin"} {
		if err := os.MkdirAll(path, 0o755); err != nil {
			return err
		}
	}
	if err := openKVM(); err != nil {
		return fmt.Errorf("give QEMU's user /dev/kvm: %w", err)
	}
	return sources.mount()
}

// openKVM gives the host its own /dev/kvm, which QEMU's user may open, if the machine has one. On the machine itself
// the device may be accessible to root alone. Then guests would be emulated, and libvirt would probe QEMU at every
// call, which takes a second: it probes as root, finds KVM usable, and discards the result because QEMU's user cannot
// use KVM.
func openKVM() error {
	const device, folder = "/dev/kvm", inHost + "/dev"
	var st unix.Stat_t
	if err := unix.Stat(device, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFCHR {
		return nil
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	if err := unix.Mount("tmpfs", folder, "tmpfs", unix.MS_NOSUID|unix.MS_NOEXEC, "mode=0755"); err != nil {
		return err
	}
	own := filepath.Join(folder, "kvm")
	if err := unix.Mknod(own, unix.S_IFCHR, int(st.Rdev)); err != nil {
		return err
	}
	if err := os.Chmod(own, 0o666); err != nil {
		return err
	}
	return unix.Mount(own, device, "", unix.MS_BIND, "")
}

// forgetNamespaces unmounts, in this mount namespace, the files that hold the network namespaces of all labs. Otherwise
// the host would keep those namespaces alive.
func forgetNamespaces() {
	data, _ := os.ReadFile("/proc/thread-self/mountinfo")
	for line := range strings.Lines(string(data)) {
		if fields := strings.Fields(line); len(fields) > 4 && strings.HasPrefix(fields[4], runRoot+"/") {
			_ = unix.Unmount(fields[4], unix.MNT_DETACH)
		}
	}
}

// mountSources holds open directories and files, keyed by their mount points.
type mountSources map[string]*os.File

func (s mountSources) open(dir, binaries string) error {
	sources := map[string]string{inHost + "/host": dir}
	if binaries != "" {
		sources[inHost+"/bin"] = binaries
	}
	if _, err := os.Stat("/sys/fs/cgroup"); err == nil {
		sources["/sys/fs/cgroup"] = "/sys/fs/cgroup"
	}
	for name, target := range privateDirectories {
		sources[target] = filepath.Join(dir, name)
		if err := os.MkdirAll(target, 0o755); err != nil {
			return err
		}
	}
	for name, target := range privateFiles {
		if _, err := os.Stat(target); err == nil {
			sources[target] = filepath.Join(dir, name)
		}
	}
	for target, source := range sources {
		f, err := os.OpenFile(source, unix.O_PATH, 0)
		if err != nil {
			return fmt.Errorf("mount %s: %w", target, err)
		}
		s[target] = f
	}
	return nil
}

func (s mountSources) mount() error {
	for target, f := range s {
		source := fmt.Sprintf("/proc/self/fd/%d", f.Fd())
		if err := unix.Mount(source, target, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
			return fmt.Errorf("mount %s over %s: %w", f.Name(), target, err)
		}
	}
	return nil
}

func (s mountSources) close() {
	for _, f := range s {
		f.Close()
	}
}
