package volume

// move.go - a disk's move to another host. The source copies the disk while guests use it, and then gives it up. The target
// receives a copy, which becomes its disk when the source has given its own up.

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"watari/internal/durable"
	"watari/internal/qmp"
)

const (
	copyPart = ".move" // suffix of the folder of a copy that another host sends
	moveNode = "move"  // name of the node and of the job that copy a disk to another host
	// guestsNode is the node that guests use. It is above the disk: a node can have only one job, and a checkpoint's copy is
	// made of the disk below.
	guestsNode = "guests"
	// openTime is how long the daemon may take to connect to another host.
	openTime = 40 * time.Second
	// nearly is how much of a copy may be missing, in bytes, when guests are made to wait for the rest.
	nearly = 64 << 20
)

// GivenUp says to which host a disk was given up, in which move, and which copy it then had.
type GivenUp struct {
	Move      string `json:"move"`
	Copy      string `json:"copy"`
	Target    string `json:"target"`
	TargetUID string `json:"target_uid"`
}

// Copies returns the copies in a folder that other hosts send or have sent, by the volumes' uids.
func Copies(folder string) (map[string]Facts, error) {
	return list(folder, func(name string) (uid string, is bool) { return strings.CutSuffix(name, copyPart) })
}

// OpenCopy returns a copy as a disk.
func OpenCopy(folder, run, uid string) *Disk {
	d := Open(folder, run, uid+copyPart)
	d.copy = true
	return d
}

// Receive makes an empty disk for a copy. It appears complete, or not at all.
func Receive(ctx context.Context, folder, uid string, f Facts, user User) error {
	dir := filepath.Join(folder, uid+copyPart)
	part := dir + partName
	if err := errors.Join(os.RemoveAll(part), os.MkdirAll(part, 0o700)); err != nil {
		return err
	}
	defer os.RemoveAll(part) // fails harmlessly after the rename
	err := inOrder(
		func() error {
			return command(ctx, "qemu-img", "create", "-q", "-f", "qcow2", filepath.Join(part, imageName), fmt.Sprint(f.SizeBytes))
		},
		func() error { return finish(part, f, user) },
		func() error { return os.Rename(part, dir) },
		func() error { return durable.SyncDir(folder) })
	if err != nil {
		return fmt.Errorf("make the disk for a copy of volume %s: %w", f.Name, err)
	}
	return nil
}

// Adopt makes the copy f.Copy of a volume the volume's disk, which f describes. It deletes an older disk.
func Adopt(folder, run, uid string, f Facts) error {
	c, d := OpenCopy(folder, run, uid), Open(folder, run, uid)
	have, err := c.Facts()
	switch {
	case errors.Is(err, fs.ErrNotExist) || err == nil && have.Copy != f.Copy:
		return fmt.Errorf("volume %s: the copy that was sent is missing; is the file system mounted on which it lies?", f.Name)
	case err != nil:
		return err
	}
	c.Stop()
	err = inOrder(
		func() error { return syncFile(filepath.Join(c.dir, imageName)) },
		func() error { return writeFacts(c.dir, f) },
		d.Delete,
		func() error { return os.Rename(c.dir, d.dir) },
		func() error { return durable.SyncDir(folder) })
	if err != nil {
		return fmt.Errorf("take volume %s over: %w", f.Name, err)
	}
	_ = os.RemoveAll(c.run) // only old sockets
	return nil
}

// Send begins to copy the disk to the copy that is served at a socket. The daemon copies while guests go on to use the disk.
func (d *Disk) Send(socket string) error {
	m, err := qmp.Dial(d.monitor(), openTime)
	if err != nil {
		return err
	}
	defer m.Close()
	return inOrder(
		func() error {
			return m.Ask("blockdev-add", map[string]any{"driver": "nbd", "node-name": moveNode, "export": export, "discard": "unmap", "server": map[string]string{"type": "unix", "path": socket}}, nil)
		},
		func() error {
			return m.Ask("blockdev-mirror", map[string]any{"job-id": moveNode, "device": guestsNode, "target": moveNode, "sync": "full", "auto-dismiss": false}, nil)
		})
}

// Sending is the progress of Send.
type Sending struct {
	Copied, Total uint64 // bytes; Total grows as guests write
	Ready         bool   // HandOver would not make guests wait for long
	Error         error  // it has ended
}

// Sending returns the progress of Send.
func (d *Disk) Sending() (s Sending, err error) {
	j, err := d.job(moveNode)
	switch {
	case err != nil:
		return s, err
	case j == nil:
		s.Error = errors.New("qemu-storage-daemon was restarted")
	case j.Status == "concluded":
		s.Error = errors.New(j.Error)
	default:
		s.Copied, s.Total = j.Copied, j.Total
		s.Ready = (j.Status == "ready" || j.Status == "standby") && j.Copied+nearly >= j.Total
	}
	return s, nil
}

// EndSending ends Send, complete or not.
func (d *Disk) EndSending() error { return d.endJob(moveNode) }

// HandOver closes the disk to guests, and returns when the copy is complete and on the target's disk. Guests wait. After an
// error, Stop and Serve open the disk again.
func (d *Disk) HandOver(ctx context.Context) error {
	for closed := false; !closed; {
		var exports []exported
		err := d.ask(func(m *qmp.Monitor) error {
			_ = m.Ask("block-export-del", map[string]any{"id": exportID, "mode": "hard"}, nil) // it may be closing already
			return m.Ask("query-block-exports", nil, &exports)
		})
		if err != nil {
			return fmt.Errorf("close a volume: %w", err)
		}
		if closed = len(exports) == 0; !closed {
			if err := pause(ctx); err != nil {
				return fmt.Errorf("close a volume: %w", err)
			}
		}
	}
	// No request is under way any more, so the job completes when it has copied all. It flushes the target at its end.
	for {
		j, err := d.job(moveNode)
		switch {
		case err != nil:
			return fmt.Errorf("complete the copy: %w", err)
		case j == nil:
			return errors.New("complete the copy: qemu-storage-daemon was restarted")
		case j.Status == "concluded" && j.Error != "":
			return fmt.Errorf("complete the copy: %s", j.Error)
		case j.Status == "concluded":
			return nil
		case j.Status == "ready":
			_ = d.ask(func(m *qmp.Monitor) error { return m.Ask("job-complete", map[string]any{"id": moveNode}, nil) }) // it is asked again
		}
		if err := pause(ctx); err != nil {
			return fmt.Errorf("complete the copy: %w", err)
		}
	}
}

// pause waits before the daemon is asked again.
func pause(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(copyLook / 4):
		return nil
	}
}
