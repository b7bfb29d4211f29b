// Package relay is a host's relay. It forwards WireGuard's packets between pairs of hosts that do not reach each other, as
// the manager orders, and probes whether other hosts' relays answer. It cannot read the packets, since it has no keys, and
// forwards nothing else. docs/design/relay.md describes the design and its reasons.
package relay

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/net/ipv4"

	"watari/internal/durable"
)

// Key is a WireGuard public key.
type Key [32]byte

// Pair is two hosts, known by their keys, that send to one port.
type Pair struct {
	Port uint16
	A, B Key
}

// Config configures a host's relay.
type Config struct {
	Own  Key    // this host's
	Port uint16 // where it answers probes
	// File stores the pairs and the addresses of their hosts, so that a restarted agent continues. It must not outlive a
	// boot.
	File    string
	Changed func() // called when the result of Answers has changed
	Log     *slog.Logger
}

// Relay is a host's relay.
type Relay struct {
	config Config
	conn   *net.UDPConn // for probes
	own    tag

	mu       sync.Mutex
	pairs    map[Pair]*forwarder
	failures map[uint16]error // ports that could not be opened
	targets  map[string]*target
	closed   bool
}

// forwarder forwards the packets of one pair.
type forwarder struct {
	conn  *net.UDPConn
	sides [2]side // of A and B
}

// side is one host of a pair.
type side struct {
	check   checker
	address netip.AddrPort // source address of its packets; zero: not known yet
}

// kept is an element of the file.
type kept struct {
	Pair
	Addresses [2]netip.AddrPort
}

// Open opens the port for probes, and continues with the pairs in the file.
func Open(config Config) (*Relay, error) {
	conn, err := net.ListenUDP("udp4", &net.UDPAddr{Port: int(config.Port)})
	if err != nil {
		return nil, fmt.Errorf("open the relay's port: %w", err)
	}
	r := &Relay{config: config, conn: conn, own: tagOf(config.Own), pairs: map[Pair]*forwarder{}, failures: map[uint16]error{}, targets: map[string]*target{}}
	go r.answer()
	var list []kept
	data, err := os.ReadFile(config.File)
	if err == nil {
		err = json.Unmarshal(data, &list)
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		config.Log.Warn("the relay begins without what it knew", "error", err)
	}
	for _, k := range list {
		r.open(k.Pair, k.Addresses)
	}
	return r, nil
}

// Close closes all ports.
func (r *Relay) Close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	r.conn.Close()
	for _, f := range r.pairs {
		f.conn.Close()
	}
}

// Set replaces the pairs between which the relay forwards. Pairs that stay are not disturbed.
func (r *Relay) Set(pairs []Pair) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return
	}
	changed := false
	for pair, f := range r.pairs {
		if !slices.Contains(pairs, pair) {
			f.conn.Close()
			delete(r.pairs, pair)
			changed = true
		}
	}
	clear(r.failures)
	for _, pair := range pairs {
		if r.pairs[pair] == nil {
			r.open(pair, [2]netip.AddrPort{})
			changed = true
		}
	}
	if changed {
		r.keep()
	}
}

// Problems returns a sentence for each port that could not be opened.
func (r *Relay) Problems() (problems []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, port := range slices.Sorted(maps.Keys(r.failures)) {
		problems = append(problems, fmt.Sprintf("cannot relay on UDP port %d: %v", port, r.failures[port]))
	}
	return problems
}

// open begins to forward. The caller holds r.mu, or no other goroutine knows r.
func (r *Relay) open(pair Pair, addresses [2]netip.AddrPort) {
	conn, err := net.ListenUDP("udp4", &net.UDPAddr{Port: int(pair.Port)})
	if err != nil {
		r.failures[pair.Port] = err
		r.config.Log.Error("cannot relay", "port", pair.Port, "error", err)
		return
	}
	conn.SetReadBuffer(4 << 20)
	conn.SetWriteBuffer(4 << 20)
	f := &forwarder{conn: conn, sides: [2]side{{newChecker(pair.A), addresses[0]}, {newChecker(pair.B), addresses[1]}}}
	r.pairs[pair] = f
	go f.run(func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if !r.closed {
			r.keep()
		}
	}, &r.mu)
}

// keep writes the file. The caller holds r.mu.
func (r *Relay) keep() {
	list := []kept{}
	for pair, f := range r.pairs {
		list = append(list, kept{pair, [2]netip.AddrPort{f.sides[0].address, f.sides[1].address}})
	}
	slices.SortFunc(list, func(a, b kept) int { return int(a.Port) - int(b.Port) })
	data, err := json.Marshal(list)
	if err == nil {
		err = durable.WriteFile(r.config.File, data, 0o600)
	}
	if err != nil {
		r.config.Log.Warn("a new agent will have to learn again where relayed hosts are", "error", err)
	}
}

const (
	// batch is the number of messages that one system call reads or writes.
	batch = 8
	// largest is the size of the largest message, bytes: the kernel joins packets of one size into one message (offload.go).
	largest = 64 << 10
)

// run forwards until the socket is closed. lock guards the addresses against keep; learnt is called after an address has
// changed.
func (f *forwarder) run(learnt func(), lock *sync.Mutex) {
	joinPackets(f.conn)
	conn := ipv4.NewPacketConn(f.conn)
	messages := make([]ipv4.Message, batch)
	for i := range messages {
		messages[i].Buffers = [][]byte{make([]byte, largest)}
		messages[i].OOB = make([]byte, controlSize)
	}
	out := make([]ipv4.Message, 0, batch)
	for {
		n, err := conn.ReadBatch(messages, 0)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // for example the ICMP error of an earlier packet
			time.Sleep(time.Millisecond)
			continue
		}
		out = out[:0]
		changed := false
		for _, m := range messages[:n] {
			from, ok := m.Addr.(*net.UDPAddr)
			if !ok {
				continue
			}
			address := from.AddrPort()
			address = netip.AddrPortFrom(address.Addr().Unmap(), address.Port())
			for _, packets := range split(m.Buffers[0][:m.N], joined(m.OOB[:m.NN])) {
				to, learn := f.direct(packets.data, address)
				if learn >= 0 {
					lock.Lock()
					f.sides[learn].address = address
					lock.Unlock()
					changed = true
				}
				if to.IsValid() {
					out = append(out, packets.message(to))
				}
			}
		}
		write(conn, out)
		if changed {
			learnt()
		}
	}
}

// write sends messages. A message that cannot be sent is lost, as on any network.
func write(conn *ipv4.PacketConn, messages []ipv4.Message) {
	for len(messages) > 0 {
		sent, err := conn.WriteBatch(messages, 0)
		sent = max(sent, 0)
		if err != nil && sent < len(messages) {
			if m := messages[sent]; len(m.OOB) > 0 { // the interface may be unable to divide it
				write(conn, divided(m))
			}
			sent++
		}
		messages = messages[sent:]
	}
}

// direct returns the destination of a packet; zero: none. learn is the index of the side whose address becomes that of the
// packet; -1: none. A handshake message has a code that proves knowledge of the receiver's public key, so it comes from the
// other host of the pair. Other packets prove nothing, and pass only between known addresses.
func (f *forwarder) direct(packet []byte, from netip.AddrPort) (to netip.AddrPort, learn int) {
	for i := range f.sides {
		other := 1 - i
		if f.sides[other].check.handshakeFor(packet) {
			if f.sides[i].address == from {
				return f.sides[other].address, -1
			}
			return f.sides[other].address, i
		}
	}
	if isHandshake(packet) {
		return netip.AddrPort{}, -1
	}
	for i := range f.sides {
		if from == f.sides[i].address {
			return f.sides[1-i].address, -1
		}
	}
	return netip.AddrPort{}, -1
}

// Run probes the targets until ctx ends.
func (r *Relay) Run(ctx context.Context) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			r.ask(time.Now())
		}
	}
}

// tag identifies a host in probes.
type tag [16]byte

func tagOf(key Key) (t tag) {
	sum := sha256.Sum256(key[:])
	copy(t[:], sum[:])
	return t
}
