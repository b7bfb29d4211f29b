package agent

import (
	"context"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"watari/agent/machine"
	v1 "watari/api/watariv1"
)

// countingNetwork counts the rounds, and does something in the middle of each.
type countingNetwork struct {
	Network
	rounds atomic.Int32
	during func()
}

func (n *countingNetwork) Apply(context.Context, *v1.NetworkWanted, []machine.Tap) error {
	n.rounds.Add(1)
	n.during()
	return nil
}

// newTestKeeper keeps a network with one local guest, g, for as long as the test lasts.
func newTestKeeper(t *testing.T, network Network) (*networkKeeper, context.Context) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	t.Cleanup(cancel)
	k := newNetworkKeeper(network, func() []machine.Tap { return []machine.Tap{{UID: "g"}} }, func() {}, slog.New(slog.DiscardHandler))
	k.want(&v1.NetworkWanted{Generation: 1})
	return k, ctx
}

// A guest that ends and is started again at once gets a new tap, to which nothing is routed yet.
func TestTapThatWasTakenAwayIsRoutedAnew(t *testing.T) {
	network := &countingNetwork{during: func() {}}
	k, ctx := newTestKeeper(t, network)
	go k.run(ctx)
	if err := k.ensure(ctx, "g"); err != nil {
		t.Fatal(err)
	}
	before := network.rounds.Load()
	k.unplugged("g")
	if err := k.ensure(ctx, "g"); err != nil {
		t.Fatal(err)
	}
	if network.rounds.Load() == before {
		t.Error("the new tap was taken to be routed")
	}
}

func TestRoundDuringWhichATapGoesDoesNotCount(t *testing.T) {
	network := &countingNetwork{}
	k, ctx := newTestKeeper(t, network)
	network.during = func() {
		if network.rounds.Load() == 1 {
			k.unplugged("g")
		}
	}
	go k.run(ctx)
	if err := k.ensure(ctx, "g"); err != nil {
		t.Fatal(err)
	}
	if n := network.rounds.Load(); n < 2 {
		t.Errorf("routed after %d rounds", n)
	}
}
