package core

// admission_checkpoints.go - making, deleting and restoring checkpoints.

import (
	"maps"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "watari/api/watariv1"
	"watari/checkpoint"
)

// Bounds of a cluster's plan of checkpoints.
const (
	leastEvery = 10 * time.Second
	mostKept   = 100
)

// CheckpointKey is a new key pair for a cluster's checkpoints, in age's text form.
type CheckpointKey struct{ Secret, Recipient string }

// CreateCheckpoint makes the record of a checkpoint of a cluster. It returns the checkpoint's name. If one is under way, the
// change has no operations. key is for a cluster that has none.
func (a *Admission) CreateCheckpoint(r *v1.CreateCheckpointRequest, key CheckpointKey) (change Change, name string, err error) {
	cluster, err := a.checkpointed(r.Cluster)
	if err != nil {
		return change, "", err
	}
	for _, c := range a.Checkpoints {
		if checkpointIsOf(c, cluster) && !checkpoint.Ended(c.State) {
			return change, c.Meta.Name, nil
		}
	}
	guests := members(GuestsOf(a.Objects, r.Cluster))
	if halted := Halted(guests); halted != "" {
		return change, "", precondition("a checkpoint needs all guests of cluster %s: %s", r.Cluster, halted)
	}
	if cluster.CheckpointRecipient != "" {
		change.write(Expect, cluster)
	} else {
		cluster = proto.CloneOf(cluster)
		key.give(cluster)
		change.write(Update, cluster)
	}
	c := newCheckpoint(a.Objects, cluster, "user "+a.Caller.Name+" asked for it")
	c.Pinned = r.Pinned
	change.write(Create, c)
	a.audited(&change, "checkpoint", c.Meta.Name, "of cluster %s to be made", r.Cluster)
	return change, c.Meta.Name, nil
}

// checkpointed finds the caller's cluster, and refuses one of which no checkpoints can be made now.
func (a *Admission) checkpointed(name string) (*v1.Cluster, error) {
	cluster, err := Find(a.Caller, "cluster", name, a.Clusters)
	if err != nil {
		return nil, err
	}
	if err := beingDeleted(a.Objects, name); err != nil {
		return nil, err
	}
	if restoring(cluster) {
		return nil, precondition("cluster %s is being restored from checkpoint %s; `watari checkpoint list %s` shows when that is done", name, cluster.Restore.Checkpoint, name)
	}
	return cluster, nil
}

// give gives a cluster the key pair if it has none. It changes the cluster.
func (k CheckpointKey) give(cluster *v1.Cluster) {
	if cluster.CheckpointRecipient == "" {
		cluster.CheckpointKey, cluster.CheckpointRecipient = k.Secret, k.Recipient
	}
}

// PlanCheckpoints sets when checkpoints of a cluster are made unasked, and how many are kept.
func (a *Admission) PlanCheckpoints(r *v1.PlanCheckpointsRequest, key CheckpointKey) (change Change, err error) {
	cluster, err := a.checkpointed(r.Cluster)
	if err != nil {
		return change, err
	}
	every := time.Duration(r.Plan.GetEverySeconds()) * time.Second
	switch {
	case every != 0 && every < leastEvery:
		return change, invalid("a checkpoint every %s is too often: at least %s", every, leastEvery)
	case r.Plan.GetKeep() > mostKept:
		return change, invalid("%d checkpoints to keep: at most %d", r.Plan.Keep, mostKept)
	}
	if proto.Equal(cluster.Checkpoints, r.Plan) {
		return change, nil
	}
	cluster = proto.CloneOf(cluster)
	cluster.Checkpoints = proto.CloneOf(r.Plan)
	key.give(cluster)
	change.write(Update, cluster)
	if every == 0 {
		a.audited(&change, "cluster", r.Cluster, "no checkpoints to be made unasked")
	} else {
		a.audited(&change, "cluster", r.Cluster, "a checkpoint to be made every %s", every)
	}
	return change, nil
}

// DeleteCheckpoint deletes a checkpoint; its hosts then remove the files. One that is under way is cancelled first.
func (a *Admission) DeleteCheckpoint(name string) (change Change, err error) {
	c, err := Find(a.Caller, "checkpoint", name, a.Checkpoints)
	if err != nil {
		return change, err
	}
	if cluster := a.Clusters[c.Cluster]; restoring(cluster) && cluster.Restore.CheckpointUid == c.Meta.Uid {
		return change, precondition("cluster %s is being restored from checkpoint %s; delete it afterwards", c.Cluster, name)
	}
	switch {
	case checkpoint.Ended(c.State) && !needed(c, maps.Values(a.Checkpoints)):
		change.write(Delete, proto.CloneOf(c))
	case c.Meta.Deleting != nil:
		return change, nil
	case checkpoint.Ended(c.State): // it goes when nothing builds on it any more
		c = proto.CloneOf(c)
		c.Meta.Deleting = timestamppb.New(a.Now)
		change.write(Update, c)
	case c.Cancel:
		return change, nil
	default:
		c = proto.CloneOf(c)
		c.Cancel, c.Meta.Deleting = true, timestamppb.New(a.Now)
		change.write(Update, c)
	}
	a.audited(&change, "checkpoint", name, "to be deleted")
	return change, nil
}

// ChangeCheckpoint pins a checkpoint, or lets it go.
func (a *Admission) ChangeCheckpoint(r *v1.ChangeCheckpointRequest) (change Change, err error) {
	c, err := Find(a.Caller, "checkpoint", r.Name, a.Checkpoints)
	if err != nil || c.Pinned == r.Pinned {
		return change, err
	}
	c = proto.CloneOf(c)
	c.Pinned = r.Pinned
	change.write(Update, c)
	a.audited(&change, "checkpoint", r.Name, "%s", map[bool]string{true: "to be kept until it is deleted", false: "not to be kept any longer than others"}[r.Pinned])
	return change, nil
}

// RestoreCheckpoint has a cluster go on from a checkpoint. asked is the checkpoint's name, or the cluster's: then its latest is
// taken. It returns the cluster's name.
func (a *Admission) RestoreCheckpoint(asked string) (change Change, name string, err error) {
	c, err := a.toRestore(asked)
	if err != nil {
		return change, "", err
	}
	cluster := a.Clusters[c.Cluster]
	if !checkpointIsOf(c, cluster) {
		return change, "", precondition("cluster %s, of which checkpoint %s was made, no longer exists", c.Cluster, c.Meta.Name)
	}
	if err := beingDeleted(a.Objects, c.Cluster); err != nil {
		return change, "", err
	}
	guests := GuestsOf(a.Objects, c.Cluster)
	if why := sameMembers(c, guests); why != "" {
		return change, "", precondition("cluster %s cannot go back to checkpoint %s: %s; a checkpoint is restored to the guests of which it was made "+
			"(`watari cluster resize`)", c.Cluster, c.Meta.Name, why)
	}
	if restoring(cluster) && cluster.Restore.CheckpointUid == c.Meta.Uid {
		return change, c.Cluster, nil
	}
	update := proto.CloneOf(cluster)
	update.Restore = newRestore(c, "user "+a.Caller.Name+" asked for it", timestamppb.New(a.Now))
	change.write(Update, update)
	change.write(Expect, c)
	for _, g := range guests {
		g = proto.CloneOf(g)
		g.Stopped, g.Failure, g.Restarts = false, "", 0
		change.write(Update, g)
	}
	a.audited(&change, "cluster", c.Cluster, "to go back to checkpoint %s", c.Meta.Name)
	return change, c.Cluster, nil
}

// toRestore finds a checkpoint by its name, or the latest of a cluster.
func (a *Admission) toRestore(asked string) (*v1.Checkpoint, error) {
	if cluster := a.Clusters[asked]; cluster != nil && a.Caller.Owns(cluster.Meta) && a.Checkpoints[asked] == nil {
		if c := latestCheckpoint(a.Objects, cluster, nil); c != nil {
			return c, nil
		}
		return nil, precondition("cluster %s has no checkpoint; `watari checkpoint create %s` makes one", asked, asked)
	}
	c, err := Find(a.Caller, "checkpoint", asked, a.Checkpoints)
	if err != nil {
		return nil, err
	}
	if c.Meta.Deleting != nil {
		return nil, precondition("checkpoint %s was deleted; its files are there as long as others build on them", asked)
	}
	if c.State != v1.CheckpointState_CHECKPOINT_STATE_DONE {
		return nil, precondition("checkpoint %s cannot be restored: it is %s; %s", asked, StateName(c.State.String()), c.Message)
	}
	return c, nil
}
