package core

// admission_volumes.go - creating and deleting volumes, and which cluster uses one.

import (
	"github.com/dustin/go-humanize"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "watari/api/watariv1"
)

// Bounds of a volume's size, in bytes.
const (
	minVolumeBytes = 64 << 20
	maxVolumeBytes = 64 << 40
)

// CreateVolume makes a volume, of which a host makes the disk later. If an equal one exists, the change has no operations.
func (a *Admission) CreateVolume(r *v1.CreateVolumeRequest) (change Change, err error) {
	if err := CheckName("volume", r.Name); err != nil {
		return change, err
	}
	if r.SizeBytes < minVolumeBytes || r.SizeBytes > maxVolumeBytes || r.SizeBytes%(1<<20) != 0 {
		return change, invalid("a volume of %s bytes: it has %s to %s, in whole MiB", humanize.Comma(int64(min(r.SizeBytes, 1<<62))), humanize.IBytes(minVolumeBytes), humanize.IBytes(maxVolumeBytes))
	}
	if have := a.Volumes[r.Name]; have != nil {
		switch {
		case !a.Caller.Owns(have.Meta):
			return change, refuse(Exists, "the name %s is taken", r.Name)
		case have.Meta.Deleting != nil:
			return change, precondition("volume %s is being deleted; create it again when it is gone", r.Name)
		case have.SizeBytes != r.SizeBytes:
			return change, refuse(Exists, "there is a volume %s, and it differs: it has %s, not %s", r.Name, humanize.IBytes(have.SizeBytes), humanize.IBytes(r.SizeBytes))
		}
		return change, nil
	}
	if r.Host != "" && a.Hosts[r.Host] == nil {
		return change, Missing("host", r.Host, a.Hosts)
	}
	change.write(Create, &v1.Volume{Meta: &v1.Meta{Name: r.Name, Owner: a.Caller.Name, OwnerUid: a.Caller.UID}, SizeBytes: r.SizeBytes, Host: r.Host,
		State: v1.VolumeState_VOLUME_STATE_PENDING})
	a.audited(&change, "volume", r.Name, "created: %s", humanize.IBytes(r.SizeBytes))
	return change, nil
}

// DeleteVolume deletes a volume that no cluster uses; its host removes the disk.
func (a *Admission) DeleteVolume(name string) (change Change, err error) {
	v, err := Find(a.Caller, "volume", name, a.Volumes)
	if err != nil || v.Meta.Deleting != nil {
		return change, err
	}
	if cluster := a.Clusters[v.Cluster]; cluster.GetMeta().GetUid() == v.ClusterUid && cluster != nil {
		return change, precondition("cluster %s uses volume %s; delete the cluster first (`watari cluster delete %s`)", v.Cluster, name, v.Cluster)
	}
	v = proto.CloneOf(v)
	v.Meta.Deleting = timestamppb.New(a.Now)
	change.write(Update, v)
	a.audited(&change, "volume", name, "to be deleted")
	return change, nil
}

// takeVolume gives a new cluster the volume that its specification names.
func (a *Admission) takeVolume(change *Change, cluster *v1.Cluster) error {
	name := cluster.Spec.Volume
	if name == "" {
		return nil
	}
	v, err := Find(a.Caller, "volume", name, a.Volumes)
	if err != nil {
		return err
	}
	switch user := a.Clusters[v.Cluster]; {
	case v.Meta.Deleting != nil:
		return precondition("volume %s is being deleted", name)
	case v.State == v1.VolumeState_VOLUME_STATE_LOST:
		return precondition("volume %s is lost: %s", name, v.Message)
	case user != nil && user.Meta.Uid == v.ClusterUid:
		return precondition("cluster %s uses volume %s; one cluster at a time can", v.Cluster, name)
	}
	v = proto.CloneOf(v)
	v.Cluster, v.ClusterUid = cluster.Meta.Name, cluster.Meta.Uid
	change.write(Update, v)
	return nil
}
