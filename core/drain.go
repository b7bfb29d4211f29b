package core

// drain.go - moves guests away from hosts that are drained.

import (
	"maps"
	"time"

	v1 "watari/api/watariv1"
)

// retryMove is how long a guest whose move failed is not moved again: it would fail again.
const retryMove = 10 * time.Second

// drain moves the guests of draining hosts away, as far as there is room for them.
func (p *pass) drain() {
	for _, host := range sortedKeys(p.Hosts) {
		if !p.Hosts[host].Draining {
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
			p.moveAway(byName[name])
		}
	}
}

// moveAway begins to move a guest away from its host, if that is possible now. It is tried again when something changes;
// the guest's host says that it is draining.
func (p *pass) moveAway(g *v1.Guest) {
	if p.changed(g) || unwanted(p.Objects, g) || p.index.moves[g.Meta.Uid] != nil || !p.runsUnderGrant(g) {
		return
	}
	if wait := p.failedLately(g); wait > 0 {
		p.again = earlier(p.again, p.Now.Add(wait))
		return
	}
	if p.room == nil {
		p.room = newRoom(p.working.Objects, p, p.index.moves)
	}
	if p.planned == nil {
		p.planned = maps.Clone(p.index.moves)
	}
	m, _, err := planMove(p.working.Objects, p, p.room, p.planned, p.index.guestsOf(g.Cluster), g, "", "", false)
	if err != nil {
		return
	}
	m.Reason = "host " + g.Host + " is drained"
	var c Change
	c.write(Create, m)
	c.write(Expect, p.Hosts[m.Target])
	p.propose("guest/"+g.Meta.Name, c)
	p.room.take(m.Target, g.Shape)
	p.planned[g.Meta.Uid] = m
}

// runsUnderGrant tells whether the guest's host reports it running under the present grant.
func (p *pass) runsUnderGrant(g *v1.Guest) bool {
	report, _, connected := p.Observed(g.Host)
	seen := GuestOn(report, g.Meta.Uid)
	return connected && seen.GetEpoch() == g.Epoch && seen.GetCondition() == v1.GuestCondition_GUEST_CONDITION_RUNNING
}

// failedLately is for how long a guest is not moved again, for a move of it has failed; 0: it may be.
func (p *pass) failedLately(g *v1.Guest) (wait time.Duration) {
	for _, m := range p.index.ended[g.Meta.Uid] {
		if m.State != v1.MigrationState_MIGRATION_STATE_DONE {
			wait = max(wait, retryMove-p.Now.Sub(m.Ended.AsTime()))
		}
	}
	return wait
}
