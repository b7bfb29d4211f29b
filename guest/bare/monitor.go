package bare

// monitor.go - commands for QEMU's monitor (QMP): migrating a guest's state, and adding and removing shared memory.

import (
	"fmt"
	"time"

	"watari/internal/qmp"
)

// answerLimit is the longest time for an answer of QEMU, or of the guest to QEMU.
const answerLimit = time.Minute

// Move sends the running guest's state to one of QEMU's URIs (migrate) and waits until all of it is sent.
func (g *Guest) Move(uri string) error {
	m, err := qmp.Dial(g.Monitor, answerLimit)
	if err != nil {
		return err
	}
	defer m.Close()
	if err := m.Migrate(uri); err != nil {
		return fmt.Errorf("move %s: %w", g.Identity.GetName(), err)
	}
	return nil
}

// QEMU's names of the shared memory and its device.
const (
	memoryName = "shared-memory"
	deviceName = "shared"
)

// Plug adds an ivshmem device, whose memory is the file, to the running guest with that monitor.
func Plug(path, file string, bytes int64) error {
	m, err := qmp.Dial(path, answerLimit)
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

// Unplug removes the device, and waits until the guest has released it.
func Unplug(path string) error {
	m, err := qmp.Dial(path, answerLimit)
	if err != nil {
		return err
	}
	defer m.Close()
	if err := m.Ask("device_del", map[string]any{"id": deviceName}, nil); err != nil {
		return err
	}
	if _, err := m.Await(func(r *qmp.Reply) bool { return r.Event == "DEVICE_DELETED" && r.Data.Device == deviceName }); err != nil {
		return fmt.Errorf("wait until the guest releases the device: %w", err)
	}
	return m.Ask("object-del", map[string]any{"id": memoryName}, nil)
}
