package controller

import (
	"log/slog"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"watari/core"
	"watari/manager/store"
)

func TestAHostThatIsRemovedMeanwhileGetsNoGuest(t *testing.T) {
	f := newFixture(t, "a1")
	f.until("a1 has joined", func(s *store.Snapshot) bool { return s.Hosts["a1"].GetInfo() != nil })
	f.stop()
	f.cluster("md", 1, 0)
	seen := f.store.Snapshot()
	removed := proto.CloneOf(seen.Hosts["a1"])
	removed.Meta.Deleting = timestamppb.Now()
	f.txn(store.Update(removed))
	c := &Controller{Deps: Deps{Store: f.store, Sessions: f.hosts, Log: slog.New(slog.DiscardHandler)}, leases: newLeases(Deps{}), changed: make(chan struct{}, 1)}
	c.core = core.New(core.Config{Began: time.Now(), Identify: c.identify})
	if _, err := c.decide(t.Context(), seen); err != nil {
		t.Fatal(err)
	}
	if g := f.store.Snapshot().Guests["md-0"]; g.Host != "" {
		t.Errorf("it has the grant of %v", g)
	}
}
