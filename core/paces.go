package core

// paces.go - the pace of each host for an abstract cluster: how many times as much the host computes for the cluster's program as its
// measured speed says. It is learnt from how long the guests wait for each other.

import (
	"fmt"
	"maps"
	"math"
	"time"

	"google.golang.org/protobuf/proto"

	v1 "watari/api/watariv1"
	"watari/placement"
)

const (
	// settledFor is how long all guests of a cluster must have been where they are, and how long they must show the same hosts to be
	// faster than the others, before that is learnt. Guests measure how much they compute over about 30 seconds, and tell it every 15.
	settledFor = time.Minute
	// leastPace and mostPace bound what a cluster's guests can claim of a host.
	leastPace, mostPace = 0.25, 4
	// alike is the ratio up to which the guests of a host count as waiting for the same reason.
	alike = 1.25
)

// paceOf returns a host's pace for a cluster.
func paceOf(c *v1.Cluster, host string) float64 {
	if pace := c.Paces[host]; pace >= leastPace { // false if it is not a number
		return min(pace, mostPace)
	}
	return 1
}

// pace returns a host's pace for a cluster that has guests there. What is known of a host without guests may be out of date: the next
// program may be another one, and the host another machine.
func pace(c *v1.Cluster, h *placement.Host) float64 {
	if h.ClusterGuests == 0 {
		return 1
	}
	return paceOf(c, h.Name)
}

// shown is what the guests of an abstract cluster show while they are divided as they are.
type shown struct {
	divided string               // how many guests each host has
	since   map[string]time.Time // the hosts that compute more for the program than measured, and since when guests show that
}

// learnPaces corrects the paces of a cluster's hosts by how much of the time their guests compute. It reports whether it did.
func (p *pass) learnPaces(c *v1.Cluster, d *division) bool {
	memory := &p.Core.apportionment
	last := memory.shown[c.Meta.Name]
	delete(memory.shown, c.Meta.Name)
	if p.Usage == nil || p.changed(c) || !p.settled(c) {
		return false
	}
	computing := make([]float64, len(d.shares))
	for i, s := range d.shares {
		computing[i] = p.computing(c, s.Host)
	}
	learnt := placement.Learn(d.shares, computing)
	now, due := shown{since: map[string]time.Time{}}, false
	for _, s := range d.shares {
		now.divided += fmt.Sprint(s.Host, " ", s.Has, ", ")
	}
	for i, s := range d.shares {
		if learnt == nil || learnt[i] <= s.Capacity {
			continue
		}
		since, is := last.since[s.Host]
		if !is || last.divided != now.divided || since.After(p.Now) {
			since = p.Now
		}
		now.since[s.Host] = since
		due = due || p.Now.Sub(since) >= p.hurried(settledFor)
	}
	if !due {
		if len(now.since) > 0 {
			memory.shown[c.Meta.Name] = now
		}
		return false
	}
	update := proto.CloneOf(c)
	update.Paces = map[string]float64{}
	for i, s := range d.shares {
		pace := paceOf(c, s.Host) * learnt[i] / s.Capacity
		if pace = math.Round(100*max(leastPace, min(pace, mostPace))) / 100; pace != 1 {
			update.Paces[s.Host] = pace
		}
	}
	if maps.Equal(update.Paces, c.Paces) {
		return false // they are at their bounds
	}
	var change Change
	change.write(Update, update)
	p.propose("paces of "+c.Meta.Name, change)
	return true
}

// computing returns the part of the time that the guests of a cluster compute on a host. 0: it is not known of one of them, or they
// differ: the program does not use them all, or one rank does something that the others do not.
func (p *pass) computing(c *v1.Cluster, host string) float64 {
	least, most := math.Inf(1), 0.0
	for g := range p.index.onHost[host] {
		if g.Cluster != c.Meta.Name {
			continue
		}
		part := p.Usage.Guests[g.Meta.Uid].Computing
		if !(part > 0 && part <= 1) {
			return 0
		}
		least, most = min(least, part), max(most, part)
	}
	if most > alike*least {
		return 0
	}
	return most
}

// settled reports whether all guests of a cluster have been where they are for settledFor, on hosts that nothing else slows down.
func (p *pass) settled(c *v1.Cluster) bool {
	for _, g := range p.index.guestsOf(c.Meta.Name) {
		if unwanted(p.Objects, g) {
			continue
		}
		since := g.Started.AsTime()
		for _, m := range p.index.ended[g.Meta.Uid] {
			if at := m.Ended.AsTime(); at.After(since) {
				since = at
			}
		}
		age := p.Now.Sub(since) // negative: the clock was set back
		if h := p.Hosts[g.Host]; h == nil || h.Draining || len(h.Withdrawn) > 0 || age >= 0 && age < p.hurried(settledFor) {
			return false
		}
	}
	return true
}
