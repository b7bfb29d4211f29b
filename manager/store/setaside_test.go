package store

import (
	"errors"
	"strings"
	"testing"

	v1 "watari/api/watariv1"
)

// An object that cannot be read never counts as absent: its last readable version stays in the snapshot, errors name it, and
// a person can set it aside.
func TestAnObjectThatCannotBeReadIsNotAbsent(t *testing.T) {
	dir, ctx := t.TempDir(), testContext(t)
	s := open(t, dir)
	if err := s.Txn(ctx, Create(&v1.Guest{Meta: named("md-0"), Host: "a1"}), Create(&v1.Guest{Meta: named("md-1")})); err != nil {
		t.Fatal(err)
	}
	key := Guests.dir + "md-0"
	put, err := s.client.Put(ctx, key, "\xff damaged")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.cache.wait(ctx, put.Header.Revision); err != nil {
		t.Fatal(err)
	}
	if g := s.Snapshot().Guests["md-0"]; g.GetHost() != "a1" {
		t.Errorf("what was known of the guest is lost: %v", g)
	}
	named := func(err error) {
		t.Helper()
		var unreadable *UnreadableError
		if !errors.As(err, &unreadable) || !strings.Contains(err.Error(), "watari manager set-aside "+key) {
			t.Errorf("%v", err)
		}
	}
	named(Readable(s.Snapshot()))
	s.Close()
	s = open(t, dir)
	named(Readable(s.Snapshot()))
	s.Close()

	rested := &UnreadableError{map[string]error{Hosts.dir + "a1": errors.New("damaged")}}
	if _, err := SetAside(ctx, Config{Dir: dir}, Hosts.dir+"a1"); err == nil || strings.Contains(rested.Error(), "set-aside") {
		t.Errorf("a host may be set aside: %v; %v", err, rested)
	}
	if _, err := SetAside(ctx, Config{Dir: dir}, Guests.dir+"md-1"); err == nil {
		t.Error("a sound object was set aside")
	}
	kept, err := SetAside(ctx, Config{Dir: dir}, key)
	if err != nil {
		t.Fatal(err)
	}
	s = open(t, dir)
	defer s.Close()
	if err := Readable(s.Snapshot()); err != nil || s.Snapshot().Guests["md-0"] != nil || s.Snapshot().Guests["md-1"] == nil {
		t.Errorf("after it was set aside: %v, %v", err, s.Snapshot().Guests)
	}
	if got, err := s.client.Get(ctx, kept); err != nil || len(got.Kvs) != 1 || string(got.Kvs[0].Value) != "\xff damaged" {
		t.Errorf("it is not kept at %s: %v, %v", kept, got, err)
	}
}

func TestAnObjectThatIsMendedCanBeReadAgain(t *testing.T) {
	s, ctx := open(t, t.TempDir()), testContext(t)
	defer s.Close()
	if _, err := s.client.Put(ctx, Users.dir+"ann", "\xff"); err != nil {
		t.Fatal(err)
	}
	gone, err := s.client.Delete(ctx, Users.dir+"ann")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.cache.wait(ctx, gone.Header.Revision); err != nil {
		t.Fatal(err)
	}
	if err := Readable(s.Snapshot()); err != nil {
		t.Error(err)
	}
}
