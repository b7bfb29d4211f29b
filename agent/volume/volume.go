// Package volume keeps a volume's disk on a host, and serves it at a Unix socket by qemu-storage-daemon, a process that
// outlives the agent.
package volume

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"watari/internal/durable"
	"watari/internal/qmp"
)

// Facts describe a volume. They are stored in a file beside its disk.
type Facts struct {
	Name      string `json:"name"`
	Owner     string `json:"owner"`
	OwnerUID  string `json:"owner_uid"`
	SizeBytes uint64 `json:"size_bytes"`
	// Generation grows whenever the volume gets another host, and whenever a guest is started with it.
	Generation uint64 `json:"generation,omitempty"`
	// Seal is the manager's seal (VolumeFacts.seal).
	Seal []byte `json:"seal,omitempty"`
	// Restored lists the ids of the latest restores of the disk from a checkpoint, the last one last.
	Restored []string `json:"restored,omitempty"`
	// GivenUp: the volume is on another host, and this disk is not served any more; nil: it is.
	GivenUp *GivenUp `json:"given_up,omitempty"`
	// Move and Copy are the ids of the move and of the copy, if another host sends or has sent the disk.
	Move string `json:"move,omitempty"`
	Copy string `json:"copy,omitempty"`
}

// User is the user that the daemon runs as, and that owns the disk.
type User struct{ UID, GID int }

// Disk is a volume's disk on this host.
type Disk struct {
	dir  string // folder of the disk and its description
	run  string // folder of the daemon's sockets
	copy bool   // it is a copy that another host sends
}

const (
	imageName = "disk.qcow2"
	factsName = "volume.json"
	partName  = ".new" // suffix of an incomplete folder
	// export is the name under which the disk is served (vm.VolumeExport).
	export = "volume"
	// exportID is the name of the export in the daemon. That of older versions was "disk", and did not write through.
	exportID = "through"
	// startTime is how long the daemon may take to answer after its start, and to end; askTime is how long one request may take.
	startTime = 10 * time.Second
	askTime   = 5 * time.Second
	// busyTime is how long a daemon that runs may leave requests unanswered: it may be writing much to a slow disk, or be waiting
	// for another host, and guests go on to use the disk.
	busyTime = time.Minute
)

// Missing returns an error that names the programs for volumes that the host lacks; nil: none.
func Missing() error {
	var missing []error
	for _, program := range []string{"mkfs.ext4", "qemu-img", "qemu-storage-daemon"} {
		if _, err := exec.LookPath(program); err != nil {
			missing = append(missing, err)
		}
	}
	return errors.Join(missing...)
}

// Sweep removes incomplete volumes from a folder. No call of this package may be under way in the folder.
func Sweep(folder string) error {
	parts, err := filepath.Glob(filepath.Join(folder, "*"+partName))
	for _, part := range parts {
		err = errors.Join(err, os.RemoveAll(part))
	}
	return err
}

// List returns the volumes in a folder, by uid.
func List(folder string) (map[string]Facts, error) {
	return list(folder, func(name string) (uid string, is bool) { return name, !strings.HasSuffix(name, copyPart) })
}

// list returns the descriptions in those folders for which uidOf returns a uid.
func list(folder string, uidOf func(name string) (uid string, is bool)) (map[string]Facts, error) {
	found := map[string]Facts{}
	entries, err := os.ReadDir(folder)
	if errors.Is(err, fs.ErrNotExist) {
		return found, nil
	}
	for _, entry := range entries {
		uid, is := uidOf(entry.Name())
		if !is || strings.HasSuffix(entry.Name(), partName) {
			continue
		}
		text, readErr := os.ReadFile(filepath.Join(folder, entry.Name(), factsName))
		var f Facts
		if readErr == nil {
			readErr = json.Unmarshal(text, &f)
		}
		if readErr != nil {
			err = errors.Join(err, fmt.Errorf("read the volume in %s: %w", filepath.Join(folder, entry.Name()), readErr))
			continue
		}
		found[uid] = f
	}
	return found, err
}

// Open returns a volume's disk. The folder run is for the daemon's sockets; its path must be short.
func Open(folder, run, uid string) *Disk {
	return &Disk{dir: filepath.Join(folder, uid), run: filepath.Join(run, uid)}
}

// Create makes the disk with an empty file system (ext4). The disk appears complete, or not at all.
func Create(ctx context.Context, folder, uid string, f Facts, user User) error {
	dir := filepath.Join(folder, uid)
	if _, err := os.Stat(dir); err == nil {
		return nil
	}
	part := dir + partName
	if err := errors.Join(os.RemoveAll(part), os.MkdirAll(part, 0o700)); err != nil {
		return err
	}
	defer os.RemoveAll(part) // fails harmlessly after the rename
	raw, image := filepath.Join(part, "raw"), filepath.Join(part, imageName)
	err := inOrder(
		func() error { return os.WriteFile(raw, nil, 0o600) },
		func() error { return os.Truncate(raw, int64(f.SizeBytes)) },
		func() error { return command(ctx, "mkfs.ext4", "-q", "-F", "-m", "0", "-L", "watari-volume", raw) },
		func() error { return command(ctx, "qemu-img", "convert", "-q", "-f", "raw", "-O", "qcow2", raw, image) },
		func() error { return os.Remove(raw) },
		func() error { return finish(part, f, user) },
		func() error { return os.Rename(part, dir) },
		func() error { return durable.SyncDir(folder) })
	if err != nil {
		return fmt.Errorf("make the disk of volume %s: %w", f.Name, err)
	}
	return nil
}

// finish completes a folder with a disk: it syncs the disk, makes QEMU's user its owner, and writes its description.
func finish(part string, f Facts, user User) error {
	image := filepath.Join(part, imageName)
	return inOrder(
		func() error { return syncFile(image) },
		func() error { return os.Chown(image, user.UID, user.GID) },
		func() error { return os.Chown(part, user.UID, user.GID) },
		func() error { return writeFacts(part, f) })
}

// Describe replaces the description of a volume.
func Describe(folder, uid string, f Facts) error { return writeFacts(filepath.Join(folder, uid), f) }

func writeFacts(dir string, f Facts) error {
	text, err := json.Marshal(f)
	if err != nil {
		return err
	}
	return durable.WriteFile(filepath.Join(dir, factsName), text, 0o600)
}

// inOrder calls steps until one fails.
func inOrder(steps ...func() error) error {
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// command runs a program. The error contains the program's output.
func command(ctx context.Context, name string, args ...string) error {
	if out, err := exec.CommandContext(ctx, name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", name, err, strings.TrimSpace(string(out)))
	}
	return nil
}

func syncFile(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// Socket returns the path of the socket at which the disk is served.
func (d *Disk) Socket() string { return filepath.Join(d.run, "nbd.sock") }

func (d *Disk) monitor() string { return filepath.Join(d.run, "qmp.sock") }

func (d *Disk) pidFile() string { return filepath.Join(d.run, "pid") }

// Served reports whether the daemon answers.
func (d *Disk) Served() bool {
	m, err := qmp.Dial(d.monitor(), askTime)
	if err != nil {
		return false
	}
	m.Close()
	return true
}

// exported is a name under which the daemon serves a disk.
type exported struct{ ID string }

// open reports whether the daemon serves the disk. HandOver closes the disk.
func (d *Disk) open() (is bool, err error) {
	var exports []exported
	err = d.ask(func(m *qmp.Monitor) error { return m.Ask("query-block-exports", nil, &exports) })
	return err == nil && slices.Contains(exports, exported{exportID}), err
}

// noDaemon reports whether the error of a request means that no daemon runs.
func noDaemon(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED)
}

// awaitOpen reports whether a daemon serves the disk. It waits for the answer of one that is busy.
func (d *Disk) awaitOpen(ctx context.Context) bool {
	for began := time.Now(); ; {
		is, err := d.open()
		if is || err == nil || noDaemon(err) || ctx.Err() != nil || time.Since(began) > busyTime {
			return is
		}
		handle, runs := d.process()
		if !runs {
			return false
		}
		unix.Close(handle)
		select { // a failure may come at once
		case <-time.After(copyLook):
		case <-ctx.Done():
		}
	}
}

// Serve starts the daemon unless one already serves the disk.
//
// The daemon writes through: what it has acknowledged is on the host's disk. Otherwise, a write before the daemon's unclean end
// would be lost although the guest flushes its disk afterwards, because QEMU repeats only requests that were not answered. A
// copy needs no such care: it is flushed when it is complete, and it is begun again if the daemon ends before.
func (d *Disk) Serve(ctx context.Context, user User) error {
	if d.awaitOpen(ctx) {
		return nil
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	d.Stop()
	if _, err := os.Stat(d.dir); err != nil {
		return fmt.Errorf("serve a volume: its disk is missing: %w; is the file system mounted on which it lies?", err)
	}
	if err := errors.Join(os.RemoveAll(d.run), os.MkdirAll(d.run, 0o700), os.Chown(d.run, user.UID, user.GID)); err != nil {
		return err
	}
	node := func(v map[string]any) string { text, _ := json.Marshal(v); return string(text) }
	daemon := exec.Command("qemu-storage-daemon", "--pidfile", d.pidFile(),
		"--blockdev", node(map[string]any{"driver": "file", "node-name": "file", "filename": filepath.Join(d.dir, imageName), "discard": "unmap"}),
		"--blockdev", node(map[string]any{"driver": "qcow2", "node-name": diskNode, "file": "file", "discard": "unmap"}),
		"--blockdev", node(map[string]any{"driver": "raw", "node-name": guestsNode, "file": diskNode, "discard": "unmap"}),
		"--chardev", "socket,id=monitor,server=on,wait=off,path="+d.monitor(), "--monitor", "chardev=monitor",
		"--nbd-server", node(map[string]any{"addr": map[string]string{"type": "unix", "path": d.Socket()}, "max-connections": 0}),
		"--export", node(map[string]any{"type": "nbd", "id": exportID, "node-name": guestsNode, "name": export, "writable": true, "writethrough": !d.copy}))
	daemon.Dir = "/"
	log, err := os.OpenFile(filepath.Join(d.run, "log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	daemon.Stdout, daemon.Stderr = log, log
	daemon.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Credential: &syscall.Credential{Uid: uint32(user.UID), Gid: uint32(user.GID)}}
	if err := daemon.Start(); err != nil {
		return fmt.Errorf("serve a volume: %w", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- daemon.Wait() }()
	for begun := time.Now(); time.Since(begun) < startTime; {
		if d.Served() {
			return nil
		}
		select {
		case err := <-ended:
			said, _ := os.ReadFile(log.Name())
			return fmt.Errorf("serve a volume: qemu-storage-daemon ended: %v: %s", err, strings.TrimSpace(string(said)))
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
	d.Stop()
	return errors.New("serve a volume: qemu-storage-daemon does not answer")
}

// process returns a handle of the process that the pid file names, if that process is the daemon. The caller closes it.
func (d *Disk) process() (handle int, is bool) {
	text, err := os.ReadFile(d.pidFile())
	if err != nil {
		return 0, false
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || pid <= 1 {
		return 0, false
	}
	if handle, err = unix.PidfdOpen(pid, 0); err != nil {
		return 0, false
	}
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil || !strings.Contains(string(line), d.pidFile()) { // another process has this pid now
		unix.Close(handle)
		return 0, false
	}
	return handle, true
}

// Stop ends the daemon. Guests that use the disk wait until it is served again. A daemon that does not end is killed.
func (d *Disk) Stop() {
	handle, is := d.process()
	if !is {
		return
	}
	defer unix.Close(handle)
	ended := func(within time.Duration) bool {
		for begun := time.Now(); time.Since(begun) < within; {
			poll := []unix.PollFd{{Fd: int32(handle), Events: unix.POLLIN}}
			if n, _ := unix.Poll(poll, 100); n > 0 { // a signal interrupts it
				return true
			}
		}
		return false
	}
	if err := d.ask(func(m *qmp.Monitor) error { return m.Ask("quit", nil, nil) }); err == nil && ended(startTime) {
		return
	}
	_ = unix.PidfdSendSignal(handle, unix.SIGKILL, nil, 0)
	ended(startTime)
}

// Delete ends the daemon and removes the disk.
func (d *Disk) Delete() error {
	d.Stop()
	gone := d.dir + partName // Sweep removes the rest after a crash
	if err := os.Rename(d.dir, gone); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return errors.Join(os.RemoveAll(d.run), os.RemoveAll(gone))
}

// UsedBytes returns how much of the host's disk the volume uses.
func (d *Disk) UsedBytes() uint64 {
	var stat unix.Stat_t
	if unix.Stat(filepath.Join(d.dir, imageName), &stat) != nil {
		return 0
	}
	return uint64(stat.Blocks) * 512
}
