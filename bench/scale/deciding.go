package main

// deciding.go - how long it takes to choose hosts, in this process: no etcd, no connections.

import (
	"fmt"
	"time"

	v1 "watari/api/watariv1"
	"watari/manager/controller"
	"watari/manager/store"
	"watari/placement"
)

// decidingLimit bounds how long the choosing is repeated.
const decidingLimit = 10 * time.Second

// reports is what hosts have reported, by name.
type reports map[string]*v1.HostObserved

// Observed is view.Observer's: all hosts have been connected for an hour.
func (r reports) Observed(name string) (*v1.HostObserved, time.Time, bool) {
	return r[name], time.Now().Add(-time.Hour), true
}

// measureDeciding times the choice of hosts for a cluster of placed guests, again and again.
func measureDeciding(hosts, guests int) (latency, error) {
	s, o := snapshotOf(hosts, guests)
	var runs []float64
	for begun := time.Now(); len(runs) < 3 || len(runs) < 500 && time.Since(begun) < decidingLimit; {
		begin := time.Now()
		if err := choose(s, o); err != nil {
			return latency{}, err
		}
		runs = append(runs, milliseconds(time.Since(begin)))
	}
	return summarize(runs), nil
}

// choose chooses a host for each of placed guests as the controller does, one decision after the other.
func choose(s *store.Snapshot, o reports) error {
	r := &placement.Request{Shape: guestShape()}
	for range placed {
		chosen, _ := placement.Choose(r, controller.PlacementHosts(s, o, "new", "digest"))
		if chosen == "" {
			return fmt.Errorf("no host was chosen")
		}
	}
	return nil
}

// snapshotOf makes a snapshot of hosts with guests in clusters, spread evenly.
func snapshotOf(hosts, guests int) (*store.Snapshot, reports) {
	s := &store.Snapshot{Hosts: map[string]*v1.Host{}, Clusters: map[string]*v1.Cluster{}, Guests: map[string]*v1.Guest{}}
	o := reports{}
	names := make([]string, hosts)
	for i := range hosts {
		h := newHost(nil, i)
		names[i] = h.name
		s.Hosts[h.name] = &v1.Host{Meta: &v1.Meta{Name: h.name, Uid: h.name}, Info: h.info}
		o[h.name] = &v1.HostObserved{Info: h.info, Images: []string{"digest"}}
	}
	for i := range guests {
		cluster, name := fmt.Sprintf("c%d", i/placed), fmt.Sprintf("c%d-%d", i/placed, i%placed)
		s.Clusters[cluster] = &v1.Cluster{Meta: &v1.Meta{Name: cluster}, Spec: &v1.ClusterSpec{Guests: placed}}
		s.Guests[name] = &v1.Guest{Meta: &v1.Meta{Name: name, Uid: name}, Cluster: cluster, Index: uint32(i % placed), Epoch: 1,
			Host: names[i%hosts], Shape: guestShape()}
	}
	return s, o
}
