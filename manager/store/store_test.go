package store

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	v1 "watari/api/watariv1"

	"google.golang.org/protobuf/proto"
)

func open(t testing.TB, dir string) *Store {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	s, err := Open(ctx, Config{Dir: dir, MaxEvents: 50})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func testContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func named(name string) *v1.Meta { return &v1.Meta{Name: name} }

func TestAChangeRestsOnWhatItExpects(t *testing.T) {
	s := open(t, t.TempDir())
	defer s.Close()
	ctx := testContext(t)
	if err := s.Txn(ctx, Create(&v1.Host{Meta: named("a1")}), Create(&v1.Guest{Meta: named("md-0")})); err != nil {
		t.Fatal(err)
	}
	seen := s.Snapshot()
	place := func() error {
		g := proto.CloneOf(s.Snapshot().Guests["md-0"])
		g.Host = "a1"
		return s.Txn(ctx, Update(g), Expect(seen.Hosts["a1"]))
	}
	if err := place(); err != nil {
		t.Fatal(err)
	}
	if now := s.Snapshot().Hosts["a1"]; now.Meta.Revision != seen.Hosts["a1"].Meta.Revision {
		t.Fatal("what is only expected was written")
	}
	h := proto.CloneOf(seen.Hosts["a1"])
	h.Draining = true
	if err := Hosts.Update(ctx, s, h); err != nil {
		t.Fatal(err)
	}
	if err := place(); !errors.Is(err, ErrConflict) {
		t.Fatalf("a change that rests on an old object: %v", err)
	}
	if err := Hosts.Delete(ctx, s, h); err != nil {
		t.Fatal(err)
	}
	if err := place(); !errors.Is(err, ErrNotFound) {
		t.Fatalf("a change that rests on an object that is gone: %v", err)
	}
}

func TestAnEventsTextIsBounded(t *testing.T) {
	s := open(t, t.TempDir())
	defer s.Close()
	e := &v1.Event{Kind: "guest", Name: "md-0", Message: "x" + strings.Repeat("\u00e9", maxEventText)}
	if err := s.AddEvent(testContext(t), e); err != nil {
		t.Fatal(err)
	}
	for kept := range s.Events(t.Context(), 0, false) {
		if len(kept.Message) > maxEventText+10 || !strings.HasSuffix(kept.Message, "\u00e9 ...") {
			t.Errorf("%d bytes, %q", len(kept.Message), kept.Message[len(kept.Message)-10:])
		}
	}
}

func TestObjects(t *testing.T) {
	s := open(t, t.TempDir())
	defer s.Close()
	ctx := testContext(t)

	h := &v1.Host{Meta: named("a1")}
	if err := Hosts.Create(ctx, s, h); err != nil {
		t.Fatal(err)
	}
	if h.Meta.Uid == "" || h.Meta.Created == nil || h.Meta.Revision == 0 {
		t.Fatalf("create did not fill %v", h.Meta)
	}
	if got := s.Snapshot().Hosts["a1"]; !proto.Equal(got, h) {
		t.Fatalf("the snapshot has %v, want %v", got, h)
	}
	if err := Hosts.Create(ctx, s, &v1.Host{Meta: named("a1")}); !errors.Is(err, ErrExists) {
		t.Fatalf("second create: %v", err)
	}
	old := proto.Clone(h).(*v1.Host)
	before := s.Snapshot()
	h.Draining = true
	if err := Hosts.Update(ctx, s, h); err != nil {
		t.Fatal(err)
	}
	if before.Hosts["a1"].Draining {
		t.Fatal("an old snapshot changed")
	}
	if err := Hosts.Update(ctx, s, old); !errors.Is(err, ErrConflict) {
		t.Fatalf("update of an old revision: %v", err)
	}
	if err := Hosts.Delete(ctx, s, old); !errors.Is(err, ErrConflict) {
		t.Fatalf("delete of an old revision: %v", err)
	}
	if err := Hosts.Update(ctx, s, &v1.Host{Meta: named("a2")}); !errors.Is(err, ErrNotFound) {
		t.Fatalf("update of a missing one: %v", err)
	}
	got, err := Hosts.Get(ctx, s, "a1")
	if err != nil || !proto.Equal(got, h) {
		t.Fatalf("get: %v %v", got, err)
	}
	if list, err := Hosts.List(ctx, s); err != nil || len(list) != 1 {
		t.Fatalf("list: %v %v", list, err)
	}
	if err := Hosts.Delete(ctx, s, h); err != nil {
		t.Fatal(err)
	}
	if _, err := Hosts.Get(ctx, s, "a1"); !errors.Is(err, ErrNotFound) || len(s.Snapshot().Hosts) != 0 {
		t.Fatalf("after delete: %v %v", err, s.Snapshot().Hosts)
	}
	if err := Hosts.Create(ctx, s, &v1.Host{Meta: named("a/b")}); err == nil {
		t.Fatal("a name with a slash was taken")
	}
}

func TestTransactionIsAllOrNothing(t *testing.T) {
	s := open(t, t.TempDir())
	defer s.Close()
	ctx := testContext(t)
	c := &v1.Cluster{Meta: named("md")}
	ops := []Op{Create(c), Record(&v1.Event{Kind: "cluster", Name: "md", Message: "created"})}
	for i := range 120 {
		ops = append(ops, Create(&v1.Guest{Meta: named(fmt.Sprintf("md-%d", i))}))
	}
	if err := s.Txn(ctx, ops...); err != nil {
		t.Fatal(err)
	}
	if n := len(s.Snapshot().Guests); n != 120 {
		t.Fatalf("%d guests", n)
	}
	err := s.Txn(ctx, Create(&v1.Run{Meta: named("r1")}), Create(&v1.Cluster{Meta: named("md")}))
	if !errors.Is(err, ErrExists) || !strings.Contains(err.Error(), "cluster md") {
		t.Fatalf("the refusal does not name the cluster: %v", err)
	}
	if len(s.Snapshot().Runs) != 0 {
		t.Fatal("half of a transaction was made")
	}
}

func TestStateSurvivesReopening(t *testing.T) {
	dir := t.TempDir()
	ctx := testContext(t)
	s := open(t, dir)
	term1, _, err := s.Lead(ctx, "https://m1")
	if err != nil {
		t.Fatal(err)
	}
	if err := Users.Create(ctx, s, &v1.User{Meta: named("ann")}); err != nil {
		t.Fatal(err)
	}
	if err := s.AddEvent(ctx, &v1.Event{Message: "hello"}); err != nil {
		t.Fatal(err)
	}
	s.Close()
	s = open(t, dir)
	defer s.Close()
	if s.Snapshot().Users["ann"] == nil || s.Snapshot().Leader != "https://m1" {
		t.Fatalf("lost: %+v", s.Snapshot())
	}
	term2, _, err := s.Lead(ctx, "https://m1")
	if err != nil || term2 <= term1 {
		t.Fatalf("term %d after %d: %v", term2, term1, err)
	}
	n := 0
	for range s.Events(ctx, 0, false) {
		n++
	}
	if n != 1 {
		t.Fatalf("%d events", n)
	}
}

func TestEventsAreBoundedAndFollowed(t *testing.T) {
	s := open(t, t.TempDir())
	defer s.Close()
	ctx, cancel := context.WithCancel(testContext(t))
	seen := make(chan string, 1000)
	ended := make(chan error, 1)
	go func() {
		for e, err := range s.Events(ctx, 0, true) {
			if err != nil {
				ended <- err
				return
			}
			seen <- e.Message
		}
	}()
	for i := range 200 {
		if err := s.AddEvent(ctx, &v1.Event{Message: strconv.Itoa(i)}); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 200 {
		if got := <-seen; got != strconv.Itoa(i) {
			t.Fatalf("event %d is %s", i, got)
		}
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	var kept []*v1.Event
	for e := range s.Events(context.Background(), 0, false) {
		kept = append(kept, e)
	}
	if len(kept) > 50+trimSlack || kept[len(kept)-1].Message != "199" {
		t.Fatalf("%d kept", len(kept))
	}
	last := kept[len(kept)-2]
	for e := range s.Events(context.Background(), last.Id, false) {
		if e.Message != "199" {
			t.Fatalf("after %d comes %s", last.Id, e.Message)
		}
	}
}

func TestChangesAreTold(t *testing.T) {
	s := open(t, t.TempDir())
	defer s.Close()
	ctx := testContext(t)
	always := s.Changes()
	once, cancel := context.WithCancel(ctx)
	sub := s.Subscribe(once)
	for i := range 3 {
		if err := Users.Create(ctx, s, &v1.User{Meta: named(fmt.Sprintf("u%d", i))}); err != nil {
			t.Fatal(err)
		}
	}
	<-always
	<-sub
	cancel()
	if err := Users.Create(ctx, s, &v1.User{Meta: named("u9")}); err != nil {
		t.Fatal(err)
	}
	<-always
	select {
	case <-sub:
		t.Fatal("told after the subscription ended")
	default:
	}
}

func TestNothingListens(t *testing.T) {
	s := open(t, t.TempDir())
	defer s.Close()
	if n := len(s.server.Peers) + len(s.server.Clients); n != 0 {
		t.Fatalf("etcd has %d listeners", n)
	}
	if c, err := net.Dial("tcp", "127.0.0.1:2380"); err == nil {
		c.Close()
		t.Log("something else listens on etcd's usual port")
	}
}
