package volume

// copy.go - copies a disk's state at one moment while guests use it, and puts a disk back to such a state.

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"watari/internal/durable"
	"watari/internal/qmp"
)

const (
	copyFile = "copy.qcow2" // in the disk's folder
	copyNode = "copy"       // name of the node and of the job in the daemon
	diskNode = "disk"
	// copyLook is the pause between two checks whether a copy is complete.
	copyLook = 200 * time.Millisecond
	// restoresKept is how many restores a disk's description lists.
	restoresKept = 32
)

// Copy is the state of a disk at the moment of Begin, in a qcow2 file of its own. QEMU copies it while the disk is in use:
// QEMU copies old data before it overwrites them.
type Copy struct {
	disk *Disk
	path string
}

// EndCopy ends a copy that another process has left behind, and removes its file.
func (d *Disk) EndCopy() error { return d.copyOf().Close() }

func (d *Disk) copyOf() *Copy { return &Copy{d, filepath.Join(d.dir, copyFile)} }

// PrepareCopy makes an empty file for a copy, after EndCopy.
func (d *Disk) PrepareCopy(ctx context.Context, user User) (*Copy, error) {
	c := d.copyOf()
	var facts Facts
	err := inOrder(
		func() (err error) { facts, err = d.Facts(); return err },
		func() error {
			return command(ctx, "qemu-img", "create", "-q", "-f", "qcow2", c.path, fmt.Sprint(facts.SizeBytes))
		},
		func() error { return os.Chmod(c.path, 0o600) },
		func() error { return os.Chown(c.path, user.UID, user.GID) },
		func() error {
			return d.ask(func(m *qmp.Monitor) error {
				return m.Ask("blockdev-add", map[string]any{"driver": "qcow2", "node-name": copyNode, "discard": "unmap", "file": map[string]any{"driver": "file", "filename": c.path}}, nil)
			})
		})
	if err != nil {
		return nil, fmt.Errorf("prepare a copy of a volume: %w", errors.Join(err, c.Close()))
	}
	return c, nil
}

// ask connects to the daemon's monitor, and calls do with it.
func (d *Disk) ask(do func(*qmp.Monitor) error) error { return d.askFor(askTime, do) }

func (d *Disk) askFor(limit time.Duration, do func(*qmp.Monitor) error) error {
	m, err := qmp.Dial(d.monitor(), limit)
	if err != nil {
		return err
	}
	defer m.Close()
	return do(m)
}

// Begin fixes the moment: the copy has what was written to the disk before the call, and nothing that is written after Begin
// has returned.
func (c *Copy) Begin() error {
	err := c.disk.ask(func(m *qmp.Monitor) error {
		return m.Ask("blockdev-backup", map[string]any{"job-id": copyNode, "device": diskNode, "target": copyNode, "sync": "top", "auto-dismiss": false}, nil)
	})
	if err != nil {
		return fmt.Errorf("begin a copy of a volume: %w", err)
	}
	return nil
}

// job is QEMU's description of a job.
type job struct {
	ID     string `json:"id"`
	Status string `json:"status"`
	Error  string `json:"error"`
	Copied uint64 `json:"current-progress"`
	Total  uint64 `json:"total-progress"`
}

// Wait waits until the copy is complete, and returns the path of its file. Close removes the file.
func (c *Copy) Wait(ctx context.Context) (path string, err error) {
	for {
		now, err := c.disk.job(copyNode)
		switch {
		case err != nil:
			return "", fmt.Errorf("copy a volume: %w", err)
		case now == nil:
			return "", errors.New("copy a volume: qemu-storage-daemon was restarted")
		case now.Status == "concluded" && now.Error != "":
			return "", fmt.Errorf("copy a volume: %s", now.Error)
		case now.Status == "concluded":
			if err := c.disk.forget(copyNode); err != nil {
				return "", fmt.Errorf("copy a volume: %w", err)
			}
			return c.path, nil
		}
		select {
		case <-ctx.Done():
			return "", ctx.Err()
		case <-time.After(copyLook):
		}
	}
}

// job returns a job of the daemon; nil: there is none.
func (d *Disk) job(id string) (found *job, err error) {
	var jobs []job
	err = d.ask(func(m *qmp.Monitor) error { return m.Ask("query-jobs", nil, &jobs) })
	if i := slices.IndexFunc(jobs, func(j job) bool { return j.ID == id }); i >= 0 {
		found = &jobs[i]
	}
	return found, err
}

// forget removes a job that has ended, and the node of its name, from the daemon. The daemon writes the node's file to the disk first.
func (d *Disk) forget(id string) error {
	return d.askFor(busyTime, func(m *qmp.Monitor) error {
		return errors.Join(m.Ask("job-dismiss", map[string]any{"id": id}, nil), m.Ask("blockdev-del", map[string]any{"node-name": id}, nil))
	})
}

// endJob ends a job, complete or not, and removes it and its node from the daemon.
func (d *Disk) endJob(id string) error {
	for begun := time.Now(); time.Since(begun) < busyTime; time.Sleep(copyLook) {
		now, err := d.job(id)
		if noDaemon(err) { // the job has ended with the daemon
			return nil
		}
		if err != nil {
			continue
		}
		if now == nil {
			_ = d.ask(func(m *qmp.Monitor) error { return m.Ask("blockdev-del", map[string]any{"node-name": id}, nil) }) // there may be no node
			return nil
		}
		if now.Status == "concluded" {
			_ = d.forget(id)
			continue
		}
		_ = d.ask(func(m *qmp.Monitor) error { return m.Ask("job-cancel", map[string]any{"id": id}, nil) })
	}
	return fmt.Errorf("qemu-storage-daemon does not end its job %q", id)
}

// Close ends the copy, complete or not, and removes its file.
func (c *Copy) Close() error {
	_ = c.disk.endJob(copyNode) // the next Close tries again
	if err := os.Remove(c.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// Facts reads the disk's description. If there is no disk, the error is fs.ErrNotExist.
func (d *Disk) Facts() (f Facts, err error) {
	text, err := os.ReadFile(filepath.Join(d.dir, factsName))
	if err == nil {
		err = json.Unmarshal(text, &f)
	}
	return f, err
}

// Restore puts the disk back to a state that a Copy had; read writes that state to a file, and wanted says at the last moment
// whether the disk is still to be put back. Nobody may use the disk meanwhile. Restore ends the disk's daemon. f describes the
// disk, which Restore makes if it does not exist. A second Restore with the same id does nothing. The returned description
// lists the id.
func Restore(folder, run, uid, id string, f Facts, user User, read func(to string) error, wanted func() error) (Facts, error) {
	d := Open(folder, run, uid)
	if have, err := d.Facts(); err == nil {
		if slices.Contains(have.Restored, id) {
			return have, nil
		}
		f.Restored = have.Restored
	}
	f.Restored = append(slices.Clone(f.Restored), id)
	f.Restored = f.Restored[max(0, len(f.Restored)-restoresKept):]
	if err := d.restore(folder, f, user, read, wanted); err != nil {
		return f, fmt.Errorf("put volume %s back: %w", f.Name, err)
	}
	return f, nil
}

func (d *Disk) restore(folder string, f Facts, user User, read func(to string) error, wanted func() error) error {
	part := d.dir + partName
	if err := errors.Join(os.RemoveAll(part), os.MkdirAll(part, 0o700)); err != nil {
		return err
	}
	defer os.RemoveAll(part) // fails harmlessly after the rename
	image := filepath.Join(part, imageName)
	err := inOrder(
		func() error { return read(image) },
		func() error {
			if err := checkImage(image, f.SizeBytes); err != nil {
				return fmt.Errorf("%w; the host that saved it may have altered it: restore another checkpoint or snapshot", err)
			}
			return nil
		},
		func() error { return finish(part, f, user) },
		func() error { d.Stop(); return wanted() })
	if err != nil {
		return err
	}
	if _, err := os.Stat(d.dir); errors.Is(err, fs.ErrNotExist) {
		return inOrder(func() error { return os.Rename(part, d.dir) }, func() error { return durable.SyncDir(folder) })
	}
	// The image is replaced in place, so the disk is never missing. A missing disk would have to be made again, and a late
	// order would not do that.
	return inOrder(
		func() error { return os.Rename(image, filepath.Join(d.dir, imageName)) },
		func() error { return durable.SyncDir(d.dir) },
		func() error { return writeFacts(d.dir, f) })
}
