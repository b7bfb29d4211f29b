package agent

// network.go - keeps the overlay as the orders want it: routes, hosts, clusters, guests' interfaces.

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"watari/agent/machine"
	v1 "watari/api/watariv1"
)

var errNoNetwork = errors.New("the manager has sent no network yet")

// networkKeeper keeps the overlay in the wanted state. It acts when the wish or the set of local guests changes.
type networkKeeper struct {
	network Network
	local   func() []machine.Tap // guests whose addresses this host routes to their taps
	changed func()               // called when the report changes
	log     *slog.Logger

	wake chan struct{}

	mu      sync.Mutex
	wanted  *v1.NetworkWanted
	inForce uint64
	routed  map[string]bool // guests routed to their taps
	going   int             // taps that are being removed
	gone    uint64          // counts removed taps
	failure error
	applied chan struct{} // closed after each attempt
	rounds  uint64
}

func newNetworkKeeper(n Network, local func() []machine.Tap, changed func(), log *slog.Logger) *networkKeeper {
	return &networkKeeper{network: n, local: local, changed: changed, log: log,
		wake: make(chan struct{}, 1), routed: map[string]bool{}, applied: make(chan struct{})}
}

// want stores the manager's wish.
func (k *networkKeeper) want(wanted *v1.NetworkWanted) {
	k.mu.Lock()
	same := proto.Equal(k.wanted, wanted) && k.failure == nil
	if !same {
		if wanted.GetGeneration() <= k.inForce {
			k.inForce = 0 // a manager that was restarted counts from 1 again
		}
		k.wanted = wanted
	}
	k.mu.Unlock()
	if !same {
		poke(k.wake)
	}
}

// run applies the wish until ctx ends. The network stays in place at the end.
func (k *networkKeeper) run(ctx context.Context) {
	retry := time.NewTimer(time.Hour)
	delay := time.Second
	for {
		select {
		case <-ctx.Done():
			return
		case <-k.wake:
		case <-retry.C:
		}
		if k.apply(ctx) {
			retry.Reset(time.Hour)
			delay = time.Second
		} else {
			retry.Reset(delay)
			delay = min(2*delay, 15*time.Second)
		}
	}
}

func (k *networkKeeper) apply(ctx context.Context) bool {
	k.mu.Lock()
	wanted, gone := k.wanted, k.gone
	k.mu.Unlock()
	begun := time.Now()
	local, err := k.local(), errNoNetwork
	if wanted != nil {
		err = k.network.Apply(ctx, wanted, local)
	}
	k.mu.Lock()
	current := gone == k.gone && k.going == 0
	if current { // otherwise a tap was removed meanwhile, with its route; the next round begins at once
		k.failure = err
		k.rounds++
		if err == nil {
			if k.wanted == wanted {
				k.inForce = wanted.Generation
			}
			k.routed = map[string]bool{}
			for _, g := range local {
				k.routed[g.UID] = true
			}
		}
	}
	close(k.applied)
	k.applied = make(chan struct{})
	k.mu.Unlock()
	if wanted == nil {
		return true
	}
	if err != nil && current && ctx.Err() == nil {
		k.log.Error("apply the network", "generation", wanted.Generation, "error", err)
	}
	k.log.Debug("network applied", "generation", wanted.Generation, "local", len(local), "took", time.Since(begun), "error", err)
	k.changed()
	return err == nil
}

// unplug removes a guest's tap, and its route with it.
func (k *networkKeeper) unplug(ctx context.Context, uid string) error {
	k.mu.Lock()
	k.going++
	k.mu.Unlock()
	err := k.network.UnplugGuest(ctx, uid)
	k.mu.Lock()
	k.going--
	k.gone++
	delete(k.routed, uid)
	k.mu.Unlock()
	poke(k.wake)
	return err
}

// ensure waits until this host routes a local guest's address to its tap.
func (k *networkKeeper) ensure(ctx context.Context, uid string) error {
	k.mu.Lock()
	if k.routed[uid] {
		k.mu.Unlock()
		return nil
	}
	// The current round may have begun without the guest. The second round from now includes it.
	from := k.rounds
	k.mu.Unlock()
	poke(k.wake)
	for {
		k.mu.Lock()
		routed, rounds, failure, applied := k.routed[uid], k.rounds, k.failure, k.applied
		k.mu.Unlock()
		if routed {
			return nil
		}
		if rounds >= from+2 {
			if failure == nil {
				failure = errors.New("the guest is not local to this host")
			}
			return failure
		}
		select {
		case <-applied:
			poke(k.wake)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// state returns the network's part of the report.
func (k *networkKeeper) state() (inForce uint64, problem string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.failure != nil && k.wanted != nil {
		problem = "network: " + k.failure.Error()
	}
	return k.inForce, problem
}

// poke leaves a token in a channel of capacity 1.
func poke(wake chan struct{}) {
	select {
	case wake <- struct{}{}:
	default:
	}
}

// routedHere returns a function that reports whether the manager routes an address to this
// host.
func (k *networkKeeper) routedHere(host string) func(address string) bool {
	k.mu.Lock()
	wanted := k.wanted
	k.mu.Unlock()
	to := map[string]string{}
	for _, route := range wanted.GetRoutes() {
		to[route.Address] = route.Host
	}
	return func(address string) bool { return to[address] == host }
}
