package api

import (
	"context"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "watari/api/watariv1"
	"watari/ca"
	"watari/manager/history"
	"watari/manager/session"
	"watari/manager/store"
)

func TestAHostThatIsBeingRemovedCanStillBeCalledLost(t *testing.T) {
	s := openStore(t)
	err := s.Txn(t.Context(),
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

func TestUsersSeeTheirGuestsAndNothingOfOwners(t *testing.T) {
	s := openStore(t)
	err := s.Txn(t.Context(), store.Create(&v1.Host{Meta: &v1.Meta{Name: "a1"}, Info: &v1.HostInfo{}}),
		store.Create(&v1.Guest{Meta: &v1.Meta{Name: "md-0", Uid: "u-md", Owner: "aiko", OwnerUid: "aiko"}, Host: "a1"}),
		store.Create(&v1.Guest{Meta: &v1.Meta{Name: "qe-0", Uid: "u-qe", Owner: "ben", OwnerUid: "ben"}, Host: "a1"}))
	if err != nil {
		t.Fatal(err)
	}
	past := history.New()
	past.Add("a1", &v1.HostSample{Seconds: 1, CpuOwner: 0.5, Owner: &v1.OwnerActivity{Users: []string{"cleo"}, TerminalIdle: proto.Float64(3)},
		Guests: []*v1.GuestSample{{Uid: "u-md", Name: "md-0", Cpu: 1}, {Uid: "u-qe", Name: "qe-0", Cpu: 2}, {Uid: "before", Name: "md-0"}}},
		func(*v1.GuestSample) bool { return true })
	server := New(Options{Store: s, Sessions: session.New(nil, nil), History: past, Leading: func() bool { return true }})
	since := timestamppb.New(past.Now().Add(-time.Minute))
	for name, want := range map[string]struct {
		guests int
		owner  bool
	}{Admin: {3, true}, "aiko": {1, false}, "dan": {0, false}} {
		ctx := context.WithValue(t.Context(), callerKey{}, caller{kind: ca.KindUser, name: name, uid: name, admin: name == Admin})
		hosts, err := server.ListHosts(ctx, connect.NewRequest(&v1.ListHostsRequest{}))
		if err != nil {
			t.Fatal(err)
		}
		sample := hosts.Msg.Hosts[0].Sample
		if len(sample.GetGuests()) != want.guests || (sample.Owner != nil) != want.owner || sample.CpuOwner != 0.5 {
			t.Errorf("%s sees the sample %v", name, sample)
		}
		steps, err := server.Usage(ctx, connect.NewRequest(&v1.UsageRequest{Host: "a1", Since: since}))
		if err != nil || len(steps.Msg.Host) != 1 || (steps.Msg.Host[0].Owner != nil) != want.owner {
			t.Errorf("%s sees the host's steps %v, %v", name, steps, err)
		}
		_, err = server.Usage(ctx, connect.NewRequest(&v1.UsageRequest{Guest: "md-0", Since: since}))
		if (err == nil) != (want.guests > 0) {
			t.Errorf("%s asks for a guest's steps: %v", name, err)
		}
		for _, request := range []*v1.UsageRequest{{}, {Host: "a1", Guest: "md-0"}} {
			if _, err := server.Usage(ctx, connect.NewRequest(request)); connect.CodeOf(err) != connect.CodeInvalidArgument {
				t.Errorf("%v: %v", request, err)
			}
		}
	}
}
