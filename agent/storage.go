package agent

// storage.go - guests' way to file servers outside: for each storage that a guest of this host mounts, a port at the guests' gateway
// whose connections this agent carries on to the server. docs/design/storage.md

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	v1 "watari/api/watariv1"
	"watari/internal/durable"
)

const (
	// storageFile keeps the orders about storage, so that guests reach theirs while the manager is away, whatever becomes of the agent.
	storageFile = "storage-orders"
	// storageRetry is how long after a failure it is tried again to open guests' ways.
	storageRetry = 2 * time.Second
	// storageDial is how long a server may take to accept a connection.
	storageDial = 10 * time.Second
)

// Servers of files trust clients on a port that only root can use; these are the ones that kernels' own clients take.
const (
	firstReserved = 665
	lastReserved  = 1023
)

// storageKeeper follows the manager's orders about storage.
type storageKeeper struct {
	agent *Agent
	path  string
	log   *slog.Logger
	wake  chan struct{}

	mu     sync.Mutex
	orders *v1.HostWanted // its part about storage
	failed error          // of the last attempt to open the ways
	doors  map[doorKey]*door
}

// doorKey names a door: it is closed and another one opened when any of this changes.
type doorKey struct{ listen, server string }

// door is a port at guests' gateway that leads to a server.
type door struct {
	key      doorKey
	keeper   *storageKeeper
	listener net.Listener
	ctx      context.Context
	cancel   context.CancelFunc

	mu      sync.Mutex
	guests  map[string]*visitor // who may use it, by address
	problem string              // why the server was not reached the last time
}

// visitor is a guest that may use a door, until its context ends.
type visitor struct {
	name   string
	ctx    context.Context
	cancel context.CancelFunc
}

func newStorageKeeper(a *Agent) *storageKeeper {
	k := &storageKeeper{agent: a, path: filepath.Join(a.config.StateDir, storageFile), log: a.log, wake: make(chan struct{}, 1),
		orders: &v1.HostWanted{}, doors: map[doorKey]*door{}}
	text, err := os.ReadFile(k.path)
	if errors.Is(err, os.ErrNotExist) {
		return k
	}
	before := &v1.HostWanted{}
	if err == nil {
		err = proto.Unmarshal(text, before)
	}
	if err != nil {
		k.log.Error("read the orders about storage", "error", err)
		return k
	}
	k.orders = before
	poke(k.wake)
	return k
}

// want takes up the manager's orders. It does not wait.
func (k *storageKeeper) want(w *v1.HostWanted) {
	part := &v1.HostWanted{}
	for _, g := range w.Guests {
		if i := g.Identity; len(i.GetMounts()) > 0 && g.Role != v1.GuestRole_GUEST_ROLE_ABSENT {
			part.Guests = append(part.Guests, &v1.GuestWanted{Uid: g.Uid, Name: g.Name,
				Identity: &v1.Identity{Address: i.Address, Gateway: i.Gateway, Mounts: i.Mounts}})
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if proto.Equal(part, k.orders) {
		return
	}
	text, err := proto.Marshal(part)
	if err == nil {
		err = durable.WriteFile(k.path, text, 0o600)
	}
	if err != nil {
		k.log.Error("keep the orders about storage", "error", err)
	}
	k.orders = part
	poke(k.wake)
}

// run does what the orders ask for, until ctx ends.
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
	wanted := map[doorKey]map[string]string{} // guests' names by address
	for _, g := range k.orders.Guests {
		for _, m := range g.Identity.Mounts {
			key := doorKey{net.JoinHostPort(g.Identity.Gateway, strconv.Itoa(int(m.GatewayPort))), net.JoinHostPort(m.Server, strconv.Itoa(int(m.Port)))}
			if wanted[key] == nil {
				wanted[key] = map[string]string{}
			}
			wanted[key][g.Identity.Address] = g.Name
			if port := uint16(m.GatewayPort); !slices.Contains(ports[g.Uid], port) {
				ports[g.Uid] = append(ports[g.Uid], port)
			}
		}
	}
	for key, d := range k.doors { // first, because another door may want its port
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

// newDoor listens at the gateway. It is an address of guests' taps, so it may not be there yet.
func (k *storageKeeper) newDoor(key doorKey) (*door, error) {
	config := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
		var err error
		return errors.Join(raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_FREEBIND, 1) }), err)
	}}
	config.SetMultipathTCP(false) // splicing needs plain TCP
	listener, err := config.Listen(k.agent.ctx, "tcp4", key.listen)
	if err != nil {
		return nil, fmt.Errorf("open guests' way to %s: %w", key.server, err)
	}
	ctx, cancel := context.WithCancel(k.agent.ctx)
	d := &door{key: key, keeper: k, listener: listener, ctx: ctx, cancel: cancel, guests: map[string]*visitor{}}
	go d.serve()
	return d, nil
}

// admit makes guests those that may use the door, and ends the connections of others.
func (d *door) admit(guests map[string]string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for address, v := range d.guests {
		if name, may := guests[address]; !may || name != v.name {
			v.cancel()
			delete(d.guests, address)
		}
	}
	for address, name := range guests {
		if d.guests[address] == nil {
			ctx, cancel := context.WithCancel(d.ctx)
			d.guests[address] = &visitor{name, ctx, cancel}
		}
	}
}

func (d *door) close() {
	d.cancel()
	d.listener.Close()
}

func (d *door) serve() {
	for {
		conn, err := d.listener.Accept()
		switch {
		case d.ctx.Err() != nil:
			return
		case err != nil: // such as too many open files
			d.keeper.log.Error("guests' way to storage", "server", d.key.server, "error", err)
			time.Sleep(time.Second)
		default:
			go d.carry(conn)
		}
	}
}

// carry carries a guest's connection on to the server. The guest connects again when it ends.
func (d *door) carry(conn net.Conn) {
	defer conn.Close()
	from, _, _ := net.SplitHostPort(conn.RemoteAddr().String())
	d.mu.Lock()
	v := d.guests[from]
	d.mu.Unlock()
	if v == nil {
		d.keeper.log.Warn("a guest may not use storage", "from", from, "server", d.key.server)
		return
	}
	ctx, cancel := context.WithTimeout(v.ctx, storageDial)
	server, err := dialReserved(ctx, d.key.server)
	cancel()
	d.note(err)
	if err != nil {
		return
	}
	defer server.Close()
	defer context.AfterFunc(v.ctx, func() { conn.Close(); server.Close() })()
	_ = carryBoth(conn, server)
}

// note notes whether the server was reached, for the host's report.
func (d *door) note(err error) {
	if d.ctx.Err() != nil {
		return
	}
	problem := ""
	if err != nil {
		problem = fmt.Sprintf("storage %s is not reached: %v", d.key.server, err)
	}
	d.mu.Lock()
	changed := d.problem != problem
	d.problem = problem
	d.mu.Unlock()
	if changed {
		d.keeper.agent.publish()
	}
}

// problems returns what keeps guests from their storage, a sentence each.
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

// dialReserved connects from a port that only root can use, if one is free.
func dialReserved(ctx context.Context, address string) (net.Conn, error) {
	const count = lastReserved - firstReserved + 1
	first := rand.IntN(count)
	var dialer net.Dialer
	dialer.SetMultipathTCP(false)
	for i := range count {
		dialer.LocalAddr = &net.TCPAddr{Port: firstReserved + (first+i)%count}
		conn, err := dialer.DialContext(ctx, "tcp", address)
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
