package core

// suspend.go - suspends clusters with guests that have to leave a host whose owner is back, and find no room elsewhere. The
// cluster is saved in a checkpoint, and its guests end. Its restore waits until hosts have room.

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "watari/api/watariv1"
	"watari/checkpoint"
	"watari/policy"
)

// suspendAgain is the pause before a cluster is saved again after a failure.
const suspendAgain = time.Minute

// suspendCopied is how long the guests of a saved cluster wait for its files to be copied to other hosts: the owner may
// switch the machine off.
const suspendCopied = 5 * time.Minute

// suspend saves or ends the clusters whose guests have had no place for as long as the policy says.
func (p *pass) suspend() {
	whole := p.Core.policies.policy
	if whole == nil || whole.Harvest == nil || whole.Harvest.SuspendAfter < 0 {
		return
	}
	seen := map[string]bool{} // clusters
	for _, name := range sortedKeys(p.Hosts) {
		h := p.Hosts[name]
		w := policy.Withdrawn(h, policy.HarvestName)
		if w == nil || len(p.index.onHost[name]) == 0 {
			continue
		}
		if due := w.Since.AsTime().Add(whole.Harvest.SuspendAfter); p.Now.Before(due) {
			p.again = earlier(p.again, due)
			continue
		}
		var stranded []*v1.Guest
		for g := range p.index.onHost[name] {
			if !seen[g.Cluster] && p.stranded(g, h) {
				stranded = append(stranded, g)
			}
		}
		slices.SortFunc(stranded, func(a, b *v1.Guest) int { return strings.Compare(a.Meta.Name, b.Meta.Name) })
		for _, g := range stranded {
			if !seen[g.Cluster] && !p.full() {
				seen[g.Cluster] = true
				p.suspendCluster(g, h, w)
			}
		}
	}
}

// stranded reports whether a guest has to leave its host, may do so, and finds no place. A guest that waits only for the
// bytes of a link has a place: its cluster would be restored at once, and send them. A cluster with a guest that the policy exempts
// is not suspended: that guest would be restored on any host.
func (p *pass) stranded(g *v1.Guest, h *v1.Host) bool {
	cluster := p.Clusters[g.Cluster]
	if cluster == nil || restoring(cluster) || p.changed(cluster) || p.changed(g) || unwanted(p.Objects, g) || p.index.moves[g.Meta.Uid] != nil || !p.runsUnderGrant(g) {
		return false
	}
	whole := p.Core.policies.policy
	if slices.ContainsFunc(p.index.guestsOf(g.Cluster), func(g *v1.Guest) bool { return whole.Exempt.Has(g) || whole.Harvest.Exempt.Has(g) }) {
		return false
	}
	leaves := slices.ContainsFunc(p.causesToLeave(g, h), func(c cause) bool { return c.policy == "" || c.policy == policy.HarvestName })
	return leaves && p.viewFor(g).pick(p, g, nil) < 0
}

// suspendCluster saves the cluster of a stranded guest, or, if it is saved, begins the restore that waits for room.
func (p *pass) suspendCluster(g *v1.Guest, h *v1.Host, w *v1.Withdrawal) {
	cluster := p.Clusters[g.Cluster]
	guests := p.index.guestsOf(g.Cluster)
	for c := range p.index.checkpointsOf[checkpointsKey(cluster)] {
		if p.changed(c) {
			return // it may end just now
		}
	}
	latest := latestCheckpoint(p.Objects, cluster, nil)
	if latest != nil && p.savedNow(latest, guests) && sameMembers(latest, guests) == "" {
		if by := latest.Ended.AsTime().Add(suspendCopied); p.index.uncopied[latest] && p.Now.Before(by) && p.awaitsCopies(latest) {
			p.again = earlier(p.again, by)
			return
		}
		update := proto.CloneOf(cluster)
		update.Restore = newRestore(latest, fmt.Sprintf("the owner of host %s is back, and no host has room for guest %s", g.Host, g.Meta.Name), timestamppb.New(p.Now))
		update.Restore.Policy = policy.HarvestName
		var c Change
		c.write(Update, update)
		c.write(Expect, latest)
		c.write(Expect, h) // it is still withdrawn
		c.event(v1.Severity_SEVERITY_WARNING, "cluster", cluster.Meta.Name, "is suspended: %s; it goes on from checkpoint %s as soon as hosts have room for all its guests",
			update.Restore.Reason, latest.Meta.Name)
		p.propose("suspension of "+cluster.Meta.Name, c)
		return
	}
	if waiting := p.unfinishedCheckpoint(cluster); waiting.GetState() == v1.CheckpointState_CHECKPOINT_STATE_PENDING && !waiting.Suspends && !waiting.Cancel {
		update := proto.CloneOf(waiting) // it would wait for the owner to leave
		update.Cancel = true
		var c Change
		c.write(Update, update)
		p.propose("checkpoint/"+waiting.Meta.Name, c)
		return
	}
	if cluster.CheckpointRecipient == "" || p.unfinishedCheckpoint(cluster) != nil || Halted(members(guests)) != "" ||
		slices.ContainsFunc(p.changes, func(c Change) bool { return c.Key == checkpointsKey(cluster) }) {
		return
	}
	for c := range p.index.checkpointsOf[checkpointsKey(cluster)] {
		ended := c.Ended.AsTime() // in the future: the clock was set back
		if next := ended.Add(suspendAgain); c.Suspends && !ended.After(p.Now) && p.Now.Before(next) {
			p.again = earlier(p.again, next)
			return
		}
	}
	made := newCheckpoint(p.Objects, cluster, "to suspend the cluster: no host has room for guest "+g.Meta.Name)
	made.Suspends, made.WithdrawnSince = true, w.Since
	var c Change
	c.write(Create, made)
	c.write(Expect, cluster)
	p.propose(checkpointsKey(cluster), c)
}

// suspendFresh is how long ago a checkpoint may have ended with which a cluster is suspended. What the guests compute after their
// states were taken is computed again.
const suspendFresh = 2 * suspendCopied

// savedNow reports whether a checkpoint was made a moment ago to suspend its cluster, because of a withdrawal that still holds of a
// host of the guests. Whether it is later than the withdrawal's beginning is not asked: the clock may have been set back in between.
func (p *pass) savedNow(c *v1.Checkpoint, guests []*v1.Guest) bool {
	ended := c.Ended.AsTime()
	return c.Suspends && !ended.After(p.Now) && p.Now.Before(ended.Add(suspendFresh)) && slices.ContainsFunc(guests, func(g *v1.Guest) bool {
		w := policy.Withdrawn(p.Hosts[g.Host], policy.HarvestName)
		return w != nil && proto.Equal(c.WithdrawnSince, w.Since)
	})
}

// awaitsCopies reports whether a file of a checkpoint lacks copies and there is a host for one.
func (p *pass) awaitsCopies(c *v1.Checkpoint) bool {
	return slices.ContainsFunc(checkpoint.Files(c), func(m *v1.CheckpointMember) bool {
		return len(m.File.GetHosts()) < CopiesOf(c) && p.copyTarget(c, m) != ""
	})
}
