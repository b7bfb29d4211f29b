package overlay

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
)

func TestWatchingGoesOnWhenTheKernelLosesEvents(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	subscriptions := make(chan chan netlink.LinkUpdate, 3)
	failures := []error{nil, errors.New("no buffers"), nil}
	subscribe := func(context.Context) (<-chan netlink.LinkUpdate, error) {
		err := failures[0]
		if failures = failures[1:]; err != nil {
			return nil, err
		}
		updates := make(chan netlink.LinkUpdate)
		subscriptions <- updates
		return updates, nil
	}
	tick, checks, changes := make(chan time.Time), 0, 0
	ended := make(chan error, 1)
	go func() {
		o := &Overlay{log: slog.New(slog.DiscardHandler)}
		ended <- o.watch(ctx, subscribe, tick, func() { checks++ }, func() { changes++ })
	}()
	tick <- time.Time{}
	close(<-subscriptions)
	for len(subscriptions) == 0 { // the end is noticed, one attempt fails, the next succeeds
		select {
		case tick <- time.Time{}:
		case err := <-ended:
			t.Fatal(err)
		}
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) || changes != 1 || checks < 3 {
		t.Errorf("%v, %d changes, %d checks", err, changes, checks)
	}
}
