package controller

import (
	"testing"

	v1 "watari/api/watariv1"
	"watari/manager/store"
)

func TestARunLosesGuestsThatEndNotThoseThatMove(t *testing.T) {
	f := newFixture(t, "a1", "b1")
	f.cluster("md", 2, v1.Spread_SPREAD_HOST)
	f.until("ready", f.clusterIs("md", v1.ClusterState_CLUSTER_STATE_READY))
	run := &v1.Run{StartedEpochs: startedEpochs(f.store.Snapshot(), "md")}
	before := f.store.Snapshot().Guests["md-1"]
	to := map[string]string{"a1": "b1", "b1": "a1"}[before.Host]
	f.until("moved", f.migrationIs(f.migrate("md-1", to), v1.MigrationState_MIGRATION_STATE_DONE))
	if lost := lostGuest(f.store.Snapshot(), run); lost != "" {
		t.Errorf("%s counts as lost, though it only moved", lost)
	}
	g := f.store.Snapshot().Guests["md-1"]
	f.hosts.with(g.Host, func(h *fakeHost) {
		delete(f.hosts.running, g.Meta.Uid)
		f.hosts.set(h, g.Meta.Uid, g.Epoch, v1.GuestCondition_GUEST_CONDITION_GONE)
	})
	f.until("started anew", func(s *store.Snapshot) bool { return s.Guests["md-1"].Epoch > g.Epoch })
	if lost := lostGuest(f.store.Snapshot(), run); lost != "md-1" {
		t.Errorf("lost: %q, want md-1", lost)
	}
}
