// Package initd is a guest's first process. In the initrd it loads modules, mounts the read-only root under a writable
// layer in memory, and switches to that root. Then it supervises the guest agent and reaps orphans.
package initd

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Program is the path of the guest program after the root is mounted.
const Program = "/run/watari/watari-guest"

// Launcher is the path of watari-guest-rsh after the root is mounted. With it, MPI's launchers reach other guests.
// LauncherInitrd is its path in the initrd.
const (
	Launcher       = Program + "-rsh"
	LauncherInitrd = "/watari/watari-guest-rsh"
)

// ModulesLoaded is a file that is created after all modules have been loaded or have failed to load.
const ModulesLoaded = "/run/watari/modules-loaded"

// Providers is the directory in which libfabric finds PM (FI_PROVIDER_PATH), if the image has PM. ProvidersInitrd is
// the same directory in the initrd.
const (
	Providers       = "/run/watari/libfabric"
	ProvidersInitrd = "/watari/libfabric"
)

// newRoot is the directory of the initrd in which the root is mounted.
const newRoot = "/watari/root"

// say prints a progress line on the console.
func say(format string, args ...any) {
	var up unix.Timespec
	unix.ClockGettime(unix.CLOCK_BOOTTIME, &up)
	fmt.Printf("watari: %d.%03d: %s\n", up.Sec, up.Nsec/1e6, fmt.Sprintf(format, args...))
}

// Run boots the guest. It must be process 1 and does not return. It prints a failure on the console and then waits, so
// that the console stays readable.
func Run() {
	late, err := boot()
	if err != nil {
		say("cannot boot: %v", err)
		say("the guest stays so that this message can be read; delete it, or boot it with another image")
		for {
			time.Sleep(time.Hour)
		}
	}
	go func() {
		if len(late) > 0 {
			say("%d of %d further modules loaded", load(late), len(late))
		}
		os.WriteFile(ModulesLoaded, nil, 0o644)
	}()
	supervise()
}

// boot boots the guest until the agent can run. It returns the modules that remain to be loaded.
func boot() ([]module, error) {
	os.Setenv("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
	for _, m := range []mount{
		{"proc", "/proc", "proc", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC, ""},
		{"sysfs", "/sys", "sysfs", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC, ""},
		{"devtmpfs", "/dev", "devtmpfs", unix.MS_NOSUID, "mode=0755"},
	} {
		if err := m.do(); err != nil {
			return nil, err
		}
	}
	openConsole()
	say("the kernel is up")
	paths, err := listModules(modulesFile)
	if err != nil {
		return nil, fmt.Errorf("list modules: %w", err)
	}
	early, late := splitModules(paths)
	n := load(openModules(early))
	say("%d of %d modules loaded", n, len(early))
	later := openModules(late)
	args, err := os.ReadFile("/proc/cmdline")
	if err != nil {
		return nil, err
	}
	if err := mountRoot(parseArgs(string(args))); err != nil {
		return nil, err
	}
	if err := switchRoot(); err != nil {
		return nil, err
	}
	tune()
	say("root mounted")
	return later, nil
}

// openConsole makes the console standard input, output and error, in case the kernel has not.
func openConsole() {
	fd, err := unix.Open("/dev/console", unix.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return
	}
	for i := range 3 {
		unix.Dup3(fd, i, 0)
	}
	if fd > 2 {
		unix.Close(fd)
	}
}

// arguments are Watari's arguments of the kernel command line.
type arguments struct {
	root, rootType string
}

func parseArgs(line string) arguments {
	var a arguments
	for field := range strings.FieldsSeq(line) {
		switch key, value, _ := strings.Cut(field, "="); key {
		case "watari.root":
			a.root = value
		case "watari.rootfstype":
			a.rootType = value
		}
	}
	return a
}

// mountRoot mounts the root image under a writable layer in memory at newRoot.
func mountRoot(a arguments) error {
	if a.root == "" {
		return fmt.Errorf("kernel arguments have no watari.root=DEVICE")
	}
	if err := waitForFile(a.root, 10*time.Second); err != nil {
		return fmt.Errorf("wait for root device: %w", err)
	}
	types := []string{a.rootType}
	if a.rootType == "" {
		types = []string{"squashfs", "erofs"}
	}
	var err error
	for _, kind := range types {
		if err = (mount{a.root, "/watari/image", kind, unix.MS_RDONLY, ""}).do(); err == nil {
			break
		}
	}
	if err != nil {
		return err
	}
	if err := (mount{"tmpfs", "/watari/layer", "tmpfs", 0, "mode=0755"}).do(); err != nil {
		return err
	}
	for _, directory := range []string{"/watari/layer/upper", "/watari/layer/work"} {
		if err := os.Mkdir(directory, 0o755); err != nil {
			return err
		}
	}
	return mount{"overlay", newRoot, "overlay", 0,
		"lowerdir=/watari/image,upperdir=/watari/layer/upper,workdir=/watari/layer/work"}.do()
}

// waitForFile waits until a file exists.
func waitForFile(path string, limit time.Duration) error {
	for deadline := time.Now().Add(limit); ; time.Sleep(2 * time.Millisecond) {
		_, err := os.Stat(path)
		if err == nil || time.Now().After(deadline) {
			return err
		}
	}
}

// switchRoot makes newRoot the root. It moves the kernel's file systems there and binds the guest's programs below
// /run/watari.
func switchRoot() error {
	for _, directory := range []string{"/proc", "/sys", "/dev"} {
		if err := (mount{directory, newRoot + directory, "", unix.MS_MOVE, ""}).do(); err != nil {
			return err
		}
	}
	for _, m := range []mount{
		{"tmpfs", "/dev/shm", "tmpfs", unix.MS_NOSUID | unix.MS_NODEV, "mode=1777"},
		{"devpts", "/dev/pts", "devpts", unix.MS_NOSUID | unix.MS_NOEXEC, "mode=0620,gid=5,ptmxmode=0666"},
		{"tmpfs", "/run", "tmpfs", unix.MS_NOSUID | unix.MS_NODEV, "mode=0755"},
	} {
		m.target = newRoot + m.target
		if err := m.do(); err != nil {
			return err
		}
	}
	if err := moveProgram("/init", newRoot+Program); err != nil {
		return fmt.Errorf("move guest program into the root: %w", err)
	}
	if err := moveProgram(LauncherInitrd, newRoot+Launcher); err != nil {
		return fmt.Errorf("move the launchers' program into the root: %w", err)
	}
	if err := moveProviders(newRoot + Providers); err != nil {
		return fmt.Errorf("move PM into the root: %w", err)
	}
	if err := os.Chdir(newRoot); err != nil {
		return err
	}
	if err := unix.Mount(".", "/", "", unix.MS_MOVE, ""); err != nil {
		return fmt.Errorf("move root: %w", err)
	}
	if err := unix.Chroot("."); err != nil {
		return fmt.Errorf("change root: %w", err)
	}
	return os.Chdir("/")
}

// moveProgram binds a program of the initrd to path. It is not copied: its memory stays that of the initrd.
func moveProgram(program, path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	file.Close()
	return mount{program, path, "", unix.MS_BIND, ""}.do()
}

// moveProviders binds the initrd's directory with PM to path, if there is one.
func moveProviders(path string) error {
	if _, err := os.Stat(ProvidersInitrd); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err := os.Mkdir(path, 0o755); err != nil {
		return err
	}
	return mount{ProvidersInitrd, path, "", unix.MS_BIND, ""}.do()
}

// mount describes one call of mount(2).
type mount struct {
	source, target, kind string
	flags                uintptr
	options              string
}

func (m mount) do() error {
	if m.flags&unix.MS_BIND == 0 {
		if err := os.MkdirAll(m.target, 0o755); err != nil {
			return err
		}
	}
	if err := unix.Mount(m.source, m.target, m.kind, m.flags, m.options); err != nil {
		return fmt.Errorf("mount %s %s on %s: %w", m.kind, m.source, m.target, err)
	}
	return nil
}

// tune sets kernel parameters for MPI programs. Parameters that the kernel does not have are skipped.
func tune() {
	for path, value := range map[string]string{
		"kernel/yama/ptrace_scope":           "0",            // lets ranks copy from each other's memory (CMA)
		"kernel/modprobe":                    "",             // all modules come from the initrd, so modprobe is useless
		"kernel/panic":                       "1",            // the host notices a guest that reboots, not one that hangs
		"net/core/rmem_max":                  "16777216",     // bytes
		"net/core/wmem_max":                  "16777216",     // bytes
		"net/ipv4/ping_group_range":          "0 2147483647", // lets all users ping
		"net/ipv4/tcp_slow_start_after_idle": "0",            // ranks compute between messages
		"fs/leases-enable":                   "0",            // keeps the server of the shared home from granting delegations
		// What wakes an idle guest: with many guests on a host, that costs the others processor time.
		"vm/compaction_proactiveness": "0",  // twice a second
		"vm/stat_interval":            "30", // seconds between updates of statistics; the kernel's default is 1
		"kernel/watchdog":             "0",  // every four seconds. A guest that moves stands still, too
	} {
		os.WriteFile(filepath.Join("/proc/sys", path), []byte(value), 0)
	}
	unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 65536, Max: 1 << 20})
	unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY})
	unix.Sethostname([]byte("watari"))
	os.Symlink(Program, "/usr/bin/watari-guest") // for launchers and the daemons that they start
	os.Symlink(Launcher, "/usr/bin/watari-guest-rsh")
	os.Symlink("/proc/self/fd", "/dev/fd")
	os.Symlink("/proc/self/fd/0", "/dev/stdin")
	os.Symlink("/proc/self/fd/1", "/dev/stdout")
	os.Symlink("/proc/self/fd/2", "/dev/stderr")
}
