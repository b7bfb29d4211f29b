package core

// checkpoint_plans.go - begins the checkpoints that plans ask for (`watari checkpoint create --every`).

import (
	"fmt"
	"slices"
	"time"

	v1 "watari/api/watariv1"
)

// planned begins the checkpoints that the plans of clusters and volumes ask for.
func (p *pass) planned() {
	for _, name := range sortedKeys(p.Clusters) {
		cluster := p.Clusters[name]
		p.plannedOf(cluster, func() bool {
			guests := p.index.guestsOf(name)
			return allReady(cluster, p.status(cluster, guests)) && p.outdated(p.Volumes[cluster.Spec.GetVolume()]) == "" && !slices.ContainsFunc(guests, func(g *v1.Guest) bool { return g.Stopped })
		})
	}
	for _, name := range sortedKeys(p.Volumes) {
		v := p.Volumes[name]
		p.plannedOf(v, func() bool {
			report, _, connected := p.Observed(v.Host)
			return connected && volumeOn(report, v.Meta.Uid).GetReady() && v.State == v1.VolumeState_VOLUME_STATE_READY && p.volumeRestoredFrom(v) == nil && p.outdated(v) == ""
		})
	}
}

// nextPlanned returns when the next checkpoint of a plan is due.
func (p *pass) nextPlanned(of origin, every time.Duration) time.Time {
	done, cancelled, failed := of.GetMeta().Created.AsTime(), time.Time{}, []time.Time(nil)
	for c := range p.index.checkpointsOf[checkpointsKey(of)] {
		if now := p.working.Checkpoints[c.Meta.Name]; now != nil { // it may have ended in this pass
			c = now
		}
		switch ended := c.Ended.AsTime(); {
		case c.Ended == nil || ended.After(p.Now): // the clock may have been set back since
		case c.State == v1.CheckpointState_CHECKPOINT_STATE_FAILED && !c.Suspends:
			failed = append(failed, ended)
		case c.State == v1.CheckpointState_CHECKPOINT_STATE_FAILED || c.State == v1.CheckpointState_CHECKPOINT_STATE_CANCELLED:
			cancelled = later(cancelled, ended)
		default:
			done = later(done, ended)
		}
	}
	due := later(done.Add(every), cancelled.Add(min(every, retryPlanned)))
	failed = slices.DeleteFunc(failed, func(ended time.Time) bool { return ended.Before(done) })
	pause := mostRetryPlanned
	if n := len(failed); n < keepFailed { // more are not kept
		pause = retryPlanned << max(n-1, 0)
	}
	for _, ended := range failed {
		due = later(due, ended.Add(min(every, pause)))
	}
	return due
}

// putsOff reports whether a checkpoint that a person has cancelled keeps its plan from beginning another one at once. Its record
// stays until then.
func (p *pass) putsOff(c *v1.Checkpoint, of origin) bool {
	every := time.Duration(of.GetCheckpoints().GetEverySeconds()) * time.Second
	until := c.Ended.AsTime().Add(min(every, retryPlanned))
	if c.State != v1.CheckpointState_CHECKPOINT_STATE_CANCELLED || !p.Now.Before(until) || c.Ended.AsTime().After(p.Now) {
		return false
	}
	p.again = earlier(p.again, until)
	return true
}

// plannedOf begins a checkpoint of a cluster or a volume if its plan asks for one now and ready returns true.
func (p *pass) plannedOf(of origin, ready func() bool) {
	every := time.Duration(of.GetCheckpoints().GetEverySeconds()) * time.Second
	if every == 0 || of.GetMeta().Deleting != nil || restoring(of) || p.full() || p.unfinishedCheckpoint(of) != nil {
		return
	}
	due := p.nextPlanned(of, every)
	if p.Now.Before(due) {
		p.again = earlier(p.again, due)
		return
	}
	if !ready() {
		return
	}
	var change Change
	change.write(Create, newCheckpoint(p.Objects, of, fmt.Sprintf("every %s", every)))
	change.write(Expect, of)
	p.propose(checkpointsKey(of), change)
}

// newCheckpoint returns the record of a checkpoint that has not begun.
func newCheckpoint(s *Objects, of origin, reason string) *v1.Checkpoint {
	meta := of.GetMeta()
	c := &v1.Checkpoint{Meta: &v1.Meta{Name: nextCheckpointName(s, of), Owner: meta.Owner, OwnerUid: meta.OwnerUid},
		State: v1.CheckpointState_CHECKPOINT_STATE_PENDING, Reason: reason, Recipient: of.GetCheckpointRecipient(), Copies: of.GetCheckpoints().GetCopies(), LeftBefore: of.GetLeftBehind()}
	if _, volume := of.(*v1.Volume); volume {
		c.Volume = &v1.CheckpointMember{Guest: meta.Name, GuestUid: meta.Uid}
	} else {
		c.Cluster, c.ClusterUid = meta.Name, meta.Uid
	}
	return c
}
