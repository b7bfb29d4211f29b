package core

// volumes.go - volumes: which host has each, when it is ready, and which hosts may use it.

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "watari/api/watariv1"
	"watari/core/lifecycle"
	"watari/internal/protocol"
)

// volumes takes a step for each volume. Of a volume with a later disk than the store knows, it only records that disk: what the
// store knows of the volume is out of date.
func (p *pass) volumes() {
	var users map[string]*v1.Cluster
	if len(p.Objects.Volumes) > 0 {
		users = p.volumeUsers()
	}
	for _, name := range sortedKeys(p.Objects.Volumes) {
		v := p.Objects.Volumes[name]
		if p.full() {
			return
		}
		d, is := p.later[v.Meta.Uid]
		switch {
		case p.changed(v):
		case is && !p.Objects.Held() && p.current(d.host):
			p.recordLatest(v, d.host, d.seen)
		case is:
		default:
			p.volume(v, users[name])
		}
	}
	if !p.Objects.Held() {
		p.adoptVolumes()
	}
}

// volumeUsers returns the clusters whose specifications name volumes, by the volumes' names. The volumes' records agree,
// unless an older copy of the store was put back.
func (p *pass) volumeUsers() map[string]*v1.Cluster {
	users := map[string]*v1.Cluster{}
	for name, c := range p.Clusters {
		volume := c.GetSpec().GetVolume()
		if before := users[volume]; volume != "" && c.Meta.GetDeleting() == nil && (before == nil || name < before.Meta.Name) {
			users[volume] = c
		}
	}
	return users
}

func (p *pass) volume(v *v1.Volume, user *v1.Cluster) {
	name := v.Meta.Name
	key := "volume/" + name
	update := proto.CloneOf(v)
	var c Change
	if cluster := p.Clusters[v.Cluster]; v.Cluster != "" && cluster.GetMeta().GetUid() != v.ClusterUid {
		update.Cluster, update.ClusterUid = "", ""
	}
	if v.Cluster == "" && v.Meta.Deleting == nil && user != nil && user.Meta.Owner == v.Meta.Owner {
		update.Cluster, update.ClusterUid = user.Meta.Name, user.Meta.Uid
		c.write(Expect, user)
	}
	report, _, connected := p.Observed(v.Host)
	seen := volumeOn(report, v.Meta.Uid)
	host := p.Hosts[v.Host]
	p.takeVolumeBack(v, update)
	switch {
	case volumeMoves(v) && p.moveVolume(&c, v, update):
	case v.Meta.Deleting == nil && p.volumeAway(v, replaceHostAfter) && p.volumeRestoredFrom(v) != nil:
		p.replaceHost(&c, v, update, fmt.Sprintf("host %s, which had it, is out of reach", v.Host))
	case v.Meta.Deleting == nil && restoring(v) && p.endVolumeRestore(&c, v, update):
	case v.Meta.Deleting == nil && connected && p.current(v.Host) && seen.GetFailed() && p.volumeRestoredFrom(v) != nil && seen.GetRestored() != p.volumeRestores(v).GetRestore().Id:
		p.noRoom[copyKey(v.Host, "", v.Meta.Uid)] = p.Now.Add(noRoomFor)
		p.replaceHost(&c, v, update, fmt.Sprintf("host %s could not put it back: %s", v.Host, seen.Message))
	case v.Meta.Deleting != nil && (host == nil || connected && p.current(v.Host) && seen == nil) && p.diskElsewhere(v) == nil:
		c.write(Delete, proto.CloneOf(v))
		p.propose(key, c)
		return
	case v.Meta.Deleting != nil:
		if host := p.diskElsewhere(v); host != nil {
			update.Message = strings.TrimSuffix(fmt.Sprintf("host %s deletes an earlier disk of it: %s", host.Meta.Name, p.diskOn(host, v).GetMessage()), ": ")
		}
	case v.Host == "" && !p.complete(): // an expected host may have it: an older copy of the store was put back
	case v.Host == "":
		if update.Host = p.hostWith(v); update.Host == "" {
			if has := p.diskElsewhere(v); has != nil { // but does not serve it without orders
				update.Host = has.Meta.Name
			} else {
				update.Host, update.Message = p.volumeHost(v, false)
			}
		}
		if host := p.Hosts[update.Host]; host != nil {
			c.write(Expect, host)
			c.event(v1.Severity_SEVERITY_INFO, "volume", name, "is made on host %s", update.Host)
		}
	case p.abandoned(v) && !latestDisk(v, seen):
		p.returnVolume(&c, v, update, fmt.Sprintf("its restore on host %s was given up", v.Host))
	case host == nil && v.State != v1.VolumeState_VOLUME_STATE_LOST:
		update.State, update.Message = v1.VolumeState_VOLUME_STATE_LOST, fmt.Sprintf("host %s, which had it, was removed", v.Host)
		c.event(v1.Severity_SEVERITY_ERROR, "volume", name, "is lost: %s", update.Message)
	case host == nil:
	case v.State == v1.VolumeState_VOLUME_STATE_PENDING && latestDisk(v, seen):
		update.State, update.Message = v1.VolumeState_VOLUME_STATE_READY, ""
		c.event(v1.Severity_SEVERITY_INFO, "volume", name, "is ready on host %s", v.Host)
	case v.State == v1.VolumeState_VOLUME_STATE_PENDING && seen != nil:
		update.Message = seen.Message
	case v.State == v1.VolumeState_VOLUME_STATE_LOST && !seen.GetReady(): // a host of that name has joined; it may be another machine
		update.Message = cmp.Or(seen.GetMessage(), v.Message)
	case v.State == v1.VolumeState_VOLUME_STATE_LOST:
		update.State, update.Message = v1.VolumeState_VOLUME_STATE_READY, ""
		c.event(v1.Severity_SEVERITY_INFO, "volume", name, "is there again: host %s has joined", v.Host)
	case v.State == v1.VolumeState_VOLUME_STATE_READY && !unadopted(v) && seen == nil && report.GetKeepsVolumes() &&
		p.current(v.Host) && p.volumeRestoredFrom(v) == nil:
		// The volume was deleted before an older copy of the store was put back, or somebody has deleted the file.
		update.State, update.Message = v1.VolumeState_VOLUME_STATE_LOST, fmt.Sprintf("host %s, which had it, has no disk of it", v.Host)
		c.event(v1.Severity_SEVERITY_ERROR, "volume", name, "is lost: %s", update.Message)
	default:
		p.moveVolumeAway(&c, v, update)
	}
	if update.State == v1.VolumeState_VOLUME_STATE_READY && update.Host == v.Host && update.Generation == v.Generation && latestDisk(v, seen) {
		update.DiskGeneration = v.Generation
	}
	if !proto.Equal(update, v) {
		c.write(Update, update)
		p.propose(key, c)
		return
	}
	p.loseVolume(v)
}

// replaceHostAfter is how long a volume's host is out of reach before the volume is restored on another host.
const replaceHostAfter = time.Minute

// volumeAway is away for a volume's host; false: the volume has no host.
func (p *pass) volumeAway(v *v1.Volume, long time.Duration) bool {
	return v.Host != "" && p.away(v.Host, long)
}

// away reports whether a host was removed, or has been out of reach for at least long. If it is out of reach for less, away
// has the pass repeated in time.
func (p *pass) away(host string, long time.Duration) bool {
	_, since, connected := p.Observed(host)
	switch {
	case p.Hosts[host] == nil:
		return true
	case connected:
		return false
	}
	if p.Began.After(since) {
		since = p.Began
	}
	if due := since.Add(long); p.Now.Before(due) {
		p.again = earlier(p.again, due)
		return false
	}
	return true
}

// volumeLost reports whether a volume's host counts as lost: it was removed, or it has been out of reach for longer than
// replaceHostAfter and the lease of the guest that uses the volume. Without a lease, the cluster waits for the host.
func (p *pass) volumeLost(v *v1.Volume) bool {
	lease := time.Duration(0)
	for g := range p.index.ofCluster[v.Cluster] {
		if volumeOf(p.Objects, g) == v {
			lease = leaseLength(g)
		}
	}
	return p.Hosts[v.Host] == nil && v.Host != "" || lease > 0 && p.volumeAway(v, max(lease, replaceHostAfter))
}

// replaceHost gives a volume that is being restored another host, and says why. No guest uses the volume, and the disk on the
// host before is out of date or unfinished.
func (p *pass) replaceHost(c *Change, v, update *v1.Volume, reason string) {
	host, why := p.volumeHost(v, false)
	if host == "" {
		update.Message = reason + "; " + why
		return
	}
	endVolumeMove(c, update, v1.VolumeMoveState_VOLUME_MOVE_STATE_FAILED, reason, p.Now)
	update.Host, update.State, update.Message = host, v1.VolumeState_VOLUME_STATE_PENDING, ""
	update.Generation = NextGeneration(v.Generation, p.Now)
	if cluster := p.Clusters[v.Cluster]; cluster != nil {
		c.write(Expect, cluster)
	}
	c.write(Expect, p.Hosts[host])
	c.event(v1.Severity_SEVERITY_WARNING, "volume", v.Meta.Name, "is restored on host %s: %s", host, reason)
}

// volumeRestoredFrom returns the checkpoint from which a volume is being restored; nil: none.
func (p *pass) volumeRestoredFrom(v *v1.Volume) *v1.Checkpoint {
	if of := p.volumeRestores(v); of != nil {
		return p.beingRestoredFrom(of)
	}
	return nil
}

// volumeRestores returns the cluster or the volume whose restore puts a volume back; nil: there is none.
func (p *pass) volumeRestores(v *v1.Volume) origin {
	cluster := p.Clusters[v.GetCluster()]
	switch {
	case v == nil:
	case restoring(v):
		return v
	case cluster != nil && cluster.Meta.Uid == v.ClusterUid && p.beingRestoredFrom(cluster).GetVolume().GetGuestUid() == v.Meta.Uid:
		return cluster
	}
	return nil
}

// endVolumeRestore ends the restore of a volume from a snapshot when its host has put the volume back, or when the snapshot
// cannot be read any more. It reports whether the restore has ended.
func (p *pass) endVolumeRestore(c *Change, v, update *v1.Volume) bool {
	from := p.beingRestoredFrom(v)
	report, _, connected := p.Observed(v.Host)
	seen := volumeOn(report, v.Meta.Uid)
	switch {
	case connected && p.current(v.Host) && seen.GetReady() && seen.GetRestored() == v.Restore.Id:
		update.State, update.Message, update.Restore.State = v1.VolumeState_VOLUME_STATE_READY, "", v1.RestoreState_RESTORE_STATE_DONE
		if from != nil {
			update.LeftBehind = leftBehind(p.Objects, v, from)
		}
		c.event(v1.Severity_SEVERITY_INFO, "volume", v.Meta.Name, "is back at snapshot %s, on host %s", v.Restore.Checkpoint, v.Host)
	case from == nil || from.State != v1.CheckpointState_CHECKPOINT_STATE_DONE:
		why := cmp.Or(from.GetMessage(), "the snapshot was deleted")
		if v.State == v1.VolumeState_VOLUME_STATE_PENDING && !latestDisk(v, seen) && // its new host has not made it
			!p.returnVolume(c, v, update, fmt.Sprintf("snapshot %s cannot be read (%s)", v.Restore.Checkpoint, why)) {
			return false
		}
		update.Restore.State, update.Restore.Message = v1.RestoreState_RESTORE_STATE_FAILED, why
		c.event(v1.Severity_SEVERITY_ERROR, "volume", v.Meta.Name, "was not put back to snapshot %s: %s", v.Restore.Checkpoint, why)
	default:
		return false
	}
	update.Restore.Ended = timestamppb.New(p.Now)
	return true
}

// loseVolume lets a cluster go back to its latest checkpoint when the host of its volume is lost, if its user wants that.
// The guests wait for the disk, wherever they are.
func (p *pass) loseVolume(v *v1.Volume) {
	cluster := p.Clusters[v.Cluster]
	if cluster == nil || cluster.Meta.Uid != v.ClusterUid || cluster.Spec.GetOnHostLoss() != v1.OnHostLoss_ON_HOST_LOSS_RESTORE ||
		cluster.Meta.Deleting != nil || restoring(cluster) || p.changed(cluster) || !p.volumeLost(v) {
		return
	}
	from, _ := p.restorable(cluster, nil)
	if from == nil || from.Volume.GetGuestUid() != v.Meta.Uid {
		return
	}
	if losses := p.lossesSince(cluster.Restore, from); losses <= lifecycle.MaxRestarts {
		reason := fmt.Sprintf("host %s, which has volume %s, is out of reach", v.Host, v.Meta.Name)
		var c Change
		p.beginRestore(&c, cluster, from, reason, losses)
		p.propose("restore of "+cluster.Meta.Name, c)
	}
}

// abandoned reports whether a volume has got a host that was to put it back, has not done so, and is not to do it any more. A host that is
// to take its disk back has the disk.
func (p *pass) abandoned(v *v1.Volume) bool {
	report, _, _ := p.Observed(v.Host)
	given := volumeOn(report, v.Meta.Uid).GetGivenUp()
	return v.State == v1.VolumeState_VOLUME_STATE_PENDING && v.Generation > v.DiskGeneration && p.volumeRestoredFrom(v) == nil &&
		(given == nil || given.Move != v.TakeBack)
}

// returnVolume gives a volume back to the host with its latest disk, because no host puts it back to a checkpoint any more, and
// says why. It reports whether such a host is connected.
func (p *pass) returnVolume(c *Change, v, update *v1.Volume, why string) bool {
	if !p.complete() || p.Objects.Held() {
		return false // an older copy of the store was put back, and a host that is still expected may have a later disk
	}
	host := p.hostWith(v)
	if host == "" {
		update.Message = fmt.Sprintf("%s, and no host that is connected has its latest disk; start that host, or `watari volume restore %s` puts it back to a snapshot", why, v.Meta.Name)
		return false
	}
	update.Host, update.State, update.Message = host, v1.VolumeState_VOLUME_STATE_READY, ""
	update.Generation = NextGeneration(v.Generation, p.Now)
	c.write(Expect, p.Hosts[host])
	c.event(v1.Severity_SEVERITY_WARNING, "volume", v.Meta.Name, "is as it was, on host %s: %s", host, why)
	return true
}

// volumeSlack is the space on a host's disk that a new volume must leave free, in bytes.
const volumeSlack = 1 << 30

// volumeHost chooses the host for a volume: the one with the most room, but a lent host only if no other has room. If
// there is none, it says why. moves: the volume moves there from the host that has it. Hosts that could not take the volume
// are not asked again for a while.
func (p *pass) volumeHost(v *v1.Volume, moves bool) (host, why string) {
	var chosen roomiest
	for _, name := range sortedKeys(p.Hosts) {
		h := p.Hosts[name]
		report, _, connected := p.Observed(name)
		if !connected || h.Info == nil || emptied(h) != "" || h.Meta.Deleting != nil || !report.GetKeepsVolumes() {
			continue
		}
		if moves && (!report.GetMovesVolumes() || volumeOn(report, v.Meta.Uid) != nil) {
			continue // an older agent cannot receive it; an older disk is deleted first
		}
		if _, refused := p.noRoom[copyKey(name, "", v.Meta.Uid)]; refused {
			continue
		}
		free := volumeRoom(p.working.Objects, name, report)
		if free < v.SizeBytes+volumeSlack {
			continue
		}
		chosen.offer(h, free)
	}
	if chosen.host == "" {
		why = fmt.Sprintf("no host that is connected and keeps volumes has %s of disk free", humanize.IBytes(v.SizeBytes+volumeSlack))
	}
	return chosen.host, why
}

// roomiest chooses among the hosts that can take a volume: the one with the most room, but a lent host only if no other can.
type roomiest struct {
	host string // empty: none was offered
	lent bool
	room uint64 // bytes
}

func (r *roomiest) offer(h *v1.Host, room uint64) {
	if lent := h.Info.Lent; r.host == "" || r.lent && !lent || r.lent == lent && room > r.room {
		*r = roomiest{h.Meta.Name, lent, room}
	}
}

// volumeRoom returns how much of a host's disk would be free if all its volumes were full, in bytes. Volumes that move to the
// host count.
func volumeRoom(s *Objects, host string, report *v1.HostObserved) uint64 {
	free := report.GetLoad().GetDiskAvailableBytes()
	for _, v := range s.Volumes {
		if slices.Contains(volumeHosts(v), host) {
			used := min(volumeOn(report, v.Meta.Uid).GetUsedBytes(), v.SizeBytes)
			used -= min(used, protocol.VolumeStep)
			free -= min(free, v.SizeBytes-used)
		}
	}
	return free
}
