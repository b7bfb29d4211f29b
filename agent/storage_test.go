package agent

import (
	"context"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"watari/agent/machine"
	v1 "watari/api/watariv1"
)

// fileServer answers each connection with a text, and returns its address.
func fileServer(t *testing.T, text string) (host string, port uint32, stop func()) {
	t.Helper()
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			io.WriteString(conn, text)
		}
	}()
	t.Cleanup(func() { listener.Close() })
	return "127.0.0.1", uint32(listener.Addr().(*net.TCPAddr).Port), func() { listener.Close() }
}

// freePort returns a TCP port that nobody uses.
func freePort(t *testing.T) uint32 {
	t.Helper()
	listener, err := net.Listen("tcp4", "127.0.0.9:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return uint32(listener.Addr().(*net.TCPAddr).Port)
}

// visit connects to a door from an address, and returns what the server says.
func visit(t *testing.T, from string, port uint32) string {
	t.Helper()
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}, Timeout: time.Second}
	conn, err := dialer.Dial("tcp4", (&net.TCPAddr{IP: net.ParseIP("127.0.0.9"), Port: int(port)}).String())
	if err != nil {
		return err.Error()
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(time.Second))
	answer := make([]byte, 5)
	n, err := io.ReadFull(conn, answer)
	if err != nil {
		return err.Error()
	}
	return string(answer[:n])
}

func TestOnlyGuestsThatMountStorageReachItsServer(t *testing.T) {
	o := newOutside(t)
	a := &Agent{ctx: t.Context(), machine: noMachine(), config: Config{StateDir: t.TempDir()}, log: slog.New(slog.DiscardHandler), network: stubNetwork{o}, changed: make(chan struct{})}
	k := newStorageKeeper(a)
	go k.run(t.Context())
	host, port, stop := fileServer(t, "files")
	door := freePort(t)
	order := func(uid, address string) *v1.GuestWanted {
		return &v1.GuestWanted{Uid: uid, Name: "md-" + uid, Role: v1.GuestRole_GUEST_ROLE_RUN, Identity: &v1.Identity{Address: address, Gateway: "127.0.0.9",
			Mounts: []*v1.StorageMount{{Server: host, Port: port, GatewayPort: door, Path: "/data", At: "/data"}}}}
	}
	k.want(&v1.HostWanted{Guests: []*v1.GuestWanted{order("0", "127.0.0.10"), {Uid: "1", Identity: &v1.Identity{Address: "127.0.0.11", Gateway: "127.0.0.9"}}}})
	eventually(t, "a guest reaches the server", func() bool { return visit(t, "127.0.0.10", door) == "files" })
	if said := visit(t, "127.0.0.11", door); said == "files" {
		t.Error("a guest without the mount reaches the server")
	}
	o.mu.Lock()
	if got := o.storage["0"]; len(o.storage) != 1 || len(got) != 1 || got[0] != uint16(door) {
		t.Errorf("the filter opens %v", o.storage)
	}
	o.mu.Unlock()

	// A restarted agent knows the orders without the manager.
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	k.want(&v1.HostWanted{Guests: []*v1.GuestWanted{order("2", "127.0.0.12")}})
	eventually(t, "the other guest reaches the server", func() bool { return visit(t, "127.0.0.12", door) == "files" })
	if said := visit(t, "127.0.0.10", door); said == "files" {
		t.Error("a guest that has left reaches the server")
	}
	for _, d := range k.doors {
		d.close()
	}
	next := newStorageKeeper(&Agent{ctx: ctx, machine: noMachine(), config: a.config, log: a.log, network: a.network, changed: make(chan struct{})})
	go next.run(ctx)
	eventually(t, "a new agent opens the way", func() bool { return visit(t, "127.0.0.12", door) == "files" })

	stop()
	eventually(t, "the report says that the server is away", func() bool {
		visit(t, "127.0.0.12", door)
		problems := next.problems()
		return len(problems) == 1 && strings.Contains(problems[0], "is not reached")
	})
	next.want(&v1.HostWanted{})
	eventually(t, "the way is closed", func() bool {
		return strings.Contains(visit(t, "127.0.0.12", door), "refused") && len(next.problems()) == 0
	})
}

func TestAGuestThatLeavesIsCutOff(t *testing.T) {
	o := newOutside(t)
	k := newStorageKeeper(&Agent{ctx: t.Context(), machine: noMachine(), config: Config{StateDir: t.TempDir()}, log: slog.New(slog.DiscardHandler), network: stubNetwork{o}, changed: make(chan struct{})})
	go k.run(t.Context())
	host, port, _ := fileServer(t, "files")
	door := freePort(t)
	stay := &v1.GuestWanted{Uid: "0", Identity: &v1.Identity{Address: "127.0.0.10", Gateway: "127.0.0.9", Mounts: []*v1.StorageMount{{Server: host, Port: port, GatewayPort: door}}}}
	leave := &v1.GuestWanted{Uid: "1", Identity: &v1.Identity{Address: "127.0.0.11", Gateway: "127.0.0.9", Mounts: stay.Identity.Mounts}}
	k.want(&v1.HostWanted{Guests: []*v1.GuestWanted{stay, leave}})
	eventually(t, "a guest reaches the server", func() bool { return visit(t, "127.0.0.11", door) == "files" })
	conn, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP("127.0.0.11")}}).Dial("tcp4", (&net.TCPAddr{IP: net.ParseIP("127.0.0.9"), Port: int(door)}).String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err := io.ReadFull(conn, make([]byte, 5)); err != nil {
		t.Fatal(err)
	}
	k.want(&v1.HostWanted{Guests: []*v1.GuestWanted{stay}})
	if n, err := conn.Read(make([]byte, 1)); err == nil || n > 0 || strings.Contains(err.Error(), "timeout") {
		t.Errorf("its connection lives on: %d, %v", n, err)
	}
}

// eventually waits until so returns true.
func eventually(t *testing.T, what string, so func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !so(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within 10 s: %s", what)
		}
	}
}

// noMachine returns a machine that knows no guest.
func noMachine() *machine.Machine {
	return machine.New(time.Now(), machine.Config{}, machine.Loaded{})
}
