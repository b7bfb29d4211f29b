package core

import (
	"fmt"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "watari/api/watariv1"
	"watari/migration"
)

func TestEndedMovesAreKeptUpToANumber(t *testing.T) {
	s := &Objects{Migrations: map[string]*v1.Migration{}, Guests: map[string]*v1.Guest{"md-0": {Meta: &v1.Meta{Name: "md-0", Uid: "new"}}}}
	begun := time.Unix(1000, 0)
	add := func(n int, guest, uid string) {
		for i := range n {
			name := fmt.Sprintf("%s-%s-m%d", guest, uid, i)
			s.Migrations[name] = &v1.Migration{Meta: &v1.Meta{Name: name, Created: timestamppb.New(begun.Add(time.Duration(i) * time.Second))},
				Guest: guest, GuestUid: uid, State: v1.MigrationState_MIGRATION_STATE_DONE}
		}
	}
	add(keepMoves, "md-0", "new")
	add(keepGoneMoves/2, "md-0", "old")
	add(keepGoneMoves/2, "lu-0", "older")
	if old := tooOld(s); old != nil {
		t.Errorf("%v are too old", old)
	}
	add(keepMoves+1, "md-0", "new")
	if old := tooOld(s); len(old) != 1 || old[0].Meta.Name != "md-0-new-m0" {
		t.Errorf("too old: %v", old)
	}
	delete(s.Migrations, "md-0-new-m0")
	add(keepGoneMoves/2+1, "lu-0", "older")
	if old := tooOld(s); len(old) != 1 || !old[0].Meta.Created.AsTime().Equal(begun) || old[0].GuestUid == "new" {
		t.Errorf("too old of those that are gone: %v", old)
	}
}

// How long the guest stood still is known from both hosts' clocks. QEMU's own figure, which lacks the hand-over, is used where
// they cannot both be right.
func TestADowntimeIsNotTakenFromClocksThatAreFarApart(t *testing.T) {
	began := time.Unix(1000, 0)
	for name, test := range map[string]struct {
		ahead time.Duration // of the target's clock
		want  uint32
	}{"one clock": {0, 80}, "the target is ahead": {10 * time.Minute, 50}, "the source is ahead": {-10 * time.Minute, 50}} {
		stopped := began.Add(time.Second)
		m := &v1.Migration{State: v1.MigrationState_MIGRATION_STATE_DONE, Started: timestamppb.New(began), StoppedUnixNs: stopped.UnixNano(),
			Progress: &v1.MigrationProgress{DowntimeMs: 50}}
		o := migration.Observed{}
		o.Target.Guest = &v1.GuestObserved{ResumedUnixNs: stopped.Add(80*time.Millisecond + test.ahead).UnixNano()}
		closeMove(m, o, timestamppb.New(began.Add(2*time.Second)))
		if m.DowntimeMs != test.want || m.TotalMs != 2000 {
			t.Errorf("%s: stopped for %d ms, in all %d ms", name, m.DowntimeMs, m.TotalMs)
		}
	}
}

// The target is a peer of the cluster's hosts before the guest stops, so that only one route is left to change on each host.
func TestAMoveChangesOneRouteOfAHostWhileTheGuestIsStopped(t *testing.T) {
	orders := func(state v1.MigrationState, source, target v1.GuestCondition) *v1.NetworkWanted {
		w := twoHosts(&v1.Guest{Host: "a1", BootId: "a1-boot", Epoch: 1, LastEpoch: 2})
		info := &v1.HostInfo{BootId: "c1-boot", Site: "c", Cores: 4, MemoryBytes: 4 << 30, LanAddress: "198.18.0.3", WireguardPublicKey: "c1's key"}
		w.Hosts["c1"] = &v1.Host{Meta: &v1.Meta{Name: "c1", Uid: "c1"}, Info: info}
		for _, name := range []string{"a1", "b1"} {
			w.Hosts[name].Info.WireguardPublicKey = name + "'s key"
		}
		w.Clusters["md"].Spec.Guests = 2
		w.Guests["md-1"] = &v1.Guest{Meta: &v1.Meta{Name: "md-1", Uid: "uid-md-1"}, Cluster: "md", Index: 1, Address: "10.77.1.11", Host: "c1", BootId: "c1-boot",
			Epoch: 1, LastEpoch: 1, Shape: &v1.GuestShape{Vcpus: 1}}
		w.Migrations["m"] = &v1.Migration{Meta: &v1.Meta{Name: "m", Uid: "m"}, Guest: "md-0", GuestUid: "uid-md-0", Source: "a1", Target: "b1",
			SourceBootId: "a1-boot", TargetBootId: "b1-boot", SourceEpoch: 1, TargetEpoch: 2, State: state}
		w.Reports["a1"].Report.Guests = []*v1.GuestObserved{{Uid: "uid-md-0", Epoch: 1, Condition: source}}
		w.Reports["b1"].Report.Guests = []*v1.GuestObserved{{Uid: "uid-md-0", Epoch: 2, Condition: target, Process: true}}
		w.Reports["c1"] = Seen{Report: &v1.HostObserved{Info: info, Term: 1, Guests: []*v1.GuestObserved{{Uid: "uid-md-1", Epoch: 1, Process: true,
			Condition: v1.GuestCondition_GUEST_CONDITION_RUNNING}}}, Since: w.Now, Connected: true}
		return newTestCore(w).Decide(w).Orders["c1"].GetNetwork()
	}
	before := orders(v1.MigrationState_MIGRATION_STATE_TRANSFERRING, v1.GuestCondition_GUEST_CONDITION_SENDING, v1.GuestCondition_GUEST_CONDITION_RECEIVING)
	after := orders(v1.MigrationState_MIGRATION_STATE_SWITCHING, v1.GuestCondition_GUEST_CONDITION_SENT, v1.GuestCondition_GUEST_CONDITION_RECEIVED)
	if len(before.GetPeers()) != 2 || before.Routes[0].Host != "a1" || after.GetRoutes()[0].GetHost() != "b1" {
		t.Fatalf("before the guest stops %v, afterwards %v", before, after)
	}
	before.Routes[0].Host = "b1"
	if !sameNetwork(before, after) {
		t.Errorf("more than a route differs: %v, %v", before, after)
	}
}
