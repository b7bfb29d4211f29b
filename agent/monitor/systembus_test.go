package monitor

import (
	"bufio"
	"context"
	"encoding/binary"
	"io"
	"net"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"
)

// listed is a session in logind's list.
type listed struct {
	ID         string
	UID        uint32
	User, Seat string
	Path       dbus.ObjectPath
}

// fakeBus is a system bus with a logind, for one client at a time.
type fakeBus struct {
	mu         sync.Mutex
	list       []listed
	properties map[dbus.ObjectPath]map[string]dbus.Variant // of a session; a missing one has ended meanwhile
	conn       net.Conn
}

func newFakeBus(t *testing.T) *fakeBus {
	path := filepath.Join(t.TempDir(), "bus")
	t.Setenv("DBUS_SYSTEM_BUS_ADDRESS", "unix:path="+path)
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	b := &fakeBus{properties: map[dbus.ObjectPath]map[string]dbus.Variant{}}
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			b.mu.Lock()
			b.conn = conn
			b.mu.Unlock()
			b.serve(conn)
			conn.Close()
		}
	}()
	return b
}

// add adds a session.
func (b *fakeBus) add(id, user, seat string, properties map[string]any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	path := dbus.ObjectPath("/org/freedesktop/login1/session/_3" + id)
	b.list = append(b.list, listed{id, 1000, user, seat, path})
	if properties == nil {
		return
	}
	b.properties[path] = map[string]dbus.Variant{"Scope": dbus.MakeVariant("session-" + id + ".scope"), "Timestamp": dbus.MakeVariant(uint64(1_000_000))}
	for name, value := range properties {
		b.properties[path][name] = dbus.MakeVariant(value)
	}
}

// serve answers one client.
func (b *fakeBus) serve(conn net.Conn) {
	in := bufio.NewReader(conn)
	for begun := false; !begun; {
		line, err := in.ReadString('\n')
		if err != nil {
			return
		}
		answer := "ERROR\r\n"
		switch words := strings.Fields(strings.Trim(line, "\x00\r\n")); {
		case words[0] == "BEGIN":
			begun, answer = true, ""
		case words[0] == "AUTH" && len(words) == 1:
			answer = "REJECTED EXTERNAL\r\n"
		case words[0] == "AUTH":
			answer = "OK 0123456789abcdef0123456789abcdef\r\n"
		}
		if _, err := io.WriteString(conn, answer); err != nil {
			return
		}
	}
	for {
		call, err := dbus.DecodeMessage(in)
		if err != nil {
			return
		}
		b.send(b.answer(call))
	}
}

// answer returns the reply to a call.
func (b *fakeBus) answer(call *dbus.Message) *dbus.Message {
	b.mu.Lock()
	defer b.mu.Unlock()
	reply := &dbus.Message{Type: dbus.TypeMethodReply, Headers: map[dbus.HeaderField]dbus.Variant{}}
	reply.Headers[dbus.FieldReplySerial] = dbus.MakeVariant(call.Serial())
	switch call.Headers[dbus.FieldMember].Value() {
	case "Hello":
		reply.Body = []any{":1.1"}
	case "ListSessions":
		reply.Body = []any{b.list}
	case "GetAll":
		path, _ := call.Headers[dbus.FieldPath].Value().(dbus.ObjectPath)
		properties, is := b.properties[path]
		if reply.Body = []any{properties}; !is {
			reply.Type, reply.Body = dbus.TypeError, []any{"Unknown object"}
			reply.Headers[dbus.FieldErrorName] = dbus.MakeVariant(unknownObject)
		}
	}
	return reply
}

func (b *fakeBus) send(m *dbus.Message) {
	if len(m.Body) > 0 {
		m.Headers[dbus.FieldSignature] = dbus.MakeVariant(dbus.SignatureOf(m.Body...))
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	m.EncodeTo(b.conn, binary.LittleEndian)
}

func TestSessionsAreReadFromTheSystemBus(t *testing.T) {
	fake := newFakeBus(t)
	began := time.UnixMicro(1_000_000)
	fake.add("1", "ann", "", map[string]any{"Class": "user", "Type": "tty", "State": "active", "TTY": "", "Remote": true})
	fake.add("2", "root", "seat0", map[string]any{"Class": "user-early", "Type": "tty", "State": "online", "TTY": "tty1"})
	fake.add("3", "ben", "", map[string]any{"Class": "user", "Type": "x11", "State": "active", "TTY": "", "IdleHint": true, "IdleSinceHint": uint64(7_000_000)})
	fake.add("4", "eva", "seat0", map[string]any{"Class": "user", "Type": "wayland", "State": "active", "TTY": "tty2", "IdleHint": false, "IdleSinceHint": uint64(0)})
	fake.add("5", "gdm", "seat0", map[string]any{"Class": "greeter", "Type": "wayland", "State": "active"})
	fake.add("6", "ann", "", map[string]any{"Class": "manager", "Type": "unspecified", "State": "active"})
	fake.add("7", "ann", "", map[string]any{"Class": "background", "Type": "unspecified", "State": "active"})
	fake.add("8", "ann", "", map[string]any{"Class": "user", "Type": "tty", "State": "closing", "TTY": "pts/8"})
	fake.add("9", "ann", "", nil)
	b, err := openSystemBus()
	if err != nil {
		t.Fatal(err)
	}
	defer b.close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	list, err := b.sessions(ctx)
	if err != nil {
		t.Fatal(err)
	}
	want := []session{
		{id: "1", user: "ann", uid: 1000, scope: "session-1.scope", began: began},
		{id: "2", user: "root", uid: 1000, scope: "session-2.scope", began: began, seated: true, tty: "tty1"},
		{id: "3", user: "ben", uid: 1000, scope: "session-3.scope", began: began, graphical: true, idle: true, idleSince: time.UnixMicro(7_000_000)},
		{id: "4", user: "eva", uid: 1000, scope: "session-4.scope", began: began, graphical: true, seated: true},
	}
	if !reflect.DeepEqual(list, want) {
		t.Errorf("sessions:\n%+v, want\n%+v", list, want)
	}
	fake.send(&dbus.Message{Type: dbus.TypeSignal, Headers: map[dbus.HeaderField]dbus.Variant{
		dbus.FieldPath:      dbus.MakeVariant(dbus.ObjectPath("/org/freedesktop/login1")),
		dbus.FieldInterface: dbus.MakeVariant("org.freedesktop.login1.Manager"),
		dbus.FieldMember:    dbus.MakeVariant("SessionNew"),
	}, Body: []any{"10", dbus.ObjectPath("/org/freedesktop/login1/session/_310")}})
	select {
	case <-b.begun():
	case <-ctx.Done():
		t.Error("a session's begin was not told")
	}
}

func TestTheSystemBusIsConnectedAgain(t *testing.T) {
	f, bus := newFake(t), newFakeBus(t)
	bus.add("1", "ann", "", map[string]any{"Class": "user", "Type": "tty", "State": "active", "TTY": "pts/3"})
	f.write("run/dbus/system_bus_socket", "")
	f.write("run/systemd/seats/seat0", "")
	l := f.monitor.logind
	defer l.disconnect()
	for _, want := range []bool{true, false, true} {
		if want == false {
			bus.mu.Lock()
			bus.conn.Close()
			bus.mu.Unlock()
		}
		l.ask(t.Context())
		if list, _ := l.sessions(); (l.err == nil) != want || len(list) != 1 {
			t.Errorf("sessions %v, error %v", list, l.err)
		}
	}
}
