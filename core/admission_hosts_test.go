package core

import (
	"testing"

	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "watari/api/watariv1"
)

// away disconnects a host for long.
func (a *Admission) away(host string) { delete(a.Reports.(Captured), host) }

func TestAHostThatIsNotLostIsNotFenced(t *testing.T) {
	a := ready()
	c, err := a.RemoveHost("c1", false)
	refused(t, c, err, NotFound, `there is no host "c1"; there are: a1, b1`)
	c, err = a.RemoveHost("a1", false)
	refused(t, c, err, Precondition, "host a1 has guests: md-0; drain it first")
	c, err = a.RemoveHost("a1", true)
	refused(t, c, err, Precondition, "host a1 is connected, so it is not lost")
	a.Reports.(Captured)["b1"].Report.Guests = []*v1.GuestObserved{{Uid: "lost", Name: "lu-0", Epoch: 7, Condition: v1.GuestCondition_GUEST_CONDITION_RUNNING}}
	c, err = a.RemoveHost("b1", false)
	refused(t, c, err, Precondition, "host b1 would end a guest that may be the only copy: host b1 runs guest lu-0 at epoch 7")
	a.Reports.(Captured)["b1"].Report.Guests = nil
	a.Migrations["md-0-m2"] = &v1.Migration{Meta: &v1.Meta{Name: "md-0-m2"}, Guest: "md-0", GuestUid: "md-0-uid", Target: "b1", State: v1.MigrationState_MIGRATION_STATE_PENDING}
	c, err = a.RemoveHost("b1", false)
	refused(t, c, err, Precondition, "host b1 has guests: md-0")
	delete(a.Migrations, "md-0-m2")
	if c, err = a.RemoveHost("b1", false); err != nil || len(c.Ops) != 2 || c.Events[0].Message != "removed" {
		t.Fatalf("%v, %v", c, err)
	}
	a.Objects = a.Apply(c)
	if h := a.Hosts["b1"]; h.FencedBootId != "" || !h.Draining || a.Removed["b1-uid"].GetLost() || a.Removed["b1-uid"].GetHost() != "b1" {
		t.Errorf("%v, %v", h, a.Removed)
	}
	c, err = a.DrainHost("b1", true)
	refused(t, c, err, Precondition, "host b1 is being removed")
	if c := ForgetHost(a.Objects, "b1"); len(c.Ops) != 1 || c.Ops[0].Kind != Delete {
		t.Error(c)
	}
}

func TestAHostThatIsBeingRemovedTurnsOutToBeLost(t *testing.T) {
	a := ready()
	a.away("a1")
	a.Hosts["a1"].Meta.Deleting = timestamppb.New(a.Now)
	a.Removed["a1-uid"] = &v1.RemovedHost{Meta: &v1.Meta{Name: "a1-uid", Revision: 5}, Host: "a1"}
	if c, err := a.RemoveHost("a1", false); err != nil || len(c.Ops) != 0 {
		t.Errorf("%v, %v", c, err)
	}
	c, err := a.RemoveHost("a1", true)
	if err != nil || len(c.Ops) != 2 || c.Ops[1].Kind != Update || c.Events[0].Message != "removed as lost; its guests are started elsewhere: md-0" {
		t.Fatalf("%v, %v", c, err)
	}
	a.Objects = a.Apply(c)
	if a.Hosts["a1"].FencedBootId != "a1-boot" || !a.Removed["a1-uid"].Lost {
		t.Errorf("%v, %v", a.Hosts["a1"], a.Removed)
	}
	if c, err := a.RemoveHost("a1", true); err != nil || len(c.Ops) != 0 {
		t.Errorf("removed again: %v, %v", c, err)
	}
	if c := ForgetHost(a.Objects, "a1"); len(c.Ops) != 0 {
		t.Errorf("md-0 depends on it: %v", c)
	}
}

func TestDrainingAndTrust(t *testing.T) {
	a := ready()
	for _, drain := range []bool{true, false} {
		c, err := a.DrainHost("a1", drain)
		if err != nil || len(c.Ops) != 1 {
			t.Fatalf("%v, %v", c, err)
		}
		a.Objects = a.Apply(c)
		if c, err := a.DrainHost("a1", drain); err != nil || len(c.Ops) != 0 {
			t.Errorf("again: %v, %v", c, err)
		}
	}
	c, err := a.TrustHost("a1", "Lab")
	refused(t, c, err, Invalid, `"Lab" cannot be a trust group's name`)
	if c, err = a.TrustHost("a1", "lab"); err != nil || c.Events[0].Message != "is in trust group lab from now on" {
		t.Errorf("%v, %v", c, err)
	}
	a.Objects = a.Apply(c)
	if c, err = a.TrustHost("a1", ""); err != nil || c.Events[0].Message != "trusts no other host from now on" {
		t.Errorf("%v, %v", c, err)
	}
	if _, err := NewHost(a.Objects, "a1", "u"); KindOf(err) != Exists {
		t.Error(err)
	}
	if h, err := NewHost(a.Objects, "c1", "u"); err != nil || h.Meta.Uid != "u" {
		t.Errorf("%v, %v", h, err)
	}
}

func TestMovesThatMayBeAskedFor(t *testing.T) {
	a := ready()
	for _, c := range []struct {
		r    *v1.MigrateRequest
		kind RefusalKind
		want string
	}{
		{&v1.MigrateRequest{Guest: "md-0", ToHost: "b1", ToSite: "b"}, Invalid, "give a host or a site to move to, not both"},
		{&v1.MigrateRequest{Guest: "md-1"}, NotFound, `there is no guest "md-1"; there are: md-0`},
		{&v1.MigrateRequest{Guest: "md-0", ToHost: "c1"}, NotFound, `there is no host "c1"; there are: a1, b1`},
		{&v1.MigrateRequest{Guest: "md-0", ToSite: "c"}, NotFound, `there is no site "c"; there are: a, b`},
		{&v1.MigrateRequest{Guest: "md-0", ToHost: "a1"}, Precondition, "guest md-0 is on host a1 already"},
	} {
		move, err := a.MoveGuest(c.r)
		refused(t, move.Change, err, c.kind, c.want)
	}
	move, err := a.MoveGuest(&v1.MigrateRequest{Guest: "md-0", BandwidthBytes: 9})
	if err != nil || move.Name != "md-0-m1" || len(move.Explanation) != 2 || move.Events[0].Message != "to move from a1 to b1 (md-0-m1)" {
		t.Fatalf("%v, %v", move, err)
	}
	if m := move.Ops[0].Object.(*v1.Migration); m.Reason != "user ann asked for it" || m.BandwidthBytes != 9 {
		t.Error(m)
	}
	a.Objects = a.Apply(move.Change)
	for _, r := range []*v1.MigrateRequest{{Guest: "md-0"}, {Guest: "md-0", ToHost: "b1"}, {Guest: "md-0", ToSite: "b"}} {
		if same, err := a.MoveGuest(r); err != nil || same.Name != move.Name || len(same.Ops) != 0 {
			t.Errorf("%v: %v, %v", r, same, err)
		}
	}
	other, err := a.MoveGuest(&v1.MigrateRequest{Guest: "md-0", ToSite: "a"})
	refused(t, other.Change, err, Precondition, "guest md-0 is moving to b1 (md-0-m1, pending); wait for its end, or cancel it")
	c, name, err := a.CancelMove("md-0")
	if err != nil || name != "md-0-m1" || len(c.Ops) != 1 {
		t.Fatalf("%v, %v", c, err)
	}
	a.Objects = a.Apply(c)
	if c, _, err := a.CancelMove("md-0-m1"); err != nil || len(c.Ops) != 0 {
		t.Errorf("cancelled again: %v, %v", c, err)
	}
	a.Migrations["md-0-m1"].State = v1.MigrationState_MIGRATION_STATE_CANCELLED
	c, _, err = a.CancelMove("md-0-m1")
	refused(t, c, err, Precondition, "migration md-0-m1 has ended: cancelled")
	c, _, err = a.CancelMove("md-0")
	refused(t, c, err, Precondition, "guest md-0 is not moving")
	a.away("b1")
	move, err = a.MoveGuest(&v1.MigrateRequest{Guest: "md-0"})
	refused(t, move.Change, err, Exhausted, "guest md-0 cannot be moved")
}

func TestGuestsAreStoppedAndStarted(t *testing.T) {
	a := ready()
	if c, err := a.StartGuest("md-0"); err != nil || len(c.Ops) != 0 {
		t.Errorf("it runs: %v, %v", c, err)
	}
	c, err := a.StopGuest("md-0")
	if err != nil || len(c.Ops) != 1 || c.Events[0].Message != "to be stopped" {
		t.Fatalf("%v, %v", c, err)
	}
	a.Objects = a.Apply(c)
	move, err := a.MoveGuest(&v1.MigrateRequest{Guest: "md-0"})
	refused(t, move.Change, err, Precondition, "guest md-0 is stopped; start it first")
	a.Guests["md-0"].Failure, a.Guests["md-0"].Restarts = "it fails", 5
	if c, err = a.StartGuest("md-0"); err != nil {
		t.Fatal(err)
	}
	if g := c.Ops[0].Object.(*v1.Guest); g.Stopped || g.Failure != "" || g.Restarts != 0 {
		t.Error(g)
	}
	a.Clusters["md"].Meta.Deleting = timestamppb.New(a.Now)
	c, err = a.StartGuest("md-0")
	refused(t, c, err, Precondition, "cluster md is being deleted")
	c, _, err = a.CreateRun(runRequest("r"))
	refused(t, c, err, Precondition, "cluster md is being deleted")
}
