// Templates: the disk and the memory from which machines start. They are made once and kept.

package machine

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"

	"watari/internal/qmp"
)

// Template is a saved machine.
type Template struct {
	Spec Spec     `json:"spec"`
	QEMU emulator `json:"qemu"`
	Root string   `json:"root"` // directory of the disk, the kernel and the initrd
	Dir  string   `json:"dir"`  // directory of the saved state
}

const (
	stateFile = "state"
	// settleLimit is the longest time that a machine may take to boot before it is saved.
	settleLimit = 20 * time.Minute
	// monitorLimit is the longest time that saving or restoring may take.
	monitorLimit = 5 * time.Minute
)

// Prepare finds or makes the template of a machine, and reports each step to say. Making it takes minutes. It then
// removes the suite's older templates, except those that contain a directory of inUse.
func Prepare(ctx context.Context, spec Spec, inUse []string, say func(format string, args ...any)) (Template, error) {
	if err := spec.Check(); err != nil {
		return Template{}, err
	}
	lines, err := Sources(ctx, spec.Suite)
	if err != nil {
		return Template{}, err
	}
	key, err := rootKey(spec.Suite, lines)
	if err != nil {
		return Template{}, err
	}
	t := Template{Spec: spec, Root: filepath.Join(Cache, spec.Suite+"-"+key)}
	if t.QEMU, err = findEmulator(ctx, say); err != nil {
		return Template{}, err
	}
	t.Dir = t.stateDir()
	unlock, err := lockCache(ctx, spec.Suite, say)
	if err != nil {
		return Template{}, err
	}
	defer unlock()
	err = build(t.Root, func(dir string) error {
		say("installing Debian %s for whole hosts (once)", spec.Suite)
		return makeRoot(ctx, spec.Suite, lines, dir)
	})
	if err != nil {
		return Template{}, err
	}
	err = build(t.Dir, func(dir string) error {
		say("booting a whole host of Debian %s with %d MiB and %d NUMA cells, to be saved (once)", spec.Suite, spec.Memory, spec.Cells)
		return t.save(ctx, dir)
	})
	if err != nil {
		return Template{}, err
	}
	prune(spec.Suite, append(inUse, t.Dir))
	return t, nil
}

// stateDir returns the directory of the saved state. A state fits only the disk, machine and QEMU it was made with.
func (t Template) stateDir() string {
	shape := launch{spec: t.Spec, template: t.Root, memory: "/", uuid: uuid.Nil}
	sum := sha256.Sum256([]byte(t.QEMU.version + strings.Join(shape.arguments(), "\n")))
	return filepath.Join(t.Root, "state-"+hex.EncodeToString(sum[:])[:16])
}

// build makes a directory by fill if it does not exist. If fill fails, its files stay for inspection until the next
// attempt.
func build(dir string, fill func(dir string) error) error {
	if _, err := os.Stat(dir); err == nil {
		return nil
	}
	unfinished := dir + ".new"
	if err := os.RemoveAll(unfinished); err != nil {
		return err
	}
	if err := os.MkdirAll(unfinished, 0o755); err != nil {
		return err
	}
	if err := fill(unfinished); err != nil {
		return err
	}
	if err := syncAll(unfinished); err != nil {
		return err
	}
	return os.Rename(unfinished, dir)
}

// syncAll writes the directory's file system to disk, so that a power failure cannot leave a directory that only looks
// finished.
func syncAll(dir string) error {
	folder, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer folder.Close()
	if err := unix.Syncfs(int(folder.Fd())); err != nil {
		return fmt.Errorf("write %s to disk: %w", dir, err)
	}
	return nil
}

// prune removes the templates of a suite that are not in use.
func prune(suite string, inUse []string) {
	found, _ := filepath.Glob(filepath.Join(Cache, suite+"-*"))
	for _, dir := range found {
		if !slices.ContainsFunc(inUse, func(path string) bool { return strings.HasPrefix(path, dir+"/") }) {
			_ = os.RemoveAll(dir) // a remaining template only takes space
		}
	}
}

// lockCache locks one entry of the cache: a suite's templates, or a QEMU.
func lockCache(ctx context.Context, name string, say func(format string, args ...any)) (unlock func(), err error) {
	if err := os.MkdirAll(Cache, 0o755); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(Cache, name+".lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	for told := false; ; told = true {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { f.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			f.Close()
			return nil, fmt.Errorf("lock %s: %w", f.Name(), err)
		}
		if !told {
			say("waiting for another command that makes %s in %s", name, Cache)
		}
		select {
		case <-ctx.Done():
			f.Close()
			return nil, context.Cause(ctx)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// save boots a machine without an identity and saves it in dir when it is up.
func (t Template) save(ctx context.Context, dir string) error {
	// build renames the directory afterwards, so the disk refers to its base by a relative path.
	if err := makeDisk(dir, filepath.Join("..", rootFile), "raw"); err != nil {
		return err
	}
	if err := prepareDir(dir); err != nil {
		return err
	}
	identity, err := os.Create(filepath.Join(dir, identityFile))
	if err != nil {
		return err
	}
	defer identity.Close()
	if err := identity.Truncate(identitySize); err != nil {
		return err
	}
	l := launch{
		spec: t.Spec, template: t.Root, dir: dir, memory: dir, save: true, tap: "lan0", uuid: uuid.New(),
		mac: net.HardwareAddr{0x02, 0x57, 'T', 0, 0, 1}.String(), kernel: []string{"panic=-1"},
	}
	if err := t.bootAndSave(ctx, l); err != nil {
		return fmt.Errorf("save a whole host of Debian %s: %w", t.Spec.Suite, err)
	}
	for _, name := range []string{identityFile, monitorFile, reportFile} {
		if err := os.Remove(filepath.Join(dir, name)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}

func (t Template) bootAndSave(ctx context.Context, l launch) error {
	ctx, cancel := context.WithTimeout(ctx, settleLimit)
	defer cancel()
	runtime.LockOSThread() // Pdeathsig fires when the thread that started QEMU ends
	defer runtime.UnlockOSThread()
	cmd := t.QEMU.command(ctx, l)
	var said strings.Builder
	cmd.Stdout, cmd.Stderr = &said, &said
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Cloneflags: syscall.CLONE_NEWNET}
	if err := cmd.Start(); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	defer func() { cancel(); <-ended }()
	if err := awaitSettled(ctx, l.dir, ended); err != nil {
		return fmt.Errorf("%w; %s%s", err, lastLines(said.String(), 3), LastConsoleLine(l.dir))
	}
	m, err := qmp.Dial(filepath.Join(l.dir, monitorFile), monitorLimit)
	if err != nil {
		return err
	}
	defer m.Close()
	if err := m.SharedMemoryStays(); err != nil {
		return err
	}
	return m.Migrate("exec:cat > '" + filepath.Join(l.dir, stateFile) + "'")
}

// awaitSettled returns when the machine in dir is up. If it receives QEMU's end from ended, it sends it again for the
// caller.
func awaitSettled(ctx context.Context, dir string, ended chan error) error {
	for {
		r := ReadReport(dir)
		switch {
		case r.Failed != "":
			return fmt.Errorf("its program identity failed to %s", r.Failed)
		case r.settled == "running":
			return nil
		case r.settled != "":
			return fmt.Errorf("systemd in it is %s", r.settled)
		}
		select {
		case err := <-ended:
			ended <- err
			if ctx.Err() != nil {
				return fmt.Errorf("it was not up: %w", context.Cause(ctx))
			}
			return fmt.Errorf("QEMU ended: %v", err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}
