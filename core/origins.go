package core

// origins.go - what checkpoints belong to: a cluster, or a volume. The order of its checkpoints, their names, and which of them a
// restore has left behind.

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "watari/api/watariv1"
)

// origin is what a checkpoint saves: a *v1.Cluster, or a *v1.Volume, whose checkpoints are called snapshots.
type origin interface {
	proto.Message
	GetMeta() *v1.Meta
	GetCheckpointKey() string
	GetCheckpointRecipient() string
	GetCheckpoints() *v1.CheckpointPlan
	GetRestore() *v1.Restore
	GetVerified() *timestamppb.Timestamp
	GetLeftBehind() []*v1.CheckpointNumbers
}

// isSnapshot reports whether a checkpoint is of a volume alone.
func isSnapshot(c *v1.Checkpoint) bool { return c.GetCluster() == "" && c.GetVolume() != nil }

// originOf returns the cluster or the volume of a checkpoint; nil: it no longer exists.
func originOf(s *Objects, c *v1.Checkpoint) origin {
	if isSnapshot(c) {
		if v := s.Volumes[c.Volume.Guest]; v != nil && v.Meta.Uid == c.Volume.GuestUid {
			return v
		}
	} else if cluster := s.Clusters[c.GetCluster()]; cluster != nil && cluster.Meta.Uid == c.ClusterUid {
		return cluster
	}
	return nil
}

// checkpointIsOf reports whether a checkpoint belongs to this cluster or volume, not to an earlier one of its name.
func checkpointIsOf(c *v1.Checkpoint, o origin) bool {
	if _, volume := o.(*v1.Volume); o == nil || volume != isSnapshot(c) {
		return false
	}
	if isSnapshot(c) {
		return c.Volume.GuestUid == o.GetMeta().GetUid()
	}
	return o.GetMeta() != nil && c.Cluster == o.GetMeta().Name && c.ClusterUid == o.GetMeta().Uid
}

// checkpointsOf and snapshotsOf are the keys of all checkpoints of a cluster, and of all snapshots of a volume. Names have no spaces.
func checkpointsOf(cluster string) string { return "checkpoints of " + cluster }
func snapshotsOf(volume string) string    { return "snapshots of " + volume }

// checkpointsKey returns the key of the checkpoints of a cluster or a volume. It is also the key of the change that begins a
// checkpoint.
func checkpointsKey(o origin) string {
	if v, is := o.(*v1.Volume); is {
		return snapshotsOf(v.Meta.Name)
	}
	return checkpointsOf(o.GetMeta().GetName())
}

// keyOfCheckpoint returns checkpointsKey of a checkpoint's cluster or volume.
func keyOfCheckpoint(c *v1.Checkpoint) string {
	if isSnapshot(c) {
		return snapshotsOf(c.Volume.Guest)
	}
	return checkpointsOf(c.GetCluster())
}

// compareCheckpoints orders the checkpoints of a cluster or volume by age, the oldest first. The numbers in their names grow
// even if the manager's clock is set back.
func compareCheckpoints(a, b *v1.Checkpoint) int {
	return cmp.Or(cmp.Compare(checkpointNumber(a), checkpointNumber(b)), a.Meta.Created.AsTime().Compare(b.Meta.Created.AsTime()), cmp.Compare(a.Meta.Revision, b.Meta.Revision), cmp.Compare(a.Meta.Name, b.Meta.Name))
}

// latestCheckpoint returns the newest checkpoint of a cluster or volume that can be restored and was not left behind, or the newest
// such one of which the state of checkpoint before has come; nil: none. before may be nil.
func latestCheckpoint(s *Objects, of origin, before *v1.Checkpoint) (latest *v1.Checkpoint) {
	left := before.GetLeftBefore()
	if before == nil && of != nil {
		left = of.GetLeftBehind()
	}
	for _, c := range s.Checkpoints {
		if c.State != v1.CheckpointState_CHECKPOINT_STATE_DONE || c.Meta.Deleting != nil || !checkpointIsOf(c, of) || isAmong(c, left) ||
			before != nil && compareCheckpoints(c, before) >= 0 {
			continue
		}
		if latest == nil || compareCheckpoints(c, latest) > 0 {
			latest = c
		}
	}
	return latest
}

// leftBehind returns the checkpoints that a cluster or volume has left behind when it has gone back to one of them: those that had
// been left behind when that one was made, and those that were made later. Restores that nobody asks for would otherwise return to
// a state that was given up.
func leftBehind(s *Objects, of origin, from *v1.Checkpoint) []*v1.CheckpointNumbers {
	later := &v1.CheckpointNumbers{After: uint32(checkpointNumber(from))}
	var all []*v1.Checkpoint
	for _, c := range s.Checkpoints {
		if checkpointIsOf(c, of) {
			all = append(all, c)
			later.Upto = max(later.Upto, uint32(checkpointNumber(c)))
		}
	}
	return slices.DeleteFunc(append(slices.Clone(from.LeftBefore), later), func(n *v1.CheckpointNumbers) bool {
		return !slices.ContainsFunc(all, func(c *v1.Checkpoint) bool { return isAmong(c, []*v1.CheckpointNumbers{n}) })
	})
}

// lastSnapshotBefore returns the last snapshot of a volume that was made before a checkpoint of its cluster. If there is none, it
// returns one that has no number: all snapshots were made after it.
func lastSnapshotBefore(s *Objects, v *v1.Volume, c *v1.Checkpoint) *v1.Checkpoint {
	last := &v1.Checkpoint{Meta: &v1.Meta{}}
	for _, other := range s.Checkpoints {
		if checkpointIsOf(other, v) && other.Taken != nil && other.Taken.AsTime().Before(c.Taken.AsTime()) && compareCheckpoints(other, last) > 0 {
			last = other
		}
	}
	return last
}

// isAmong reports whether a checkpoint has one of these numbers.
func isAmong(c *v1.Checkpoint, list []*v1.CheckpointNumbers) bool {
	n := uint32(checkpointNumber(c))
	return slices.ContainsFunc(list, func(r *v1.CheckpointNumbers) bool { return n > r.After && n <= r.Upto })
}

// IsLeftBehind reports whether a checkpoint was left behind by its cluster or volume.
func IsLeftBehind(s *Objects, c *v1.Checkpoint) bool {
	of := originOf(s, c)
	return of != nil && isAmong(c, of.GetLeftBehind())
}

// checkpointNumber returns the number at the end of a checkpoint's name; 0: it has none.
func checkpointNumber(c *v1.Checkpoint) int { return numberIn(c.Meta.Name) }

// numberIn returns the number in a checkpoint's name; 0: there is none.
func numberIn(name string) int {
	n, err := strconv.Atoi(strings.TrimLeft(name[strings.LastIndexByte(name, '-')+1:], "cs"))
	if err != nil {
		return 0
	}
	return n
}

// nextCheckpointName returns a name that follows those of all checkpoints of the cluster or volume, so that a later one has a higher number.
func nextCheckpointName(s *Objects, of origin) string {
	prefix, highest := of.GetMeta().Name+"-c", 0
	if _, volume := of.(*v1.Volume); volume {
		prefix = of.GetMeta().Name + "-s"
	}
	for name := range s.Checkpoints {
		if number, is := strings.CutPrefix(name, prefix); is {
			if n, err := strconv.Atoi(number); err == nil {
				highest = max(highest, n)
			}
		}
	}
	for _, left := range of.GetLeftBehind() { // they may have been deleted
		highest = max(highest, int(left.Upto))
	}
	return fmt.Sprintf("%s%d", prefix, highest+1)
}
