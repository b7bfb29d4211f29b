package bare

// monitor.go - QEMU's monitor (QMP): moving a guest's state, and shared memory that comes and goes.

import (
	"fmt"
	"time"

	"watari/internal/qmp"
)

// patience is the longest that an answer of QEMU, or of the guest to QEMU, may take.
const patience = time.Minute

// Move sends the running guest's state to a URI of QEMU's (migrate) and waits until it is there.
func (g *Guest) Move(uri string) error {
	m, err := qmp.Dial(g.Monitor, patience)
	if err != nil {
		return err
	}
	defer m.Close()
	if err := m.Migrate(uri); err != nil {
		return fmt.Errorf("move %s: %w", g.Identity.GetName(), err)
	}
	return nil
}

// The names by which QEMU knows the shared memory and its device.
const (
	memoryName = "shared-memory"
	deviceName = "shared"
)

// Plug gives the running guest of a monitor an ivshmem device, whose memory is the file's.
func Plug(path, file string, bytes int64) error {
	m, err := qmp.Dial(path, patience)
	if err != nil {
		return err
	}
	defer m.Close()
	err = m.Ask("object-add", map[string]any{"qom-type": "memory-backend-file", "id": memoryName, "mem-path": file, "size": bytes, "share": true}, nil)
	if err != nil {
		return err
	}
	return m.Ask("device_add", map[string]any{"driver": "ivshmem-plain", "id": deviceName, "memdev": memoryName}, nil)
}

// Unplug takes it away, and waits until the guest has let go of it.
func Unplug(path string) error {
	m, err := qmp.Dial(path, patience)
	if err != nil {
		return err
	}
	defer m.Close()
	if err := m.Ask("device_del", map[string]any{"id": deviceName}, nil); err != nil {
		return err
	}
	if _, err := m.Await(func(r *qmp.Reply) bool { return r.Event == "DEVICE_DELETED" && r.Data.Device == deviceName }); err != nil {
		return fmt.Errorf("wait until the guest lets go of its device: %w", err)
	}
	return m.Ask("object-del", map[string]any{"id": memoryName}, nil)
}
