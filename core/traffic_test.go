package core

import (
	"fmt"
	"slices"
	"testing"

	v1 "watari/api/watariv1"
	"watari/locality"
)

// talking is a cluster of three guests on two sites, and a cluster of another user.
func talking() *Objects {
	s := NoObjects()
	s.Hosts["a1"] = &v1.Host{Meta: &v1.Meta{Name: "a1"}, Info: &v1.HostInfo{Site: "a"}}
	s.Hosts["a2"] = &v1.Host{Meta: &v1.Meta{Name: "a2"}, Info: &v1.HostInfo{Site: "a"}}
	s.Hosts["b1"] = &v1.Host{Meta: &v1.Meta{Name: "b1"}, Info: &v1.HostInfo{Site: "b"}}
	s.Clusters["md"] = &v1.Cluster{Meta: &v1.Meta{Name: "md"}, Prefix: "10.77.1.0/24"}
	s.Clusters["lu"] = &v1.Cluster{Meta: &v1.Meta{Name: "lu"}, Prefix: "10.77.2.0/24"}
	guest := func(cluster string, index uint32, host string) {
		name := fmt.Sprintf("%s-%d", cluster, index)
		third := map[string]int{"md": 1, "lu": 2}[cluster]
		s.Guests[name] = &v1.Guest{Meta: &v1.Meta{Name: name, Uid: "uid-" + name}, Cluster: cluster, Index: index, Host: host, Address: fmt.Sprintf("10.77.%d.%d", third, 10+index)}
	}
	guest("md", 0, "a1")
	guest("md", 1, "a2")
	guest("md", 2, "b1")
	guest("lu", 0, "b1")
	return s
}

func TestAHostSpeaksOnlyOfItsGuestsAndOfGuestsThatExist(t *testing.T) {
	s := talking()
	var got []string
	sample := &v1.HostSample{Guests: []*v1.GuestSample{
		{Uid: "uid-md-0", Name: "md-0", Peers: []*v1.GuestTraffic{
			{Address: "10.77.1.11", Sent: 500}, {Address: "10.77.1.11", Sent: 500}, {Address: "10.77.1.12", Sent: 1 << 62},
			{Address: "10.77.1.10", Sent: 1}, {Address: "10.77.2.10", Sent: 1}, {Address: "10.77.1.99", Sent: 1}, {Address: "10.77.1.1", Sent: 1}, {Address: "fe80::1", Sent: 1}, {Sent: 1}}},
		{Uid: "uid-md-1", Name: "md-1", Peers: []*v1.GuestTraffic{{Address: "10.77.1.10", Sent: 1}}},
		{Uid: "other", Name: "md-0", Peers: []*v1.GuestTraffic{{Address: "10.77.1.10", Sent: 1}}},
		{Uid: "ghost", Name: "ghost", Peers: []*v1.GuestTraffic{{Address: "10.77.1.10", Sent: 1}}}}}
	Talked(s, "a1", sample, func(from, to string, bytes uint64) { got = append(got, fmt.Sprint(from, " ", to, " ", bytes)) })
	want := []string{"uid-md-0 uid-md-1 500", fmt.Sprint("uid-md-0 uid-md-2 ", uint64(mostSent))}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	for _, g := range sample.Guests {
		if g.Peers != nil {
			t.Errorf("the sample of %s still has its peers", g.Name)
		}
	}
}

func TestTheTrafficOfAClusterShowsWhatCostsMostFirst(t *testing.T) {
	rates := map[string]map[string]float64{"uid-md-0": {"uid-md-1": 5e6, "uid-md-2": 1e6, "uid-lu-0": 9e9}, "uid-md-1": {"uid-md-0": 1e6}}
	answer := ClusterTraffic(talking(), "md", func(uid string) map[string]float64 { return rates[uid] }, locality.Default)
	var got []string
	for _, p := range answer.Pairs {
		got = append(got, fmt.Sprint(p.Guest, " ", p.Other, " ", p.Sent, " ", p.Received, " ", p.Distance, " ", p.Host, " ", p.OtherHost))
	}
	want := []string{"md-0 md-2 1e+06 0 10 a1 b1", "md-0 md-1 5e+06 1e+06 1 a1 a2"}
	if !slices.Equal(got, want) || answer.Cost != 16e6 {
		t.Errorf("got %q and cost %g, want %q", got, answer.Cost, want)
	}
	if answer := ClusterTraffic(talking(), "md", nil, locality.Default); len(answer.Pairs) != 0 {
		t.Errorf("without measurements: %v", answer)
	}
}
