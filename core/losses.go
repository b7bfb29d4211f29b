package core

// losses.go - stops or restores a cluster that loses a guest which was wanted.

import (
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "watari/api/watariv1"
	"watari/core/lifecycle"
)

// handleLoss adds to a change what the cluster's user has chosen for the loss of a guest. The change writes lost, the record of a
// guest whose copy has ended although it was wanted.
func (p *pass) handleLoss(c *Change, lost *v1.Guest, why string) {
	cluster := p.working.Clusters[lost.Cluster]
	if cluster == nil || cluster.Meta.Deleting != nil || restoring(cluster) {
		return
	}
	switch cluster.Spec.GetOnHostLoss() {
	case v1.OnHostLoss_ON_HOST_LOSS_RESTORE:
		p.restoreAfterLoss(c, cluster, lost, why)
	case v1.OnHostLoss_ON_HOST_LOSS_STOP:
		p.stopAfterLoss(c, lost, fmt.Sprintf("guest %s was lost (%s)", lost.Meta.Name, why))
	}
}

// restoreAfterLoss lets the cluster go back to its latest checkpoint. If there is none, the guest is started anew like any other.
func (p *pass) restoreAfterLoss(c *Change, cluster *v1.Cluster, lost *v1.Guest, why string) {
	from, refused := p.restorable(cluster, lost)
	if from == nil {
		c.event(v1.Severity_SEVERITY_WARNING, "cluster", cluster.Meta.Name, "lost guest %s, which is started again: %s", lost.Meta.Name, refused)
		return
	}
	reason := fmt.Sprintf("guest %s was lost: %s", lost.Meta.Name, why)
	losses := p.lossesSince(cluster.Restore, from)
	if losses > lifecycle.MaxRestarts {
		p.stopAfterLoss(c, lost, fmt.Sprintf("%s, again, after %d restores from checkpoint %s", reason, losses-1, from.Meta.Name))
		return
	}
	lost.Restarts, lost.Failure = 0, ""
	p.beginRestore(c, cluster, from, reason, losses)
}

// beginRestore adds to a change the return of a cluster to a checkpoint because of a loss. losses is the number of losses, this
// one included.
func (p *pass) beginRestore(c *Change, cluster *v1.Cluster, from *v1.Checkpoint, reason string, losses uint32) {
	update := proto.CloneOf(cluster)
	update.Restore = newRestore(from, reason, timestamppb.New(p.Now))
	update.Restore.Losses = losses
	c.write(Update, update)
	c.write(Expect, from)
	c.event(v1.Severity_SEVERITY_WARNING, "cluster", cluster.Meta.Name, "goes back to checkpoint %s: %s", from.Meta.Name, reason)
}

// restorable returns the checkpoint to which a cluster can go back after the loss of a guest, or why it cannot; lost may be nil.
func (p *pass) restorable(cluster *v1.Cluster, lost *v1.Guest) (*v1.Checkpoint, string) {
	from := latestCheckpoint(p.Objects, cluster, nil)
	if from == nil {
		return nil, "the cluster has no checkpoint"
	}
	guests := p.index.guestsOf(cluster.Meta.Name)
	if why := sameMembers(from, guests); why != "" {
		return nil, fmt.Sprintf("checkpoint %s has other guests than the cluster: %s", from.Meta.Name, why)
	}
	for _, g := range guests {
		if now := p.working.Guests[g.Meta.Name]; g.Meta.Uid != lost.GetMeta().GetUid() && (now == nil || now.Stopped || now.Failure != "") {
			return nil, fmt.Sprintf("guest %s does not run", g.Meta.Name)
		}
	}
	return from, ""
}

// lossesSince returns how often guests were lost since a cluster last ran well, this time included. It counts anew if the
// cluster goes back to another checkpoint than the last time.
func (p *pass) lossesSince(last *v1.Restore, from *v1.Checkpoint) uint32 {
	well := last.GetEnded() == nil || p.Now.Sub(last.Ended.AsTime()) >= lifecycle.WellAfter
	if last.GetCheckpointUid() != from.Meta.Uid || well {
		return 1
	}
	return last.Losses + 1
}

// stopAfterLoss stops all guests of the cluster.
func (p *pass) stopAfterLoss(c *Change, lost *v1.Guest, why string) {
	lost.Stopped = true
	for _, g := range p.index.guestsOf(lost.Cluster) {
		now := p.working.Guests[g.Meta.Name]
		if now == nil || g.Meta.Uid == lost.Meta.Uid || removing(now) || now.Stopped {
			continue
		}
		now = proto.CloneOf(now)
		now.Stopped = true
		c.write(Update, now)
	}
	c.event(v1.Severity_SEVERITY_ERROR, "cluster", lost.Cluster, "is stopped: %s; `watari checkpoint restore %s` goes back to its latest checkpoint, and `watari guest start` starts a guest anew",
		why, lost.Cluster)
}

// expectsRestore reports whether a cluster is expected to go back to a checkpoint because the host of a guest is out of reach. It
// returns the reason for people.
func (p *pass) expectsRestore(cluster *v1.Cluster) (string, bool) {
	if cluster.GetSpec().GetOnHostLoss() != v1.OnHostLoss_ON_HOST_LOSS_RESTORE || latestCheckpoint(p.Objects, cluster, nil) == nil {
		return "", false
	}
	for _, g := range p.index.guestsOf(cluster.Meta.Name) {
		if _, _, connected := p.Observed(g.Host); g.Host == "" || connected {
			continue
		}
		if left := p.leaseLeft(g); leaseLength(g) > 0 {
			return fmt.Sprintf("host %s is out of reach; if it stays so, cluster %s goes back to its latest checkpoint in %s", g.Host, cluster.Meta.Name,
				max(left, 0).Round(time.Second)), true
		}
		return fmt.Sprintf("host %s is out of reach, and guest %s may run there; if it is off for good: watari host remove --lost %s", g.Host, g.Meta.Name, g.Host), true
	}
	return "", false
}
