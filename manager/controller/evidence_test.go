package controller

// evidence_test.go - reports about boots and processes, and their effect on grants.

import (
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	v1 "watari/api/watariv1"
	"watari/core"
	"watari/manager/store"
)

// reboots makes the host report a new boot.
func (h *fakeHost) reboots(boot string) {
	info := proto.CloneOf(h.report.Info)
	info.BootId = boot
	h.report = &v1.HostObserved{Info: info}
	h.connected, h.since, h.wanted = true, time.Now(), nil
}

// A host loses power just after a grant, and returns before anybody notices. It must not get the old order again: it would
// start the guest at the old epoch while the manager grants the guest elsewhere.
func TestAHostThatLosesPowerAfterAGrantIsNotToldTheOldOrderAgain(t *testing.T) {
	f := newFixture(t, "a1")
	f.hosts.with("a1", func(h *fakeHost) { h.deaf = true })
	f.cluster("md", 1, 0)
	f.until("granted", func(s *store.Snapshot) bool { return s.Guests["md-0"].Host == "a1" })
	f.hosts.with("a1", func(h *fakeHost) {
		f.hosts.onSend = func(host string, w *v1.HostWanted) {
			for _, g := range w.Guests {
				if g.Role == v1.GuestRole_GUEST_ROLE_RUN && g.Epoch == 1 {
					t.Errorf("the host was told to run epoch 1, which was granted to its boot of before")
				}
			}
		}
		h.deaf = false
		h.reboots("a1-boot-2")
	})
	f.until("started anew", func(s *store.Snapshot) bool {
		return s.Guests["md-0"].Epoch == 2 && f.clusterIs("md", v1.ClusterState_CLUSTER_STATE_READY)(s)
	})
}

// A process that the agent sees disproves an end, even if the report contains one.
func TestAGrantIsNotReleasedAgainstALiveProcess(t *testing.T) {
	f := newFixture(t, "a1")
	f.cluster("md", 1, 0)
	f.until("ready", f.clusterIs("md", v1.ClusterState_CLUSTER_STATE_READY))
	uid := f.store.Snapshot().Guests["md-0"].Meta.Uid
	f.hosts.with("a1", func(h *fakeHost) {
		h.deaf = true
		f.hosts.set(h, uid, 1, v1.GuestCondition_GUEST_CONDITION_GONE)
		h.report.Guests[0].Process = true
	})
	f.unchanged("md-0", func(g *v1.Guest) bool { return g.Host == "a1" && g.Epoch == 1 })
	f.hosts.with("a1", func(h *fakeHost) {
		report := proto.CloneOf(h.report)
		report.Guests[0].Process = false
		h.report, h.deaf = report, false
		delete(f.hosts.running, uid)
	})
	f.until("started anew", func(s *store.Snapshot) bool { return s.Guests["md-0"].Epoch == 2 })
}

// A host reports another boot, but also the guest's process: the guest was not restarted. It goes on.
func TestAGuestThatLivesInAnotherBootThanItsGrantGoesOn(t *testing.T) {
	f := newFixture(t, "a1", "b1")
	f.cluster("md", 1, 0)
	f.until("ready", f.clusterIs("md", v1.ClusterState_CLUSTER_STATE_READY))
	g := f.store.Snapshot().Guests["md-0"]
	f.hosts.with(g.Host, func(h *fakeHost) {
		h.reboots("another")
		f.hosts.set(h, g.Meta.Uid, g.Epoch, v1.GuestCondition_GUEST_CONDITION_RUNNING)
		h.report.Guests[0].Process = true
	})
	f.until("its grant names the boot", func(s *store.Snapshot) bool { return s.Guests["md-0"].BootId == "another" })
	if now := f.store.Snapshot().Guests["md-0"]; now.Host != g.Host || now.Epoch != g.Epoch {
		t.Errorf("the guest was given to %s at epoch %d", now.Host, now.Epoch)
	}
}

// unchanged checks a guest for a period in which the controller decides several times.
func (f *fixture) unchanged(guest string, holds func(*v1.Guest) bool) {
	f.t.Helper()
	for range 20 {
		select {
		case f.hosts.changed <- struct{}{}:
		default:
		}
		time.Sleep(10 * time.Millisecond) // the controller decides meanwhile
		if g := f.store.Snapshot().Guests[guest]; !holds(g) {
			f.t.Fatalf("guest %s became %v", guest, g)
		}
	}
}

// An older copy of the store was restored. Hosts run guests that the store does not know, or knows an older state of. The
// manager leaves them alone, starts none of them elsewhere, and names them.
func TestGuestsThatAnOlderStoreDoesNotKnowAreLeftAlone(t *testing.T) {
	f := newFixture(t, "a1", "b1")
	f.cluster("md", 1, 0)
	f.until("ready", f.clusterIs("md", v1.ClusterState_CLUSTER_STATE_READY))
	g := f.store.Snapshot().Guests["md-0"]
	other := map[string]string{"a1": "b1", "b1": "a1"}[g.Host]
	const unknown = "00000000-0000-4000-8000-00000000beef"
	f.hosts.with(g.Host, func(h *fakeHost) { // the store says that it runs here, but it had moved away
		f.hosts.set(h, g.Meta.Uid, g.Epoch, v1.GuestCondition_GUEST_CONDITION_SENT)
		h.wanted = nil
	})
	f.hosts.with(other, func(h *fakeHost) {
		f.hosts.running[g.Meta.Uid], f.hosts.running[unknown] = other, other
		f.hosts.set(h, g.Meta.Uid, g.LastEpoch+2, v1.GuestCondition_GUEST_CONDITION_RUNNING)
		f.hosts.set(h, unknown, 4, v1.GuestCondition_GUEST_CONDITION_RUNNING)
	})
	f.unchanged("md-0", func(now *v1.Guest) bool { return now.Host == g.Host && now.Epoch == g.Epoch })
	if at := f.hosts.running; at[g.Meta.Uid] != other || at[unknown] != other {
		t.Errorf("guests were ended: %v", at)
	}
	strangers := core.Strangers(f.store.Snapshot(), f.hosts)
	if s := strangers[g.Meta.Uid]; len(strangers) != 2 || s.Host != other || s.LastEpoch != g.LastEpoch || strangers[unknown].LastEpoch != 0 {
		t.Errorf("strangers: %v", strangers)
	}
}
