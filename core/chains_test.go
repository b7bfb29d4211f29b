package core

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "watari/api/watariv1"
)

// builds makes a chain of checkpoints of the household's cluster, the oldest first. Each builds on the one before.
func (h *household) builds(names ...string) {
	h.files = map[string][]*v1.CheckpointObserved{}
	for i, name := range names {
		h.saved(name, time.Duration(len(names)-i)*time.Hour, func(c *v1.Checkpoint) {
			for _, m := range c.Members {
				if i > 0 {
					m.File.Base, m.File.Blob.Size = "sha256:"+names[i-1]+m.Guest, 100<<10
				}
				h.files["a1"] = append(h.files["a1"], &v1.CheckpointObserved{CheckpointId: c.Meta.Uid, GuestUid: m.GuestUid, Epoch: m.Epoch, File: m.File,
					Phase: v1.CheckpointPhase_CHECKPOINT_PHASE_WRITTEN})
			}
		})
	}
}

// A checkpoint on which others build is kept, even if it is old or was deleted.
func TestWhatAFileBuildsOnIsKept(t *testing.T) {
	h := newHousehold(t, "", 2)
	h.builds("md-c1", "md-c2", "md-c3", "md-c4", "md-c5")
	h.ask(func(a *Admission) (Change, error) {
		a.Caller.Admin = true
		return a.DeleteCheckpoint("md-c4")
	})
	h.pass(time.Second)
	if got := strings.Join(sortedKeys(h.objects.Checkpoints), " "); got != "md-c1 md-c2 md-c3 md-c4 md-c5" {
		t.Errorf("kept are %s", got)
	}
	if _, _, err := h.admission().RestoreCheckpoint("md-c4"); err == nil || !strings.Contains(err.Error(), "md-c4 was deleted") {
		t.Errorf("the deleted one can be restored: %v", err)
	}
	h.ask(func(a *Admission) (Change, error) {
		a.Caller.Admin = true
		return a.DeleteCheckpoint("md-c5")
	})
	h.pass(time.Second)
	if got := strings.Join(sortedKeys(h.objects.Checkpoints), " "); got != "md-c1 md-c2 md-c3" {
		t.Errorf("afterwards kept are %s", got)
	}
}

// A guest is restored from its file and all files on which that builds.
func TestAGuestIsRestoredFromAChain(t *testing.T) {
	h := newHousehold(t, "", 2)
	h.builds("md-c1", "md-c2", "md-c3")
	change, _, err := h.admission().RestoreCheckpoint("md")
	if err != nil {
		t.Fatal(err)
	}
	h.objects = h.objects.Apply(change)
	h.pass(time.Second)
	h.releaseAll()
	restored := 0
	for host, wanted := range h.pass(time.Second) {
		for _, w := range wanted.Guests {
			var chain []string
			for _, b := range w.Restore.GetBases() {
				chain = append(chain, b.CheckpointId)
			}
			if got := strings.Join(append(chain, w.Restore.GetCheckpointId()), " "); got != "uid-md-c1 uid-md-c2 uid-md-c3" {
				t.Errorf("guest %s is restored from %s", w.Name, got)
			}
			kept := 0
			for _, c := range wanted.Checkpoints {
				if c.GuestUid == w.Uid && c.Order == v1.CheckpointOrder_CHECKPOINT_ORDER_KEEP {
					kept++
				}
			}
			if kept != 3 {
				t.Errorf("host %s keeps %d files of guest %s", host, kept, w.Name)
			}
			restored++
		}
	}
	if restored != 2 {
		t.Errorf("%d guests are restored", restored)
	}
}

// If a file of a chain is lost during a restore, no host restores a guest or a volume without it. Hosts wait until the restore is
// given up.
func TestNothingIsRestoredWithoutAFileOfItsChain(t *testing.T) {
	h := inUse(t)
	h.builds("md-c1", "md-c2")
	for name, base := range map[string]string{"md-c1": "", "md-c2": "sha256:md-c1data"} {
		file := &v1.CheckpointFile{Blob: &v1.Blob{Digest: "sha256:" + name + "data", Size: 1 << 20}, StateBytes: 2 << 20, Base: base, Hosts: []string{"a1"}}
		h.objects.Checkpoints[name].Volume = &v1.CheckpointMember{Guest: "data", GuestUid: "uid-data", Host: "a2", File: file}
		h.files["a1"] = append(h.files["a1"], &v1.CheckpointObserved{CheckpointId: "uid-" + name, GuestUid: "uid-data", File: file,
			Phase: v1.CheckpointPhase_CHECKPOINT_PHASE_WRITTEN})
	}
	h.core = h.core.Fresh() // it has not seen the checkpoints come
	h.ask(func(a *Admission) (Change, error) { c, _, err := a.RestoreCheckpoint("md"); return c, err })
	h.releaseAll()
	restores := func(orders map[string]*v1.HostWanted) (list []string) {
		for _, host := range sortedKeys(orders) {
			for _, w := range orders[host].Guests {
				list = append(list, fmt.Sprintf("%s from %q and %d bases", w.Name, w.Restore.GetCheckpointId(), len(w.Restore.GetBases())))
			}
			for _, w := range orders[host].Volumes {
				if w.Restore.GetId() != h.objects.Clusters["md"].Restore.Id {
					t.Errorf("the volume's order is of restore %q", w.Restore.GetId())
				}
				list = append(list, fmt.Sprintf("%s from %q and %d bases", w.Uid, w.Restore.GetCheckpointId(), len(w.Restore.GetBases())))
			}
		}
		slices.Sort(list)
		return list
	}
	if got, want := restores(h.pass(time.Second)), []string{`md-1 from "uid-md-c2" and 1 bases`, `uid-data from "uid-md-c2" and 1 bases`}; !slices.Equal(got, want) {
		t.Fatalf("restored are %q", got)
	}
	lost := proto.CloneOf(h.objects.Checkpoints["md-c1"])
	lost.State = v1.CheckpointState_CHECKPOINT_STATE_DAMAGED
	h.objects = h.objects.Apply(Change{Ops: []Op{{Update, lost}}})
	d := h.core.Decide(World{Objects: h.objects, Now: h.now, Reports: h.reports()})
	if got, want := restores(d.Orders), []string{`md-1 from "" and 0 bases`, `uid-data from "" and 0 bases`}; !slices.Equal(got, want) {
		t.Errorf("afterwards restored are %q", got)
	}
	h.pass(time.Second)
	if r := h.objects.Clusters["md"].Restore; r.State != v1.RestoreState_RESTORE_STATE_FAILED {
		t.Errorf("the restore is %v", r)
	}
}

// A state is written whole again when the chain is long, when the state differs much, when the host lacks the latest file,
// or when an older agent could not restore an increment.
func TestWhatANewFileBuildsOn(t *testing.T) {
	for name, try := range map[string]struct {
		chain  int
		change func(h *household)
		want   string
	}{
		"none":           {0, func(*household) {}, ""},
		"a few":          {3, func(*household) {}, "uid-md-c3"},
		"many":           {8, func(*household) {}, ""},
		"much":           {3, func(h *household) { h.objects.Checkpoints["md-c3"].Members[0].File.Blob.Size = 2 << 20 }, ""},
		"an older agent": {3, func(h *household) { h.objects.Hosts["b1"].Info.Increments = false }, ""},
		"elsewhere": {3, func(h *household) {
			h.objects.Checkpoints["md-c3"].Members[0].File.Hosts = []string{"b1"}
			h.files["a1"], h.files["b1"] = h.files["a1"][:2], h.files["a1"][2:]
		}, ""},
	} {
		h := newHousehold(t, "", 1)
		var names []string
		for i := range try.chain {
			names = append(names, fmt.Sprintf("md-c%d", i+1))
		}
		h.builds(names...)
		try.change(h)
		g := h.objects.Guests["md-0"]
		h.objects.Checkpoints["md-c99"] = &v1.Checkpoint{Meta: &v1.Meta{Name: "md-c99", Uid: "uid-new", Created: timestamppb.New(h.now)}, Cluster: "md", ClusterUid: "uid-md",
			State: v1.CheckpointState_CHECKPOINT_STATE_PREPARING, Members: []*v1.CheckpointMember{{Guest: "md-0", GuestUid: g.Meta.Uid, Host: "a1", Epoch: 1}}}
		got := "no order"
		for _, w := range h.pass(time.Second)["a1"].GetCheckpoints() {
			if w.CheckpointId == "uid-new" {
				got = w.Base
			}
		}
		if got != try.want {
			t.Errorf("%s: it builds on %q, not on %q", name, got, try.want)
		}
	}
}
