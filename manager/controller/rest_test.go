package controller

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	v1 "watari/api/watariv1"
	"watari/core"
	"watari/manager/store"
)

func TestAHostThatSaysTooMuchKeepsNoGuestFromBeingPlaced(t *testing.T) {
	f := newFixture(t, "a0", "a1")
	f.until("hosts have joined", func(s *store.Snapshot) bool { return s.Hosts["a0"].Info != nil && s.Hosts["a1"].Info != nil })
	f.cluster("md", 1, 0)
	f.until("ready", f.clusterIs("md", v1.ClusterState_CLUSTER_STATE_READY))
	f.stop()
	s := f.store.Snapshot()
	host, guest := proto.CloneOf(s.Hosts["a0"]), proto.CloneOf(s.Guests["md-0"])
	host.Info.LibvirtVersion, guest.Message = strings.Repeat("x", 9<<20), "changed"
	c := &Controller{Deps: Deps{Store: f.store, Log: slog.New(slog.DiscardHandler)}, core: core.New(core.Config{}), rests: map[string]rest{}}
	changes := []core.Change{{Key: "host/a0", Ops: []core.Op{{Kind: core.Update, Object: host}}}, {Key: "guest/md-0", Ops: []core.Op{{Kind: core.Update, Object: guest}}}}
	if err := c.commit(t.Context(), s, changes); err != nil {
		t.Fatal(err)
	}
	if f.store.Snapshot().Guests["md-0"].Message != "changed" {
		t.Error("the guest's change failed with the host's")
	}
	if len(c.rests) != 1 || c.rests["host/a0"].pause != restPause {
		t.Errorf("%v", c.rests)
	}
}

func TestAChangeThatFailsAgainRestsLonger(t *testing.T) {
	c, now := &Controller{rests: map[string]rest{}}, time.Unix(1_000_000, 0)
	var pauses []time.Duration
	for range 7 {
		until := c.restUntil("host/a0", false, now)
		pauses, now = append(pauses, until.Sub(now)), until
	}
	if fmt.Sprint(pauses) != "[1s 2s 4s 8s 16s 30s 30s]" {
		t.Error(pauses)
	}
	for range 7 { // etcd is unreachable: the reason is not any one change
		if until := c.restUntil("guest/md-0", true, now); until.Sub(now) != restPause {
			t.Error(until.Sub(now))
		}
	}
	now = now.Add(2 * longestRest)
	if until := c.restUntil("guest/md-1", false, now); until.Sub(now) != restPause || len(c.rests) != 1 {
		t.Error(until.Sub(now), c.rests)
	}
}
