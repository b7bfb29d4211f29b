package core

// snapshots_test.go - checkpoints of a volume alone.

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "watari/api/watariv1"
)

// alone is a household with a volume on a2 that no cluster uses.
func alone(t *testing.T, plan *v1.CheckpointPlan) *household {
	h := volumes(t, 0)
	h.ask(func(a *Admission) (Change, error) {
		return a.CreateVolume(&v1.CreateVolumeRequest{Name: "data", SizeBytes: 1 << 30, Host: "a2", Snapshots: plan}, CheckpointKey{"secret", "public"})
	})
	v := proto.CloneOf(h.objects.Volumes["data"])
	v.Meta.Created = timestamppb.New(h.now)
	h.objects = h.objects.Apply(Change{Ops: []Op{{Update, v}}})
	h.has("a2", v, 0)
	h.files = map[string][]*v1.CheckpointObserved{}
	h.pass(time.Second)
	return h
}

// snapshot makes the hosts carry out a snapshot that was asked for.
func (h *household) snapshot(name string) *v1.Checkpoint {
	h.t.Helper()
	if c := h.objects.Checkpoints[name]; c == nil || !isSnapshot(c) {
		h.t.Fatalf("snapshot %s is %v", name, c)
	}
	made := proto.CloneOf(h.objects.Checkpoints[name])
	made.Meta.Uid = "uid-" + name
	h.objects = h.objects.Apply(Change{Ops: []Op{{Update, made}}})
	for _, phase := range []v1.CheckpointPhase{1, 1, 3, 4, 4} {
		h.pass(100 * time.Millisecond)
		o := part("uid-data", 0, phase)
		o.CheckpointId, o.File.Blob.Digest = "uid-"+name, "sha256:"+name
		h.files["a2"] = []*v1.CheckpointObserved{o}
		h.pass(100 * time.Millisecond)
	}
	c := h.objects.Checkpoints[name]
	if c.State != v1.CheckpointState_CHECKPOINT_STATE_DONE || len(c.Volume.File.Hosts) != 1 || len(c.Members) != 0 {
		h.t.Fatalf("snapshot %s is %v", name, c)
	}
	return c
}

func (h *household) takeSnapshot() *v1.Checkpoint {
	h.t.Helper()
	name := ""
	h.ask(func(a *Admission) (c Change, err error) {
		c, name, err = a.CreateCheckpoint(&v1.CreateCheckpointRequest{Volume: "data"}, CheckpointKey{"other", "other"})
		return c, err
	})
	return h.snapshot(name)
}

// fetchersOf returns the hosts that are ordered to fetch a file of a checkpoint.
func fetchersOf(orders map[string]*v1.HostWanted, id, besides string) (hosts []string) {
	for _, host := range sortedKeys(orders) {
		for _, w := range orders[host].GetCheckpoints() {
			if w.CheckpointId == id && w.Order == v1.CheckpointOrder_CHECKPOINT_ORDER_KEEP && host != besides {
				hosts = append(hosts, host)
			}
		}
	}
	return hosts
}

// Snapshots are made when the volume's plan asks for them, with the volume's key, and copied to other hosts.
func TestSnapshotsOfAVolume(t *testing.T) {
	h := alone(t, &v1.CheckpointPlan{EverySeconds: 60, Copies: 3})
	if n := len(h.objects.Checkpoints); n != 0 {
		t.Fatalf("%d snapshots are there too early", n)
	}
	h.pass(time.Minute)
	if c := h.objects.Checkpoints["data-s1"]; c == nil || c.Recipient != "public" || c.Reason != "every 1m0s" || c.Copies != 3 {
		t.Fatalf("the snapshot is %v", c)
	}
	h.snapshot("data-s1")
	if n := len(h.objects.Checkpoints); n != 1 {
		t.Errorf("%d snapshots are there as soon as the first one is done", n)
	}
	h.sharing = true
	orders := h.pass(100 * time.Millisecond)
	if got := fetchersOf(orders, "uid-data-s1", "a2"); len(got) != 1 {
		t.Fatalf("%v fetch it", got)
	}
	o := proto.CloneOf(h.files["a2"][0])
	h.files["a1"] = []*v1.CheckpointObserved{o}
	h.pass(100 * time.Millisecond)
	if got := h.objects.Checkpoints["data-s1"].Volume.File.Hosts; len(got) != 2 || got[0] != "a1" || got[1] != "a2" {
		t.Errorf("the hosts that have it are %v", got)
	}
	if got := fetchersOf(h.pass(100*time.Millisecond), "uid-data-s1", "a2"); len(got) != 2 { // a1 keeps it, and another one fetches it
		t.Errorf("%v keep or fetch it", got)
	}
}

// A volume goes back to a snapshot, on its host or on another one. No cluster gets the volume before that is done.
func TestAVolumeGoesBackToASnapshot(t *testing.T) {
	for _, host := range []string{"", "a2", "b1"} {
		t.Run("to "+host, func(t *testing.T) {
			h := alone(t, nil)
			later := proto.CloneOf(h.takeSnapshot())
			later.Meta.Name, later.Meta.Uid, later.Volume.File.Blob.Digest = "data-s2", "uid-data-s2", "sha256:later"
			h.objects.Checkpoints["data-s2"] = later
			h.files["a2"] = append(h.files["a2"], &v1.CheckpointObserved{CheckpointId: later.Meta.Uid, GuestUid: "uid-data", File: later.Volume.File,
				Phase: v1.CheckpointPhase_CHECKPOINT_PHASE_WRITTEN})
			h.ask(func(a *Admission) (Change, error) { c, _, _, err := a.RestoreVolume("data-s1", host); return c, err })
			v := h.objects.Volumes["data"]
			target := "a2"
			if host == "b1" {
				target = host
			}
			orders := h.pass(time.Second)
			w := h.volumeOrder(orders, target)
			if v.Host != target || (v.Generation > 0) != (target == "b1") || w.GetRestore().GetId() != v.Restore.Id || w.Restore.Key != "secret" || w.Make {
				t.Fatalf("it is %v, and the order is %v", v, w)
			}
			second := &v1.Cluster{Meta: &v1.Meta{Name: "second", Uid: "uid-second", Owner: h.objects.Volumes["data"].Meta.Owner}, Spec: &v1.ClusterSpec{Volume: "data"}}
			var c Change
			a := h.admission()
			if err := a.takeVolume(&c, second); err == nil || !strings.Contains(err.Error(), "is being put back to snapshot data-s1") {
				t.Errorf("a cluster gets it: %v", err)
			}
			if target == "b1" {
				if fetched := fetchersOf(orders, "uid-data-s1", "a2"); len(fetched) == 0 {
					t.Error("b1 does not fetch the snapshot")
				}
				h.has("b1", v, 0)
				h.volumes["b1"][0].Facts.Generation = v.Generation
			}
			h.volumes[target][0].Restored = v.Restore.Id
			h.pass(time.Second)
			v = h.objects.Volumes["data"]
			if v.Restore.State != v1.RestoreState_RESTORE_STATE_DONE || v.State != v1.VolumeState_VOLUME_STATE_READY || v.Host != target {
				t.Errorf("afterwards it is %v", v)
			}
			if latest := latestCheckpoint(h.objects, v, nil); latest.GetMeta().GetName() != "data-s1" {
				t.Errorf("afterwards its latest snapshot is %v", latest)
			}
			orders = h.pass(time.Second)
			if w := h.volumeOrder(orders, "a2"); (target == "b1") != w.GetDiscard() {
				t.Errorf("a2 is ordered %v", w)
			}
			if w := h.volumeOrder(orders, target); w.GetRestore() != nil {
				t.Errorf("afterwards the order is %v", w)
			}
		})
	}
}

// A volume whose host was removed is restored from its latest snapshot, on another host, when its user asks for that.
func TestALostVolumeHasSnapshots(t *testing.T) {
	h := alone(t, nil)
	c := h.takeSnapshot()
	h.files["b1"] = h.files["a2"]
	h.pass(time.Second)
	h.objects = h.objects.Apply(Change{Ops: []Op{{Delete, h.objects.Hosts["a2"]}}})
	delete(h.volumes, "a2")
	delete(h.files, "a2")
	h.pass(time.Second)
	if v := h.objects.Volumes["data"]; v.State != v1.VolumeState_VOLUME_STATE_LOST {
		t.Fatalf("it is %v", v)
	}
	h.ask(func(a *Admission) (Change, error) { c, _, _, err := a.RestoreVolume(c.Meta.Name, ""); return c, err })
	orders := h.pass(time.Second)
	v := h.objects.Volumes["data"]
	if w := h.volumeOrder(orders, v.Host); v.Host == "a2" || v.Generation != uint64(h.now.Unix()) || w.GetRestore() == nil || w.Make {
		t.Errorf("it is %v, and the order is %v", v, w)
	}
}

// A host joins under the name of a removed one. It has the volume only if it is the same machine.
func TestALostVolumeIsThereAgainWithItsDisk(t *testing.T) {
	h := alone(t, nil)
	host, seen := h.objects.Hosts["a2"], h.volumes["a2"]
	h.objects = h.objects.Apply(Change{Ops: []Op{{Delete, host}}})
	h.pass(time.Second)
	h.objects = h.objects.Apply(Change{Ops: []Op{{Create, host}}})
	h.volumes["a2"] = []*v1.VolumeObserved{{Uid: "uid-data", Message: "its disk is missing"}}
	h.pass(time.Second)
	if v := h.objects.Volumes["data"]; v.State != v1.VolumeState_VOLUME_STATE_LOST || v.Message != "its disk is missing" {
		t.Errorf("without the disk: %v", v)
	}
	h.volumes["a2"] = seen
	h.pass(time.Second)
	if v := h.objects.Volumes["data"]; v.State != v1.VolumeState_VOLUME_STATE_READY || v.Message != "" {
		t.Errorf("with the disk: %v", v)
	}
}

// The latest snapshot is only on a host that is out of reach. The one before it is restored, and the answer names both.
func TestTheLatestSnapshotThatCanBeReadIsRestored(t *testing.T) {
	restore := func(h *household, name string) (note string, err error) {
		a := h.admission()
		c, _, note, err := a.RestoreVolume(name, "")
		if err == nil {
			h.objects = h.objects.Apply(c)
		}
		return note, err
	}
	saved := func() *household {
		h := alone(t, nil)
		first := h.takeSnapshot()
		second := proto.CloneOf(first)
		second.Meta.Name, second.Meta.Uid, second.Volume.File.Hosts = "data-s2", "uid-data-s2", []string{"b1"}
		second.Volume.File.Blob.Digest = "sha256:second"
		h.objects = h.objects.Apply(Change{Ops: []Op{{Create, second}}})
		return h
	}
	for name, lose := range map[string]func(h *household){
		"out of reach": func(h *household) {
			h.away, h.out, h.now = map[string]bool{"b1": true}, time.Hour, h.now.Add(2*time.Hour)
		},
		"removed": func(h *household) { h.objects = h.objects.Apply(Change{Ops: []Op{{Delete, h.objects.Hosts["b1"]}}}) },
	} {
		t.Run(name, func(t *testing.T) {
			h := saved()
			lose(h)
			if _, err := restore(h, "data-s2"); err == nil || !strings.Contains(err.Error(), "snapshot data-s2 cannot be read: its file is only on host b1") ||
				!strings.Contains(err.Error(), "`watari checkpoint list --volume data`") {
				t.Errorf("to restore data-s2: %v", err)
			}
			note, err := restore(h, "data")
			if want := "volume data goes back to snapshot data-s1; the later snapshot data-s2 is only on host b1, out of reach"; err != nil || note != want || h.data().Restore.Checkpoint != "data-s1" {
				t.Errorf("it goes back to %s: %q, %v", h.data().Restore.GetCheckpoint(), note, err)
			}
		})
	}
	h := saved()
	h.away, h.core.Began = map[string]bool{"b1": true}, h.now
	if note, err := restore(h, "data"); err != nil || note != "" || h.data().Restore.Checkpoint != "data-s2" {
		t.Errorf("a moment after the manager has begun: it goes back to %s: %q, %v", h.data().Restore.GetCheckpoint(), note, err)
	}
}

// A volume that was to get another host stays on its host if the snapshot cannot be read.
func TestAVolumeStaysIfItsSnapshotIsLost(t *testing.T) {
	h := alone(t, nil)
	h.takeSnapshot()
	h.ask(func(a *Admission) (Change, error) { c, _, _, err := a.RestoreVolume("data", "b1"); return c, err })
	was := h.objects.Volumes["data"].Generation
	h.files["a2"] = nil
	h.pass(time.Second)
	if c := h.objects.Checkpoints["data-s1"]; c.State != v1.CheckpointState_CHECKPOINT_STATE_DAMAGED {
		t.Fatalf("the snapshot is %v", c)
	}
	h.pass(time.Second)
	if v := h.objects.Volumes["data"]; v.Host != "a2" || v.State != v1.VolumeState_VOLUME_STATE_READY || v.Generation != was+1 ||
		v.Restore.State != v1.RestoreState_RESTORE_STATE_FAILED || v.Restore.Message == "" {
		t.Errorf("it is %v", v)
	}
}

// Snapshots of a deleted volume are deleted, too. Snapshots of a volume in use are kept apart from its cluster's
// checkpoints.
func TestSnapshotsEndWithTheirVolume(t *testing.T) {
	h := alone(t, nil)
	h.takeSnapshot()
	h.ask(func(a *Admission) (Change, error) { return a.DeleteVolume("data") })
	h.pass(time.Second)
	if c := h.objects.Checkpoints["data-s1"]; c != nil {
		t.Errorf("the snapshot is %v", c)
	}
}

func TestWhatIsRefusedOfSnapshots(t *testing.T) {
	for name, c := range map[string]struct {
		do   func(a *Admission) (Change, error)
		want string
	}{
		"restoring one in use": {func(a *Admission) (Change, error) {
			c, _, _, err := a.RestoreVolume("data-s1", "")
			return c, err
		}, "cluster md uses volume data"},
		"restoring it as a cluster": {func(a *Admission) (Change, error) {
			c, _, err := a.RestoreCheckpoint("data-s1")
			return c, err
		}, "data-s1 is a snapshot of volume data; `watari volume restore data-s1` restores it"},
		"restoring a cluster's checkpoint as a volume": {func(a *Admission) (Change, error) {
			c, _, _, err := a.RestoreVolume("md-c1", "")
			return c, err
		}, "md-c1 is a checkpoint of cluster md"},
		"a snapshot of both": {func(a *Admission) (Change, error) {
			c, _, err := a.CreateCheckpoint(&v1.CreateCheckpointRequest{Cluster: "md", Volume: "data"}, CheckpointKey{})
			return c, err
		}, "a checkpoint is of a cluster or of a volume"},
		"too many copies": {func(a *Admission) (Change, error) {
			return a.PlanCheckpoints(&v1.PlanCheckpointsRequest{Volume: "data", Plan: &v1.CheckpointPlan{Copies: 6}}, CheckpointKey{})
		}, "at most on 5"},
		"too often": {func(a *Admission) (Change, error) {
			return a.CreateVolume(&v1.CreateVolumeRequest{Name: "x", SizeBytes: 1 << 30, Snapshots: &v1.CheckpointPlan{EverySeconds: 1}}, CheckpointKey{})
		}, "is too often"},
		"somebody else's": {func(a *Admission) (Change, error) {
			a.Caller = Caller{Name: "bob"}
			c, _, err := a.CreateCheckpoint(&v1.CreateCheckpointRequest{Volume: "data"}, CheckpointKey{})
			return c, err
		}, "there is no volume \"data\""},
	} {
		t.Run(name, func(t *testing.T) {
			h := inUse(t)
			h.withVolume()
			h.takeSnapshot()
			a := h.admission()
			a.Caller = Caller{Name: "ann"}
			if _, err := c.do(a); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("the answer is %v, want %q", err, c.want)
			}
		})
	}
}
