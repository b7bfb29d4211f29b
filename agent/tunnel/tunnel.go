// Package tunnel carries data between hosts, over TCP with TLS 1.3 and both hosts' certificates. For a migration it forwards
// the Unix sockets that libvirt and QEMU use at both ends. A target admits only migrations that the agent has announced with
// Expect. If a tunnel breaks, the migration fails and the guest is not lost. The tunnel also carries blobs (parts of images
// and packed templates) and connections to volumes.
package tunnel

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"watari/agent/domain"
	"watari/agent/gate"
	"watari/ca"
)

// DefaultPort is the TCP port that targets listen on.
const DefaultPort = 7071

const (
	// bufferSize is the size of a copying buffer, bytes.
	bufferSize = 256 << 10
	// headerLimit bounds the bytes that are read from a host before the host is known.
	headerLimit = 256
	dialTimeout = 10 * time.Second
	// directTimeout is for dialling a host that can also be reached inside WireGuard.
	directTimeout = 3 * time.Second
	// insideTimeout is for dialling a host inside WireGuard, in attempts of insideAttempt: finding a relay may take a while.
	insideTimeout = 15 * time.Second
	insideAttempt = 3 * time.Second
	// shutFor is how long a host is not dialled directly after that failed.
	shutFor = 5 * time.Minute
	// mostAnswer bounds a message of this host's libvirt, bytes (VIR_NET_MESSAGE_MAX).
	mostAnswer = 32 << 20
	// refusedTime is how long a source whose call was refused may go on making calls.
	refusedTime = 10 * time.Second
	// accepted and refused answer a header.
	accepted, refused = 0, 1
	// absent answers a request for a blob of which the host has no byte yet.
	absent = 2
)

// Socket tells what a connection is for: one of the two sockets of a migration, a blob, a volume, or a probe.
type Socket byte

const (
	Libvirt Socket = 1
	QEMU    Socket = 2
	// probe only asks whether the migration would be admitted.
	probe Socket = 3
	// blob asks for a blob.
	blob Socket = 4
	// volume leads to a volume.
	volume Socket = 5
	// packed is QEMU's socket; what is sent to it is in frames that may be compressed.
	packed Socket = 6
)

// Config configures a host's tunnels.
type Config struct {
	// TLS is for both directions (ca.PeerTLS). This package checks the other host's identity.
	TLS    *tls.Config
	RunDir string // /run/watari
	// LibvirtSockets are the paths at which this host's libvirt daemon may listen. The tunnel uses the first that
	// answers.
	LibvirtSockets []string
	// Blobs opens a blob for another host, whose certificate has the identity id; nil: this host has no blobs.
	Blobs func(ctx context.Context, id ca.Identity, digest string, offset int64) (io.ReadCloser, error)
	// Volume returns the socket at which a volume is served to another host, whose certificate has the identity id. It also
	// returns a context that ends when that host may no longer use the volume. nil: this host has no volumes.
	Volume func(id ca.Identity, uid string) (socket string, allowed context.Context, err error)
	// Inside returns a host's address inside WireGuard, which also leads to hosts that cannot be dialled directly. The
	// address is invalid if the host has none for this host. only: the host cannot be dialled directly. nil: there are no
	// such addresses.
	Inside func(host string) (address netip.Addr, only bool)
	Log    *slog.Logger
}

// Expected is an incoming migration that is expected.
type Expected struct {
	Migration, Source string
	SourceUID         string // in the source's certificate; "": any host of that name
	MigrateSocket     string // path at which this host's QEMU listens for the guest's memory
	Name              string // the guest's
	// Describe takes the source's description of the guest, and returns the one for this host's libvirt. An error refuses
	// the migration.
	Describe func(xml string) (string, error)
	// Admit is called before each connection is admitted; an error refuses it.
	Admit func() error
	// Changed is called after a connection was opened or closed.
	Changed func()
}

// Tunnels are the tunnels of one host.
type Tunnels struct {
	config  Config
	unknown chan struct{} // has an element for each connection whose other end has not shown a certificate

	mu       sync.Mutex
	expected map[string]Expected          // by migration
	open     map[string]map[net.Conn]bool // incoming connections, by migration
	shut     map[string]time.Time         // since when a host was reached only inside WireGuard, by its address

	certificates sync.Mutex
	least        map[string]uint32        // see Revoke
	shown        map[*watched]ca.Identity // what the other ends of connections have shown

	sent, received atomic.Uint64 // bytes of migrations
}

// New makes the tunnels of a host. Serve accepts other hosts' connections. New removes sockets that a killed agent left:
// nobody listens on them any more.
func New(config Config) *Tunnels {
	if config.Log == nil {
		config.Log = slog.Default()
	}
	if err := os.RemoveAll(filepath.Join(config.RunDir, tunnelDir)); err != nil {
		config.Log.Warn("sockets of earlier tunnels are left", "error", err)
	}
	return &Tunnels{config: config, unknown: make(chan struct{}, mostUnknown), expected: map[string]Expected{}, open: map[string]map[net.Conn]bool{}, shown: map[*watched]ca.Identity{}, shut: map[string]time.Time{}}
}

// Expect admits a migration until the returned function is called. Admitted connections continue.
func (t *Tunnels) Expect(e Expected) (stop func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.expected[e.Migration] = e
	return func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		delete(t.expected, e.Migration)
	}
}

// Drop ends all connections of an incoming migration.
func (t *Tunnels) Drop(migration string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for conn := range t.open[migration] {
		conn.Close()
	}
}

// Moved returns how many bytes migrations have received from other hosts, and sent to them, since New.
func (t *Tunnels) Moved() (received, sent uint64) { return t.received.Load(), t.sent.Load() }

// Active reports whether an incoming migration has an open connection.
func (t *Tunnels) Active(migration string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.open[migration]) > 0
}

// mostUnknown is how many connections whose other end has not shown a certificate are open at a time. More are closed at once, so that
// strangers do not take all descriptors of the agent.
const mostUnknown = 128

// acceptPause is the pause after a failed accept. The cause, such as a lack of descriptors, may be temporary.
const acceptPause = 100 * time.Millisecond

// Serve accepts connections of other hosts until ctx ends or the listener is closed.
func (t *Tunnels) Serve(ctx context.Context, listener net.Listener) error {
	stop := context.AfterFunc(ctx, func() { listener.Close() })
	defer stop()
	for {
		conn, err := listener.Accept()
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if errors.Is(err, net.ErrClosed) {
			return fmt.Errorf("accept tunnels: %w", err)
		}
		if err != nil {
			t.config.Log.Warn("a tunnel could not be accepted", "error", err)
			select {
			case <-time.After(acceptPause):
			case <-ctx.Done():
			}
			continue
		}
		select {
		case t.unknown <- struct{}{}:
			go t.serveConn(ctx, conn)
		default:
			conn.Close()
		}
	}
}

func (t *Tunnels) serveConn(ctx context.Context, incoming net.Conn) {
	giveUpInTime(incoming)
	raw := &watched{incoming, t}
	defer raw.Close()
	raw.SetDeadline(time.Now().Add(dialTimeout))
	conn := tls.Server(raw, t.config.TLS)
	err := conn.HandshakeContext(ctx)
	<-t.unknown
	if err != nil {
		t.config.Log.Warn("a tunnel was refused", "address", raw.RemoteAddr().String(), "error", err)
		return
	}
	id, text, socket, err := openedBy(conn, raw)
	if err == nil && socket == blob {
		t.serveBlob(ctx, conn, id, text)
		return
	}
	if err == nil && socket == volume {
		t.serveVolume(ctx, conn, id, text)
		return
	}
	var e Expected
	if err == nil {
		e, err = t.admit(id, text)
	}
	if err != nil {
		t.config.Log.Warn("a tunnel was refused", "address", raw.RemoteAddr().String(), "error", err)
		answer(conn, err)
		return
	}
	if socket == probe {
		writeFrame(conn, accepted, unpacks)
		return
	}
	// Count the connection before admitting it. Otherwise an admitted connection that does not count as open would look
	// like a broken transfer, and Drop would not find it.
	t.count(e, raw, +1)
	defer t.count(e, raw, -1)
	if e.Admit != nil {
		if err := e.Admit(); err != nil {
			answer(conn, err)
			return
		}
	}
	local, err := t.enter(ctx, e, socket)
	if err != nil {
		t.config.Log.Warn("tunnel", "migration", e.Migration, "error", err)
		answer(conn, err)
		return
	}
	defer local.Close()
	answer(conn, nil)
	raw.SetDeadline(time.Time{})
	stop := context.AfterFunc(ctx, func() { raw.Close(); local.Close() })
	defer stop()
	remote := counted{conn, t}
	if socket == Libvirt {
		t.guard(remote, local, e)
		return
	}
	receive := copyAll
	if socket == packed {
		receive = func(to io.Writer, from io.Reader) {
			if err := copyUnpacked(to, from); err != nil {
				t.config.Log.Warn("tunnel", "migration", e.Migration, "error", err)
				raw.Close()
			}
		}
	}
	splice(remote, local, copyAll, receive)
}

// guard copies between the source's libvirt and this host's, until either ends or the source sends a message that is no part
// of the migration.
func (t *Tunnels) guard(conn counted, local net.Conn, e Expected) {
	guest := gate.Guest{Domain: domain.NamePrefix + e.Name, Socket: e.MigrateSocket, Describe: e.Describe}
	var mu sync.Mutex // for writing whole messages to conn, and for refused
	refused := false
	both(func() {
		err := guest.Pass(local, conn, func(answer []byte) {
			mu.Lock()
			defer mu.Unlock()
			if !refused {
				refused = true
				local.Close()
				conn.SetReadDeadline(time.Now().Add(refusedTime))
			}
			conn.Write(answer)
		})
		closeWrite(local)
		var refusal *gate.RefusedError
		if errors.As(err, &refusal) {
			t.config.Log.Warn("a migration was refused", "migration", e.Migration, "source", e.Source, "guest", e.Name, "error", err)
			conn.CloseWrite()
		}
	}, func() {
		for {
			message, err := gate.ReadMessage(local, mostAnswer)
			mu.Lock()
			switch {
			case err == nil && !refused:
				_, err = conn.Write(message)
			case !refused:
				conn.CloseWrite()
			}
			mu.Unlock()
			if err != nil {
				return
			}
		}
	})
}

// enter connects to the local socket of a migration's connection.
func (t *Tunnels) enter(ctx context.Context, e Expected, socket Socket) (conn net.Conn, err error) {
	paths := t.config.LibvirtSockets
	if socket == QEMU || socket == packed {
		paths = []string{e.MigrateSocket}
	}
	for _, path := range paths {
		if conn, err = new(net.Dialer).DialContext(ctx, "unix", path); err == nil {
			return conn, nil
		}
	}
	return nil, err
}

func (t *Tunnels) count(e Expected, conn net.Conn, by int) {
	t.mu.Lock()
	conns := t.open[e.Migration]
	if by > 0 {
		if conns == nil {
			conns = map[net.Conn]bool{}
			t.open[e.Migration] = conns
		}
		conns[conn] = true
	} else if delete(conns, conn); len(conns) == 0 {
		delete(t.open, e.Migration)
	}
	t.mu.Unlock()
	if e.Changed != nil {
		e.Changed()
	}
}

// openedBy returns the identity of the other host, and reads the connection's header.
func openedBy(conn *tls.Conn, raw *watched) (id ca.Identity, text string, socket Socket, err error) {
	if id, err = raw.identify(conn); err != nil {
		return id, "", 0, err
	}
	if text, socket, err = readHeader(conn); err != nil {
		return id, "", 0, fmt.Errorf("read the header of a tunnel from %s: %w", id, err)
	}
	return id, text, socket, nil
}

// admit returns the expected migration of a connection, or an error if the connection must be refused.
func (t *Tunnels) admit(id ca.Identity, migration string) (Expected, error) {
	t.mu.Lock()
	e, ok := t.expected[migration]
	t.mu.Unlock()
	switch {
	case !ok:
		return Expected{}, fmt.Errorf("migration %q is not expected here", migration)
	case !isHost(id, e.Source, e.SourceUID):
		return Expected{}, fmt.Errorf("migration %s is expected from host %s, not from %s", migration, e.Source, id)
	}
	return e, nil
}
