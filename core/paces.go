package core

// paces.go - the pace of each host for an abstract cluster: how many times as much the host computes for the cluster's program as its
// measured speed says. It is learnt from how long the guests wait for each other.

import (
	"math"
	"time"

	"google.golang.org/protobuf/proto"

	v1 "watari/api/watariv1"
	"watari/placement"
)

const (
	// settledFor is how long all guests of a cluster must have been where they are before something is learnt. Guests measure how
	// much they compute over about 30 seconds, and tell it every 15.
	settledFor = time.Minute
	// leastPace and mostPace bound what a cluster's guests can claim of a host.
	leastPace, mostPace = 0.25, 4
)

// paceOf returns a host's pace for a cluster.
func paceOf(c *v1.Cluster, host string) float64 {
	if pace := c.Paces[host]; pace >= leastPace { // false if it is not a number
		return min(pace, mostPace)
	}
	return 1
}

// learnPaces corrects the paces of a cluster's hosts by how much of the time their guests compute now. It reports whether it did.
func (p *pass) learnPaces(c *v1.Cluster, d *division) bool {
	if p.Usage == nil || p.changed(c) || !p.settled(c) {
		return false
	}
	computing := make([]float64, len(d.shares))
	for i, s := range d.shares {
		computing[i] = p.computing(c, s.Host)
	}
	learnt := placement.Learn(d.shares, computing)
	if learnt == nil {
		return false
	}
	update := proto.CloneOf(c)
	update.Paces = map[string]float64{}
	differ := false
	for i, s := range d.shares {
		before := paceOf(c, s.Host)
		pace := max(leastPace, min(before*learnt[i]/s.Capacity, mostPace))
		pace = math.Round(100*pace) / 100
		differ = differ || pace != before
		if pace != 1 {
			update.Paces[s.Host] = pace
		}
	}
	if !differ {
		return false // they are at their bounds
	}
	var change Change
	change.write(Update, update)
	p.propose("paces of "+c.Meta.Name, change)
	return true
}

// computing returns the part of the time that at least two guests of a cluster compute on a host; 0: not known. A program of which
// all ranks wait while one does something alone, such as reading its input, shows nothing about hosts.
func (p *pass) computing(c *v1.Cluster, host string) (second float64) {
	most := 0.0
	for g := range p.index.onHost[host] {
		if g.Cluster != c.Meta.Name {
			continue
		}
		part := p.Usage.Guests[g.Meta.Uid].Computing
		if !(part > 0 && part <= 1) {
			return 0
		}
		most, second = max(most, part), max(second, min(most, part))
	}
	return second
}

// settled reports whether all guests of a cluster have been where they are for settledFor.
func (p *pass) settled(c *v1.Cluster) bool {
	for _, g := range p.index.guestsOf(c.Meta.Name) {
		since := g.Started.AsTime()
		for _, m := range p.index.ended[g.Meta.Uid] {
			if at := m.Ended.AsTime(); at.After(since) {
				since = at
			}
		}
		if g.Host == "" || p.Now.Sub(since) < p.hurried(settledFor) {
			return false
		}
	}
	return true
}
