package api

import (
	"context"
	"testing"
	"time"

	"connectrpc.com/connect"

	v1 "watari/api/watariv1"
	"watari/ca"
	"watari/core"
	"watari/manager/store"
)

func TestUsersSeeTheTrafficOfTheirClusters(t *testing.T) {
	s := openStore(t)
	err := s.Txn(t.Context(), store.Create(&v1.Host{Meta: &v1.Meta{Name: "a1"}, Info: &v1.HostInfo{Site: "a"}}),
		store.Create(&v1.Cluster{Meta: &v1.Meta{Name: "md", Uid: "c-md", Owner: "aiko", OwnerUid: "aiko"}}),
		store.Create(&v1.Guest{Meta: &v1.Meta{Name: "md-0", Uid: "u-0", Owner: "aiko", OwnerUid: "aiko"}, Cluster: "md", Host: "a1"}),
		store.Create(&v1.Guest{Meta: &v1.Meta{Name: "md-1", Uid: "u-1", Owner: "aiko", OwnerUid: "aiko"}, Cluster: "md", Index: 1, Host: "a1"}))
	if err != nil {
		t.Fatal(err)
	}
	server := New(Options{Store: s, Leading: func() bool { return true }})
	server.Traffic = func(time.Time) core.Traffic {
		return func(uid string) map[string]float64 { return map[string]map[string]float64{"u-1": {"u-0": 5e6}}[uid] }
	}
	ask := func(user string) (*connect.Response[v1.ClusterTrafficResponse], error) {
		ctx := context.WithValue(t.Context(), callerKey{}, caller{kind: ca.KindUser, name: user, uid: user})
		return server.ClusterTraffic(ctx, connect.NewRequest(&v1.ClusterTrafficRequest{Name: "md"}))
	}
	answer, err := ask("aiko")
	if err != nil || len(answer.Msg.Pairs) != 1 || answer.Msg.Pairs[0].Received != 5e6 || answer.Msg.Pairs[0].Distance != 0 {
		t.Errorf("the owner is told %v, error %v", answer, err)
	}
	if _, err := ask("ben"); connect.CodeOf(err) != connect.CodeNotFound {
		t.Errorf("another user is told: %v", err)
	}
}
