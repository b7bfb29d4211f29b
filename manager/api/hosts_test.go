package api

import (
	"context"
	"path/filepath"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "watari/api/watariv1"
	"watari/ca"
	"watari/manager/session"
	"watari/manager/store"
)

func TestAHostThatIsBeingRemovedCanStillBeCalledLost(t *testing.T) {
	s, err := store.Open(t.Context(), store.Config{Dir: filepath.Join(t.TempDir(), "etcd")})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	err = s.Txn(t.Context(),
		store.Create(&v1.Host{Meta: &v1.Meta{Name: "a1", Deleting: timestamppb.Now()}, Info: &v1.HostInfo{BootId: "b1"}}),
		store.Create(&v1.Guest{Meta: &v1.Meta{Name: "md-0"}, Host: "a1", BootId: "b1"}))
	if err != nil {
		t.Fatal(err)
	}
	server := New(Options{Store: s, Sessions: session.New(nil, nil), Leading: func() bool { return true }})
	ctx := context.WithValue(t.Context(), callerKey{}, caller{kind: ca.KindUser, name: Admin, admin: true})
	for _, lost := range []bool{false, true, true} {
		if _, err := server.RemoveHost(ctx, connect.NewRequest(&v1.RemoveHostRequest{Name: "a1", Lost: lost})); err != nil {
			t.Fatal(err)
		}
		h := s.Snapshot().Hosts["a1"]
		if h == nil || (h.FencedBootId == "b1") != lost {
			t.Errorf("lost %v: %v", lost, h)
		}
	}
}
