package core

// admission_volumes.go - creating, moving and deleting volumes, and which cluster uses one.

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

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

// askedAgain is the time within which a second request to restore a volume counts as a repetition of the first.
const askedAgain = time.Minute

// CreateVolume makes a volume; a host makes its disk later. If an equal volume exists, the change has no operations. key is
// for the volume's snapshots.
func (a *Admission) CreateVolume(r *v1.CreateVolumeRequest, key CheckpointKey) (change Change, err error) {
	if err := CheckName("volume", r.Name); err != nil {
		return change, err
	}
	if r.SizeBytes < minVolumeBytes || r.SizeBytes > maxVolumeBytes || r.SizeBytes%(1<<20) != 0 {
		return change, invalid("a volume of %s bytes: it has %s to %s, in whole MiB", humanize.Comma(int64(min(r.SizeBytes, 1<<62))), humanize.IBytes(minVolumeBytes), humanize.IBytes(maxVolumeBytes))
	}
	if err := checkPlan(r.Snapshots); err != nil {
		return change, err
	}
	if have := a.Volumes[r.Name]; have != nil {
		switch {
		case !a.Caller.Owns(have.Meta):
			return change, refuse(Exists, "the name %s is taken", r.Name)
		case have.Meta.Deleting != nil:
			return change, precondition("volume %s is being deleted; create it again when it is gone", r.Name)
		case have.SizeBytes != r.SizeBytes:
			return change, refuse(Exists, "there is a volume %s, and it differs: it has %s, not %s", r.Name, humanize.IBytes(have.SizeBytes), humanize.IBytes(r.SizeBytes))
		case r.Snapshots != nil && !proto.Equal(have.Checkpoints, r.Snapshots):
			return change, refuse(Exists, "there is a volume %s, and other snapshots are planned of it; `watari volume snapshot` changes that", r.Name)
		}
		return change, nil
	}
	if r.Host != "" && a.Hosts[r.Host] == nil {
		return change, Missing("host", r.Host, a.Hosts)
	}
	if err := a.volumeQuota(r.SizeBytes); err != nil {
		return change, err
	}
	change.write(Create, &v1.Volume{Meta: &v1.Meta{Name: r.Name, Owner: a.Caller.Name, OwnerUid: a.Caller.UID}, SizeBytes: r.SizeBytes, Host: r.Host,
		State: v1.VolumeState_VOLUME_STATE_PENDING, CheckpointKey: key.Secret, CheckpointRecipient: key.Recipient, Checkpoints: r.Snapshots})
	a.audited(&change, "volume", r.Name, "created: %s", humanize.IBytes(r.SizeBytes))
	return change, nil
}

// volumeQuota checks that the caller's volumes and one more of this size are within the quota.
func (a *Admission) volumeQuota(more uint64) error {
	limit, used := a.Users[a.Caller.Name].GetQuota().GetVolumeBytes(), uint64(0)
	for _, v := range a.Volumes {
		if v.Meta.Owner == a.Caller.Name {
			used += v.SizeBytes
		}
	}
	if limit == 0 || used+more <= limit {
		return nil
	}
	return refuse(Exhausted, "the quota of user %s is %s of volumes, with %s in use and %s more asked for; ask for less, delete a volume, or have an administrator "+
		"raise it (`watari quota set %[1]s --volumes ...`)", a.Caller.Name, humanize.IBytes(limit), humanize.IBytes(used), humanize.IBytes(more))
}

// DeleteVolume deletes a volume that no cluster uses; its host removes the disk.
func (a *Admission) DeleteVolume(name string) (change Change, err error) {
	v, err := Find(a.Caller, "volume", name, a.Volumes)
	if err != nil || v.Meta.Deleting != nil {
		return change, err
	}
	if err := a.unused(v); err != nil {
		return change, err
	}
	if err := staying(v); err != nil {
		return change, err
	}
	v = proto.CloneOf(v)
	v.Meta.Deleting = timestamppb.New(a.Now)
	change.write(Update, v)
	a.audited(&change, "volume", name, "to be deleted")
	return change, nil
}

// unused refuses a volume that a cluster uses.
func (a *Admission) unused(v *v1.Volume) error {
	if cluster := a.Clusters[v.Cluster]; cluster != nil && cluster.Meta.Uid == v.ClusterUid {
		return precondition("cluster %s uses volume %s; delete the cluster first (`watari cluster delete %s`)", v.Cluster, v.Meta.Name, v.Cluster)
	}
	return nil
}

// RestoreVolume begins to put a volume that no cluster uses back to a snapshot. asked is the name of the snapshot, or of the
// volume for its latest snapshot. host is the host that gets the volume; empty: the present host, or another one if that was
// removed. It returns the volume's name, and a note if a later snapshot cannot be read now.
func (a *Admission) RestoreVolume(asked, host string) (change Change, name, note string, err error) {
	var c *v1.Checkpoint
	if v := a.Volumes[asked]; v != nil && a.Caller.Owns(v.Meta) {
		if c, note = a.latestReadable(v); c == nil {
			return change, "", "", precondition("volume %s has no snapshot; `watari volume snapshot %s` makes one", asked, asked)
		}
	} else if c, err = a.wholeCheckpoint(asked); err != nil {
		return change, "", "", err
	}
	v, _ := originOf(a.Objects, c).(*v1.Volume)
	switch {
	case !isSnapshot(c):
		return change, "", "", invalid("%s is a checkpoint of cluster %s, not a snapshot of a volume; `watari checkpoint restore %s` restores it", asked, c.Cluster, asked)
	case v == nil:
		return change, "", "", precondition("volume %s, of which snapshot %s was made, no longer exists", c.Volume.Guest, asked)
	case v.Meta.Deleting != nil:
		return change, "", "", precondition("volume %s is being deleted", v.Meta.Name)
	case host != "" && a.Hosts[host] == nil:
		return change, "", "", Missing("host", host, a.Hosts)
	}
	if err := a.unused(v); err != nil {
		return change, "", "", err
	}
	if err := staying(v); err != nil {
		return change, "", "", err
	}
	if restoring(v) && v.Restore.CheckpointUid == c.Meta.Uid && (host == "" || host == v.Host) && a.Now.Sub(v.Restore.Asked.AsTime()) < askedAgain {
		return change, v.Meta.Name, note, nil
	}
	if hosts := a.unreadable(c); len(hosts) > 0 {
		return change, "", "", precondition("snapshot %s cannot be read: its file is only on %s, out of reach or removed; start that host if it is only out of reach, or choose another snapshot (`watari checkpoint list --volume %s`)",
			c.Meta.Name, strings.Join(hosts, ", "), v.Meta.Name)
	}
	v = proto.CloneOf(v)
	v.Restore = newRestore(c, "user "+a.Caller.Name+" asked for it", timestamppb.New(a.Now))
	v.Restore.State = v1.RestoreState_RESTORE_STATE_RESTORING
	if host != "" && host != v.Host {
		v.Host, v.State, v.Message = host, v1.VolumeState_VOLUME_STATE_PENDING, ""
		v.Generation = NextGeneration(v.Generation, a.Now)
	}
	change.write(Update, v)
	change.write(Expect, c)
	a.audited(&change, "volume", v.Meta.Name, "to go back to snapshot %s", c.Meta.Name)
	return change, v.Meta.Name, note, nil
}

// latestReadable returns the latest snapshot of a volume that can be read now, and a note if a later one cannot. If none can be
// read, it returns the latest one; nil: there is none.
func (a *Admission) latestReadable(v *v1.Volume) (c *v1.Checkpoint, note string) {
	latest := latestCheckpoint(a.Objects, v, nil)
	for c = latest; c != nil; c = latestCheckpoint(a.Objects, v, c) {
		if len(a.unreadable(c)) > 0 {
			continue
		}
		if c != latest {
			note = fmt.Sprintf("volume %s goes back to snapshot %s; the later snapshot %s is only on %s, out of reach", v.Meta.Name, c.Meta.Name, latest.Meta.Name,
				strings.Join(a.unreadable(latest), ", "))
		}
		return c, note
	}
	return latest, ""
}

// unreadable returns the hosts that have a file of a snapshot, or of one on which it builds, if all of them were removed or
// have been out of reach for longer than replaceHostAfter; empty: the snapshot can be read, or soon. A restore waits for hosts
// that went out of reach a moment ago, as after a start of the manager: an older snapshot would lose data in vain.
func (a *Admission) unreadable(c *v1.Checkpoint) (hosts []string) {
	there := func(host string) bool {
		_, since, connected := a.Reports.Observed(host)
		if a.Began.After(since) {
			since = a.Began
		}
		return a.Hosts[host] != nil && (connected || a.Now.Sub(since) < replaceHostAfter)
	}
	chain, _ := chainAmong(maps.Values(a.Checkpoints), c, c.Volume)
	for _, f := range chain {
		if hosts := f.member.File.GetHosts(); !slices.ContainsFunc(hosts, there) {
			var named []string
			for _, host := range hosts {
				named = append(named, "host "+host)
			}
			return named
		}
	}
	return nil
}

// staying refuses a volume that moves.
func staying(v *v1.Volume) error {
	if volumeMoves(v) {
		return precondition("volume %s moves to host %s; wait, or cancel that first (`watari volume move %[1]s --cancel`)", v.Meta.Name, v.Move.Target)
	}
	return nil
}

// MoveVolume begins to move a volume to another host or site, or cancels its move. If the request was granted before, the change has
// no operations.
func (a *Admission) MoveVolume(r *v1.MoveVolumeRequest) (change Change, err error) {
	v, err := Find(a.Caller, "volume", r.Name, a.Volumes)
	switch {
	case err != nil:
		return change, err
	case r.Host != "" && r.Site != "", r.Cancel == (r.Host != "" || r.Site != ""):
		return change, invalid("give a host or a site to move to, or cancel the move")
	}
	to := r.Host
	if r.Site != "" {
		if to, err = a.hostAt(v, r.Site); err != nil {
			return change, err
		}
	}
	switch {
	case r.Cancel && !volumeMoves(v):
		return change, precondition("volume %s does not move", r.Name)
	case r.Cancel && v.Move.Cancel, volumeMoves(v) && v.Move.Target == to && !v.Move.Cancel:
		return change, nil
	case r.Cancel:
		v = proto.CloneOf(v)
		v.Move.Cancel = true
		change.write(Update, v)
		a.audited(&change, "volume", r.Name, "not to move to host %s any more", v.Move.Target)
		return change, nil
	case a.Hosts[to] == nil:
		return change, Missing("host", to, a.Hosts)
	case v.Host == to && v.Move.GetTarget() == to && a.Now.Sub(v.Move.Ended.AsTime()) < askedAgain:
		return change, nil
	case v.Host == to:
		return change, precondition("volume %s is on host %s already", r.Name, to)
	}
	if err := staying(v); err != nil {
		return change, err
	}
	if why := a.cannotMove(v, to); why != "" {
		return change, precondition("volume %s cannot move to host %s: %s", r.Name, to, why)
	}
	v = proto.CloneOf(v)
	v.Move = newVolumeMove(v, to, "user "+a.Caller.Name+" asked for it", a.Now)
	change.write(Update, v)
	a.audited(&change, "volume", r.Name, "to move from host %s to host %s", v.Host, to)
	return change, nil
}

// hostAt chooses the host of a site for a volume: the one that has it or to which it moves, or else the roomiest.
func (a *Admission) hostAt(v *v1.Volume, site string) (string, error) {
	if known := sites(a.Objects); !known[site] {
		return "", Missing("site", site, known)
	}
	at := func(host string) bool { return a.Hosts[host].GetInfo().GetSite() == site }
	switch {
	case volumeMoves(v) && at(v.Move.Target):
		return v.Move.Target, nil
	case at(v.Host):
		return v.Host, nil
	}
	var chosen roomiest
	var refusals []string
	for _, name := range sortedKeys(a.Hosts) {
		if !at(name) {
			continue
		}
		if why := a.cannotMove(v, name); why != "" {
			refusals = append(refusals, "host "+name+": "+why)
			continue
		}
		report, _, _ := a.Reports.Observed(name)
		chosen.offer(a.Hosts[name], volumeRoom(a.Objects, name, report))
	}
	if chosen.host == "" {
		return "", precondition("volume %s cannot move to site %s: %s", v.Meta.Name, site, strings.Join(refusals[:min(len(refusals), 3)], "; "))
	}
	return chosen.host, nil
}

// cannotMove says why a volume cannot move to a host; empty: it can.
func (a *Admission) cannotMove(v *v1.Volume, to string) string {
	source, _, sourceConnected := a.Reports.Observed(v.Host)
	report, _, connected := a.Reports.Observed(to)
	h, seen := a.Hosts[to], volumeOn(source, v.Meta.Uid)
	cluster := a.Clusters[v.Cluster]
	switch {
	case v.Meta.Deleting != nil:
		return "it is being deleted"
	case restoring(v) || cluster != nil && restoring(cluster):
		return "it is being restored"
	case v.State != v1.VolumeState_VOLUME_STATE_READY || !sourceConnected || !seen.GetReady():
		return cmp.Or(v.Message, seen.GetMessage(), "host "+v.Host+" does not serve it")
	case !source.GetMovesVolumes():
		return "the agent of host " + v.Host + " is of an older version"
	case !connected || h.Info == nil:
		return "that host is out of reach"
	case h.Meta.Deleting != nil || h.Draining:
		return "that host is being drained or removed"
	case emptied(h) != "":
		return "that host is being " + emptied(h)
	case !report.GetKeepsVolumes():
		return "that host keeps no volumes"
	case !report.GetMovesVolumes():
		return "the agent of that host is of an older version"
	case volumeOn(report, v.Meta.Uid) != nil:
		return "that host has an older disk of it, which is deleted soon"
	}
	if free := volumeRoom(a.Objects, to, report); free < v.SizeBytes+volumeSlack {
		return fmt.Sprintf("that host has room for %s, and the volume needs %s", humanize.IBytes(free), humanize.IBytes(v.SizeBytes+volumeSlack))
	}
	return ""
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
	case restoring(v):
		return precondition("volume %s is being put back to snapshot %s; `watari volume show %s` shows when that is done", name, v.Restore.Checkpoint, name)
	case v.State == v1.VolumeState_VOLUME_STATE_LOST && latestCheckpoint(a.Objects, v, nil) != nil:
		return precondition("volume %s is lost: %s; `watari volume restore %s` gives it its latest snapshot on another host", name, v.Message, name)
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
