package core

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	v1 "watari/api/watariv1"
)

// leased gives the household's cluster leases, and sets what happens when a guest is lost. md-1 is on b1.
func (h *household) leased(loss v1.OnHostLoss) {
	h.objects.Clusters["md"].Spec.OnHostLoss, h.objects.Clusters["md"].Spec.LeaseMs = loss, 60_000
	h.leases = map[string]LeaseSeen{}
	for _, g := range h.objects.Guests {
		g.LeaseMs = 60_000
		if g.Meta.Name == "md-1" {
			g.Host, g.BootId = "b1", "boot-b1"
		}
		h.renewed(g, 0)
	}
	for _, host := range h.objects.Hosts {
		host.Info.Leases = true
	}
}

func (h *household) renewed(g *v1.Guest, ago time.Duration) {
	h.leases[g.Meta.Uid] = LeaseSeen{Host: g.Host, Epoch: g.Epoch, Unrenewed: ago}
}

// lose takes host b1 out of reach, until md-1's lease has this age.
func (h *household) lose(ago time.Duration) {
	h.away = map[string]bool{"b1": true}
	h.renewed(h.objects.Guests["md-1"], ago)
}

func TestALeaseEndsAGrant(t *testing.T) {
	h := newHousehold(t, "", 2)
	h.leased(v1.OnHostLoss_ON_HOST_LOSS_UNSPECIFIED)
	h.pass(time.Second)
	h.lose(60 * time.Second)
	h.pass(time.Second)
	if g := h.objects.Guests["md-1"]; g.Host != "b1" || g.Epoch != 1 {
		t.Fatalf("before its lease is over it is %v", g)
	}
	if _, message, _ := GuestState(h.reports(), nil, h.objects.Guests["md-1"]); !strings.Contains(message, "within its lease of 1m0s") {
		t.Errorf("people are told %q", message)
	}
	h.renewed(h.objects.Guests["md-1"], 60*time.Second+time.Millisecond)
	h.pass(time.Second)
	if g := h.objects.Guests["md-1"]; g.Host == "b1" || g.Host == "" || g.Epoch != 2 {
		t.Errorf("afterwards it is %v", g)
	}
	if g := h.objects.Guests["md-0"]; g.Host != "a1" || g.Epoch != 1 {
		t.Errorf("the other one is %v", g)
	}
}

// A renewal of another epoch, or by another host, does not renew the lease of this copy.
func TestALeaseIsOfOneCopy(t *testing.T) {
	h := newHousehold(t, "", 2)
	h.leased(v1.OnHostLoss_ON_HOST_LOSS_UNSPECIFIED)
	h.lose(time.Hour)
	h.leases[h.objects.Guests["md-1"].Meta.Uid] = LeaseSeen{Host: "b1", Epoch: 2, Unrenewed: time.Hour}
	h.pass(time.Second)
	h.leases[h.objects.Guests["md-1"].Meta.Uid] = LeaseSeen{Host: "a2", Epoch: 1, Unrenewed: time.Hour}
	h.pass(time.Second)
	if g := h.objects.Guests["md-1"]; g.Host != "b1" || g.Epoch != 1 {
		t.Errorf("it is %v", g)
	}
}

func TestALostGuestTakesItsClusterBack(t *testing.T) {
	h := newHousehold(t, "", 2)
	h.leased(v1.OnHostLoss_ON_HOST_LOSS_RESTORE)
	h.saved("md-c1", time.Hour)
	h.pass(time.Second)
	h.lose(time.Hour)
	h.pass(time.Second)
	restore := h.objects.Clusters["md"].Restore
	if restore.GetCheckpoint() != "md-c1" || restore.GetLosses() != 1 || !strings.Contains(restore.GetReason(), "guest md-1 was lost: host b1 was out of reach") {
		t.Fatalf("the restore is %v", restore)
	}
	if g := h.objects.Guests["md-1"]; g.Host != "" || g.Restarts != 0 {
		t.Errorf("md-1 is %v", g)
	}
	if g := h.objects.Guests["md-0"]; g.Host != "a1" || !ending(h.objects.Clusters["md"]) {
		t.Errorf("md-0 is %v while it is to end", g)
	}
}

// A cluster that loses guests again and again, soon after it went back to the same checkpoint, is stopped.
func TestAClusterThatIsLostAgainAndAgain(t *testing.T) {
	for _, c := range []struct {
		losses uint32
		since  time.Duration
		want   string
	}{{3, time.Minute, "stopped"}, {3, 2 * time.Hour, "restored, 1"}, {2, time.Minute, "restored, 3"}} {
		h := newHousehold(t, "", 2)
		h.leased(v1.OnHostLoss_ON_HOST_LOSS_RESTORE)
		h.saved("md-c1", 3*time.Hour)
		last := newRestore(h.objects.Checkpoints["md-c1"], "it was lost", h.objects.Checkpoints["md-c1"].Ended)
		last.State, last.Losses, last.Ended = v1.RestoreState_RESTORE_STATE_DONE, c.losses, h.objects.Checkpoints["md-c1"].Ended
		last.Ended.Seconds = h.now.Add(-c.since).Unix()
		h.objects.Clusters["md"].Restore = last
		h.lose(time.Hour)
		h.pass(time.Second)
		got := fmt.Sprintf("restored, %d", h.objects.Clusters["md"].Restore.Losses)
		if h.objects.Guests["md-0"].Stopped && h.objects.Guests["md-1"].Stopped {
			got = "stopped"
		}
		if got != c.want {
			t.Errorf("after %d losses, the last %v ago, it is %s, want %s", c.losses, c.since, got, c.want)
		}
	}
}

// A user went back to an earlier checkpoint, so a later loss does not return the cluster to the state that the user left, whatever
// is restored by name later.
func TestALossDoesNotReturnToAStateThatWasLeft(t *testing.T) {
	h := newHousehold(t, "", 2)
	h.leased(v1.OnHostLoss_ON_HOST_LOSS_RESTORE)
	made := 0
	make := func() {
		made++
		h.saved(fmt.Sprint("md-c", made), time.Hour, func(c *v1.Checkpoint) { c.LeftBefore = h.objects.Clusters["md"].LeftBehind })
	}
	back := func(to int) {
		cluster := proto.CloneOf(h.objects.Clusters["md"])
		cluster.LeftBehind = leftBehind(h.objects, cluster, h.objects.Checkpoints[fmt.Sprint("md-c", to)])
		h.objects = h.objects.Apply(Change{Ops: []Op{{Update, cluster}}})
	}
	lineage := func() (list []string) {
		cluster := h.objects.Clusters["md"]
		for c := latestCheckpoint(h.objects, cluster, nil); c != nil; c = latestCheckpoint(h.objects, cluster, c) {
			list = append(list, strings.TrimPrefix(c.Meta.Name, "md-c"))
		}
		return list
	}
	for _, step := range []struct {
		do   func()
		want string
	}{
		{func() { make(); make(); make() }, "3 2 1"},
		{func() { back(1) }, "1"},
		{make, "4 1"},
		{func() { back(3) }, "3 2 1"},
		{make, "5 3 2 1"},
		{func() { back(4) }, "4 1"},
		{make, "6 4 1"},
		{func() { back(2) }, "2 1"},
	} {
		step.do()
		if got := strings.Join(lineage(), " "); got != step.want {
			t.Fatalf("after checkpoint %d, %q can be restored unasked, want %q", made, got, step.want)
		}
	}
	h.lose(time.Hour)
	h.pass(time.Second)
	if r := h.objects.Clusters["md"].Restore; r.Checkpoint != "md-c2" || r.Losses != 1 {
		t.Errorf("the restore is %v", r)
	}
	// Numbers of checkpoints that were deleted are not used again.
	for n := 3; n <= 6; n++ {
		delete(h.objects.Checkpoints, fmt.Sprint("md-c", n))
	}
	if name := nextCheckpointName(h.objects, h.objects.Clusters["md"]); name != "md-c7" {
		t.Errorf("the next one is %s", name)
	}
	back(2)
	if left := h.objects.Clusters["md"].LeftBehind; len(left) != 0 {
		t.Errorf("after those that were left behind were deleted, still left are %v", left)
	}
}

func TestALossWithoutACheckpoint(t *testing.T) {
	h := newHousehold(t, "", 2)
	h.leased(v1.OnHostLoss_ON_HOST_LOSS_RESTORE)
	h.lose(time.Hour)
	h.pass(time.Second)
	if g := h.objects.Guests["md-1"]; g.Host == "" || g.Epoch != 2 || h.objects.Clusters["md"].Restore != nil {
		t.Errorf("it is not started anew: %v", g)
	}
	if !strings.Contains(strings.Join(h.events, "\n"), "which is started again: the cluster has no checkpoint") {
		t.Errorf("events: %q", h.events)
	}
}

func TestALostGuestStopsItsCluster(t *testing.T) {
	h := newHousehold(t, "", 3)
	h.leased(v1.OnHostLoss_ON_HOST_LOSS_STOP)
	h.lose(time.Hour)
	h.pass(time.Second)
	for name, g := range h.objects.Guests {
		if !g.Stopped {
			t.Errorf("guest %s is not stopped", name)
		}
	}
}

// A renewed lease counts from the time that its host told, once the manager is sure that it leads. An ended lease is never
// renewed.
func TestLeasesAreRenewed(t *testing.T) {
	h := newHousehold(t, "", 2)
	h.leased(v1.OnHostLoss_ON_HOST_LOSS_UNSPECIFIED)
	l := &Leases{}
	if !l.See(h.objects, 10*time.Second) || l.See(h.objects, 20*time.Second) {
		t.Error("grants are new once")
	}
	uid := h.objects.Guests["md-1"].Meta.Uid
	if list := l.Renew("b1", 69*time.Second, 70*time.Second); len(list) != 1 || list[0].Uid != uid || list[0].Epoch != 1 || list[0].LeaseMs != 60_000 {
		t.Errorf("renewed are %v", list)
	}
	if list := l.Renew("b1", 5*time.Second, 71*time.Second); len(list) != 1 { // an old answer
		t.Errorf("renewed are %v", list)
	}
	if seen := l.Seen(100 * time.Second); seen[uid].Unrenewed != 31*time.Second || seen[h.objects.Guests["md-0"].Meta.Uid].Unrenewed != 90*time.Second {
		t.Errorf("seen are %v", seen)
	}
	if list := l.Renew("a1", 75*time.Second, 75*time.Second); len(list) != 0 {
		t.Errorf("a lease that is over is renewed: %v", list)
	}
	h.objects.Guests["md-1"].Epoch, h.objects.Guests["md-0"].Host = 2, ""
	h.objects.Revision = 7
	if !l.See(h.objects, 80*time.Second) || len(l.of) != 1 || l.Seen(80 * time.Second)[uid].Epoch != 2 {
		t.Errorf("after a move and an end they are %v", l.Seen(80*time.Second))
	}
	older := *h.objects
	older.Revision = 6
	h.objects.Guests["md-0"].Host = "a1"
	if l.See(&older, 81*time.Second) || len(l.of) != 1 {
		t.Error("older objects count")
	}
}

// A spare takes only guests that were lost.
func TestASpareIsForLostGuests(t *testing.T) {
	for _, loss := range []v1.OnHostLoss{v1.OnHostLoss_ON_HOST_LOSS_UNSPECIFIED, v1.OnHostLoss_ON_HOST_LOSS_RESTORE} {
		h := newHousehold(t, "", 2)
		h.leased(loss)
		h.saved("md-c1", time.Hour)
		change, err := h.admission().SpareHost("a2", true)
		if err != nil || len(change.Ops) != 1 {
			t.Fatal(err)
		}
		h.objects = h.objects.Apply(change)
		h.change("a1", func(host *v1.Host) { host.Info.MemoryBytes = 1 << 30 }) // md-0 fills it
		fresh := &v1.Guest{Meta: &v1.Meta{Name: "md-2", Uid: "00000000-0000-4000-8000-000000000002"}, Cluster: "md", Index: 2, Shape: &v1.GuestShape{Vcpus: 1, MemoryBytes: 1 << 30}, Address: "10.0.0.9"}
		if loss == v1.OnHostLoss_ON_HOST_LOSS_UNSPECIFIED {
			h.change("b1", func(host *v1.Host) { host.Info.MemoryBytes = 1 << 30 }) // md-1 fills this one
			h.objects.Guests["md-2"] = fresh
			h.pass(time.Minute)
			if g := h.objects.Guests["md-2"]; g.Host != "" || !strings.Contains(g.Message, "it is a spare") {
				t.Fatalf("a new guest is on %q: %s", g.Host, g.Message)
			}
			delete(h.objects.Guests, "md-2")
			h.core = New(h.core.Config)
		}
		h.lose(time.Hour)
		h.pass(time.Second)
		if loss == v1.OnHostLoss_ON_HOST_LOSS_RESTORE {
			h.releaseAll()
			h.pass(time.Second)
		}
		if g := h.objects.Guests["md-1"]; g.Host != "a2" {
			t.Errorf("%s: the lost guest is on %q: %s", loss, g.Host, g.Message)
		}
	}
}

// The newest checkpoint has its files on a host that is away, such as the lost one. A cluster that has lost a guest goes
// back to the checkpoint before after a minute. A cluster whose user has asked for the newest checkpoint waits.
func TestAClusterGoesBackFurtherIfFilesAreAway(t *testing.T) {
	for _, losses := range []uint32{0, 1} {
		h := newHousehold(t, "", 2)
		h.saved("md-c0", 2*time.Hour)
		h.saved("md-c1", time.Hour, func(c *v1.Checkpoint) {
			for _, m := range c.Members {
				m.File.Hosts = []string{"b1"}
			}
		})
		h.files = map[string][]*v1.CheckpointObserved{}
		for name, host := range map[string]string{"md-c0": "a1", "md-c1": "b1"} {
			for _, m := range h.objects.Checkpoints[name].Members {
				h.files[host] = append(h.files[host], &v1.CheckpointObserved{CheckpointId: "uid-" + name, GuestUid: m.GuestUid, Epoch: m.Epoch, File: m.File,
					Phase: v1.CheckpointPhase_CHECKPOINT_PHASE_WRITTEN})
			}
		}
		h.pass(time.Second)
		h.ask(func(a *Admission) (Change, error) { c, _, err := a.RestoreCheckpoint("md-c1"); return c, err })
		cluster := proto.CloneOf(h.objects.Clusters["md"])
		cluster.Restore.Losses = losses
		h.objects = h.objects.Apply(Change{Ops: []Op{{Update, cluster}}})
		h.releaseAll()
		h.away, h.out = map[string]bool{"b1": true}, 59*time.Second
		h.pass(time.Second)
		h.pass(time.Second)
		if r := h.objects.Clusters["md"].Restore; r.Checkpoint != "md-c1" || r.State != v1.RestoreState_RESTORE_STATE_RESTORING {
			t.Fatalf("too early: %v", r)
		}
		h.out = 61 * time.Second
		h.pass(time.Second)
		if r := h.objects.Clusters["md"].Restore; (r.Checkpoint == "md-c0") != (losses > 0) || losses > 0 && !strings.Contains(r.Reason, "in reach for 1m0s") {
			t.Errorf("after %d losses the restore is %v", losses, r)
		}
	}
}
