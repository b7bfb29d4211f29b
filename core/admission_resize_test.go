package core

import (
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"

	v1 "watari/api/watariv1"
)

// resizes asks for a number of guests of md, and makes the change if it is granted.
func (a *Admission) resizes(guests uint32, uid string) (Resized, error) {
	r, err := a.ResizeCluster(ResizeRequest{Name: "md", Guests: guests, UID: uid})
	if err == nil {
		a.Objects = a.Apply(r.Change)
	}
	return r, err
}

func resizeTest(t *testing.T) *Admission {
	t.Helper()
	a := admissionTest()
	if _, err := a.asks("md", 2, shape(1, 512)); err != nil {
		t.Fatal(err)
	}
	return a
}

func TestAResizeAddsAndRemovesTheHighestGuests(t *testing.T) {
	a := resizeTest(t)
	if _, err := a.resizes(4, "first"); err != nil || a.Clusters["md"].Spec.Guests != 4 || len(GuestsOf(a.Objects, "md")) != 4 {
		t.Fatalf("%v, %v", a.Clusters["md"], err)
	}
	if r, err := a.resizes(4, "again"); err != nil || len(r.Ops) != 0 {
		t.Errorf("resized again: %v, %v", r.Ops, err)
	}
	old := a.Guests["md-3"]
	if old.Address != "10.77.0.13" || old.Meta.Owner != "ann" || old.Meta.OwnerUid != "u1" || !proto.Equal(old.Shape, a.Guests["md-0"].Shape) {
		t.Error(old)
	}
	if _, err := a.resizes(3, "second"); err != nil || a.Guests["md-3"].Meta.Deleting == nil || a.Guests["md-2"].Meta.Deleting != nil {
		t.Fatalf("%v, %v", a.Guests, err)
	}
	r, err := a.resizes(4, "third")
	refused(t, r.Change, err, Precondition, "guest md-3 is still being removed from cluster md")
	c, err := a.StopGuest("md-3")
	refused(t, c, err, Precondition, "guest md-3 is being removed from cluster md")
	var gone Change
	gone.write(Delete, a.Guests["md-3"])
	a.Objects = a.Apply(gone)
	if _, err := a.resizes(4, "fourth"); err != nil || a.Guests["md-3"].Meta.Uid == old.Meta.Uid {
		t.Errorf("%v, %v", a.Guests["md-3"], err)
	}
	if resizes := a.Clusters["md"].Resizes; resizes != 3 {
		t.Errorf("%d resizes", resizes)
	}
}

func TestAResizeIsBounded(t *testing.T) {
	a := resizeTest(t)
	r, err := a.resizes(0, "x")
	refused(t, r.Change, err, Invalid, "0 guests: a cluster has 1 to 1000")
	r, err = a.resizes(246, "x")
	refused(t, r.Change, err, Exhausted, "the prefix 10.77.0.0/24 of cluster md has no room for 246 guests")
	if r, err = a.ResizeCluster(ResizeRequest{Name: "md", Guests: 245}); err != nil {
		t.Error(err)
	}
	r, err = a.ResizeCluster(ResizeRequest{Name: "md", Guests: 245, MaxOps: 128})
	refused(t, r.Change, err, Precondition, "245 guests: the manager's etcd lets a cluster have 122; start etcd with --max-txn-ops=2048")
	a.Clusters["md"].Spec.Guests = 122 // one by one, a cluster does not get larger either: all of its guests are stopped or restored at once
	r, err = a.ResizeCluster(ResizeRequest{Name: "md", Guests: 123, MaxOps: 128})
	refused(t, r.Change, err, Precondition, "123 guests: the manager's etcd lets a cluster have 122")
	a.Clusters["md"].Spec.Guests = 2
	a.Users["ann"].Quota = &v1.Quota{Vcpus: 3}
	r, err = a.resizes(4, "x")
	refused(t, r.Change, err, Exhausted, "the quota of user ann is 3 vCPUs, with 2 in use and 2 more asked for")
	a.Users["ann"].Quota = nil
	for _, h := range a.Hosts {
		h.Info.MemoryBytes = 1 << 30
	}
	r, err = a.resizes(9, "x")
	refused(t, r.Change, err, Exhausted, "")
	a.Caller = Caller{Name: "bob", UID: "u2"}
	r, err = a.resizes(3, "x")
	refused(t, r.Change, err, NotFound, `there is no cluster "md"`)
}

func TestAGuestThatARunUsesIsNotRemoved(t *testing.T) {
	a := resizeTest(t)
	if _, err := a.resizes(3, "x"); err != nil {
		t.Fatal(err)
	}
	run := func(name string, state v1.RunState, guests ...string) {
		epochs := map[string]uint64{}
		for _, g := range guests {
			epochs[g] = 1
		}
		a.Runs[name] = &v1.Run{Meta: &v1.Meta{Name: name}, Spec: &v1.RunSpec{Cluster: "md"}, ClusterUid: "md-uid", State: state, StartedEpochs: epochs}
	}
	run("small", v1.RunState_RUN_STATE_RUNNING, "md-0", "md-1")
	run("large", v1.RunState_RUN_STATE_STARTING, "md-0", "md-1", "md-2")
	run("later", v1.RunState_RUN_STATE_PENDING)
	run("ended", v1.RunState_RUN_STATE_EXITED, "md-0", "md-1", "md-2")
	if r, err := a.resizes(1, "x"); err != nil || len(r.Ops) != 0 || !slices.Equal(r.Runs, []string{"large", "small"}) {
		t.Errorf("%v, %v", r.Runs, err)
	}
	delete(a.Runs, "large")
	r, err := a.resizes(2, "x")
	expected := slices.ContainsFunc(r.Ops, func(op Op) bool { return op.Kind == Expect && op.Object.GetMeta().Name == "later" })
	if err != nil || len(r.Runs) != 0 || !expected || a.Guests["md-2"].Meta.Deleting == nil {
		t.Errorf("%v, %v", r, err)
	}
}
