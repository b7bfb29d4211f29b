package bare

// monitor.go - QEMU's monitor (QMP): moving a guest's state, and shared memory that comes and goes.

import (
	"encoding/json"
	"fmt"
	"net"
	"time"
)

// patience is the longest that an answer of QEMU, or of the guest to QEMU, may take.
const patience = time.Minute

type monitor struct {
	conn    net.Conn
	replies *json.Decoder
}

// reply is an answer or an event.
type reply struct {
	Return json.RawMessage
	Error  *struct{ Desc string }
	Event  string
	Data   struct{ Device string }
}

func openMonitor(path string) (*monitor, error) {
	conn, err := net.Dial("unix", path)
	if err != nil {
		return nil, err
	}
	conn.SetDeadline(time.Now().Add(patience))
	m := &monitor{conn, json.NewDecoder(conn)}
	if err := m.ask("qmp_capabilities", nil, nil); err != nil {
		conn.Close()
		return nil, err
	}
	return m, nil
}

// await reads until a reply is the wanted one.
func (m *monitor) await(wanted func(*reply) bool) (*reply, error) {
	for {
		r := &reply{}
		if err := m.replies.Decode(r); err != nil {
			return nil, err
		}
		if r.Error != nil {
			return nil, fmt.Errorf("QEMU says: %s", r.Error.Desc)
		}
		if wanted(r) {
			return r, nil
		}
	}
}

// ask carries a command out; answer, if not nil, is filled in.
func (m *monitor) ask(command string, arguments map[string]any, answer any) error {
	request := map[string]any{"execute": command}
	if arguments != nil {
		request["arguments"] = arguments
	}
	if err := json.NewEncoder(m.conn).Encode(request); err != nil {
		return fmt.Errorf("%s: %w", command, err)
	}
	r, err := m.await(func(r *reply) bool { return r.Return != nil })
	if err != nil {
		return fmt.Errorf("%s: %w", command, err)
	}
	if answer != nil {
		return json.Unmarshal(r.Return, answer)
	}
	return nil
}

// Move sends the running guest's state to a URI of QEMU's (migrate) and waits until it is there.
func (g *Guest) Move(uri string) error {
	m, err := openMonitor(g.Monitor)
	if err != nil {
		return err
	}
	defer m.conn.Close()
	if err := m.ask("migrate-set-parameters", map[string]any{"max-bandwidth": 1 << 33}, nil); err != nil {
		return err
	}
	if err := m.ask("migrate", map[string]any{"uri": uri}, nil); err != nil {
		return err
	}
	for {
		var state struct{ Status string }
		if err := m.ask("query-migrate", nil, &state); err != nil {
			return err
		}
		switch state.Status {
		case "completed":
			return nil
		case "failed", "cancelled":
			return fmt.Errorf("moving %s to %s: %s", g.Identity.GetName(), uri, state.Status)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// The names by which QEMU knows the shared memory and its device.
const (
	memoryName = "shared-memory"
	deviceName = "shared"
)

// Plug gives the running guest of a monitor an ivshmem device, whose memory is the file's.
func Plug(path, file string, bytes int64) error {
	m, err := openMonitor(path)
	if err != nil {
		return err
	}
	defer m.conn.Close()
	err = m.ask("object-add", map[string]any{"qom-type": "memory-backend-file", "id": memoryName, "mem-path": file, "size": bytes, "share": true}, nil)
	if err != nil {
		return err
	}
	return m.ask("device_add", map[string]any{"driver": "ivshmem-plain", "id": deviceName, "memdev": memoryName}, nil)
}

// Unplug takes it away, and waits until the guest has let go of it.
func Unplug(path string) error {
	m, err := openMonitor(path)
	if err != nil {
		return err
	}
	defer m.conn.Close()
	if err := m.ask("device_del", map[string]any{"id": deviceName}, nil); err != nil {
		return err
	}
	if _, err := m.await(func(r *reply) bool { return r.Event == "DEVICE_DELETED" && r.Data.Device == deviceName }); err != nil {
		return fmt.Errorf("wait until the guest lets go of its device: %w", err)
	}
	return m.ask("object-del", map[string]any{"id": memoryName}, nil)
}
