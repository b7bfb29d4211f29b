package core

// guests.go - turns the decisions of package lifecycle about guests that do not move into changes.

import (
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	v1 "watari/api/watariv1"
	"watari/core/lifecycle"
	"watari/internal/printable"
)

// guests decides about each guest that has changed, and about each guest that no host holds. Guests of a cluster that is being
// restored come first: the restore began because all of them had a place.
func (p *pass) guests() {
	var names, others []string
	for _, name := range p.index.guestNames() {
		if restoring(p.Clusters[p.Guests[name].GetCluster()]) {
			names = append(names, name)
		} else {
			others = append(others, name)
		}
	}
	for _, name := range append(names, others...) {
		g := p.working.Guests[name]
		if p.full() {
			return
		}
		if g == nil || p.changed(g) {
			continue
		}
		if _, is := p.index.strangers[g.Meta.Uid]; is {
			continue
		}
		if m := p.index.moves[g.Meta.Uid]; m != nil && m.State != v1.MigrationState_MIGRATION_STATE_PENDING {
			continue // the move decides
		}
		p.guest(g)
	}
}

func (p *pass) guest(g *v1.Guest) {
	key := "guest/" + g.Meta.Name
	if g.BootId != "" && g.BootId != BootID(p.Objects, p, g.Host) && livesInAnotherBoot(p, g) && granted(p.Objects, p, g, g.Host) {
		p.rebind(key, g)
		return
	}
	asked := g
	if ending(p.Clusters[g.Cluster]) {
		asked = proto.CloneOf(g)
		asked.Stopped = true // until all copies have ended
	}
	p.awaitLease(g)
	d := lifecycle.Step(asked, p.lifecycleHost(g), leaves(p.Clusters[g.Cluster], g))
	switch d.Act {
	case lifecycle.Remove:
		if !p.complete() {
			return
		}
		delete(p.avoid, g.Meta.Uid)
		delete(p.memory, g.Meta.Uid)
		var c Change
		c.write(Delete, proto.CloneOf(g))
		p.propose(key, c)
	case lifecycle.Place:
		if why := p.lacksVolume(g); why != "" {
			p.refuse(key, g, why)
			return
		}
		if v := volumeOf(p.Objects, g); v != nil && p.changed(v) {
			return // the grant changes it, too
		}
		if restoring(p.Clusters[g.Cluster]) && memberOf(p.restoredFrom(g), g) == nil {
			return // the restore fails
		}
		if p.complete() {
			p.place(key, g)
		}
	case lifecycle.Release, lifecycle.Fail:
		p.release(key, g, d)
	}
}

// rebind sets a grant's boot to the one in which its copy lives.
func (p *pass) rebind(key string, g *v1.Guest) {
	update := proto.CloneOf(g)
	update.BootId = BootID(p.Objects, p, g.Host)
	var c Change
	c.write(Update, update)
	c.event(v1.Severity_SEVERITY_WARNING, "guest", g.Meta.Name, "continues on %s, which reports another boot though the guest's process is there", g.Host)
	p.propose(key, c)
}

func (p *pass) lifecycleHost(g *v1.Guest) lifecycle.Host {
	h := p.Hosts[g.Host]
	report, _, connected := p.Observed(g.Host)
	return lifecycle.Host{Exists: h != nil, Connected: connected, Dead: Dead(p.Objects, p, g.Host, g.BootId, g.Meta.Uid),
		Fenced: h != nil && h.FencedBootId != "" && h.FencedBootId == g.BootId, LeaseOver: p.leaseOver(g),
		Bound:   report.GetTerm() == p.Core.Term,
		Current: p.current(g.Host), Lived: p.lived(g), Restores: p.restoredFrom(g) != nil, Guest: GuestOn(report, g.Meta.Uid)}
}

// lived returns how long ago a guest's present copy was first granted; 0: not known.
func (p *pass) lived(g *v1.Guest) time.Duration {
	if g.Started == nil {
		return 0
	}
	return p.Now.Sub(g.Started.AsTime())
}

func (p *pass) release(key string, g *v1.Guest, d lifecycle.Decision) {
	update := proto.CloneOf(g)
	update.Host, update.BootId, update.Message, update.Platform = "", "", d.Message, nil
	severity := v1.Severity_SEVERITY_INFO
	if d.Restarts > 0 {
		update.Restarts = d.Restarts
		severity = v1.Severity_SEVERITY_WARNING
	}
	if d.Act == lifecycle.Fail {
		update.Failure = d.Message
		severity = v1.Severity_SEVERITY_ERROR
	}
	if !d.NeverRan && p.lived(g) >= lifecycle.WellAfter { // whatever failed before is over
		avoid := p.avoided(g)
		avoid.failed = nil
		p.avoid[g.Meta.Uid] = avoid
	}
	if d.Avoid {
		avoid := p.avoided(g)
		if d.Refused {
			avoid.restore = p.Clusters[g.Cluster].GetRestore().GetId()
			avoid.refused = append(slices.Clone(avoid.refused), g.Host)
		} else {
			avoid.failed = append(slices.Clone(avoid.failed), g.Host)
		}
		p.avoid[g.Meta.Uid] = avoid
	}
	var c Change
	c.write(Update, update)
	c.event(severity, "guest", g.Meta.Name, "ended on %s: %s%s", g.Host, d.Message, p.lastLines(g, d))
	if !d.NeverRan && severity != v1.Severity_SEVERITY_INFO {
		p.handleLoss(&c, update, d.Message)
	}
	p.propose(key, c)
}

// avoided returns the hosts that could not start a guest. Refusals count only during the restore in which they were made.
func (p *pass) avoided(g *v1.Guest) avoided {
	a, cluster := p.avoid[g.Meta.Uid], p.Clusters[g.Cluster]
	if !restoring(cluster) || a.restore != cluster.Restore.Id {
		return avoided{failed: a.failed}
	}
	return a
}

// quotedCharacters bounds each quoted line of a console.
const quotedCharacters = 200

// lastLines quotes the console of a guest that ended although it was wanted.
func (p *pass) lastLines(g *v1.Guest, d lifecycle.Decision) string {
	report, _, _ := p.Observed(g.Host)
	seen := GuestOn(report, g.Meta.Uid)
	if d.Restarts == 0 && d.Act != lifecycle.Fail || seen.GetEpoch() != g.Epoch || seen.GetLastLines() == "" {
		return ""
	}
	return "; its console ended with:\n" + printable.Lines(seen.LastLines, quotedCharacters)
}

// clusters removes the deleted clusters that have no guest left.
func (p *pass) clusters() {
	for _, name := range sortedKeys(p.Clusters) {
		cluster := p.Clusters[name]
		if cluster.Meta.Deleting == nil || len(p.index.ofCluster[name]) > 0 || p.changed(cluster) {
			continue
		}
		var c Change
		c.write(Delete, proto.CloneOf(cluster))
		c.event(v1.Severity_SEVERITY_INFO, "cluster", name, "deleted")
		p.propose("cluster/"+name, c)
	}
}
