package agent

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"watari/agent/machine"
	v1 "watari/api/watariv1"
)

// countingNetwork counts the rounds, and calls a function in the middle of each.
type countingNetwork struct {
	Network
	rounds atomic.Int32
	during func() error
	going  func() // called in the middle of the removal of a tap
}

func (n *countingNetwork) UnplugGuest(context.Context, string) error {
	if n.going != nil {
		n.going()
	}
	return nil
}

func (n *countingNetwork) Apply(context.Context, *v1.NetworkWanted, []machine.Tap) error {
	n.rounds.Add(1)
	return n.during()
}

// newTestKeeper keeps a network with one local guest, g, until the test ends.
func newTestKeeper(t *testing.T, network Network) (*networkKeeper, context.Context) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	t.Cleanup(cancel)
	k := newNetworkKeeper(network, func() []machine.Tap { return []machine.Tap{{UID: "g"}} }, func() {}, slog.New(slog.DiscardHandler))
	k.want(&v1.NetworkWanted{Generation: 1})
	return k, ctx
}

// Each manager counts the networks from 1.
func TestTheFirstNetworkOfTheNextManagerIsApplied(t *testing.T) {
	network := &countingNetwork{during: func() error { return nil }}
	k, ctx := newTestKeeper(t, network)
	if !k.apply(ctx) {
		t.Fatal("the first network is not applied")
	}
	<-k.wake
	k.want(&v1.NetworkWanted{Generation: 1})
	if now, _ := k.state(); now != 1 || len(k.wake) != 0 {
		t.Errorf("the same network: %d is in force, %d wakes", now, len(k.wake))
	}
	k.want(&v1.NetworkWanted{Generation: 1, Mtu: 1400})
	if now, _ := k.state(); now != 0 || len(k.wake) != 1 {
		t.Errorf("another network: %d is in force, %d wakes", now, len(k.wake))
	}
}

// A guest that ends and starts again at once gets a new tap, to which nothing is routed yet.
func TestTapThatWasTakenAwayIsRoutedAnew(t *testing.T) {
	network := &countingNetwork{during: func() error { return nil }}
	k, ctx := newTestKeeper(t, network)
	go k.run(ctx)
	if err := k.ensure(ctx, "g"); err != nil {
		t.Fatal(err)
	}
	before := network.rounds.Load()
	if err := k.unplug(ctx, "g"); err != nil {
		t.Fatal(err)
	}
	if err := k.ensure(ctx, "g"); err != nil {
		t.Fatal(err)
	}
	if network.rounds.Load() == before {
		t.Error("the new tap was taken to be routed")
	}
}

// A round that fails because a tap was removed during it does not count as a failure.
func TestRoundDuringWhichATapGoesDoesNotCount(t *testing.T) {
	network := &countingNetwork{}
	k, ctx := newTestKeeper(t, network)
	begun, ended, gone := make(chan struct{}), make(chan struct{}), make(chan struct{})
	network.going = func() {
		close(begun)
		<-ended
		time.Sleep(20 * time.Millisecond) // the keeper first handles the round's result
	}
	network.during = func() error {
		if network.rounds.Load() > 1 {
			<-gone
			return nil
		}
		go func() {
			_ = k.unplug(ctx, "g")
			close(gone)
		}()
		<-begun
		close(ended)
		return errors.New("set route: Link not found")
	}
	failed := make(chan string, 1000)
	k.changed = func() {
		if _, problem := k.state(); problem != "" {
			failed <- problem
		}
	}
	go k.run(ctx)
	if err := k.ensure(ctx, "g"); err != nil {
		t.Fatal(err)
	}
	if n := network.rounds.Load(); n < 2 {
		t.Errorf("routed after %d rounds", n)
	}
	select {
	case problem := <-failed:
		t.Errorf("reported: %s", problem)
	default:
	}
}
