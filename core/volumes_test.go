package core

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "watari/api/watariv1"
	"watari/checkpoint"
)

// volumes returns a household whose hosts keep volumes; only a2 is not lent.
func volumes(t *testing.T, guests int) *household {
	h := newHousehold(t, "", guests)
	h.volumes = map[string][]*v1.VolumeObserved{}
	h.objects.Hosts["a2"].Info.Lent = false
	h.pass(0)
	return h
}

func (h *household) ask(do func(a *Admission) (Change, error)) {
	h.t.Helper()
	a := h.admission()
	a.Caller = Caller{Name: "ann"}
	c, err := do(a)
	if err != nil {
		h.t.Fatal(err)
	}
	for _, op := range c.Ops {
		if op.Kind == Create {
			op.Object.GetMeta().Uid, op.Object.GetMeta().Created = "uid-"+op.Object.GetMeta().Name, timestamppb.New(h.now)
		}
	}
	h.objects = h.objects.Apply(c)
}

// has makes a host report a volume as ready, with so much of its disk in use.
func (h *household) has(host string, v *v1.Volume, used uint64) {
	h.volumes[host] = append(h.volumes[host], &v1.VolumeObserved{Uid: v.Meta.Uid, Ready: true, UsedBytes: used,
		Facts: &v1.VolumeFacts{Name: v.Meta.Name, Owner: v.Meta.Owner, SizeBytes: v.SizeBytes}})
}

func (h *household) created(name string, size uint64) *v1.Volume {
	h.t.Helper()
	h.ask(func(a *Admission) (Change, error) {
		return a.CreateVolume(&v1.CreateVolumeRequest{Name: name, SizeBytes: size}, CheckpointKey{"secret", "public"})
	})
	h.pass(time.Second)
	return h.objects.Volumes[name]
}

func TestAVolumeIsMadeOnAHostThatIsNotLent(t *testing.T) {
	h := volumes(t, 0)
	v := h.created("data", 4<<30)
	if v.Host != "a2" || v.State != v1.VolumeState_VOLUME_STATE_PENDING {
		t.Fatalf("it is %v", v)
	}
	if w := h.pass(0)["a2"].Volumes; len(w) != 1 || w[0].Uid != "uid-data" || w[0].Discard || !w[0].Make || w[0].Facts.GetOwner() != "ann" || len(w[0].Readers) != 0 {
		t.Errorf("a2's orders are %v", w)
	}
	h.has("a2", v, 1<<30)
	h.pass(time.Second)
	if v := h.objects.Volumes["data"]; v.State != v1.VolumeState_VOLUME_STATE_READY {
		t.Errorf("it is %v", v)
	}
	if w := h.pass(0)["a2"].Volumes; len(w) != 1 || w[0].Make {
		t.Errorf("a disk that was ready once may be made anew: %v", w)
	}
	// 10 GiB are free, of which data may still take 3.
	if v := h.created("more", 6<<30+1<<20); v.Host != "a1" {
		t.Errorf("a volume for which a2 has no room is on %s", v.Host)
	}
	if v := h.created("most", 10<<30); v.Host != "" || !strings.Contains(v.Message, "no host that is connected and keeps volumes has 11 GiB of disk free") {
		t.Errorf("a volume for which there is no room is %v", v)
	}
}

func TestAVolumeIsDeletedWhenItsHostHasDeletedIt(t *testing.T) {
	h := volumes(t, 0)
	h.has("a2", h.created("data", 1<<30), 0)
	h.pass(time.Second)
	h.ask(func(a *Admission) (Change, error) { return a.DeleteVolume("data") })
	if w := h.pass(time.Second)["a2"].Volumes; len(w) != 1 || !w[0].Discard || h.objects.Volumes["data"] == nil {
		t.Errorf("a2's orders are %v, the volume is %v", w, h.objects.Volumes["data"])
	}
	h.volumes["a2"] = nil
	h.pass(time.Second)
	if v := h.objects.Volumes["data"]; v != nil {
		t.Errorf("it is %v", v)
	}
}

// An older copy of the store was put back, in which the volume is to be made on the host that it has left since.
func TestNoEmptyDiskIsMadeOfAVolumeThatAnotherHostHas(t *testing.T) {
	h := volumes(t, 0)
	v := h.created("data", 1<<30)
	h.pass(time.Second)
	host := h.objects.Volumes["data"].Host
	has := func(generation uint64) {
		h.volumes["b1"] = []*v1.VolumeObserved{{Uid: v.Meta.Uid, Ready: true, Facts: &v1.VolumeFacts{Name: "data", Owner: v.Meta.Owner, SizeBytes: v.SizeBytes, Generation: generation}}}
	}
	if w := h.pass(time.Second)[host].GetVolumes(); len(w) != 1 || !w[0].Make {
		t.Fatalf("%s is ordered %v", host, w)
	}
	has(1)
	if w := h.pass(time.Second)[host].GetVolumes(); len(w) != 0 && w[0].Make {
		t.Errorf("%s is ordered %v", host, w)
	}
	if now := h.objects.Volumes["data"]; now.Host != "b1" {
		t.Errorf("the volume is %v", now)
	}
}

// The store does not know which host has made the volume. That host has its disk, but does not serve it without orders.
func TestAVolumeWhoseHostIsNotKnownIsWhereItsDiskIs(t *testing.T) {
	h := volumes(t, 0)
	v := h.created("data", 1<<30)
	h.volumes["b1"] = []*v1.VolumeObserved{{Uid: v.Meta.Uid, Facts: &v1.VolumeFacts{Name: "data", Owner: v.Meta.Owner, SizeBytes: v.SizeBytes}}}
	v = proto.CloneOf(h.objects.Volumes["data"])
	v.Host = ""
	h.objects = h.objects.Apply(Change{Ops: []Op{{Update, v}}})
	h.pass(time.Second)
	if now := h.objects.Volumes["data"]; now.Host != "b1" {
		t.Errorf("the volume is %v", now)
	}
}

// When a cluster goes back, the snapshots of its volume that were taken since are left behind.
func TestTheRestoreOfAClusterLeavesSnapshotsBehind(t *testing.T) {
	h := inUse(t)
	h.withVolume()
	v, c := h.objects.Volumes["data"], h.objects.Checkpoints["md-c1"]
	for n, after := range map[int]time.Duration{1: -time.Hour, 2: -time.Minute, 3: time.Minute} {
		h.objects.Checkpoints[fmt.Sprint("data-s", n)] = &v1.Checkpoint{Meta: &v1.Meta{Name: fmt.Sprint("data-s", n), Uid: fmt.Sprint("uid-s", n)}, Volume: &v1.CheckpointMember{Guest: "data", GuestUid: v.Meta.Uid},
			State: v1.CheckpointState_CHECKPOINT_STATE_DONE, Taken: timestamppb.New(c.Taken.AsTime().Add(after))}
	}
	if last := lastSnapshotBefore(h.objects, v, c); last.Meta.Name != "data-s2" {
		t.Errorf("the last one before is %v", last)
	}
	if left := leftBehind(h.objects, v, lastSnapshotBefore(h.objects, v, c)); len(left) != 1 || left[0].After != 2 || left[0].Upto != 3 {
		t.Errorf("left behind are %v", left)
	}
	c.Taken = timestamppb.New(c.Taken.AsTime().Add(-2 * time.Hour))
	if left := leftBehind(h.objects, v, lastSnapshotBefore(h.objects, v, c)); len(left) != 1 || left[0].After != 0 || left[0].Upto != 3 {
		t.Errorf("left behind are %v", left)
	}
}

// A volume's record lasts until the hosts that are connected have deleted its earlier disks, too.
func TestADeletedVolumeDoesNotComeBackFromAnEarlierDisk(t *testing.T) {
	h := volumes(t, 0)
	v := h.created("data", 1<<30)
	h.has("a2", v, 0)
	h.pass(time.Second)
	h.volumes["b1"] = []*v1.VolumeObserved{{Uid: v.Meta.Uid, Facts: &v1.VolumeFacts{Name: "data", Owner: v.Meta.Owner, OwnerUid: v.Meta.OwnerUid, SizeBytes: v.SizeBytes, Generation: v.Generation}}}
	h.ask(func(a *Admission) (Change, error) { return a.DeleteVolume("data") })
	h.pass(time.Second)
	h.volumes["a2"] = nil
	if w := h.pass(time.Second)["b1"].Volumes; len(w) != 1 || !w[0].Discard || h.objects.Volumes["data"] == nil {
		t.Errorf("b1's orders are %v, the volume is %v", w, h.objects.Volumes["data"])
	}
	h.volumes["b1"] = nil
	h.pass(time.Second)
	if len(h.objects.Volumes) != 0 {
		t.Errorf("volumes are %v", h.objects.Volumes)
	}
}

// inUse returns a household whose cluster uses volume data, which is on a2.
func inUse(t *testing.T) *household {
	h := volumes(t, 2)
	for _, name := range []string{"md-0", "md-1"} {
		h.objects.Guests[name].Meta.Owner = "ann"
	}
	h.objects.Clusters["md"].Meta.Owner, h.objects.Clusters["md"].Spec.Volume = "ann", "data"
	h.has("a2", h.created("data", 1<<30), 0)
	h.pass(time.Second)
	return h
}

func TestAGuestAndItsHostsMayUseTheVolume(t *testing.T) {
	h := inUse(t)
	orders := h.pass(time.Second)
	readers := func(orders map[string]*v1.HostWanted) (names string) {
		for _, r := range orders["a2"].Volumes[0].Readers {
			names += r.Name + " "
		}
		return names
	}
	for _, g := range orders["a1"].Guests {
		if (g.Volume.GetUid() == "uid-data" && g.Volume.Host.Name == "a2") != (g.Name == "md-0") {
			t.Errorf("the volume of %s is %v", g.Name, g.Volume)
		}
	}
	if readers(orders) != "a1 " {
		t.Errorf("the volume's readers are %s", readers(orders))
	}
	move, _, err := PlanMove(h.objects, h.reports(), h.objects.Guests["md-0"], "b1", "")
	if err != nil {
		t.Fatal(err)
	}
	move.Meta.Uid = "uid-move"
	h.objects = h.objects.Apply(Change{Ops: []Op{{Create, move}}})
	if orders := h.pass(time.Second); readers(orders) != "a1 b1 " {
		t.Errorf("during a move the readers are %s", readers(orders))
	}
	h.arrive()
	if orders := h.pass(time.Second); readers(orders) != "b1 " {
		t.Errorf("after a move the readers are %s", readers(orders))
	}
}

func TestAGuestWaitsForItsVolume(t *testing.T) {
	h := inUse(t)
	h.away = map[string]bool{"a2": true}
	h.releaseAll()
	h.pass(time.Second)
	if g := h.objects.Guests["md-0"]; g.Host != "" || g.Message != "host a2, which has volume data, is out of reach" {
		t.Errorf("md-0 is %v", g)
	}
	if g := h.objects.Guests["md-1"]; g.Host == "" {
		t.Errorf("md-1 is %v", g)
	}
	h.away = nil
	h.volumes["a2"][0].Ready, h.volumes["a2"][0].Message = false, "its disk is missing"
	h.pass(time.Second)
	if g := h.objects.Guests["md-0"]; g.Host != "" || g.Message != "host a2 does not serve volume data: its disk is missing" {
		t.Errorf("md-0 is %v", g)
	}
	h.volumes["a2"][0].Ready = true
	h.pass(time.Second)
	if g := h.objects.Guests["md-0"]; g.Host == "" {
		t.Errorf("when the host is back, md-0 is %v", g)
	}
}

// A store that was put back from an older copy does not know the volume, or does not know that it is in use.
func TestAVolumeIsKnownAgain(t *testing.T) {
	h := inUse(t)
	forgotten := h.objects.Volumes["data"]
	h.objects = h.objects.Apply(Change{Ops: []Op{{Delete, forgotten}}})
	h.pass(time.Second)
	if v := h.objects.Volumes["data"]; v == nil || v.Host != "a2" || v.Cluster != "md" || v.Meta.Owner != "ann" || v.State != v1.VolumeState_VOLUME_STATE_READY {
		t.Errorf("it is %v", v)
	}
}

func TestWhatIsRefusedOfVolumes(t *testing.T) {
	for name, c := range map[string]struct {
		do   func(h *household, a *Admission) (Change, error)
		want string
	}{
		"a name that is none": {func(_ *household, a *Admission) (Change, error) {
			return a.CreateVolume(&v1.CreateVolumeRequest{Name: "../x", SizeBytes: 1 << 30}, CheckpointKey{"secret", "public"})
		}, "cannot be a volume's name"},
		"no size": {func(_ *household, a *Admission) (Change, error) {
			return a.CreateVolume(&v1.CreateVolumeRequest{Name: "x"}, CheckpointKey{"secret", "public"})
		}, "a volume of 0 bytes: it has 64 MiB to 64 TiB"},
		"an unknown host": {func(_ *household, a *Admission) (Change, error) {
			return a.CreateVolume(&v1.CreateVolumeRequest{Name: "x", SizeBytes: 1 << 30, Host: "c9"}, CheckpointKey{"secret", "public"})
		}, "there is no host \"c9\""},
		"another size of the same name": {func(_ *household, a *Admission) (Change, error) {
			return a.CreateVolume(&v1.CreateVolumeRequest{Name: "data", SizeBytes: 2 << 30}, CheckpointKey{"secret", "public"})
		}, "it has 1.0 GiB, not 2.0 GiB"},
		"more than the quota": {func(_ *household, a *Admission) (Change, error) {
			a.Users["ann"] = &v1.User{Meta: &v1.Meta{Name: "ann"}, Quota: &v1.Quota{VolumeBytes: 2 << 30}}
			return a.CreateVolume(&v1.CreateVolumeRequest{Name: "x", SizeBytes: 1<<30 + 1<<20}, CheckpointKey{"secret", "public"})
		}, "2.0 GiB of volumes, with 1.0 GiB in use"},
		"somebody else's name": {func(_ *household, a *Admission) (Change, error) {
			a.Caller = Caller{Name: "bob"}
			return a.CreateVolume(&v1.CreateVolumeRequest{Name: "data", SizeBytes: 1 << 30}, CheckpointKey{"secret", "public"})
		}, "the name data is taken"},
		"deleting one in use": {func(_ *household, a *Admission) (Change, error) { return a.DeleteVolume("data") }, "cluster md uses volume data"},
		"deleting somebody else's": {func(_ *household, a *Admission) (Change, error) {
			a.Caller = Caller{Name: "bob"}
			return a.DeleteVolume("data")
		}, "there is no volume \"data\""},
		"a second cluster": {func(h *household, a *Admission) (Change, error) {
			second := proto.CloneOf(h.objects.Clusters["md"])
			second.Meta.Name, second.Meta.Uid = "second", "uid-second"
			var c Change
			return c, a.takeVolume(&c, second)
		}, "cluster md uses volume data; one cluster at a time can"},
		"one that is being deleted": {func(h *household, a *Admission) (Change, error) {
			v := proto.CloneOf(h.objects.Volumes["data"])
			v.Meta.Deleting, v.Cluster = timestamppb.New(h.now), ""
			a.Objects = a.Objects.Apply(Change{Ops: []Op{{Update, v}}})
			var c Change
			return c, a.takeVolume(&c, h.objects.Clusters["md"])
		}, "volume data is being deleted"},
		"removing its host": {func(_ *household, a *Admission) (Change, error) { return a.RemoveHost("a2", false) }, "host a2 has volumes, which would be lost: data"},
	} {
		t.Run(name, func(t *testing.T) {
			h := inUse(t)
			a := h.admission()
			a.Caller = Caller{Name: "ann"}
			if _, err := c.do(h, a); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("the answer is %v, want %q", err, c.want)
			}
		})
	}
}

// part is a host's report of its part in a checkpoint.
func part(uid string, epoch uint64, phase v1.CheckpointPhase) *v1.CheckpointObserved {
	return &v1.CheckpointObserved{CheckpointId: "uid-md-c1", GuestUid: uid, Epoch: epoch, Phase: phase,
		File: &v1.CheckpointFile{Blob: &v1.Blob{Digest: "sha256:" + uid, Size: 1 << 20}, StateBytes: 2 << 20}}
}

// The copy of the volume begins after all guests have been stopped, and before any guest goes on.
func TestAVolumeIsPartOfACheckpoint(t *testing.T) {
	const prepare, stop, take = v1.CheckpointOrder_CHECKPOINT_ORDER_PREPARE, v1.CheckpointOrder_CHECKPOINT_ORDER_STOP, v1.CheckpointOrder_CHECKPOINT_ORDER_TAKE
	h := inUse(t)
	h.ask(func(a *Admission) (Change, error) {
		c, _, err := a.CreateCheckpoint(&v1.CreateCheckpointRequest{Cluster: "md"}, CheckpointKey{"secret", "public"})
		return c, err
	})
	h.files = map[string][]*v1.CheckpointObserved{}
	for _, s := range []struct {
		state         v1.CheckpointState
		guest, volume v1.CheckpointOrder // that are given
		reached       [2]v1.CheckpointPhase
	}{
		{v1.CheckpointState_CHECKPOINT_STATE_PREPARING, prepare, prepare, [2]v1.CheckpointPhase{1, 1}},
		{v1.CheckpointState_CHECKPOINT_STATE_STOPPING, stop, prepare, [2]v1.CheckpointPhase{2, 1}},
		{v1.CheckpointState_CHECKPOINT_STATE_FREEZING, stop, take, [2]v1.CheckpointPhase{2, 3}},
		{v1.CheckpointState_CHECKPOINT_STATE_TAKING, take, take, [2]v1.CheckpointPhase{3, 3}},
		{v1.CheckpointState_CHECKPOINT_STATE_WRITING, take, take, [2]v1.CheckpointPhase{4, 4}},
	} {
		orders := h.pass(100 * time.Millisecond)
		if got := h.objects.Checkpoints["md-c1"].State; got != s.state {
			t.Fatalf("it is %s, not %s", got, s.state)
		}
		if w := orders["a1"].Checkpoints; len(w) != 2 || w[0].Volume || w[0].Order != s.guest || w[1].Order != s.guest {
			t.Errorf("%s: the orders about the guests are %v", s.state, w)
		}
		if w := orders["a2"].Checkpoints; len(w) != 1 || !w[0].Volume || w[0].GuestUid != "uid-data" || w[0].Order != s.volume || w[0].Limit < 1<<30 {
			t.Errorf("%s: the order about the volume is %v", s.state, w)
		}
		h.files["a1"], h.files["a2"] = nil, []*v1.CheckpointObserved{part("uid-data", 0, s.reached[1])}
		for _, g := range h.objects.Guests {
			h.files["a1"] = append(h.files["a1"], part(g.Meta.Uid, 1, s.reached[0]))
		}
	}
	h.pass(100 * time.Millisecond)
	if c := h.objects.Checkpoints["md-c1"]; c.State != v1.CheckpointState_CHECKPOINT_STATE_DONE || c.Volume.File.Blob.Digest != "sha256:uid-data" || c.Volume.File.Hosts[0] != "a2" {
		t.Errorf("it is %v", c)
	}
}

// withVolume adds a checkpoint of the household's cluster and its volume, with files on a1.
func (h *household) withVolume() {
	h.saved("md-c1", time.Hour, func(c *v1.Checkpoint) {
		c.Volume = &v1.CheckpointMember{Guest: "data", GuestUid: "uid-data", Host: "a2",
			File: &v1.CheckpointFile{Blob: &v1.Blob{Digest: "sha256:data", Size: 1 << 20}, StateBytes: 2 << 20, Hosts: []string{"a1"}}}
	})
	h.files = map[string][]*v1.CheckpointObserved{}
	for _, m := range checkpoint.Files(h.objects.Checkpoints["md-c1"]) {
		h.files["a1"] = append(h.files["a1"], &v1.CheckpointObserved{CheckpointId: "uid-md-c1", GuestUid: m.GuestUid, Epoch: m.Epoch, File: m.File,
			Phase: v1.CheckpointPhase_CHECKPOINT_PHASE_WRITTEN})
	}
}

func (h *household) volumeOrder(orders map[string]*v1.HostWanted, host string) *v1.VolumeWanted {
	for _, w := range orders[host].GetVolumes() {
		if w.Uid == "uid-data" {
			return w
		}
	}
	return nil
}

// The volume is put back first. Only then does the guest that uses it get a host, which may use the disk.
func TestAVolumeIsPutBackBeforeItsGuest(t *testing.T) {
	h := inUse(t)
	h.withVolume()
	h.ask(func(a *Admission) (Change, error) { c, _, err := a.RestoreCheckpoint("md"); return c, err })
	if w := h.volumeOrder(h.pass(time.Second), "a2"); w.Restore != nil {
		t.Fatalf("before the guests have ended the order is %v", w)
	}
	h.releaseAll()
	orders := h.pass(time.Second)
	id := h.objects.Clusters["md"].Restore.Id
	if w := h.volumeOrder(orders, "a2"); w.Restore.GetId() != id || w.Restore.File.Blob.Digest != "sha256:data" || len(w.Readers) != 0 || w.Make {
		t.Errorf("the order about the volume is %v", w)
	}
	if g := h.objects.Guests; g["md-0"].Host != "" || g["md-1"].Host == "" {
		t.Errorf("before it is put back md-0 is on %q, md-1 on %q", g["md-0"].Host, g["md-1"].Host)
	}
	fetched := false
	for _, w := range orders["a2"].Checkpoints {
		fetched = fetched || w.GuestUid == "uid-data" && w.Order == v1.CheckpointOrder_CHECKPOINT_ORDER_KEEP
	}
	if !fetched {
		t.Errorf("a2 does not fetch the file: %v", orders["a2"].Checkpoints)
	}
	h.volumes["a2"][0].Restored = "another"
	h.pass(time.Second)
	if g := h.objects.Guests["md-0"]; g.Host != "" {
		t.Errorf("after another restore it is on %s", g.Host)
	}
	h.volumes["a2"][0].Restored = id
	orders = h.pass(time.Second)
	g := h.objects.Guests["md-0"]
	if w := h.volumeOrder(orders, "a2"); g.Host == "" || len(w.Readers) != 1 || w.Readers[0].Name != g.Host {
		t.Errorf("afterwards md-0 is on %q, and the order is %v", g.Host, w)
	}
}

// An older copy of the store was put back, and a host that has got the volume in the lost time was given up. It comes back when
// a guest has been started with an earlier disk.
func TestAHostThatReturnsTakesNoVolumeFromAGuest(t *testing.T) {
	h := inUse(t)
	h.withVolume()
	lost := uint64(h.now.Unix())
	h.ask(func(a *Admission) (Change, error) {
		c, _, err := a.RestoreCheckpoint("md-c1")
		return c, err
	})
	h.pass(time.Second)
	h.releaseAll()
	h.pass(time.Second)
	h.volumes["a2"][0].Restored = h.objects.Clusters["md"].Restore.Id
	h.pass(time.Second)
	v := h.objects.Volumes["data"]
	if g := h.objects.Guests["md-0"]; g.Host == "" || v.Host != "a2" || v.Generation <= lost {
		t.Fatalf("md-0 is on %q, and its volume is %v", g.Host, v)
	}
	h.volumes["a2"][0].Facts.Generation = v.Generation
	h.has("b1", v, 0)
	h.volumes["b1"][0].Facts.Generation = lost
	h.pass(time.Second)
	orders := h.pass(time.Second)
	if v := h.objects.Volumes["data"]; v.Host != "a2" || len(h.volumeOrder(orders, "a2").GetReaders()) != 1 {
		t.Errorf("it is %v, and a2 is ordered %v", v, h.volumeOrder(orders, "a2"))
	}
	if w := h.volumeOrder(orders, "b1"); !w.GetDiscard() {
		t.Errorf("b1 is ordered %v", w)
	}
}

// A volume whose host is lost is restored on another host, with its cluster. When the lost host comes back, it deletes its
// disk, but not before the other disk is ready.
func TestAVolumeWhoseHostIsLost(t *testing.T) {
	h := inUse(t)
	h.withVolume()
	h.leased(v1.OnHostLoss_ON_HOST_LOSS_RESTORE)
	h.away, h.out = map[string]bool{"a2": true}, 59*time.Second
	h.pass(time.Second)
	if r := h.objects.Clusters["md"].Restore; r != nil {
		t.Fatalf("it is restored too early: %v", r)
	}
	h.out = 61 * time.Second
	h.pass(2 * time.Second)
	if r := h.objects.Clusters["md"].Restore; r.GetCheckpoint() != "md-c1" || !strings.Contains(r.Reason, "host a2, which has volume data, is out of reach") {
		t.Fatalf("the restore is %v", r)
	}
	if v := h.objects.Volumes["data"]; v.Host != "a2" {
		t.Fatalf("it is on %s while guests may use it", v.Host)
	}
	h.releaseAll()
	orders := h.pass(time.Second)
	v := h.objects.Volumes["data"]
	if w := h.volumeOrder(orders, v.Host); v.Host == "a2" || v.Generation != uint64(h.now.Unix()) || w.Restore == nil || w.Make || w.Facts.Generation != v.Generation {
		t.Fatalf("it is %v, and the order is %v", v, w)
	}
	h.away = nil
	if w := h.volumeOrder(h.pass(time.Second), "a2"); w != nil {
		t.Errorf("before it is restored a2 is ordered %v", w)
	}
	h.has(v.Host, v, 0)
	seen := h.volumes[v.Host][0]
	seen.Restored, seen.Facts.Generation = h.objects.Clusters["md"].Restore.Id, v.Generation
	h.pass(time.Second)
	seen.Facts.Generation = h.objects.Volumes["data"].Generation // md-0 is started
	if w := h.volumeOrder(h.pass(time.Second), "a2"); !w.GetDiscard() {
		t.Errorf("afterwards a2 is ordered %v", w)
	}
	if v := h.objects.Volumes["data"]; v.State != v1.VolumeState_VOLUME_STATE_READY {
		t.Errorf("it is %v", v)
	}
}

// restoredElsewhere returns a household whose host a2 is lost: another host is to put its volume back with the cluster.
func restoredElsewhere(t *testing.T) *household {
	h := inUse(t)
	h.withVolume()
	h.leased(v1.OnHostLoss_ON_HOST_LOSS_RESTORE)
	h.away, h.out = map[string]bool{"a2": true}, 2*time.Minute
	h.pass(time.Second)
	h.releaseAll()
	h.pass(time.Second)
	return h
}

// A host that cannot put a volume back, perhaps because its disk is full, gives it up to another host. The last host tries on.
func TestAVolumeThatAHostCannotPutBackGoesToAnother(t *testing.T) {
	h := restoredElsewhere(t)
	first := h.objects.Volumes["data"].Host
	says := func(host string, failed bool) *v1.Volume {
		h.volumes[host] = []*v1.VolumeObserved{{Uid: "uid-data", Failed: failed, Message: "no space left on device"}}
		h.pass(time.Second)
		return h.objects.Volumes["data"]
	}
	if v := says(first, false); v.Host != first || v.Message != "no space left on device" {
		t.Errorf("while %s tries, it is %v", first, v)
	}
	was := h.objects.Volumes["data"].Generation
	v := says(first, true)
	if v.Host == first || v.Host == "a2" || v.Generation <= was {
		t.Fatalf("%s has failed, and it is %v", first, v)
	}
	second := v.Host
	v = says(second, true)
	if v.Host != second || !strings.Contains(v.Message, "host "+second+" could not put it back: no space left on device; no host") {
		t.Errorf("all have failed, and it is %v", v)
	}
	h.pass(noRoomFor)
	if v := h.objects.Volumes["data"]; v.Host != first {
		t.Errorf("after a pause it is %v", v)
	}
}

// A host was given up for lost after an older copy of the store was put back, and comes back. In the lost time it has got the volume. It
// does not get it from the host that has got it since.
func TestALaterHostKeepsTheVolume(t *testing.T) {
	h := restoredElsewhere(t)
	v := h.objects.Volumes["data"]
	h.has("b1", v, 0)
	h.volumes["b1"][0].Facts.Generation = uint64(h.now.Add(-time.Hour).Unix())
	h.pass(time.Second)
	if now := h.objects.Volumes["data"]; now.Host != v.Host || now.Generation != v.Generation {
		t.Errorf("it was %v, and is %v", v, now)
	}
}

// A store that was put back does not know that a volume has got another host.
func TestAVolumeIsWhereItsNewestDiskIs(t *testing.T) {
	h := inUse(t)
	h.has("a1", h.objects.Volumes["data"], 0)
	h.volumes["a1"][0].Facts.Generation = 3
	orders := h.pass(time.Second)
	if v := h.objects.Volumes["data"]; v.Host != "a1" || v.Generation != 3 {
		t.Errorf("it is %v", v)
	}
	if w := h.volumeOrder(orders, "a1"); w == nil || w.Discard {
		t.Errorf("a1 is ordered %v", w)
	}
}

// As above, before the host with the newest disk has taken its orders: nobody may write to the earlier disk.
func TestAnEarlierDiskIsNotUsed(t *testing.T) {
	h := inUse(t)
	h.releaseAll()
	h.has("a1", h.objects.Volumes["data"], 0)
	h.volumes["a1"][0].Facts.Generation = 3
	h.copies = map[string][]*v1.VolumeCopyObserved{"a2": {{Uid: "uid-data", Copy: "copy"}}}
	h.behind = map[string]bool{"a1": true}
	orders := h.pass(time.Second)
	const why = "waits: host a1 has a later disk of it"
	if v, g := h.objects.Volumes["data"], h.objects.Guests["md-0"]; v.Host != "a2" || g.Host != "" || !strings.HasPrefix(g.Message, "volume data "+why) {
		t.Errorf("it is %v, and md-0 %v", v, g)
	}
	if n := strings.Count(strings.Join(h.events, "\n"), "data "+why); n != 1 {
		t.Errorf("%d events say so: %q", n, h.events)
	}
	for host := range h.objects.Hosts {
		if w := h.volumeOrder(orders, host); w != nil {
			t.Errorf("%s is ordered %v", host, w)
		}
	}
	h.behind = nil
	orders = h.pass(time.Second)
	if v, g := h.objects.Volumes["data"], h.objects.Guests["md-0"]; v.Host != "a1" || g.Host == "" || h.volumeOrder(orders, "a1") == nil {
		t.Errorf("it is %v, md-0 is %v, and a1 is ordered %v", v, g, h.volumeOrder(orders, "a1"))
	}
}

// As above; the guests run. They do not move, and no checkpoint begins, until the store knows where the disk is.
func TestGuestsOfAnEarlierDiskStay(t *testing.T) {
	h := inUse(t)
	h.has("b1", h.objects.Volumes["data"], 0)
	h.volumes["b1"][0].Facts.Generation = 3
	h.behind = map[string]bool{"b1": true}
	h.objects.Clusters["md"].Checkpoints = &v1.CheckpointPlan{EverySeconds: 60}
	h.change("a1", func(host *v1.Host) { host.Draining = true })
	h.pass(time.Second)
	h.objects = h.objects.Apply(Change{Ops: []Op{{Create, &v1.Migration{Meta: &v1.Meta{Name: "m", Uid: "uid-m"}, Guest: "md-0", GuestUid: h.objects.Guests["md-0"].Meta.Uid, Source: "a1", Target: "a2"}}}})
	h.pass(time.Second)
	for _, m := range h.objects.Migrations {
		if m.Guest == "md-0" && m.State != v1.MigrationState_MIGRATION_STATE_PENDING && m.State != v1.MigrationState_MIGRATION_STATE_UNSPECIFIED {
			t.Errorf("a move is %v", m)
		}
	}
	if len(h.objects.Checkpoints) > 0 {
		t.Errorf("there are checkpoints %v", sortedKeys(h.objects.Checkpoints))
	}
}

// As above; the host of the record has the later disk. It serves it on, but follows no earlier order to put it back.
func TestALaterDiskOfTheSameHostIsServed(t *testing.T) {
	h := inUse(t)
	h.volumes["a2"][0].Facts.Generation = 3
	h.behind = map[string]bool{"a2": true}
	if w := h.volumeOrder(h.pass(time.Second), "a2"); w == nil || len(w.Readers) != 1 || w.Readers[0].Name != "a1" {
		t.Errorf("a2 is ordered %v", w)
	}
	h = alone(t, nil)
	h.takeSnapshot()
	h.ask(func(a *Admission) (Change, error) { c, _, _, err := a.RestoreVolume("data", ""); return c, err })
	h.volumes["a2"][0].Facts.Generation = 3
	h.behind = map[string]bool{"a2": true}
	if w := h.volumeOrder(h.pass(time.Second), "a2"); w == nil || w.Restore != nil {
		t.Errorf("with an earlier restore, a2 is ordered %v", w)
	}
}

// As above; the host is disconnected before it has taken its orders. The earlier disk is used, because nobody knows of another one.
func TestAnEarlierDiskIsUsedIfNoHostHasAnother(t *testing.T) {
	h := inUse(t)
	h.has("a1", h.objects.Volumes["data"], 0)
	h.volumes["a1"][0].Facts.Generation = 3
	h.behind = map[string]bool{"a1": true}
	h.pass(time.Second)
	h.away = map[string]bool{"a1": true}
	if w := h.volumeOrder(h.pass(time.Second), "a2"); w == nil {
		t.Error("a2 has no order")
	}
}

// An older copy of the store was put back, and the volume has moved away from its host and back since.
func TestAVolumeStaysWhereItsNewestDiskIs(t *testing.T) {
	h := inUse(t)
	host := h.objects.Volumes["data"].Host
	h.volumes[host][0].Facts.Generation = 3
	h.has("a1", h.objects.Volumes["data"], 0)
	h.volumes["a1"][0].Facts.Generation = 2
	h.pass(time.Second)
	if v := h.objects.Volumes["data"]; v.Host != host || v.Generation != 3 || v.DiskGeneration != 3 {
		t.Errorf("it is %v", v)
	}
	orders := h.pass(time.Second)
	if w := h.volumeOrder(orders, "a1"); w == nil || !w.Discard {
		t.Errorf("a1, which has an earlier disk, is ordered %v", w)
	}
	if w := h.volumeOrder(orders, host); w == nil || w.Discard || w.Facts.Generation != 3 {
		t.Errorf("its host is ordered %v", w)
	}
}

// An older copy of the store was put back that knows a restore from before the volume's latest disk.
func TestAnEarlierRestoreDoesNotReplaceTheLatestDisk(t *testing.T) {
	h := alone(t, nil)
	h.takeSnapshot()
	h.ask(func(a *Admission) (Change, error) { c, _, _, err := a.RestoreVolume("data", ""); return c, err })
	h.volumes["a2"][0].Facts.Generation = 3
	for range 2 {
		h.pass(time.Second)
	}
	orders := h.pass(time.Second)
	v := h.objects.Volumes["data"]
	if w := h.volumeOrder(orders, "a2"); v.Host != "a2" || v.Generation != 3 || v.Restore.State != v1.RestoreState_RESTORE_STATE_FAILED || w == nil || w.Restore != nil {
		t.Errorf("it is %v, and a2 is ordered %v", v, w)
	}
}

// As above; the restore is the cluster's.
func TestAnEarlierRestoreOfAClusterDoesNotReplaceTheLatestDisk(t *testing.T) {
	h := restoredElsewhere(t)
	if h.objects.Clusters["md"].Restore.State != v1.RestoreState_RESTORE_STATE_RESTORING {
		t.Fatalf("the cluster is %v", h.objects.Clusters["md"])
	}
	h.away = nil
	later := h.objects.Volumes["data"].Generation + 5
	h.volumes["a2"][0].Facts.Generation = later
	for range 2 {
		h.pass(time.Second)
	}
	orders := h.pass(time.Second)
	v, cluster := h.objects.Volumes["data"], h.objects.Clusters["md"]
	if v.Host != "a2" || v.Generation != later || cluster.Restore.State != v1.RestoreState_RESTORE_STATE_FAILED || !h.objects.Guests["md-0"].Stopped {
		t.Errorf("it is %v, and the cluster %v", v, cluster)
	}
	for host := range h.objects.Hosts {
		if w := h.volumeOrder(orders, host); w.GetRestore() != nil {
			t.Errorf("%s is ordered %v", host, w)
		}
	}
}

// As above; the cluster's guests are still to be ended.
func TestAnEarlierRestoreOfAClusterIsNotBegun(t *testing.T) {
	h := inUse(t)
	h.withVolume()
	h.ask(func(a *Admission) (Change, error) { c, _, err := a.RestoreCheckpoint("md"); return c, err })
	if !ending(h.objects.Clusters["md"]) {
		t.Fatalf("the cluster is %v", h.objects.Clusters["md"])
	}
	h.releaseAll()
	h.volumes["a2"][0].Facts.Generation = 7
	for range 3 {
		h.pass(time.Second)
	}
	v, cluster := h.objects.Volumes["data"], h.objects.Clusters["md"]
	if v.Generation != 7 || cluster.Restore.State != v1.RestoreState_RESTORE_STATE_FAILED || !h.objects.Guests["md-0"].Stopped {
		t.Errorf("it is %v, and the cluster %v", v, cluster)
	}
}

// The latest disk may be the one that the restore has made, on a host that the older copy of the store does not know to have it.
func TestARestoreThatMadeTheLatestDiskGoesOn(t *testing.T) {
	h := alone(t, nil)
	h.takeSnapshot()
	h.ask(func(a *Admission) (Change, error) { c, _, _, err := a.RestoreVolume("data", ""); return c, err })
	h.has("b1", h.objects.Volumes["data"], 0)
	h.volumes["b1"][0].Facts.Generation, h.volumes["b1"][0].Restored = 2, h.objects.Volumes["data"].Restore.Id
	for range 3 {
		h.pass(time.Second)
	}
	if v := h.objects.Volumes["data"]; v.Host != "b1" || v.Generation != 2 || v.Restore.State != v1.RestoreState_RESTORE_STATE_DONE {
		t.Errorf("it is %v", v)
	}
}

// A volume without a host, because an older copy of the store was put back, gets the host that has its disk.
func TestAVolumeIsWhereItsDiskIs(t *testing.T) {
	h := volumes(t, 0)
	v := &v1.Volume{Meta: &v1.Meta{Name: "data", Uid: "uid-data", Owner: "ann"}, SizeBytes: 1 << 30, State: v1.VolumeState_VOLUME_STATE_PENDING}
	h.has("b1", v, 0)
	h.created("data", 1<<30)
	if v := h.objects.Volumes["data"]; v.Host != "b1" || v.State != v1.VolumeState_VOLUME_STATE_READY {
		t.Errorf("it is %v", v)
	}
}

// While a volume's host is out of reach, the manager does not decide without pauses.
func TestAVolumeThatIsAwayIsLookedAtInTime(t *testing.T) {
	h := inUse(t)
	h.leased(v1.OnHostLoss_ON_HOST_LOSS_RESTORE)
	h.away, h.out = map[string]bool{"a2": true}, time.Hour
	h.pass(time.Second)
	d := h.core.Decide(World{Objects: h.objects, Now: h.now, Reports: h.reports(), Leases: h.leases})
	if !d.Again.IsZero() && !d.Again.After(h.now) {
		t.Errorf("the next decision is at %v, and it is %v", d.Again, h.now)
	}
}

func TestAHostIsBelievedAboutAVolumeOnlyWithTheManagersSeal(t *testing.T) {
	h := newHousehold(t, "", 1)
	seal := func(host, uid string, f *v1.VolumeFacts) []byte {
		return fmt.Appendf(nil, "%s %s %s %d", host, uid, f.GetOwner(), f.GetGeneration())
	}
	h.core = New(Config{Term: 1, Began: h.now.Add(-time.Hour), Seal: seal,
		Sealed: func(host, uid string, f *v1.VolumeFacts) bool {
			return string(seal(host, uid, f)) == string(f.GetSeal())
		},
		Identify: func(*v1.Cluster, *v1.Guest, uint64, uint32) (*v1.Identity, time.Time) { return nil, time.Time{} }})
	h.objects.Volumes["home"] = &v1.Volume{Meta: &v1.Meta{Name: "home", Uid: "known", Owner: "ann"}, SizeBytes: 1 << 30, Host: "b1",
		State: v1.VolumeState_VOLUME_STATE_READY, Generation: 1}
	reports := func(uid, sealedFor string, generation uint64) *v1.VolumeObserved {
		f := &v1.VolumeFacts{Name: "home", Owner: "ann", SizeBytes: 1 << 30, Generation: generation}
		f.Seal = seal(sealedFor, uid, f)
		return &v1.VolumeObserved{Uid: uid, Ready: true, Facts: f}
	}
	forged := reports("known", "a2", 1)
	forged.Facts.Generation = 1 << 62
	h.volumes = map[string][]*v1.VolumeObserved{"b1": {reports("known", "b1", 1)}, "a2": {forged, reports("unknown", "b1", 1), {Uid: "made up", Ready: true,
		Facts: &v1.VolumeFacts{Name: "big", Owner: "bob", SizeBytes: 1 << 50}}}}
	orders := h.pass(time.Second)
	if v := h.objects.Volumes["home"]; v.Host != "b1" || len(h.objects.Volumes) != 1 {
		t.Errorf("volumes %v; events %q", h.objects.Volumes, h.events)
	}
	for _, w := range orders["b1"].Volumes {
		if w.Discard || string(w.Facts.Seal) != string(seal("b1", "known", w.Facts)) {
			t.Errorf("its host is told %v", w)
		}
	}
	h.volumes["a2"] = []*v1.VolumeObserved{reports("known", "a2", 2)}
	h.pass(time.Second)
	if v := h.objects.Volumes["home"]; v.Host != "a2" || v.Generation != 2 {
		t.Errorf("the manager has told a2 that it has the volume, and has forgotten that: %v", v)
	}
	told := h.pass(time.Second)["b1"].Volumes
	if len(told) != 1 || told[0].Uid != "known" || !told[0].Discard {
		t.Errorf("the earlier host is told %v", told)
	}
}

// The host to which a volume was to be put back has an older disk of it. Nobody gets that disk, and the host with the latest disk
// gets the volume back when the restore is given up.
func TestAVolumeWhoseRestoreIsGivenUpIsAsItWas(t *testing.T) {
	h := alone(t, nil)
	v := proto.CloneOf(h.objects.Volumes["data"])
	v.Generation = 1
	h.objects = h.objects.Apply(Change{Ops: []Op{{Update, v}}})
	h.volumes["a2"][0].Facts.Generation = 1
	c := h.takeSnapshot()
	h.has("b1", v, 0)
	h.ask(func(a *Admission) (Change, error) { c, _, _, err := a.RestoreVolume("data", "b1"); return c, err })
	orders := h.pass(time.Second)
	if v, w := h.objects.Volumes["data"], h.volumeOrder(orders, "b1"); v.State != v1.VolumeState_VOLUME_STATE_PENDING || v.Generation < 2 || w.GetRestore() == nil {
		t.Fatalf("it is %v, and b1 is ordered %v", v, w)
	}
	if w := h.volumeOrder(orders, "a2"); w != nil {
		t.Errorf("a2 is ordered %v", w)
	}
	// b1 has put the volume back, but does not serve it.
	h.volumes["b1"][0].Facts.Generation, h.volumes["b1"][0].Restored, h.volumes["b1"][0].Ready = h.data().Generation, h.data().Restore.Id, false
	h.objects = h.objects.Apply(Change{Ops: []Op{{Delete, h.objects.Checkpoints[c.Meta.Name]}}})
	h.away = map[string]bool{"a2": true}
	orders = h.pass(time.Second)
	if v, w := h.objects.Volumes["data"], h.volumeOrder(orders, "b1"); v.State != v1.VolumeState_VOLUME_STATE_PENDING || w != nil || !strings.Contains(v.Message, "no host that is connected has its latest disk") {
		t.Errorf("without the latest disk it is %v, and b1 is ordered %v", v, w)
	}
	h.away = nil
	h.volumes["a2"][0].Ready = false // its agent was restarted, and has no orders about the volume
	was := h.objects.Volumes["data"].Generation
	h.pass(time.Second)
	if v := h.objects.Volumes["data"]; v.Host != "a2" || v.State != v1.VolumeState_VOLUME_STATE_READY || v.Generation <= was || v.Restore.State != v1.RestoreState_RESTORE_STATE_FAILED {
		t.Errorf("with the latest disk it is %v", v)
	}
}

// A volume's host was lost just after a guest had been started with the disk: the store does not know whether the host had noted that.
func TestAVolumeReturnsToTheDiskThatAGuestHasUsed(t *testing.T) {
	for name, noted := range map[string]bool{"the host has noted it": true, "the host has not noted it": false} {
		h := alone(t, nil)
		c := h.takeSnapshot()
		before := h.data()
		v := proto.CloneOf(before)
		v.Generation = NextGeneration(v.Generation, h.now)
		v.UsedGeneration = v.Generation
		h.objects = h.objects.Apply(Change{Ops: []Op{{Update, v}}})
		if noted {
			h.volumes["a2"][0].Facts.Generation = v.Generation
		}
		h.volumes["a2"][0].Ready = false // its agent was restarted
		h.ask(func(a *Admission) (Change, error) { c, _, _, err := a.RestoreVolume("data", "b1"); return c, err })
		h.pass(time.Second)
		h.objects = h.objects.Apply(Change{Ops: []Op{{Delete, h.objects.Checkpoints[c.Meta.Name]}}})
		h.pass(time.Second)
		if v := h.data(); v.Host != "a2" || v.State != v1.VolumeState_VOLUME_STATE_READY || before.DiskGeneration >= v.UsedGeneration {
			t.Errorf("%s: it is %v", name, v)
		}
	}
}

// The cluster whose restore has given its volume another host is not restored any more.
func TestAVolumeReturnsWhenItsClusterIsNotRestored(t *testing.T) {
	h := restoredElsewhere(t)
	if v := h.objects.Volumes["data"]; v.Host == "a2" {
		t.Fatalf("it is %v", v)
	}
	cluster := proto.CloneOf(h.objects.Clusters["md"])
	cluster.Restore.State = v1.RestoreState_RESTORE_STATE_FAILED
	h.objects = h.objects.Apply(Change{Ops: []Op{{Update, cluster}}})
	h.away = nil
	was := h.objects.Volumes["data"].Generation
	h.pass(time.Second)
	if v := h.objects.Volumes["data"]; v.Host != "a2" || v.State != v1.VolumeState_VOLUME_STATE_READY || v.Generation <= was {
		t.Errorf("it is %v", v)
	}
}

// A volume is put back on the host that has it, and this host has no room for a second disk.
func TestAVolumeThatItsHostCannotPutBackGoesToAnother(t *testing.T) {
	h := alone(t, nil)
	h.takeSnapshot()
	h.ask(func(a *Admission) (Change, error) { c, _, _, err := a.RestoreVolume("data", ""); return c, err })
	h.pass(time.Second)
	h.volumes["a2"][0].Ready, h.volumes["a2"][0].Failed, h.volumes["a2"][0].Message = false, true, "no space left on device"
	orders := h.pass(time.Second)
	v := h.objects.Volumes["data"]
	if v.Host == "a2" || v.Generation != uint64(h.now.Unix()) {
		t.Fatalf("it is %v", v)
	}
	orders = h.pass(time.Second)
	if w := h.volumeOrder(orders, v.Host); w.GetRestore() == nil {
		t.Errorf("%s is ordered %v", v.Host, w)
	}
	if w := h.volumeOrder(orders, "a2"); w != nil {
		t.Errorf("a2 is ordered %v", w)
	}
}

// The store has forgotten a volume that had moved. Its host has the disk, and is ordered to serve it.
func TestAVolumeThatIsKnownAgainIsServed(t *testing.T) {
	h := volumes(t, 0)
	h.volumes["b1"] = []*v1.VolumeObserved{{Uid: "uid-data", Facts: &v1.VolumeFacts{Name: "data", Owner: "ann", SizeBytes: 1 << 30, Generation: 2}}}
	h.pass(time.Second)
	orders := h.pass(time.Second)
	if v, w := h.objects.Volumes["data"], h.volumeOrder(orders, "b1"); v.GetHost() != "b1" || w == nil || w.Make || w.Discard {
		t.Errorf("it is %v, and b1 is ordered %v", v, w)
	}
	h.volumes["b1"][0].Ready = true
	h.pass(time.Second)
	if v := h.objects.Volumes["data"]; v.State != v1.VolumeState_VOLUME_STATE_READY || v.Generation != 2 {
		t.Errorf("it is %v", v)
	}
}

// An older copy of the store may know a volume that was deleted since. Nothing is made in its place.
func TestAVolumeWhoseDiskIsGoneIsLost(t *testing.T) {
	h := inUse(t)
	disk := h.volumes["a2"]
	h.volumes["a2"] = nil
	orders := h.pass(time.Second)
	if v := h.data(); v.State != v1.VolumeState_VOLUME_STATE_LOST || !strings.Contains(v.Message, "has no disk of it") {
		t.Errorf("without its disk, the volume is %v: %s", v.State, v.Message)
	}
	if w := h.volumeOrder(orders, "a2"); w.GetMake() {
		t.Error("an empty disk is made")
	}
	h.volumes["a2"] = disk
	h.pass(time.Second)
	if v := h.data(); v.State != v1.VolumeState_VOLUME_STATE_READY {
		t.Errorf("with its disk, the volume is %v: %s", v.State, v.Message)
	}
	started := proto.CloneOf(h.data())
	started.Generation = NextGeneration(started.Generation, h.now)
	h.objects, h.volumes["a2"] = h.objects.Apply(Change{Ops: []Op{{Update, started}}}), nil
	h.pass(time.Second)
	if v := h.data(); v.State != v1.VolumeState_VOLUME_STATE_LOST {
		t.Errorf("without its disk, after the start of a guest, the volume is %v: %s", v.State, v.Message)
	}
}
