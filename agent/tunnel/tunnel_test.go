package tunnel

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"watari/ca"
)

// host is one end of a tunnel.
type host struct {
	*Tunnels
	run     string
	address string
}

func newHost(t *testing.T, authority *ca.Authority, name string) *host {
	t.Helper()
	pair, err := authority.IssueClient(ca.Identity{Kind: ca.KindHost, Name: name, UID: "uid-of-" + name, Generation: 3})
	if err != nil {
		t.Fatal(err)
	}
	config, err := ca.PeerTLS(authority.CertificatePEM(), pair.Certificate, pair.Key, nil)
	if err != nil {
		t.Fatal(err)
	}
	// Paths of Unix sockets are short.
	run, err := os.MkdirTemp("", "tn")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(run) })
	h := &host{run: run, Tunnels: New(Config{TLS: config, RunDir: run, LibvirtSockets: []string{filepath.Join(run, "libvirt.sock")}})}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	h.address = listener.Addr().String()
	go h.Serve(t.Context(), listener)
	return h
}

func twoHosts(t *testing.T) (source, target *host) {
	authority, err := ca.New("test")
	if err != nil {
		t.Fatal(err)
	}
	return newHost(t, authority, "a1"), newHost(t, authority, "b1")
}

// listen makes a Unix socket. When a client has closed its sending side, the socket returns what the client sent, in
// capitals.
func listen(t *testing.T, path string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				data, _ := io.ReadAll(conn)
				conn.Write(bytes.ToUpper(data))
			}()
		}
	}()
}

// signOfLife is a message that libvirt's daemons send each other.
var signOfLife = []byte{0, 0, 0, 28, 'k', 'e', 'e', 'p', 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0}

func order(source, target *host) Order {
	return Order{Migration: "m1", MigrateSocket: filepath.Join(source.run, "migrate.sock"), Target: "b1", TargetUID: "uid-of-b1", Address: target.address}
}

func converse(t *testing.T, path string, send []byte) []byte {
	t.Helper()
	conn, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	go func() {
		conn.Write(send)
		conn.(*net.UnixConn).CloseWrite()
	}()
	got, err := io.ReadAll(conn)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func TestBothSocketsReachTheTarget(t *testing.T) {
	source, target := twoHosts(t)
	listen(t, target.config.LibvirtSockets[0])
	listen(t, filepath.Join(target.run, "migrate.sock"))
	admitted := 0
	stop := target.Expect(Expected{Migration: "m1", Source: "a1", SourceUID: "uid-of-a1", MigrateSocket: filepath.Join(target.run, "migrate.sock"), Admit: func() error {
		admitted++
		if !target.Active("m1") {
			t.Error("a connection that is being let in is not open")
		}
		return nil
	}})
	defer stop()
	out, err := source.Open(t.Context(), order(source, target))
	if err != nil {
		t.Fatal(err)
	}
	if admitted != 0 {
		t.Error("asking whether it is expected counts as a transfer")
	}
	big := make([]byte, 3<<20)
	rand.Read(big)
	for path, big := range map[string][]byte{out.LibvirtSocket: bytes.Repeat(signOfLife, 100_000), out.MigrateSocket: big} {
		if got := converse(t, path, big); !bytes.Equal(got, bytes.ToUpper(big)) {
			t.Errorf("%s: %d bytes came back", path, len(got))
		}
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s is open to others: %v, %v", path, info, err)
		}
	}
	if admitted != 2 {
		t.Errorf("%d connections were admitted", admitted)
	}
	out.Close()
	if _, err := os.Stat(out.MigrateSocket); !errors.Is(err, os.ErrNotExist) {
		t.Error("a socket is left")
	}
	back, sent := source.Moved()
	if received, _ := target.Moved(); received != sent || sent < 3<<20 || back < 3<<20 {
		t.Errorf("the source counts %d bytes sent and %d received, the target %d received", sent, back, received)
	}
}

func TestACancelledOrderLeavesTheWayOpen(t *testing.T) {
	source, target := twoHosts(t)
	listen(t, target.config.LibvirtSockets[0])
	stop := target.Expect(Expected{Migration: "m1", Source: "a1"})
	defer stop()
	ctx, cancel := context.WithCancel(t.Context())
	out, err := source.Open(ctx, order(source, target))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	cancel() // libvirt needs the connection to cancel the transfer
	if got := converse(t, out.LibvirtSocket, signOfLife); !bytes.Equal(got, bytes.ToUpper(signOfLife)) {
		t.Errorf("%q came back", got)
	}
}

// A stranger's source calls more of the target's libvirt than a migration needs.
func TestASourceThatSaysMoreIsCutOff(t *testing.T) {
	source, target := twoHosts(t)
	listen(t, target.config.LibvirtSockets[0])
	defer target.Expect(Expected{Migration: "m1", Source: "a1"})()
	out, err := source.Open(t.Context(), order(source, target))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	more := slices.Concat(signOfLife, []byte{0, 0, 0, 28, 0x20, 0, 0x80, 0x86, 0, 0, 0, 1, 0, 0, 0, 10, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0}) // it creates a domain
	conn, err := net.Dial("unix", out.LibvirtSocket)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(10 * time.Second))
	conn.Write(more)
	conn.(*net.UnixConn).CloseWrite()
	if got, err := io.ReadAll(conn); !strings.Contains(string(got), "it calls procedure 10") || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("%q came back: %v", got, err)
	}
}

func TestOnlyTheAnnouncedIsLetIn(t *testing.T) {
	source, target := twoHosts(t)
	if _, err := source.Open(t.Context(), order(source, target)); err == nil || !strings.Contains(err.Error(), "not expected here") {
		t.Errorf("an unknown migration: %v", err)
	}
	stop := target.Expect(Expected{Migration: "m1", Source: "c1"})
	if _, err := source.Open(t.Context(), order(source, target)); err == nil || !strings.Contains(err.Error(), "expected from host c1") {
		t.Errorf("another source: %v", err)
	}
	stop()
	stop = target.Expect(Expected{Migration: "m1", Source: "a1"})
	o := order(source, target)
	o.Target = "c1"
	if _, err := source.Open(t.Context(), o); err == nil || !strings.Contains(err.Error(), "answers there") {
		t.Errorf("another target: %v", err)
	}
	o = order(source, target)
	o.TargetUID = "uid-of-a-later-b1"
	if _, err := source.Open(t.Context(), o); err == nil || !strings.Contains(err.Error(), "answers there") {
		t.Errorf("a target that was removed, and another has its name: %v", err)
	}
	stop()
	stop = target.Expect(Expected{Migration: "m1", Source: "a1", SourceUID: "uid-of-a-later-a1"})
	if _, err := source.Open(t.Context(), order(source, target)); err == nil || !strings.Contains(err.Error(), "expected from host a1") {
		t.Errorf("a source that was removed, and another has its name: %v", err)
	}
	stop()
	if _, err := source.Open(t.Context(), order(source, target)); err == nil {
		t.Error("let in after it was not expected any more")
	}
	// stranger is a host of another certificate authority.
	stranger, _ := twoHosts(t)
	target.Expect(Expected{Migration: "m1", Source: "a1"})
	if _, err := stranger.Open(t.Context(), order(source, target)); err == nil {
		t.Error("a stranger was let in")
	}
}

func TestDropEndsWhatWasLetIn(t *testing.T) {
	source, target := twoHosts(t)
	listen(t, target.config.LibvirtSockets[0])
	changed := make(chan struct{}, 8)
	target.Expect(Expected{Migration: "m1", Source: "a1", Changed: func() { changed <- struct{}{} }})
	out, err := source.Open(t.Context(), order(source, target))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	conn, err := net.Dial("unix", out.LibvirtSocket)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	<-changed
	if !target.Active("m1") {
		t.Error("an open connection does not count")
	}
	target.Drop("m1")
	conn.SetReadDeadline(time.Now().Add(10 * time.Second))
	if _, err := conn.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the other end: %v", err)
	}
	<-changed
	if target.Active("m1") {
		t.Error("a closed connection counts")
	}
}

// shortListener fails at first, as a listener does when descriptors run out.
type shortListener struct {
	net.Listener
	failed bool
}

func (l *shortListener) Accept() (net.Conn, error) {
	if !l.failed {
		l.failed = true
		return nil, &net.OpError{Op: "accept", Net: "tcp", Err: syscall.EMFILE}
	}
	return l.Listener.Accept()
}

func TestWantOfDescriptorsPasses(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	source, target := twoHosts(t)
	go target.Serve(t.Context(), &shortListener{Listener: listener})
	defer target.Expect(Expected{Migration: "m1", Source: "a1"})()
	o := order(source, target)
	o.Address = listener.Addr().String()
	out, err := source.Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	out.Close()
}

func TestALongHeaderIsRefused(t *testing.T) {
	if _, _, err := readHeader(bytes.NewReader([]byte{1, 0xff, 0xff})); err == nil {
		t.Error("taken")
	}
	if _, _, err := readHeader(bytes.NewReader([]byte{9, 0, 0})); err == nil {
		t.Error("an unknown socket was taken")
	}
}

func TestSocketsOfAKilledAgentAreRemoved(t *testing.T) {
	source, target := twoHosts(t)
	target.Expect(Expected{Migration: "m1", Source: "a1", SourceUID: "uid-of-a1"})
	if _, err := source.Open(t.Context(), order(source, target)); err != nil {
		t.Fatal(err)
	}
	New(source.config)
	if left, err := filepath.Glob(filepath.Join(source.run, tunnelDir, "*")); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// Strangers who connect and say nothing take so many of a host's connections, and no more.
func TestStrangersTakeFewConnectionsOfAHost(t *testing.T) {
	source, target := twoHosts(t)
	defer target.Expect(Expected{Migration: "m1", Source: "a1", SourceUID: "uid-of-a1"})()
	var silent []net.Conn
	for range mostUnknown {
		conn, err := net.Dial("tcp", target.address)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		silent = append(silent, conn)
	}
	more, err := net.Dial("tcp", target.address)
	if err != nil {
		t.Fatal(err)
	}
	defer more.Close()
	more.SetDeadline(time.Now().Add(dialTimeout / 2))
	if n, err := more.Read(make([]byte, 1)); n > 0 || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("one more stays open: %d bytes, %v", n, err)
	}
	for _, conn := range silent {
		conn.Close()
	}
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		out, err := source.Open(t.Context(), order(source, target))
		if err == nil {
			out.Close()
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("when they have left, a host is not let in: %v", err)
		}
	}
}
