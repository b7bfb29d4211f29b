package core

// drain.go - moves guests away from hosts that they have to leave: those that are drained, and those that a policy withdraws.

import (
	"fmt"
	"maps"
	"time"

	v1 "watari/api/watariv1"
)

// retryMove is the pause before a guest whose move failed is moved again. An earlier move would probably fail again.
const retryMove = 10 * time.Second

// drain moves guests away from hosts that they have to leave, if other hosts have room.
func (p *pass) drain() {
	for _, host := range sortedKeys(p.Hosts) {
		h := p.Hosts[host]
		if !h.Draining && len(h.Withdrawn) == 0 {
			continue
		}
		byName := map[string]*v1.Guest{}
		for g := range p.index.onHost[host] {
			byName[g.Meta.Name] = g
		}
		for _, name := range sortedKeys(byName) {
			if p.full() {
				return
			}
			p.moveAway(byName[name], h)
		}
	}
}

// moveAway begins to move a guest away from its host, if that is possible and permitted now. Later decisions try again.
func (p *pass) moveAway(g *v1.Guest, h *v1.Host) {
	if p.changed(g) || p.changed(h) || unwanted(p.Objects, g) || p.index.moves[g.Meta.Uid] != nil || !p.runsUnderGrant(g) {
		return
	}
	if wait := p.failedLately(g); wait > 0 {
		p.again = earlier(p.again, p.Now.Add(wait))
		return
	}
	order := p.leaves(g, h)
	if order == nil {
		return
	}
	kind := stuckKind(g)
	if p.stuck[kind] {
		return
	}
	if p.room == nil {
		p.room = newRoom(p.Objects, p, p.index.moves)
	}
	if p.planned == nil {
		p.planned = maps.Clone(p.index.moves)
	}
	m, _, err := planMove(p.working.Objects, p, p.room, p.planned, p.index.guestsOf(g.Cluster), g, "", "", false)
	if err != nil {
		if p.stuck == nil {
			p.stuck = map[string]bool{}
		}
		p.stuck[kind] = true
		return
	}
	m.Reason, m.Policy, m.BandwidthBytes = order.reason, order.policy, order.bandwidth
	var c Change
	c.write(Create, m)
	c.write(Expect, h)
	c.write(Expect, p.Hosts[m.Target])
	c.write(Expect, g)
	p.propose("guest/"+g.Meta.Name, c)
	p.room.take(m.Target, g.Shape)
	p.planned[g.Meta.Uid] = m
	if m.Policy != "" {
		p.begunLately()[m.Policy]++
	}
}

// stuckKind is equal for guests of which either all can leave their host or none can: for a large cluster that cannot leave, one
// answer is enough.
func stuckKind(g *v1.Guest) string {
	return fmt.Sprint(g.Cluster, "/", g.Host, "/", g.Shape.GetVcpus(), "/", g.Shape.GetMemoryBytes(), "/", g.ImageDigest, "/", g.Platform)
}

// runsUnderGrant reports whether the guest's host reports it running under the present grant.
func (p *pass) runsUnderGrant(g *v1.Guest) bool {
	report, _, connected := p.Observed(g.Host)
	seen := GuestOn(report, g.Meta.Uid)
	return connected && seen.GetEpoch() == g.Epoch && seen.GetCondition() == v1.GuestCondition_GUEST_CONDITION_RUNNING
}

// failedLately returns how long a guest must wait after a failed move; 0: it may move.
func (p *pass) failedLately(g *v1.Guest) (wait time.Duration) {
	for _, m := range p.index.ended[g.Meta.Uid] {
		age := p.Now.Sub(m.Ended.AsTime()) // negative: the clock was set back
		if m.State != v1.MigrationState_MIGRATION_STATE_DONE && age >= 0 {
			wait = max(wait, retryMove-age)
		}
	}
	return wait
}
