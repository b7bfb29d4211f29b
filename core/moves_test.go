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
