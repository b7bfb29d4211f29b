package core

import (
	"maps"
	"strings"
	"testing"
	"time"

	v1 "watari/api/watariv1"
)

// twoHosts is a world with the connected hosts a1 and b1 and the guest md-0 of cluster md.
func twoHosts(g *v1.Guest) World {
	o := NoObjects()
	w := World{Objects: o, Reports: Captured{}, Now: time.Unix(10000, 0)}
	for _, name := range []string{"a1", "b1"} {
		info := &v1.HostInfo{BootId: name + "-boot", Site: name[:1], Cores: 4, MemoryBytes: 4 << 30, LanAddress: "198.18.0.1", TunnelPort: 7071}
		o.Hosts[name] = &v1.Host{Meta: &v1.Meta{Name: name, Uid: name}, Info: info}
		w.Reports[name] = Seen{Report: &v1.HostObserved{Info: info, Term: 1}, Since: w.Now, Connected: true}
	}
	o.Clusters["md"] = &v1.Cluster{Meta: &v1.Meta{Name: "md"}, Spec: &v1.ClusterSpec{Guests: 1}, Prefix: "10.77.1.0/24"}
	g.Meta, g.Cluster, g.Address, g.Shape = &v1.Meta{Name: "md-0", Uid: "uid-md-0"}, "md", "10.77.1.10", &v1.GuestShape{Vcpus: 1, MemoryBytes: 1 << 28}
	o.Guests["md-0"] = g
	return w
}

func newTestCore(w World) *Core {
	identify := func(_ *v1.Cluster, g *v1.Guest, epoch uint64, _ uint32) (*v1.Identity, time.Time) {
		return &v1.Identity{GuestUid: g.Meta.Uid, Epoch: epoch}, w.Now.Add(time.Hour)
	}
	return New(Config{Term: 1, Began: w.Now.Add(-time.Hour), Identify: identify})
}

// A process that any host reports prevents a new grant, whatever else is known.
func TestNoGrantIsGivenWhileAHostHasAProcessOfTheGuest(t *testing.T) {
	w := twoHosts(&v1.Guest{LastEpoch: 1003})
	report := w.Reports["b1"]
	report.Report.Guests = []*v1.GuestObserved{{Uid: "uid-md-0", Name: "md-0", Epoch: 5, Process: true, Condition: v1.GuestCondition_GUEST_CONDITION_RUNNING}}
	c := newTestCore(w)
	d := c.Decide(w)
	if len(d.Changes) != 1 {
		t.Fatalf("changes %v", d.Changes)
	}
	g := d.Changes[0].Ops[0].Object.(*v1.Guest)
	if g.Host != "" || !strings.Contains(g.Message, "host b1 still has a process of it") {
		t.Fatalf("guest %v", g)
	}
	w.Objects = w.Objects.Apply(d.Changes[0])
	w.Reports = Captured{"a1": w.Reports["a1"], "b1": {Report: &v1.HostObserved{Info: report.Report.Info, Term: 1}, Since: w.Now, Connected: true}}
	if d = c.Decide(w); len(d.Changes) != 1 || d.Changes[0].Ops[0].Object.(*v1.Guest).Host == "" {
		t.Errorf("once it has ended: %v", d.Changes)
	}
}

// A guest under which QEMU or KVM failed is started on another host, and on the same one if no other has room.
func TestAGuestIsNotStartedWhereQEMUFailedUnderIt(t *testing.T) {
	for name, c := range map[string]struct {
		broken, full bool // full: the other host has no room
		want         string
	}{
		"its QEMU ended":                        {want: "a1"},
		"its QEMU failed":                       {broken: true, want: "b1"},
		"its QEMU failed, nothing else is free": {broken: true, full: true, want: "a1"},
	} {
		w := twoHosts(&v1.Guest{Host: "a1", BootId: "a1-boot", Epoch: 1, LastEpoch: 1})
		w.Hosts["b1"].Info.MemoryBytes = 3 << 30
		if c.full {
			w.Hosts["b1"].Info.MemoryBytes = 1 << 20
		}
		core := newTestCore(w)
		for range 10 {
			g := w.Guests["md-0"]
			w.Reports["a1"].Report.Guests = nil
			if g.Host == "a1" && g.Epoch == 1 {
				w.Reports["a1"].Report.Guests = []*v1.GuestObserved{{Uid: "uid-md-0", Name: "md-0", Epoch: 1, Condition: v1.GuestCondition_GUEST_CONDITION_GONE, Broken: c.broken}}
			}
			for _, change := range core.Decide(w).Changes {
				w.Objects = w.Objects.Apply(change)
			}
		}
		if g := w.Guests["md-0"]; g.Host != c.want || g.Restarts != 1 {
			t.Errorf("%s: %v", name, g)
		}
	}
}

// What failed under a guest long ago does not keep it from a host for ever.
func TestAHostWhereQEMUFailedIsTriedAgainAfterALongRun(t *testing.T) {
	for lived, want := range map[time.Duration]string{time.Minute: "b1", 2 * time.Hour: "a1"} {
		w := twoHosts(&v1.Guest{Host: "a1", BootId: "a1-boot", Epoch: 1, LastEpoch: 1})
		w.Hosts["b1"].Info.MemoryBytes = 3 << 30
		core := newTestCore(w)
		ends := func(host string, broken bool) {
			g := w.Guests["md-0"]
			if g.Host != host {
				t.Fatalf("it is not on %s: %v", host, g)
			}
			report := func(guests ...*v1.GuestObserved) {
				w.Reports = maps.Clone(w.Reports) // a Core keeps the last one
				w.Reports[host] = Seen{Report: &v1.HostObserved{Info: w.Hosts[host].Info, Term: 1, Guests: guests}, Since: w.Now, Connected: true}
			}
			report(&v1.GuestObserved{Uid: "uid-md-0", Name: "md-0", Epoch: g.Epoch, Condition: v1.GuestCondition_GUEST_CONDITION_GONE, Broken: broken})
			for range 5 {
				for _, change := range core.Decide(w).Changes {
					w.Objects = w.Objects.Apply(change)
				}
				report()
			}
		}
		ends("a1", true)
		w.Now = w.Now.Add(lived)
		ends("b1", false)
		if g := w.Guests["md-0"]; g.Host != want {
			t.Errorf("after %v: %v", lived, g)
		}
	}
}

// A host that claims to run a guest at an impossible epoch, or that has no part in a move that is past sending, does not
// stop the move.
func TestAHostThatLiesDoesNotStopAGuestThatStandsStill(t *testing.T) {
	for name, epoch := range map[string]uint64{"an impossible epoch": maxEpoch, "a higher epoch": 7} {
		w := twoHosts(&v1.Guest{Host: "a1", BootId: "a1-boot", Epoch: 1, LastEpoch: 2})
		w.Hosts["c1"] = &v1.Host{Meta: &v1.Meta{Name: "c1", Uid: "c1"}, Info: &v1.HostInfo{BootId: "c1-boot"}}
		w.Migrations["m"] = &v1.Migration{Meta: &v1.Meta{Name: "m", Uid: "m"}, Guest: "md-0", GuestUid: "uid-md-0", Source: "a1", Target: "b1", SourceBootId: "a1-boot",
			TargetBootId: "b1-boot", SourceEpoch: 1, TargetEpoch: 2, State: v1.MigrationState_MIGRATION_STATE_SWITCHING}
		w.Reports["a1"].Report.Guests = []*v1.GuestObserved{{Uid: "uid-md-0", Epoch: 1, Condition: v1.GuestCondition_GUEST_CONDITION_SENT}}
		w.Reports["b1"].Report.Guests = []*v1.GuestObserved{{Uid: "uid-md-0", Epoch: 2, Condition: v1.GuestCondition_GUEST_CONDITION_RECEIVED, Process: true}}
		w.Reports["c1"] = Seen{Report: &v1.HostObserved{Info: w.Hosts["c1"].Info, Guests: []*v1.GuestObserved{{Uid: "uid-md-0", Epoch: epoch, Process: true,
			Condition: v1.GuestCondition_GUEST_CONDITION_RUNNING}}}, Since: w.Now, Connected: true}
		c := newTestCore(w)
		c.Decide(w)
		w.Now = w.Now.Add(time.Second) // the move no longer waits for routes
		d := c.Decide(w)
		if len(d.Changes) != 1 || d.Changes[0].Ops[0].Object.(*v1.Migration).State != v1.MigrationState_MIGRATION_STATE_RESUMING {
			t.Errorf("%s: %v", name, d.Changes)
		}
	}
}

// The source of a move forwards messages that still reach it until the move has ended.
func TestAMovesSourceKeepsItsRoutesUntilTheMoveHasEnded(t *testing.T) {
	w := twoHosts(&v1.Guest{Host: "b1", BootId: "b1-boot", Epoch: 2, LastEpoch: 2})
	w.Migrations["m"] = &v1.Migration{Meta: &v1.Meta{Name: "m", Uid: "m"}, Guest: "md-0", GuestUid: "uid-md-0", Source: "a1", Target: "b1",
		SourceEpoch: 1, TargetEpoch: 2, State: v1.MigrationState_MIGRATION_STATE_RESUMING}
	d := newTestCore(w).Decide(w)
	n := d.Orders["a1"].GetNetwork()
	if len(n.GetRoutes()) != 1 || n.Routes[0].Host != "b1" || len(n.Clusters) != 1 {
		t.Errorf("orders of the source: %v", n)
	}
}

// An event that came too soon after another is written when its time has come, even if nothing changes then.
func TestAnEventAboutMemoryThatCameTooSoonIsToldLater(t *testing.T) {
	w := twoHosts(&v1.Guest{Host: "a1", BootId: "a1-boot", Epoch: 1, LastEpoch: 1})
	c := newTestCore(w)
	events := 0
	decide := func() Decision {
		d := c.Decide(w)
		for _, change := range d.Changes {
			if strings.HasPrefix(change.Key, "memory/") {
				events++
			}
		}
		return d
	}
	report := func(kills uint64) {
		o := outOfMemory(kills, 0)
		o.At.Seconds = w.Now.Unix()
		seen := w.Reports["a1"]
		w.Reports = Captured{"b1": w.Reports["b1"], "a1": {Since: seen.Since, Connected: true, Report: &v1.HostObserved{Info: seen.Report.Info, Term: 1,
			Guests: []*v1.GuestObserved{{Uid: "uid-md-0", Epoch: 1, Process: true, Condition: v1.GuestCondition_GUEST_CONDITION_RUNNING, OutOfMemory: o}}}}}
	}
	report(1)
	decide()
	w.Now = w.Now.Add(10 * time.Second)
	report(2)
	decide()
	for range 100 {
		w.Now = w.Now.Add(time.Second)
		decide()
	}
	if events != 2 {
		t.Errorf("%d events were told, not 2", events)
	}
}

// A guest is given up while its move waits. Then the move ends, too.
func TestAPendingMoveOfAGuestThatWasGivenUpEnds(t *testing.T) {
	w := twoHosts(&v1.Guest{Epoch: 6, LastEpoch: 6, Failure: "given up"})
	w.Migrations["m"] = &v1.Migration{Meta: &v1.Meta{Name: "m", Uid: "m"}, Guest: "md-0", GuestUid: "uid-md-0", Source: "a1", Target: "b1", SourceEpoch: 6}
	w.Migrations["m"].State = v1.MigrationState_MIGRATION_STATE_PENDING
	d := newTestCore(w).Decide(w)
	if len(d.Changes) != 1 || d.Changes[0].Ops[0].Object.(*v1.Migration).State != v1.MigrationState_MIGRATION_STATE_FAILED {
		t.Errorf("%v", d.Changes)
	}
}

// A user's move was admitted for memory that a grant of the same moment took. The move fails before it begins.
func TestAPendingMoveLooksAgainWhetherTheTargetHasMemory(t *testing.T) {
	for taken, fails := range map[uint64]bool{4<<30 - 1<<28: false, 4 << 30: true} {
		w := twoHosts(&v1.Guest{Host: "a1", BootId: "a1-boot", Epoch: 6, LastEpoch: 6})
		w.Guests["md-1"] = &v1.Guest{Meta: &v1.Meta{Name: "md-1", Uid: "uid-md-1"}, Cluster: "md", Host: "b1", BootId: "b1-boot",
			Epoch: 1, LastEpoch: 1, Address: "10.77.1.11", Shape: &v1.GuestShape{Vcpus: 1, MemoryBytes: taken}}
		w.Clusters["md"].Spec.Guests = 2
		w.Migrations["m"] = &v1.Migration{Meta: &v1.Meta{Name: "m", Uid: "m"}, Guest: "md-0", GuestUid: "uid-md-0", Source: "a1",
			Target: "b1", SourceBootId: "a1-boot", TargetBootId: "b1-boot", SourceEpoch: 6, State: v1.MigrationState_MIGRATION_STATE_PENDING}
		var state v1.MigrationState
		for _, change := range newTestCore(w).Decide(w).Changes {
			for _, op := range change.Ops {
				if m, is := op.Object.(*v1.Migration); is {
					state = m.State
				}
			}
		}
		if failed := state == v1.MigrationState_MIGRATION_STATE_FAILED; failed != fails {
			t.Errorf("with %d bytes taken, the move's state is %v", taken, state)
		}
	}
}

func TestOrdersAreMadeAgainWhenACertificateIsToBeRenewed(t *testing.T) {
	w := twoHosts(&v1.Guest{Host: "a1", BootId: "a1-boot", Epoch: 1, LastEpoch: 1, StartedEpoch: 1})
	w.Reports["a1"].Report.Guests = []*v1.GuestObserved{{Uid: "uid-md-0", Name: "md-0", Epoch: 1, BootId: "a1-boot", Ready: true, Process: true,
		Condition: v1.GuestCondition_GUEST_CONDITION_RUNNING}}
	renew := w.Now.Add(15 * 24 * time.Hour)
	c := New(Config{Term: 1, Began: w.Now.Add(-time.Hour), Identify: func(_ *v1.Cluster, g *v1.Guest, epoch uint64, _ uint32) (*v1.Identity, time.Time) {
		if w.Now.Before(renew) {
			return &v1.Identity{Epoch: epoch, Certificate: []byte("first")}, renew
		}
		return &v1.Identity{Epoch: epoch, Certificate: []byte("second")}, renew.Add(15 * 24 * time.Hour)
	}})
	certificate := func() string {
		t.Helper()
		d := c.Decide(w)
		if len(d.Changes) > 0 || d.Again.After(renew) && w.Now.Before(renew) {
			t.Fatalf("changes %v, again %v", d.Changes, d.Again)
		}
		return string(c.orders.sent["a1"].wanted.Guests[0].Identity.Certificate)
	}
	for range 3 {
		if got := certificate(); got != "first" {
			t.Fatalf("certificate %q", got)
		}
	}
	w.Now = renew.Add(-time.Second)
	if got := certificate(); got != "first" {
		t.Errorf("before it is due: %q", got)
	}
	w.Now = renew
	if got := certificate(); got != "second" { // nothing else has changed
		t.Errorf("when it is due: %q", got)
	}
}
