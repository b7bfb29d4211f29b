package core

import (
	"fmt"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "watari/api/watariv1"
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
