package tunnel

// outgoing.go - the source's end of the tunnel.

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"watari/ca"
)

// Order describes a migration to be sent.
type Order struct {
	Migration     string
	MigrateSocket string // path to which this host's QEMU sends the guest's memory
	Target        string // host's name in its certificate
	TargetUID     string // host's uid in its certificate; "": any host of that name
	Address       string // host:port
}

// tunnelDir is the folder of the outgoing tunnels' sockets, below an agent's run directory.
const tunnelDir = "tunnel"

// Outgoing is the source's end of a tunnel to a target.
type Outgoing struct {
	LibvirtSocket, MigrateSocket string // paths on this host

	cancel    context.CancelFunc
	listeners []net.Listener
	dir       string
	group     sync.WaitGroup

	sent atomic.Uint64

	mu  sync.Mutex
	err error
}

// Sent returns how many bytes were sent to the target, after compression; 0: they are not counted, because the target's
// agent is of an earlier version.
func (o *Outgoing) Sent() uint64 { return o.sent.Load() }

// Open makes the sockets whose connections the tunnel forwards to a target. It fails if the target does not expect the
// migration. The connections last until Close; the end of ctx does not close them.
func (t *Tunnels) Open(ctx context.Context, o Order) (*Outgoing, error) {
	probed, said, err := t.ask(ctx, o.peer(), probe, o.Migration)
	if err != nil {
		return nil, err
	}
	probed.NetConn().Close()
	memory := QEMU
	if said == unpacks {
		memory = packed
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	out := &Outgoing{cancel: cancel, dir: filepath.Join(t.config.RunDir, tunnelDir, o.Migration)}
	out.LibvirtSocket = filepath.Join(out.dir, "libvirt.sock")
	out.MigrateSocket = o.MigrateSocket
	for path, socket := range map[string]Socket{out.LibvirtSocket: Libvirt, out.MigrateSocket: memory} {
		listener, err := listenUnix(path)
		if err != nil {
			out.Close()
			return nil, fmt.Errorf("listen for the migration: %w", err)
		}
		out.listeners = append(out.listeners, listener)
		out.group.Add(1)
		go func() {
			defer out.group.Done()
			t.carry(ctx, out, listener, o, socket)
		}()
	}
	return out, nil
}

func listenUnix(path string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	listener, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	// Only the host's libvirt daemon, which is root, may connect. The first socket would give others root's rights on the
	// target, the second one the guest's memory.
	if err := restrict(path); err != nil {
		listener.Close()
		return nil, err
	}
	return listener, nil
}

// restrict lets only the owner connect to a socket. It follows no link: QEMU's user owns the folder, and may have replaced
// the socket.
func restrict(path string) error {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		return &os.PathError{Op: "fstat", Path: path, Err: err}
	}
	if stat.Mode&unix.S_IFMT != unix.S_IFSOCK {
		return fmt.Errorf("%s is a socket no more", path)
	}
	return os.Chmod(fmt.Sprintf("/proc/self/fd/%d", fd), 0o600)
}

func (t *Tunnels) carry(ctx context.Context, out *Outgoing, listener net.Listener, o Order, socket Socket) {
	for {
		local, err := listener.Accept()
		if err != nil {
			return
		}
		out.group.Add(1)
		go func() {
			defer out.group.Done()
			defer local.Close()
			remote, err := t.dial(ctx, o, socket)
			if err != nil {
				t.config.Log.Warn("tunnel", "migration", o.Migration, "target", o.Target, "error", err)
				out.mu.Lock()
				out.err = err
				out.mu.Unlock()
				return
			}
			defer remote.Close()
			stop := context.AfterFunc(ctx, func() { remote.NetConn().Close(); local.Close() })
			defer stop()
			send := copyAll
			if socket == packed {
				send = func(to io.Writer, from io.Reader) { copyPacked(to, from, &out.sent) }
			}
			splice(counted{remote, t}, local, send, copyAll)
		}()
	}
}

// Err returns why a connection to the target failed; nil: none failed.
func (o *Outgoing) Err() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.err
}

// Close ends all connections and removes the sockets.
func (o *Outgoing) Close() {
	o.cancel()
	for _, listener := range o.listeners {
		listener.Close()
	}
	o.group.Wait()
	os.Remove(o.MigrateSocket)
	os.RemoveAll(o.dir)
}

// dial opens a connection to one of the target's sockets.
func (t *Tunnels) dial(ctx context.Context, o Order, socket Socket) (*tls.Conn, error) {
	return t.connect(ctx, o.peer(), socket, o.Migration)
}

// peer is the target.
func (o Order) peer() Peer { return Peer{o.Target, o.TargetUID, o.Address} }

// Peer is another host.
type Peer struct {
	Name    string // in its certificate
	UID     string // in its certificate; "": any host of that name
	Address string // host:port
}

// connect opens a connection to another host and sends the header: the socket and a text.
func (t *Tunnels) connect(ctx context.Context, to Peer, socket Socket, text string) (*tls.Conn, error) {
	conn, _, err := t.ask(ctx, to, socket, text)
	return conn, err
}

// ask does what connect does, and also returns the other host's answer.
func (t *Tunnels) ask(ctx context.Context, to Peer, socket Socket, text string) (conn *tls.Conn, said string, err error) {
	if conn, err = t.reach(ctx, to); err != nil {
		return nil, "", err
	}
	if err = writeHeader(conn, text, socket); err == nil {
		said, err = readAnswer(conn)
	}
	if err != nil {
		conn.NetConn().Close()
		return nil, "", fmt.Errorf("open a tunnel to host %s at %s: %w", to.Name, conn.RemoteAddr(), err)
	}
	conn.NetConn().SetDeadline(time.Time{})
	return conn, said, nil
}

// reach opens a connection to another host: directly, or else inside WireGuard. Connections inside WireGuard also reach
// hosts that only dial out, and pass relays.
func (t *Tunnels) reach(ctx context.Context, to Peer) (*tls.Conn, error) {
	inside, only := t.insideOf(to)
	if inside == "" {
		return t.dialHost(ctx, to, to.Address, dialTimeout)
	}
	var direct error
	if !only && !t.isShut(to.Address) {
		conn, err := t.dialHost(ctx, to, to.Address, directTimeout)
		if err == nil || ctx.Err() != nil {
			return conn, err
		}
		direct = err
	}
	conn, err := t.dialInside(ctx, to, inside)
	if err != nil {
		return nil, errors.Join(direct, err)
	}
	if direct != nil {
		t.config.Log.Info("a host is reached only inside WireGuard", "host", to.Name, "error", direct)
		t.mu.Lock()
		t.shut[to.Address] = time.Now()
		t.mu.Unlock()
	}
	return conn, nil
}

// dialInside opens a connection inside WireGuard. It tries again after a timeout, because WireGuard may not reach the host
// yet. It does not after a refusal, which means that the host's agent does not run.
func (t *Tunnels) dialInside(ctx context.Context, to Peer, address string) (conn *tls.Conn, err error) {
	for until := time.Now().Add(insideTimeout); time.Now().Before(until); {
		conn, err = t.dialHost(ctx, to, address, insideAttempt)
		var timeout net.Error
		if err == nil || ctx.Err() != nil || !errors.As(err, &timeout) || !timeout.Timeout() {
			return conn, err
		}
	}
	return nil, err
}

// insideOf returns the address of a host's tunnel inside WireGuard, host:port, or "" if there is none; only: the host cannot
// be dialled directly.
func (t *Tunnels) insideOf(to Peer) (address string, only bool) {
	if t.config.Inside == nil {
		return "", false
	}
	inside, only := t.config.Inside(to.Name)
	_, port, err := net.SplitHostPort(to.Address)
	if !inside.IsValid() || err != nil {
		return "", false
	}
	return net.JoinHostPort(inside.String(), port), only
}

// isShut reports whether dialling an address failed within shutFor.
func (t *Tunnels) isShut(address string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	since, is := t.shut[address]
	if is && time.Since(since) > shutFor {
		delete(t.shut, address)
		return false
	}
	return is
}

// dialHost opens a connection to an address, and checks that the host answers there. The connection's deadline is set.
func (t *Tunnels) dialHost(ctx context.Context, to Peer, address string, timeout time.Duration) (*tls.Conn, error) {
	dialCtx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	dialled, err := new(net.Dialer).DialContext(dialCtx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("reach host %s at %s: %w", to.Name, address, err)
	}
	giveUpInTime(dialled)
	raw := &watched{dialled, t}
	raw.SetDeadline(time.Now().Add(dialTimeout))
	conn := tls.Client(raw, t.config.TLS)
	if err = conn.HandshakeContext(dialCtx); err == nil {
		err = answers(conn, raw, to)
	}
	if err != nil {
		raw.Close()
		return nil, fmt.Errorf("open a tunnel to host %s at %s: %w", to.Name, address, err)
	}
	return conn, nil
}

// answers checks that the other end of a connection is the host to.
func answers(conn *tls.Conn, raw *watched, to Peer) error {
	id, err := raw.identify(conn)
	if err != nil {
		return err
	}
	if !isHost(id, to.Name, to.UID) {
		return fmt.Errorf("%s answers there", id)
	}
	return nil
}

// isHost reports whether an identity is the host's. It compares uids, too: a removed host keeps its certificate, and
// another host may have its name now.
func isHost(id ca.Identity, name, uid string) bool {
	return id.Kind == ca.KindHost && id.Name == name && (uid == "" || id.UID == uid)
}
