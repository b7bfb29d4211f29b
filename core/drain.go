package core

// drain.go - moves guests away from hosts that are drained or that a policy withdraws.

import (
	"slices"
	"strings"
	"time"

	v1 "watari/api/watariv1"
	"watari/placement"
)

// retryMove is the pause before a guest whose move failed is moved again. An earlier move would probably fail again. The pause doubles
// with each failure, up to mostRetryMove.
const (
	retryMove     = 10 * time.Second
	mostRetryMove = time.Minute
)

// drain moves guests away from hosts that they have to leave, if other hosts have room.
func (p *pass) drain() {
	var leaving []*v1.Guest
	for _, h := range p.Hosts {
		if !h.Draining && len(h.Withdrawn) == 0 {
			continue
		}
		for g := range p.index.onHost[h.Meta.Name] {
			if p.index.moves[g.Meta.Uid] == nil {
				leaving = append(leaving, g)
			}
		}
	}
	if len(leaving) == 0 {
		return
	}
	// The guests of a cluster one after the other, so that they share a view of the hosts.
	slices.SortFunc(leaving, func(a, b *v1.Guest) int {
		if c := strings.Compare(a.Cluster, b.Cluster); c != 0 {
			return c
		}
		return strings.Compare(a.Meta.Name, b.Meta.Name)
	})
	for _, g := range leaving {
		if p.full() {
			return
		}
		p.moveAway(g, p.Hosts[g.Host])
	}
}

// moveAway begins to move a guest away from its host, if that is possible and permitted now. Later decisions try again.
func (p *pass) moveAway(g *v1.Guest, h *v1.Host) {
	if p.changed(g) || p.changed(h) || unwanted(p.Objects, g) || !p.runsUnderGrant(g) {
		return
	}
	if len(p.openRoom().takers()) == 0 || diskAway(p.Objects, p, g) != "" {
		p.stays(g, h)
		return
	}
	if wait := failedLately(p.index.ended[g.Meta.Uid], p.Now); wait > 0 {
		p.again = earlier(p.again, p.Now.Add(wait))
		return
	}
	for _, why := range p.causesToLeave(g, h) {
		view := p.viewFor(g)
		target := view.pick(p, g, p.look().toSite(g, why.policy))
		if target < 0 {
			continue
		}
		to := view.hosts[target].Name
		var c Change
		p.beginMove(&c, g, to, why)
		p.propose("guest/"+g.Meta.Name, c)
		p.room.take(to, g.Shape)
		view.hosts[target].Place(g.Shape)
		if why.policy != "" {
			p.look().begins(g, why.policy, to)
		}
		return
	}
	p.stays(g, h)
}

// leavingView describes the hosts to the leaving guests of one cluster: first the hosts that take guests, then other hosts
// with guests of the cluster, which count for its spread. It includes the moves of this decision.
type leavingView struct {
	cluster, image string
	hosts          []placement.Host
	at             map[string]int // indexes in hosts, by name
	open           int            // number of hosts that take guests
}

// viewFor returns the view for a guest. It adapts the view of the previous guest's cluster.
func (p *pass) viewFor(g *v1.Guest) *leavingView {
	v, room := p.leaving, p.openRoom()
	if v == nil {
		open := room.takers()
		v = &leavingView{hosts: make([]placement.Host, 0, len(open)), at: make(map[string]int, len(open)), open: len(open)}
		for _, i := range open {
			v.add(room.hosts[i])
		}
		p.leaving = v
	}
	if v.cluster != g.Cluster {
		v.cluster = g.Cluster
		v.count(p, p.index.guestsOf(g.Cluster))
	}
	if v.image != g.ImageDigest {
		v.image = g.ImageDigest
		for i := range v.open {
			report, _, _ := p.Observed(v.hosts[i].Name)
			v.hosts[i].HasImage = slices.Contains(report.GetImages(), g.ImageDigest)
		}
	}
	return v
}

func (v *leavingView) add(h placement.Host) {
	v.at[h.Name] = len(v.hosts)
	v.hosts = append(v.hosts, h)
}

// count counts the guests of a cluster on the hosts. It replaces the counts of the previous cluster.
func (v *leavingView) count(p *pass, guests []*v1.Guest) {
	for _, h := range v.hosts[v.open:] {
		delete(v.at, h.Name)
	}
	v.hosts = v.hosts[:v.open]
	for i := range v.hosts {
		v.hosts[i].ClusterGuests = 0
	}
	one := func(host string) {
		i, is := v.at[host]
		if !is {
			known, exists := p.room.at[host]
			if !exists {
				return
			}
			i = len(v.hosts)
			v.add(p.room.hosts[known])
		}
		v.hosts[i].ClusterGuests++
	}
	for _, g := range guests {
		one(g.Host)
		if m := p.index.moves[g.Meta.Uid]; m != nil && m.Target != g.Host {
			one(m.Target)
		}
	}
}

// pick returns the index of the host to which a guest moves; -1: none can take it. toSite says why the guest must not move to
// a site; nil: it may move to each.
func (v *leavingView) pick(p *pass, g *v1.Guest, toSite func(site string) string) int {
	if v.open == 0 {
		return -1
	}
	// Leave the guest out of its host's count, so that scores describe the cluster after the move.
	if i, is := v.at[g.Host]; is && v.hosts[i].ClusterGuests > 0 {
		v.hosts[i].ClusterGuests--
		defer func() { v.hosts[i].ClusterGuests++ }()
	}
	r := moveRequest(p.Objects, g)
	bySite(r, toSite)
	if failed := failedTargets(p.index.ended[g.Meta.Uid], p.Now); len(failed) > 0 {
		others := *r
		others.Exclude = append(failed, r.Exclude...)
		if chosen := v.best(p, g, &others); chosen >= 0 {
			return chosen
		}
	}
	return v.best(p, g, r)
}

// best returns the index of the best host for a request of a guest; -1: none can take it.
func (v *leavingView) best(p *pass, g *v1.Guest, r *placement.Request) int {
	if c := p.Clusters[g.Cluster]; apportioned(c) {
		if chosen := p.divide(c, v.hosts).neediest(r, v.hosts); chosen >= 0 {
			return chosen
		}
	}
	return placement.Pick(r, v.hosts)
}

// runsUnderGrant reports whether the guest's host reports it running under the present grant.
func (p *pass) runsUnderGrant(g *v1.Guest) bool {
	report, _, connected := p.Observed(g.Host)
	seen := GuestOn(report, g.Meta.Uid)
	return connected && seen.GetEpoch() == g.Epoch && seen.GetCondition() == v1.GuestCondition_GUEST_CONDITION_RUNNING
}

// failedLately returns how long a guest with these ended moves must wait after one that failed or was cancelled; 0: it may move. Only
// failures of the last hour lengthen the pause.
func failedLately(ended []*v1.Migration, now time.Time) (wait time.Duration) {
	pause, last := retryMove/2, time.Hour
	for _, m := range ended {
		age := now.Sub(m.Ended.AsTime()) // negative: the clock was set back
		if m.State == v1.MigrationState_MIGRATION_STATE_DONE || age < 0 || age >= time.Hour {
			continue
		}
		if last = min(last, age); m.State == v1.MigrationState_MIGRATION_STATE_FAILED {
			pause = min(2*pause, mostRetryMove)
		}
	}
	return max(0, max(pause, retryMove)-last)
}

// failedTargets returns the hosts to which a guest with these ended moves failed to move in the last hour. Another host is tried
// first.
func failedTargets(ended []*v1.Migration, now time.Time) (hosts []string) {
	for _, m := range ended {
		age := now.Sub(m.Ended.AsTime())
		if m.State == v1.MigrationState_MIGRATION_STATE_FAILED && age >= 0 && age < time.Hour {
			hosts = append(hosts, m.Target)
		}
	}
	return hosts
}
