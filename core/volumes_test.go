package core

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "watari/api/watariv1"
)

// volumes returns a household whose hosts keep volumes; a2 alone is not lent.
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
			op.Object.GetMeta().Uid = "uid-" + op.Object.GetMeta().Name
		}
	}
	h.objects = h.objects.Apply(c)
}

// has lets a host report a volume as ready, with so much of its disk in use.
func (h *household) has(host string, v *v1.Volume, used uint64) {
	h.volumes[host] = append(h.volumes[host], &v1.VolumeObserved{Uid: v.Meta.Uid, Ready: true, UsedBytes: used,
		Facts: &v1.VolumeFacts{Name: v.Meta.Name, Owner: v.Meta.Owner, SizeBytes: v.SizeBytes}})
}

func (h *household) created(name string, size uint64) *v1.Volume {
	h.t.Helper()
	h.ask(func(a *Admission) (Change, error) {
		return a.CreateVolume(&v1.CreateVolumeRequest{Name: name, SizeBytes: size})
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

// A store that was put back from an older copy does not know the volume, or not that it is in use.
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
			return a.CreateVolume(&v1.CreateVolumeRequest{Name: "../x", SizeBytes: 1 << 30})
		}, "cannot be a volume's name"},
		"no size": {func(_ *household, a *Admission) (Change, error) {
			return a.CreateVolume(&v1.CreateVolumeRequest{Name: "x"})
		}, "a volume of 0 bytes: it has 64 MiB to 64 TiB"},
		"an unknown host": {func(_ *household, a *Admission) (Change, error) {
			return a.CreateVolume(&v1.CreateVolumeRequest{Name: "x", SizeBytes: 1 << 30, Host: "c9"})
		}, "there is no host \"c9\""},
		"another size of the same name": {func(_ *household, a *Admission) (Change, error) {
			return a.CreateVolume(&v1.CreateVolumeRequest{Name: "data", SizeBytes: 2 << 30})
		}, "it has 1.0 GiB, not 2.0 GiB"},
		"somebody else's name": {func(_ *household, a *Admission) (Change, error) {
			a.Caller = Caller{Name: "bob"}
			return a.CreateVolume(&v1.CreateVolumeRequest{Name: "data", SizeBytes: 1 << 30})
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
		"a checkpoint": {func(_ *household, a *Admission) (Change, error) {
			c, _, err := a.CreateCheckpoint(&v1.CreateCheckpointRequest{Cluster: "md"}, CheckpointKey{"secret", "public"})
			return c, err
		}, "checkpoints of volumes cannot be made yet"},
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
