package controller

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "watari/api/watariv1"
	"watari/manager/store"
)

func TestAHostThatIsRemovedMeanwhileGetsNoGuest(t *testing.T) {
	f := newFixture(t, "a1")
	f.until("a1 has joined", func(s *store.Snapshot) bool { return s.Hosts["a1"].GetInfo() != nil })
	f.stop()
	f.cluster("md", 1, 0)
	seen := f.store.Snapshot()
	removed := proto.CloneOf(seen.Hosts["a1"])
	removed.Meta.Deleting = timestamppb.Now()
	f.txn(store.Update(removed))
	c := &Controller{Deps: Deps{Store: f.store, Sessions: f.hosts}}
	if _, err := c.place(t.Context(), seen, seen.Guests["md-0"]); !errors.Is(err, store.ErrConflict) {
		t.Errorf("placing on it: %v", err)
	}
	if g := f.store.Snapshot().Guests["md-0"]; g.Host != "" {
		t.Errorf("it has the grant of %v", g)
	}
}

func TestEndedMovesAreKeptUpToANumber(t *testing.T) {
	s := &store.Snapshot{Migrations: map[string]*v1.Migration{}, Guests: map[string]*v1.Guest{"md-0": {Meta: &v1.Meta{Name: "md-0", Uid: "new"}}}}
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
	if m := tooOld(s); m != nil {
		t.Errorf("%s is too old", m.Meta.Name)
	}
	add(keepMoves+1, "md-0", "new")
	if m := tooOld(s); m.GetMeta().GetName() != "md-0-new-m0" {
		t.Errorf("too old: %v", m)
	}
	delete(s.Migrations, "md-0-new-m0")
	add(keepGoneMoves/2+1, "lu-0", "older")
	if m := tooOld(s); m.GetMeta().GetUid() != "" || m.GetMeta().GetCreated().AsTime() != begun.UTC() || m.GuestUid == "new" {
		t.Errorf("too old of those that are gone: %v", m)
	}
}
