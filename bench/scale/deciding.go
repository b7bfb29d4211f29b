package main

// deciding.go - how long the core takes to place a cluster, measured in this process without etcd and connections.

import (
	"fmt"
	"time"

	v1 "watari/api/watariv1"
	"watari/core"
)

// decidingLimit is how long the measurement repeats the decision.
const decidingLimit = 10 * time.Second

// measureDeciding repeats and times the core's decision about a new cluster of placed guests. The decision includes the
// orders to hosts.
func measureDeciding(hosts, guests int) (latency, error) {
	w := worldOf(hosts, guests)
	identity := func(_ *v1.Cluster, g *v1.Guest, epoch uint64, _ uint32) (*v1.Identity, time.Time) {
		return &v1.Identity{GuestUid: g.Meta.Uid, Epoch: epoch}, time.Time{}
	}
	c := core.New(core.Config{Term: 1, Began: w.Now.Add(-time.Hour), Identify: identity})
	c.Decide(w)
	before := w.Objects
	platforms, err := core.Feasible(before, &w, &v1.ClusterSpec{Guests: placed, Shape: guestShape()}, "digest", w.Now, w.Now.Add(-time.Hour))
	if err != nil {
		return latency{}, err
	}
	var runs []float64
	for begun := time.Now(); len(runs) < 3 || len(runs) < 500 && time.Since(begun) < decidingLimit; {
		w.Objects = withCluster(before, platforms)
		begin := time.Now()
		d := c.Decide(w)
		runs = append(runs, milliseconds(time.Since(begin)))
		if len(d.Changes) != placed {
			return latency{}, fmt.Errorf("%d guests were placed, not %d", len(d.Changes), placed)
		}
		w.Objects = before
		c.Decide(w)
	}
	return summarize(runs), nil
}

// withCluster returns objects with a new cluster. Its platforms are those decided at its admission.
func withCluster(o *core.Objects, platforms []*v1.Platform) *core.Objects {
	change := core.Change{Ops: []core.Op{{Kind: core.Create, Object: &v1.Cluster{Meta: &v1.Meta{Name: "new"}, Spec: &v1.ClusterSpec{Guests: placed}, Platforms: platforms}}}}
	for i := range placed {
		name := fmt.Sprintf("new-%d", i)
		change.Ops = append(change.Ops, core.Op{Kind: core.Create, Object: &v1.Guest{Meta: &v1.Meta{Name: name, Uid: name}, Cluster: "new",
			Index: uint32(i), Shape: guestShape()}})
	}
	return o.Apply(change)
}

// worldOf returns a world of hosts and evenly spread clusters, whose guests all run.
func worldOf(hosts, guests int) core.World {
	s := core.NoObjects()
	reported := map[string]*v1.HostObserved{}
	names := make([]string, hosts)
	for i := range hosts {
		h := newHost(nil, i)
		names[i] = h.name
		s.Hosts[h.name] = &v1.Host{Meta: &v1.Meta{Name: h.name, Uid: h.name}, Info: h.info}
		reported[h.name] = &v1.HostObserved{Info: h.info, Images: []string{"digest"}}
	}
	for i := range guests {
		cluster, name := fmt.Sprintf("c%d", i/placed), fmt.Sprintf("c%d-%d", i/placed, i%placed)
		s.Clusters[cluster] = &v1.Cluster{Meta: &v1.Meta{Name: cluster}, Spec: &v1.ClusterSpec{Guests: placed}}
		s.Guests[name] = &v1.Guest{Meta: &v1.Meta{Name: name, Uid: name}, Cluster: cluster, Index: uint32(i % placed), Epoch: 1,
			LastEpoch: 1, StartedEpoch: 1, BootId: s.Hosts[names[i%hosts]].Info.GetBootId(), Host: names[i%hosts], Shape: guestShape()}
		report := reported[names[i%hosts]]
		report.Guests = append(report.Guests, &v1.GuestObserved{Uid: name, Name: name, Epoch: 1, Ready: true, Process: true,
			Condition: v1.GuestCondition_GUEST_CONDITION_RUNNING})
	}
	w := core.World{Objects: s, Reports: map[string]core.Seen{}, Now: time.Now()}
	for name, report := range reported {
		w.Reports[name] = core.Seen{Report: report, Since: w.Now.Add(-time.Hour), Connected: true}
	}
	return w
}
