package core

// verify_test.go - verifications of checkpoints.

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "watari/api/watariv1"
	"watari/checkpoint"
)

// toVerify is a household with a cluster whose checkpoint has its files on a1 and is to be verified.
func toVerify(t *testing.T) *household {
	h := inUse(t)
	h.withVolume()
	h.pass(time.Second)
	h.ask(func(a *Admission) (Change, error) { return a.VerifyCheckpoint("md-c1") })
	return h
}

// sees changes a host's report of its files.
func (h *household) sees(host string, change func(o *v1.CheckpointObserved)) {
	for i, o := range h.files[host] {
		o = proto.CloneOf(o)
		change(o)
		h.files[host][i] = o
	}
}

// trials returns the guests that hosts are ordered to restore on trial.
func trials(orders map[string]*v1.HostWanted) (list []string) {
	for _, host := range sortedKeys(orders) {
		for _, w := range orders[host].GetCheckpoints() {
			if w.Trial != nil {
				list = append(list, w.Guest+" on "+host)
			}
		}
	}
	return list
}

// All files are read, and then a guest is restored on trial.
func TestACheckpointIsVerified(t *testing.T) {
	h := toVerify(t)
	orders := h.pass(time.Second)
	id := h.objects.Checkpoints["md-c1"].Verification.GetId()
	for _, w := range orders["a1"].Checkpoints {
		if w.Verify != id || id == "" || w.Trial != nil {
			t.Errorf("the order about %s is %v", w.Guest, w)
		}
	}
	h.sees("a1", func(o *v1.CheckpointObserved) {
		if o.GuestUid != "uid-data" {
			o.Verified = id
		}
	})
	if orders := h.pass(time.Second); len(trials(orders)) != 0 {
		t.Errorf("before the volume's file is read, %v are tried", trials(orders))
	}
	h.sees("a1", func(o *v1.CheckpointObserved) { o.Verified = id })
	orders = h.pass(time.Second)
	if got := trials(orders); len(got) != 1 || got[0] != "md-0 on a1" {
		t.Fatalf("%v are tried", got)
	}
	for _, w := range orders["a1"].Checkpoints {
		if w.Trial != nil && w.Trial.VolumeBytes != h.objects.Volumes["data"].SizeBytes {
			t.Errorf("the trial is %v", w.Trial)
		}
	}
	h.sees("a1", func(o *v1.CheckpointObserved) { o.Tried = id })
	h.pass(time.Second)
	v := h.objects.Checkpoints["md-c1"].Verification
	if v.State != v1.VerificationState_VERIFICATION_STATE_DONE || v.Guest != "md-0" || v.Host != "a1" || !v.Ended.AsTime().Equal(h.objects.Clusters["md"].Verified.AsTime()) {
		t.Errorf("the verification is %v", v)
	}
	if got := trials(h.pass(time.Second)); len(got) != 0 {
		t.Errorf("afterwards %v are tried", got)
	}
}

func TestAVerificationThatFails(t *testing.T) {
	for name, c := range map[string]struct {
		happens func(h *household, id string)
		want    string
	}{
		"a file is damaged everywhere": {func(h *household, id string) { h.files["a1"] = h.files["a1"][:1] }, "no host has the file of"},
		"a guest cannot be restored": {func(h *household, id string) {
			h.sees("a1", func(o *v1.CheckpointObserved) { o.Verified = id })
			h.pass(time.Second)
			h.sees("a1", func(o *v1.CheckpointObserved) { o.Tried, o.TriedError = id, "QEMU does not like it" })
		}, "host a1 could not restore guest md-0: QEMU does not like it"},
	} {
		t.Run(name, func(t *testing.T) {
			h := toVerify(t)
			h.pass(time.Second)
			c.happens(h, h.objects.Checkpoints["md-c1"].Verification.Id)
			h.pass(time.Second)
			v := h.objects.Checkpoints["md-c1"].Verification
			if v.State != v1.VerificationState_VERIFICATION_STATE_FAILED || !strings.Contains(v.Message, c.want) {
				t.Errorf("the verification is %v", v)
			}
		})
	}
}

// An agent of an older version would restore a guest without its disk, and fail.
func TestAnOlderAgentTriesNoGuestWithAVolume(t *testing.T) {
	h := toVerify(t)
	h.older = true
	h.pass(time.Second)
	h.sees("a1", func(o *v1.CheckpointObserved) { o.Verified = h.objects.Checkpoints["md-c1"].Verification.Id })
	if got := trials(h.pass(time.Second)); len(got) != 1 || got[0] != "md-1 on a1" {
		t.Errorf("%v are tried", got)
	}
}

// If no host has room, the verification only reads the files.
func TestAVerificationWithoutATrial(t *testing.T) {
	h := toVerify(t)
	host := proto.CloneOf(h.objects.Hosts["a1"])
	host.Draining = true
	h.objects = h.objects.Apply(Change{Ops: []Op{{Update, host}}})
	h.pass(time.Second)
	id := h.objects.Checkpoints["md-c1"].Verification.Id
	h.sees("a1", func(o *v1.CheckpointObserved) { o.Verified = id })
	h.pass(time.Second)
	if v := h.objects.Checkpoints["md-c1"].Verification; v.State != v1.VerificationState_VERIFICATION_STATE_DONE || v.Guest != "" || !strings.Contains(v.Message, "no host that has its files has room") {
		t.Errorf("the verification is %v", v)
	}
}

// If the host of a trial goes away, the verification begins again, and nothing waits for that host.
func TestAVerificationWhoseHostIsLost(t *testing.T) {
	h := toVerify(t)
	h.pass(time.Second)
	id := h.objects.Checkpoints["md-c1"].Verification.Id
	h.sees("a1", func(o *v1.CheckpointObserved) { o.Verified = id })
	h.pass(time.Second)
	h.away = map[string]bool{"a1": true}
	h.pass(time.Second)
	if v := h.objects.Checkpoints["md-c1"].Verification; v.Id == id || v.State != v1.VerificationState_VERIFICATION_STATE_READING {
		t.Errorf("the verification is %v", v)
	}
}

// The latest checkpoint is verified once a week. Other checkpoints, and one that was just verified, are not.
func TestCheckpointsAreVerifiedEveryWeek(t *testing.T) {
	h := inUse(t)
	h.withVolume()
	h.saved("md-c0", 2*time.Hour)
	for _, m := range checkpoint.Files(h.objects.Checkpoints["md-c0"]) {
		h.files["a1"] = append(h.files["a1"], &v1.CheckpointObserved{CheckpointId: "uid-md-c0", GuestUid: m.GuestUid, Epoch: m.Epoch, File: m.File,
			Phase: v1.CheckpointPhase_CHECKPOINT_PHASE_WRITTEN})
	}
	cluster := proto.CloneOf(h.objects.Clusters["md"])
	cluster.Meta.Created = timestamppb.New(h.now)
	h.objects = h.objects.Apply(Change{Ops: []Op{{Update, cluster}}})
	h.pass(verifyEvery - time.Second)
	if v := h.objects.Checkpoints["md-c1"].Verification; v != nil {
		t.Errorf("too early: %v", v)
	}
	h.pass(time.Second)
	if v := h.objects.Checkpoints["md-c1"].Verification; v == nil {
		t.Error("it is not verified")
	}
	if v := h.objects.Checkpoints["md-c0"].Verification; v != nil {
		t.Errorf("the older one is verified: %v", v)
	}
}
