// paths.go observes the paths to other hosts, and runs the host's relay. docs/design/relay.md describes how the manager uses
// the results.
package overlay

import (
	"context"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	v1 "watari/api/watariv1"
	"watari/overlay/relay"
)

const (
	// watchInterval is the time between two checks of the watched peers.
	watchInterval = 2 * time.Second
	// firstHandshake is the time in which a new path must have had a handshake.
	firstHandshake = 10 * time.Second
	// quiet is the time without a packet after which a watched peer is silent: three keepalives were lost.
	quiet = 16 * time.Second
)

// heard is what is known about packets from a watched peer on its present path.
type heard struct {
	relay    string
	endpoint netip.AddrPort
	since    time.Time // since when there is this path, or the agent's start
	received int64
	last     time.Time // zero: nothing was heard since then
}

// hear updates heard from a peer's state in WireGuard.
func (h heard) hear(w *peer, p wgtypes.Peer, now time.Time) heard {
	if h.since.IsZero() || h.relay != w.relay || h.endpoint != w.endpoint {
		h = heard{relay: w.relay, endpoint: w.endpoint, since: now, received: p.ReceiveBytes}
		if now.Sub(p.LastHandshakeTime) < silence { // an earlier agent had this path; it is not known since when it is quiet
			h.last = now
		}
	}
	if p.ReceiveBytes != h.received {
		h.received, h.last = p.ReceiveBytes, now
	}
	return h
}

// state returns the state of the path to a peer.
func (h heard) state(p wgtypes.Peer, now time.Time) v1.PathState {
	switch {
	case now.Sub(p.LastHandshakeTime) < silence && now.Sub(h.last) < quiet:
		return v1.PathState_PATH_STATE_ANSWERS
	case now.Sub(h.since) > firstHandshake:
		return v1.PathState_PATH_STATE_SILENT
	}
	return v1.PathState_PATH_STATE_UNSPECIFIED
}

// watched has what is known of the peers. It is not under o.mu, which Apply may hold for long.
type watched struct {
	paths []*v1.PathObserved // of WireGuard's peers, by host
	hosts map[string]inside  // by name
}

// inside tells how to reach a host inside WireGuard.
type inside struct {
	address netip.Addr
	only    bool // the host cannot be reached otherwise
}

// watchPeers checks the peers. stale: a peer's endpoint is to be set again, see moveEndpoint. The caller holds o.mu.
func (o *Overlay) watchPeers(now time.Time) (stale bool) {
	next := &watched{hosts: map[string]inside{}}
	seen := map[wgtypes.Key]heard{}
	states := map[wgtypes.Key]wgtypes.Peer{}
	var actual map[wgtypes.Key]actualPeer
	if len(o.peers) > 0 {
		if device, err := o.device(); err == nil {
			actual = actualPeers(device)
			for _, p := range device.Peers {
				states[p.PublicKey] = p
			}
		}
	}
	for key, w := range o.peers {
		next.hosts[w.name] = inside{hostAddress(key), w.dialOnly || w.relay != ""}
		p, known := states[key]
		stale = stale || known && moveEndpoint(w.endpoint, actual[key], o.endpoints[key], now)
		if !w.watched || !known {
			continue
		}
		seen[key] = o.heard[key].hear(w, p, now)
		next.paths = append(next.paths, &v1.PathObserved{Host: w.name, Relay: w.relay, State: seen[key].state(p, now)})
	}
	slices.SortFunc(next.paths, func(a, b *v1.PathObserved) int { return strings.Compare(a.Host, b.Host) })
	o.heard = seen
	before := o.watched.Swap(next)
	same := before != nil && slices.EqualFunc(before.paths, next.paths, func(a, b *v1.PathObserved) bool {
		return a.Host == b.Host && a.Relay == b.Relay && a.State == b.State
	})
	if !same && o.cfg.Changed != nil {
		go o.cfg.Changed()
	}
	return stale
}

// watchPaths checks the peers and probes periodically until ctx ends.
func (o *Overlay) watchPaths(ctx context.Context) {
	if o.relay != nil {
		go o.relay.Run(ctx)
	}
	tick := time.NewTicker(watchInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			o.mu.Lock()
			if o.watchPeers(now) {
				if err := o.applyPeers(ctx); err != nil {
					o.log.Warn("hosts that have been silent are not sought at their own addresses yet", "error", err)
				}
			}
			o.mu.Unlock()
		}
	}
}

// Paths returns what is known of the paths to other hosts. It does not wait for Apply.
func (o *Overlay) Paths() []*v1.PathObserved {
	found := map[string]*v1.PathObserved{}
	var list []*v1.PathObserved
	add := func(p *v1.PathObserved) {
		found[p.Host] = p
		list = append(list, p)
	}
	if w := o.watched.Load(); w != nil {
		for _, p := range w.paths {
			add(&v1.PathObserved{Host: p.Host, State: p.State, Relay: p.Relay})
		}
	}
	if o.relay != nil {
		for host, a := range o.relay.Answers() {
			if found[host] == nil {
				add(&v1.PathObserved{Host: host})
			}
			found[host].Answers, found[host].Steady = a.Answers, a.Steady
		}
	}
	slices.SortFunc(list, func(a, b *v1.PathObserved) int { return strings.Compare(a.Host, b.Host) })
	return list
}

// Inside returns a host's own address inside WireGuard; invalid: the host is no peer. only: the host cannot be reached
// otherwise.
func (o *Overlay) Inside(host string) (address netip.Addr, only bool) {
	if w := o.watched.Load(); w != nil {
		return w.hosts[host].address, w.hosts[host].only
	}
	return netip.Addr{}, false
}

// openRelay makes this host a relay. If that fails, the host works without one.
func (o *Overlay) openRelay() {
	opened, err := relay.Open(relay.Config{Own: relay.Key(o.key.PublicKey()), Port: uint16(o.cfg.RelayPort), Changed: o.cfg.Changed,
		File: o.relayFile(), Log: o.log})
	if err != nil {
		o.log.Warn("this host neither relays between others nor finds relays", "error", err)
		return
	}
	o.relay = opened
}

// relayFile returns the path of the file in which the relay keeps its state for the next agent.
func (o *Overlay) relayFile() string { return filepath.Join(o.cfg.RunDir, "relay.json") }

// RelayPort returns the port of this host's relay; 0: it has none.
func (o *Overlay) RelayPort() int {
	if o.relay == nil {
		return 0
	}
	return o.cfg.RelayPort
}

// setRelay gives the relay its orders.
func (o *Overlay) setRelay(p *plan, wanted *v1.NetworkWanted) {
	if o.relay == nil {
		return
	}
	var pairs []relay.Pair
	for _, r := range wanted.GetRelayed() {
		a, errA := wgtypes.ParseKey(r.GetAPublicKey())
		b, errB := wgtypes.ParseKey(r.GetBPublicKey())
		if errA != nil || errB != nil || r.GetPort() > 65535 {
			p.errs = append(p.errs, fmt.Errorf("relay on port %d: a host's WireGuard key is not known", r.GetPort()))
			continue
		}
		pairs = append(pairs, relay.Pair{Port: uint16(r.GetPort()), A: relay.Key(a), B: relay.Key(b)})
	}
	o.relay.Set(pairs)
	var targets []relay.Target
	for _, t := range wanted.GetProbes() {
		address, errA := netip.ParseAddrPort(t.GetAddress())
		key, errB := wgtypes.ParseKey(t.GetPublicKey())
		if errA != nil || errB != nil {
			p.errs = append(p.errs, fmt.Errorf("probe of host %s: its address or key is not known", t.GetHost()))
			continue
		}
		targets = append(targets, relay.Target{Host: t.GetHost(), Address: address, Key: relay.Key(key)})
	}
	o.relay.Probe(targets)
}
