package agent

// storage.go - connects guests to file servers outside. For each storage that a guest of this host mounts, the agent opens a
// port at the guests' gateway and forwards its connections to the server. See docs/design/storage.md.

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/singleflight"
	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"

	"watari/agent/nfs4"
	v1 "watari/api/watariv1"
	"watari/internal/durable"
)

const (
	// storageFile keeps the orders about storage. So guests reach their storage after a restart of the agent, even while the
	// manager is away.
	storageFile = "storage-orders"
	// storageRetry is the pause after a failure to open doors.
	storageRetry = 2 * time.Second
	// storageDial is how long a server may take to accept a connection.
	storageDial = 10 * time.Second
	// visitorConnections is how many connections a guest may have to a server at a time. A guest's kernel uses one by
	// default.
	visitorConnections = 16
)

// File servers trust clients on a port that only root can use. These are the ports that kernels' own clients use.
const (
	firstReserved = 665
	lastReserved  = 1023
)

// storageKeeper carries out the manager's orders about storage.
type storageKeeper struct {
	agent *Agent
	path  string
	log   *slog.Logger
	wake  chan struct{}

	forgetting singleflight.Group // keyed by guest, restore and server

	mu     sync.Mutex
	kept   storageState
	failed error // the last attempt to open the doors
	doors  map[doorKey]*door
}

// storageState is the state on disk.
type storageState struct {
	Guests []storageGuest `json:"guests"`
	// Forgotten has the servers that have forgotten a guest after a restore. The key is the guest's uid and the restore's id
	// with a blank between them; the values are servers' addresses.
	Forgotten map[string][]string `json:"forgotten,omitempty"`
}

// storageGuest is a guest of this host that mounts storage.
type storageGuest struct {
	UID     string    `json:"uid"`
	Name    string    `json:"name"`
	Epoch   uint64    `json:"epoch"`
	Address string    `json:"address"`
	Doors   []doorKey `json:"doors"`
}

// doorKey identifies a door. If a part of it changes, the door is closed and another one opened.
type doorKey struct {
	Listen string `json:"listen"`
	Server string `json:"server"`
}

// door is a port at guests' gateway that leads to a server.
type door struct {
	key      doorKey
	keeper   *storageKeeper
	listener *net.TCPListener
	ctx      context.Context
	cancel   context.CancelFunc

	mu      sync.Mutex
	guests  map[string]*visitor // guests that may use the door, by address
	problem string              // why the last connection to the server failed
}

// visitor is a guest that may use a door, until its context ends.
type visitor struct {
	guest  storageGuest
	ctx    context.Context
	cancel context.CancelFunc
	open   chan struct{} // holds a token for each open connection
	begun  *rate.Limiter // of new connections: each keeps a reserved port of the host for a minute after its end
}

func newStorageKeeper(a *Agent) *storageKeeper {
	k := &storageKeeper{agent: a, path: filepath.Join(a.config.StateDir, storageFile), log: a.log, wake: make(chan struct{}, 1), doors: map[doorKey]*door{}}
	text, err := os.ReadFile(k.path)
	if errors.Is(err, os.ErrNotExist) {
		return k
	}
	if err == nil {
		err = json.Unmarshal(text, &k.kept)
	}
	if err != nil {
		k.log.Error("read the orders about storage", "error", err)
		k.kept = storageState{}
	}
	poke(k.wake)
	return k
}

// want takes the manager's orders. It does not wait.
func (k *storageKeeper) want(w *v1.HostWanted) {
	next := storageState{Forgotten: map[string][]string{}}
	for _, g := range w.Guests {
		i := g.Identity
		if len(i.GetMounts()) == 0 || g.Role == v1.GuestRole_GUEST_ROLE_ABSENT {
			continue
		}
		guest := storageGuest{UID: g.Uid, Name: g.Name, Epoch: g.Epoch, Address: i.Address}
		for _, m := range i.Mounts {
			key := doorKey{net.JoinHostPort(i.Gateway, strconv.Itoa(int(m.GatewayPort))), net.JoinHostPort(m.Server, strconv.Itoa(int(m.Port)))}
			if !slices.Contains(guest.Doors, key) {
				guest.Doors = append(guest.Doors, key)
			}
		}
		next.Guests = append(next.Guests, guest)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if reflect.DeepEqual(next.Guests, k.kept.Guests) {
		return
	}
	for restore, servers := range k.kept.Forgotten {
		uid, _, _ := strings.Cut(restore, " ")
		if slices.ContainsFunc(next.Guests, func(g storageGuest) bool { return g.UID == uid }) {
			next.Forgotten[restore] = servers
		}
	}
	k.kept = next
	if err := k.keep(); err != nil {
		k.log.Error("keep the orders about storage", "error", err)
	}
	poke(k.wake)
}

// keep writes the state to disk; mu is held.
func (k *storageKeeper) keep() error {
	text, err := json.Marshal(k.kept)
	if err != nil {
		return err
	}
	return durable.WriteFile(k.path, text, 0o600)
}

// run carries out the orders until ctx ends.
func (k *storageKeeper) run(ctx context.Context) {
	var again <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-k.wake:
		case <-again:
		}
		again = nil
		if k.open(ctx) != nil {
			again = time.After(storageRetry)
		}
	}
}

// open opens the doors and the filter as the orders say.
func (k *storageKeeper) open(ctx context.Context) error {
	k.mu.Lock()
	ports := map[string][]uint16{}
	wanted := map[doorKey]map[string]storageGuest{} // by address
	for _, g := range k.kept.Guests {
		for _, key := range g.Doors {
			if wanted[key] == nil {
				wanted[key] = map[string]storageGuest{}
			}
			wanted[key][g.Address] = g
			if address, err := netip.ParseAddrPort(key.Listen); err == nil {
				ports[g.UID] = append(ports[g.UID], address.Port())
			}
		}
	}
	for key, d := range k.doors { // close first: another door may need the port
		if wanted[key] == nil {
			d.close()
			delete(k.doors, key)
		}
	}
	var errs []error
	for key, guests := range wanted {
		d := k.doors[key]
		if d == nil {
			var err error
			if d, err = k.newDoor(key); err != nil {
				errs = append(errs, err)
				continue
			}
			k.doors[key] = d
		}
		d.admit(guests)
	}
	k.mu.Unlock()
	errs = append(errs, k.agent.network.OpenStorage(ctx, ports))
	err := errors.Join(errs...)
	k.mu.Lock()
	changed := (err == nil) != (k.failed == nil)
	k.failed = err
	k.mu.Unlock()
	if changed {
		k.agent.publish()
	}
	return err
}

// newDoor listens at the gateway. The gateway is an address of guests' taps, so it may not exist yet.
func (k *storageKeeper) newDoor(key doorKey) (*door, error) {
	config := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
		var err error
		return errors.Join(raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_FREEBIND, 1) }), err)
	}}
	config.SetMultipathTCP(false) // splicing needs plain TCP
	listener, err := config.Listen(k.agent.ctx, "tcp4", key.Listen)
	if err != nil {
		return nil, fmt.Errorf("open guests' way to %s: %w", key.Server, err)
	}
	ctx, cancel := context.WithCancel(k.agent.ctx)
	d := &door{key: key, keeper: k, listener: listener.(*net.TCPListener), ctx: ctx, cancel: cancel, guests: map[string]*visitor{}}
	go d.serve()
	return d, nil
}

// admit sets the guests that may use the door, by address, and closes the connections of other guests.
func (d *door) admit(guests map[string]storageGuest) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for address, v := range d.guests {
		if g, may := guests[address]; !may || g.UID != v.guest.UID || g.Epoch != v.guest.Epoch {
			v.cancel()
			delete(d.guests, address)
		}
	}
	for address, g := range guests {
		if d.guests[address] == nil {
			ctx, cancel := context.WithCancel(d.ctx)
			d.guests[address] = &visitor{guest: g, ctx: ctx, cancel: cancel, open: make(chan struct{}, visitorConnections),
				begun: rate.NewLimiter(rate.Every(2*time.Second), visitorConnections)}
		}
	}
}

func (d *door) close() {
	d.cancel()
	d.listener.Close()
}

func (d *door) serve() {
	for {
		conn, err := d.listener.AcceptTCP()
		switch {
		case d.ctx.Err() != nil:
			return
		case err != nil: // for example too many open files
			d.keeper.log.Error("guests' way to storage", "server", d.key.Server, "error", err)
			time.Sleep(time.Second)
		default:
			go d.carry(conn)
		}
	}
}

// carry forwards a guest's connection to the server. The guest connects again when the connection ends.
func (d *door) carry(conn *net.TCPConn) {
	defer conn.Close()
	// Close must reset the connection and leave no state of it. A guest that goes back to a checkpoint here continues the
	// connection of that time. With state left, the kernel would answer with acknowledgements, not with the reset that makes
	// the guest connect again.
	_ = conn.SetLinger(0)
	from, _, _ := net.SplitHostPort(conn.RemoteAddr().String())
	d.mu.Lock()
	v := d.guests[from]
	d.mu.Unlock()
	if v == nil {
		d.keeper.log.Warn("a guest may not use storage", "from", from, "server", d.key.Server)
		return
	}
	select {
	case v.open <- struct{}{}:
		defer func() { <-v.open }()
	default:
		return
	}
	if !v.begun.Allow() {
		return // the guest's kernel tries again
	}
	server, err := d.reach(v)
	d.note(err)
	if err != nil {
		return
	}
	defer server.Close()
	defer context.AfterFunc(v.ctx, func() { conn.Close(); server.Close() })()
	_ = carryBoth(conn, server)
}

// reach connects to the server for a guest. If the guest was restored from a checkpoint here, the server must first forget
// it.
func (d *door) reach(v *visitor) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(v.ctx, storageDial)
	defer cancel()
	if err := d.keeper.forget(ctx, v.guest, d.key.Server); err != nil {
		return nil, err
	}
	conn, err := dialReserved(ctx, d.key.Server)
	if err != nil {
		return nil, fmt.Errorf("storage %s is not reached: %w", d.key.Server, err)
	}
	return conn, nil
}

// mayLeave fails if a guest must not move away because a server has not forgotten it yet: the next host would not know that.
func (k *storageKeeper) mayLeave(ctx context.Context, uid string) error {
	k.mu.Lock()
	var guest storageGuest
	for _, g := range k.kept.Guests {
		if g.UID == uid {
			guest = g
		}
	}
	k.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, storageDial)
	defer cancel()
	for _, door := range guest.Doors {
		if err := k.forget(ctx, guest, door.Server); err != nil {
			return err
		}
	}
	return nil
}

// forget makes a server forget a guest that was restored from a checkpoint here, once for each restore.
func (k *storageKeeper) forget(ctx context.Context, g storageGuest, server string) error {
	restore := k.agent.restoreOf(g.UID)
	if restore == "" {
		return nil
	}
	id := g.UID + " " + restore
	_, err, _ := k.forgetting.Do(id+" "+server, func() (any, error) {
		k.mu.Lock()
		done := slices.Contains(k.kept.Forgotten[id], server)
		k.mu.Unlock()
		if done {
			return nil, nil
		}
		for _, minor := range []uint32{1, 2} { // the guest agent mounts with one of these
			if err := forgetBy(ctx, server, minor, g); err != nil && !errors.Is(err, nfs4.ErrVersion) {
				return nil, fmt.Errorf("storage %s has to forget guest %s, which went back to a checkpoint: %w", server, g.Name, err)
			}
		}
		k.mu.Lock()
		defer k.mu.Unlock()
		before := k.kept.Forgotten
		k.kept.Forgotten = maps.Clone(before)
		if k.kept.Forgotten == nil {
			k.kept.Forgotten = map[string][]string{}
		}
		k.kept.Forgotten[id] = append(slices.Clone(before[id]), server)
		err := k.keep()
		if err != nil { // the next agent would not know it, and have the server forget a guest that uses it
			k.kept.Forgotten = before
		}
		return nil, err
	})
	return err
}

// forgetBy makes a server forget a guest, by a minor version of NFS 4.
func forgetBy(ctx context.Context, server string, minor uint32, g storageGuest) error {
	conn, err := dialReserved(ctx, server)
	if err != nil {
		return err
	}
	defer conn.Close()
	return nfs4.Forget(ctx, conn, minor, nfs4.Owner(minor, g.UID, g.Name))
}

// note records whether the server was reached, for the host's report.
func (d *door) note(err error) {
	if d.ctx.Err() != nil {
		return
	}
	problem := ""
	if err != nil {
		problem = err.Error()
	}
	d.mu.Lock()
	changed := d.problem != problem
	d.problem = problem
	d.mu.Unlock()
	if changed {
		d.keeper.agent.publish()
	}
}

// problems returns what keeps guests from their storage, one sentence each.
func (k *storageKeeper) problems() (list []string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.failed != nil {
		list = append(list, k.failed.Error())
	}
	for _, d := range k.doors {
		d.mu.Lock()
		if d.problem != "" {
			list = append(list, d.problem)
		}
		d.mu.Unlock()
	}
	slices.Sort(list)
	return list
}

// dialReserved connects from a port that only root can use, or else from any port.
func dialReserved(ctx context.Context, address string) (net.Conn, error) {
	const count = lastReserved - firstReserved + 1
	first := rand.IntN(count)
	var dialer net.Dialer
	dialer.SetMultipathTCP(false)
	for i := range count {
		dialer.LocalAddr = &net.TCPAddr{Port: firstReserved + (first+i)%count}
		conn, err := dialer.DialContext(ctx, "tcp", address)
		if failed := new(net.OpError); errors.As(err, &failed) {
			err = failed.Err // without our port, which would make each failure a different text
		}
		switch {
		case errors.Is(err, unix.EADDRINUSE), errors.Is(err, unix.EADDRNOTAVAIL):
			continue
		case errors.Is(err, unix.EACCES):
		default:
			return conn, err
		}
		break
	}
	dialer.LocalAddr = nil
	return dialer.DialContext(ctx, "tcp", address)
}
