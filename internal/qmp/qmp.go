// Package qmp implements a client of QEMU's monitor protocol, for machines that Watari starts without libvirt.
package qmp

import (
	"encoding/json"
	"fmt"
	"net"
	"time"
)

// Monitor is a connection to the monitor of a running QEMU. Only one goroutine may use it.
type Monitor struct {
	conn    net.Conn
	replies *json.Decoder
}

// Reply is a reply or an event from QEMU.
type Reply struct {
	Return json.RawMessage
	Error  *struct{ Desc string }
	Event  string
	Data   struct{ Device string }
}

// Dial connects to the monitor's socket at path. All work on the connection must end within limit. The caller closes
// it.
func Dial(path string, limit time.Duration) (*Monitor, error) {
	conn, err := net.Dial("unix", path)
	if err != nil {
		return nil, err
	}
	if err := conn.SetDeadline(time.Now().Add(limit)); err != nil {
		conn.Close()
		return nil, err
	}
	m := &Monitor{conn, json.NewDecoder(conn)}
	if err := m.Ask("qmp_capabilities", nil, nil); err != nil {
		conn.Close()
		return nil, err
	}
	return m, nil
}

// Close ends the connection.
func (m *Monitor) Close() error { return m.conn.Close() }

// Await reads replies until one is wanted.
func (m *Monitor) Await(wanted func(*Reply) bool) (*Reply, error) {
	for {
		r := &Reply{}
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

// Ask executes a command. If answer is not nil, Ask decodes the result into it.
func (m *Monitor) Ask(command string, arguments map[string]any, answer any) error {
	request := map[string]any{"execute": command}
	if arguments != nil {
		request["arguments"] = arguments
	}
	if err := json.NewEncoder(m.conn).Encode(request); err != nil {
		return fmt.Errorf("%s: %w", command, err)
	}
	r, err := m.Await(func(r *Reply) bool { return r.Return != nil })
	if err != nil {
		return fmt.Errorf("%s: %w", command, err)
	}
	if answer != nil {
		return json.Unmarshal(r.Return, answer)
	}
	return nil
}

// Migrate sends the machine's state to one of QEMU's URIs and waits until all of it is sent.
func (m *Monitor) Migrate(uri string) error {
	if err := m.Ask("migrate-set-parameters", map[string]any{"max-bandwidth": 1 << 33}, nil); err != nil {
		return err
	}
	if err := m.Ask("migrate", map[string]any{"uri": uri}, nil); err != nil {
		return err
	}
	return m.awaitMigration(uri)
}

// awaitMigration returns when the machine's state has been sent to, or received from, a URI.
func (m *Monitor) awaitMigration(uri string) error {
	for {
		var state struct {
			Status string
			Reason string `json:"error-desc"`
		}
		if err := m.Ask("query-migrate", nil, &state); err != nil {
			return err
		}
		switch state.Status {
		case "completed":
			return nil
		case "failed", "cancelled":
			return fmt.Errorf("migrate %s: %s %s", uri, state.Status, state.Reason)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// Restore reads the machine's state from one of QEMU's URIs and waits until the machine has it. QEMU must have been
// started with -incoming defer.
func (m *Monitor) Restore(uri string) error {
	if err := m.Ask("migrate-incoming", map[string]any{"uri": uri}, nil); err != nil {
		return err
	}
	return m.awaitMigration(uri)
}

// SharedMemoryStays makes Migrate and Restore skip memory that is a file.
func (m *Monitor) SharedMemoryStays() error {
	capabilities := []map[string]any{{"capability": "x-ignore-shared", "state": true}}
	return m.Ask("migrate-set-capabilities", map[string]any{"capabilities": capabilities}, nil)
}
