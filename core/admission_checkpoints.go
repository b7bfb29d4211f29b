package core

// admission_checkpoints.go - making, deleting and restoring checkpoints.

import (
	"maps"
	"strings"
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
	mostCopies = 5
)

// CheckpointKey is a new key pair for a cluster's checkpoints, in age's text form.
type CheckpointKey struct{ Secret, Recipient string }

// CreateCheckpoint makes the record of a checkpoint of a cluster, or of a snapshot of a volume. It returns the checkpoint's
// name. If one is under way, the change has no operations. key is used if the cluster or volume has none.
func (a *Admission) CreateCheckpoint(r *v1.CreateCheckpointRequest, key CheckpointKey) (change Change, name string, err error) {
	of, err := a.checkpointed(r.Cluster, r.Volume)
	if err != nil {
		return change, "", err
	}
	for _, c := range a.Checkpoints {
		if checkpointIsOf(c, of) && !checkpoint.Ended(c.State) {
			return change, c.Meta.Name, nil
		}
	}
	guests := members(GuestsOf(a.Objects, r.Cluster))
	if halted := Halted(guests); halted != "" {
		return change, "", precondition("a checkpoint needs all guests of cluster %s: %s", r.Cluster, halted)
	}
	if of.GetCheckpointRecipient() != "" {
		change.write(Expect, of)
	} else {
		of = proto.Clone(of).(origin)
		key.give(of)
		change.write(Update, of)
	}
	c := newCheckpoint(a.Objects, of, "user "+a.Caller.Name+" asked for it")
	c.Pinned = r.Pinned
	change.write(Create, c)
	a.audited(&change, "checkpoint", c.Meta.Name, "of %s to be made", origins(r.Cluster, r.Volume))
	return change, c.Meta.Name, nil
}

// origins names the cluster or the volume of a request.
func origins(cluster, volume string) string {
	if volume != "" {
		return "volume " + volume
	}
	return "cluster " + cluster
}

// checkpointed finds the caller's cluster or volume, and refuses it if no checkpoint of it can be made now.
func (a *Admission) checkpointed(cluster, volume string) (origin, error) {
	if volume == "" {
		return a.checkpointedCluster(cluster)
	}
	if cluster != "" {
		return nil, invalid("a checkpoint is of a cluster or of a volume, not of both: %s, %s", cluster, volume)
	}
	v, err := Find(a.Caller, "volume", volume, a.Volumes)
	switch {
	case err != nil:
		return nil, err
	case v.Meta.Deleting != nil:
		return nil, precondition("volume %s is being deleted", volume)
	case v.State == v1.VolumeState_VOLUME_STATE_LOST:
		return nil, precondition("volume %s is lost: %s", volume, v.Message)
	case restoring(v):
		return nil, precondition("volume %s is being put back to snapshot %s; `watari volume show %s` shows when that is done", volume, v.Restore.Checkpoint, volume)
	}
	return v, nil
}

func (a *Admission) checkpointedCluster(name string) (origin, error) {
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

// give puts the key pair into the record of a cluster or a volume that has none.
func (k CheckpointKey) give(of origin) {
	if of.GetCheckpointRecipient() != "" {
		return
	}
	switch of := of.(type) {
	case *v1.Cluster:
		of.CheckpointKey, of.CheckpointRecipient = k.Secret, k.Recipient
	case *v1.Volume:
		of.CheckpointKey, of.CheckpointRecipient = k.Secret, k.Recipient
	}
}

// PlanCheckpoints sets when checkpoints of a cluster, or snapshots of a volume, are made automatically, and how many are
// kept.
func (a *Admission) PlanCheckpoints(r *v1.PlanCheckpointsRequest, key CheckpointKey) (change Change, err error) {
	of, err := a.checkpointed(r.Cluster, r.Volume)
	if err != nil {
		return change, err
	}
	if err := checkPlan(r.Plan); err != nil || proto.Equal(of.GetCheckpoints(), r.Plan) {
		return change, err
	}
	of = proto.Clone(of).(origin)
	switch of := of.(type) {
	case *v1.Cluster:
		of.Checkpoints = proto.CloneOf(r.Plan)
	case *v1.Volume:
		of.Checkpoints = proto.CloneOf(r.Plan)
	}
	key.give(of)
	change.write(Update, of)
	kind, name, _ := strings.Cut(origins(r.Cluster, r.Volume), " ")
	if every := time.Duration(r.Plan.GetEverySeconds()) * time.Second; every == 0 {
		a.audited(&change, kind, name, "no checkpoints to be made unasked")
	} else {
		a.audited(&change, kind, name, "a checkpoint to be made every %s", every)
	}
	return change, nil
}

// checkPlan checks a plan of checkpoints; nil: there is no plan.
func checkPlan(plan *v1.CheckpointPlan) error {
	every := time.Duration(plan.GetEverySeconds()) * time.Second
	switch {
	case every != 0 && every < leastEvery:
		return invalid("a checkpoint every %s is too often: at least %s", every, leastEvery)
	case plan.GetKeep() > mostKept:
		return invalid("%d checkpoints to keep: at most %d", plan.Keep, mostKept)
	case plan.GetCopies() > mostCopies:
		return invalid("each file on %d hosts: at most on %d", plan.Copies, mostCopies)
	}
	return nil
}

// DeleteCheckpoint deletes a checkpoint; its hosts then remove the files. A checkpoint that is under way is cancelled first.
func (a *Admission) DeleteCheckpoint(name string) (change Change, err error) {
	c, err := Find(a.Caller, "checkpoint", name, a.Checkpoints)
	if err != nil {
		return change, err
	}
	if of := originOf(a.Objects, c); of != nil {
		if restoring(of) && of.GetRestore().CheckpointUid == c.Meta.Uid {
			return change, precondition("%s is being restored from checkpoint %s; delete it afterwards", of.GetMeta().Name, name)
		}
		change.write(Expect, of) // a restore from the checkpoint may just begin
	}
	switch {
	case c.Meta.Deleting != nil:
		return Change{}, nil
	case checkpoint.Ended(c.State) && !needed(c, maps.Values(a.Checkpoints)):
		change.write(Delete, proto.CloneOf(c))
	case checkpoint.Ended(c.State): // it is deleted when no other checkpoint builds on it
		c = proto.CloneOf(c)
		c.Meta.Deleting = timestamppb.New(a.Now)
		change.write(Update, c)
	case c.Cancel:
		return Change{}, nil
	default:
		c = proto.CloneOf(c)
		c.Cancel, c.Meta.Deleting = true, timestamppb.New(a.Now)
		change.write(Update, c)
	}
	a.audited(&change, "checkpoint", name, "to be deleted")
	return change, nil
}

// ChangeCheckpoint pins or unpins a checkpoint.
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

// RestoreCheckpoint begins to restore a cluster from a checkpoint. asked is the name of the checkpoint, or of the cluster
// for its latest checkpoint. It returns the cluster's name.
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
		return change, "", precondition("cluster %s cannot go back to checkpoint %s: %s; a checkpoint can be restored only to the guests of which it "+
			"was made, so remove guests that were added since (`watari cluster resize`); it cannot be restored if one of its guests was removed", c.Cluster, c.Meta.Name, why)
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
		return nil, precondition("cluster %s has no checkpoint that it has not left behind; `watari checkpoint list %s` shows all, and `watari checkpoint create %s` makes one",
			asked, asked, asked)
	}
	c, err := a.wholeCheckpoint(asked)
	if err == nil && isSnapshot(c) {
		return nil, invalid("%s is a snapshot of volume %s; `watari volume restore %s` restores it", asked, c.Volume.Guest, asked)
	}
	return c, err
}

// wholeCheckpoint finds a checkpoint that can be restored.
func (a *Admission) wholeCheckpoint(name string) (*v1.Checkpoint, error) {
	c, err := Find(a.Caller, "checkpoint", name, a.Checkpoints)
	if err != nil {
		return nil, err
	}
	if c.Meta.Deleting != nil {
		return nil, precondition("checkpoint %s was deleted; its files are there as long as others build on them", name)
	}
	if c.State != v1.CheckpointState_CHECKPOINT_STATE_DONE {
		return nil, precondition("checkpoint %s cannot be restored: it is %s; %s", name, StateName(c.State.String()), c.Message)
	}
	return c, nil
}
