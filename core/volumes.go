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

// laterDisk is a disk of a volume that is later than the one in the volume's record: an older copy of the store was put back.
type laterDisk struct {
	host string
	seen *v1.VolumeObserved
	told bool // there is an event that the volume waits
}

// seeLater sees which volumes have a later disk than the store knows. The orders about these volumes are made again, and about those
// that had one before. It tells of a volume that has to wait.
func (p *pass) seeLater() {
	before := p.later
	p.later = nil
	if len(p.Objects.Volumes) > 0 {
		p.later = p.laterDisks()
	}
	if len(before)+len(p.later) == 0 {
		return
	}
	for _, v := range p.Objects.Volumes {
		last, was := before[v.Meta.Uid]
		d, is := p.later[v.Meta.Uid]
		if was || is {
			for _, host := range volumeHosts(v) {
				p.index.hosts[host] = true
			}
		}
		if !is {
			continue
		}
		if d.told = last.told; !d.told && !p.Objects.Held() && !p.current(d.host) {
			d.told = true
			var c Change
			c.write(Expect, v)
			c.event(v1.Severity_SEVERITY_WARNING, "volume", v.Meta.Name, "waits: %s", p.outdated(v))
			p.propose("later disk of "+v.Meta.Name, c)
		}
		p.later[v.Meta.Uid] = d
	}
}

// laterElsewhere reports whether another host than the one in a volume's record has a later disk of it.
func (p *pass) laterElsewhere(v *v1.Volume) bool {
	d, is := p.later[v.Meta.Uid]
	return is && d.host != v.Host
}

// outdated says that the store does not know a volume's latest disk. Until it does, no earlier disk may be used: what is written to
// it would be lost. Empty: so far as connected hosts report, the store knows the latest one.
func (p *pass) outdated(v *v1.Volume) string {
	d, is := p.later[v.GetMeta().GetUid()]
	if !is {
		return ""
	}
	return fmt.Sprintf("host %s has a later disk of it than the manager's state, an older copy, knows, and has not taken its orders yet; if it cannot, see `watari host show %[1]s`, or cut it off (`watari host quarantine %[1]s`)", d.host)
}

// laterDisks returns the latest disks of those volumes of which a connected host has a later disk than the store knows, by uid.
func (p *pass) laterDisks() map[string]laterDisk {
	latest := map[string]laterDisk{}
	var known map[string]*v1.Volume
	for _, host := range sortedKeys(p.Hosts) {
		report, _, connected := p.Observed(host)
		if len(report.GetVolumes()) == 0 || !connected {
			continue
		}
		if known == nil {
			known = volumesByUID(p.Objects)
		}
		for _, o := range report.Volumes {
			if v := known[o.Uid]; v != nil && o.GetFacts().GetGeneration() > max(v.Generation, latest[o.Uid].seen.GetFacts().GetGeneration()) && p.sealed(host, o) {
				latest[o.Uid] = laterDisk{host: host, seen: o}
			}
		}
	}
	return latest
}

func volumesByUID(s *Objects) map[string]*v1.Volume {
	known := map[string]*v1.Volume{}
	for _, v := range s.Volumes {
		known[v.Meta.Uid] = v
	}
	return known
}

// adoptVolumes makes records for volumes that hosts have and the store does not know. Either an older copy of the store was
// put back, or a host that was removed as lost has joined again.
func (p *pass) adoptVolumes() {
	var known map[string]*v1.Volume
	for _, host := range sortedKeys(p.Hosts) {
		report, _, connected := p.Observed(host)
		if len(report.GetVolumes()) == 0 || !connected || !p.current(host) {
			continue
		}
		if known == nil {
			known = volumesByUID(p.working.Objects)
		}
		for _, o := range report.Volumes {
			f := o.GetFacts()
			if known[o.Uid] != nil || CheckName("volume", f.GetName()) != nil || p.full() || !p.sealed(host, o) {
				continue
			}
			name := f.Name
			for n := 2; p.working.Volumes[name] != nil; n++ {
				name = fmt.Sprintf("%.30s-%d", f.Name, n)
			}
			known[o.Uid] = &v1.Volume{Meta: &v1.Meta{Name: name, Uid: o.Uid, Owner: f.Owner, OwnerUid: f.OwnerUid}, SizeBytes: f.SizeBytes, Host: host,
				State: v1.VolumeState_VOLUME_STATE_PENDING, Generation: f.Generation, DiskGeneration: f.Generation}
			var c Change
			c.write(Create, known[o.Uid])
			c.event(v1.Severity_SEVERITY_WARNING, "volume", name, "is known again: host %s has it", host)
			p.propose("volume/"+name, c)
		}
	}
}

// sealed reports whether a host's facts about a volume come from the manager. Without a seal, any host could claim any
// volume.
func (p *pass) sealed(host string, o *v1.VolumeObserved) bool {
	return p.Sealed == nil || p.Sealed(host, o.Uid, o.GetFacts())
}

// recordLatest records which host has the latest disk of a volume. A restore that did not make this disk is from before it, and
// must not replace it.
func (p *pass) recordLatest(v *v1.Volume, host string, seen *v1.VolumeObserved) {
	generation := seen.GetFacts().GetGeneration()
	update := proto.CloneOf(v)
	update.Host, update.Generation, update.DiskGeneration = host, generation, generation
	var c Change
	why := fmt.Sprintf("an older copy of the manager's state was put back, and host %s has a later disk of volume %s", host, v.Meta.Name)
	cluster := p.Clusters[v.Cluster]
	ofCluster := restoring(cluster) && cluster.Meta.Uid == v.ClusterUid && p.Checkpoints[cluster.Restore.Checkpoint].GetVolume().GetGuestUid() == v.Meta.Uid
	switch {
	case restoring(v) && seen.GetRestored() != v.Restore.Id:
		update.Restore.State, update.Restore.Message, update.Restore.Ended = v1.RestoreState_RESTORE_STATE_FAILED, why, timestamppb.New(p.Now)
		c.event(v1.Severity_SEVERITY_ERROR, "volume", v.Meta.Name, "was not put back to snapshot %s: %s", v.Restore.Checkpoint, why)
	case ofCluster && seen.GetRestored() != cluster.Restore.Id:
		guests := p.index.guestsOf(v.Cluster)
		switch {
		case p.changed(cluster) || slices.ContainsFunc(guests, func(g *v1.Guest) bool { return p.changed(g) }):
			return
		case !ending(cluster) && slices.ContainsFunc(guests, p.runsUnderGrant):
			return // the restore was complete, which restoreRestoring records first
		}
		p.failRestore(&c, cluster, guests, nil, why)
	}
	if m := update.Move; volumeMoves(v) && m.Target == host && m.Generation <= generation { // later: it has been used there since
		m.Generation = generation
		endVolumeMove(&c, update, v1.VolumeMoveState_VOLUME_MOVE_STATE_DONE, "", p.Now)
	}
	endVolumeMove(&c, update, v1.VolumeMoveState_VOLUME_MOVE_STATE_FAILED, "host "+host+" has the volume", p.Now)
	c.write(Update, update)
	if host != v.Host {
		c.event(v1.Severity_SEVERITY_WARNING, "volume", v.Meta.Name, "is on host %s, which has got it after host %s", host, v.Host)
	}
	p.propose("volume/"+v.Meta.Name, c)
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

// abandoned reports whether a volume has got a host that was to put it back, has not done so, and is not to do it any more.
func (p *pass) abandoned(v *v1.Volume) bool {
	return v.State == v1.VolumeState_VOLUME_STATE_PENDING && v.Generation > v.DiskGeneration && p.volumeRestoredFrom(v) == nil
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

// hostWith returns a connected host that has the latest disk of a volume; empty: none has it. A host without orders about the
// volume does not serve the disk that it has.
func (p *pass) hostWith(v *v1.Volume) (host string) {
	latest := v.DiskGeneration
	for _, name := range sortedKeys(p.Hosts) {
		report, _, connected := p.Observed(name)
		o := volumeOn(report, v.Meta.Uid)
		generation := o.GetFacts().GetGeneration()
		keeps := v.Host != "" && p.current(name) && o != nil && o.GivenUp == nil && (generation == v.DiskGeneration || generation == v.UsedGeneration)
		if connected && (o.GetReady() || keeps) && p.sealed(name, o) && (host == "" && generation == latest || generation > latest) {
			host, latest = name, generation
		}
	}
	return host
}

// latestDisk reports whether a host serves the disk that its orders are about. A host that has joined again, or that has not
// taken its orders yet, may serve an earlier one.
func latestDisk(v *v1.Volume, seen *v1.VolumeObserved) bool {
	return seen.GetReady() && seen.GetFacts().GetGeneration() >= v.Generation
}

// volumeOn returns a host's report of a volume; nil: none.
func volumeOn(report *v1.HostObserved, uid string) *v1.VolumeObserved {
	for _, o := range report.GetVolumes() {
		if o.Uid == uid {
			return o
		}
	}
	return nil
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

// volumeOf returns the volume that a guest has; nil: none.
func volumeOf(s *Objects, g *v1.Guest) *v1.Volume {
	cluster := s.Clusters[g.Cluster]
	if g.Index != 0 || cluster.GetSpec().GetVolume() == "" {
		return nil
	}
	if v := s.Volumes[cluster.Spec.Volume]; v != nil && v.Cluster == g.Cluster && v.ClusterUid == cluster.Meta.Uid {
		return v
	}
	return nil
}

// diskAway says that the host of a guest's volume is out of reach; empty: it is connected, or the guest has no volume. QEMU
// on another host could not open the disk, so the guest cannot move.
func diskAway(s *Objects, r Reports, g *v1.Guest) string {
	v := volumeOf(s, g)
	if v == nil {
		return ""
	}
	if _, _, connected := r.Observed(v.Host); connected {
		return ""
	}
	return fmt.Sprintf("host %s, which has its volume %s, is out of reach", v.Host, v.Meta.Name)
}

// volumesOn returns the names of the volumes that a host has, or that move to it.
func volumesOn(s *Objects, host string) (names []string) {
	for _, name := range sortedKeys(s.Volumes) {
		if slices.Contains(volumeHosts(s.Volumes[name]), host) {
			names = append(names, name)
		}
	}
	return names
}

// lacksVolume says why a guest cannot be started yet; empty: it can, as far as its volume is concerned.
func (p *pass) lacksVolume(g *v1.Guest) string {
	name := p.Clusters[g.Cluster].GetSpec().GetVolume()
	if g.Index != 0 || name == "" {
		return ""
	}
	v := volumeOf(p.Objects, g)
	switch {
	case v == nil:
		return fmt.Sprintf("volume %s, which has the shared home, no longer exists", name)
	case p.outdated(v) != "":
		return fmt.Sprintf("volume %s waits: %s", name, p.outdated(v))
	case v.State != v1.VolumeState_VOLUME_STATE_READY:
		return fmt.Sprintf("volume %s is not ready: %s", name, cmp.Or(v.Message, "host "+v.Host+" makes it"))
	}
	report, _, connected := p.Observed(v.Host)
	if !connected {
		return fmt.Sprintf("host %s, which has volume %s, is out of reach", v.Host, name)
	}
	if seen := volumeOn(report, v.Meta.Uid); !seen.GetReady() {
		return fmt.Sprintf("host %s does not serve volume %s: %s", v.Host, name, cmp.Or(seen.GetMessage(), "not yet"))
	}
	if from := p.volumeRestoredFrom(v); from != nil && volumeOn(report, v.Meta.Uid).GetRestored() != p.volumeRestores(v).GetRestore().Id {
		return fmt.Sprintf("host %s puts volume %s back to checkpoint %s", v.Host, name, from.Meta.Name)
	}
	return ""
}

// useVolume gives the volume of a guest that is about to be started the next generation. From then on the guest's disk is the latest:
// a host with a disk from before, which the store does not know because an older copy of it was put back, does not take the volume
// from the guest when it returns.
func (p *pass) useVolume(c *Change, g *v1.Guest) {
	v := volumeOf(p.Objects, g)
	if v == nil || unadopted(v) {
		return
	}
	used := proto.CloneOf(v)
	used.Generation = NextGeneration(v.Generation, p.Now)
	used.UsedGeneration = used.Generation
	c.write(Update, used)
}

// volumeSource says where a guest's volume is served; nil: it has none.
func (p *pass) volumeSource(g *v1.Guest) *v1.VolumeSource {
	v := volumeOf(p.Objects, g)
	if v == nil || p.Hosts[v.Host] == nil {
		return nil
	}
	return &v1.VolumeSource{Uid: v.Meta.Uid, Host: blobPeers(p.Objects, []string{v.Host})[0]}
}

// volumeOrders returns a host's orders about its volumes.
func (p *pass) volumeOrders(host string) (list []*v1.VolumeWanted) {
	for v := range p.index.volumesAt[host] {
		if p.laterElsewhere(v) {
			continue
		}
		outdated := p.outdated(v) != ""
		if v.Host != host {
			if w := p.receiveOrder(v); w != nil {
				list = append(list, w)
			}
			continue
		}
		w := &v1.VolumeWanted{Uid: v.Meta.Uid, Discard: v.Meta.Deleting != nil && !outdated,
			// If an older copy of the store was put back, the volume may have moved since it was made here.
			Make:  unmade(v) && p.complete() && p.diskElsewhere(v) == nil && !outdated,
			Facts: &v1.VolumeFacts{Name: v.Meta.Name, Owner: v.Meta.Owner, OwnerUid: v.Meta.OwnerUid, SizeBytes: v.SizeBytes, Generation: v.Generation}}
		if p.Seal != nil {
			w.Facts.Seal = p.Seal(host, w.Uid, w.Facts)
		}
		if !outdated { // otherwise this host has the latest disk, and only serves it
			if from := p.volumeRestoredFrom(v); from != nil {
				w.Restore = p.orderToRestore(p.volumeRestores(v), from, from.Volume)
			} else if p.abandoned(v) && !w.Discard {
				continue // the host would serve a disk that is out of date
			}
			p.moveOrders(w, v)
		}
		for g := range p.index.ofCluster[v.Cluster] {
			if volumeOf(p.Objects, g) != v || g.Host == "" {
				continue
			}
			readers := []string{g.Host}
			if m := p.index.moves[g.Meta.Uid]; m != nil {
				readers = append(readers, m.Source, m.Target)
			}
			slices.Sort(readers)
			readers = slices.DeleteFunc(slices.Compact(readers), func(host string) bool { return cutOff(p.Hosts[host]) != nil })
			w.Readers = blobPeers(p.Objects, readers)
		}
		list = append(list, w)
	}
	list = p.dropCopies(host, append(list, p.staleVolumes(host)...))
	slices.SortFunc(list, func(a, b *v1.VolumeWanted) int { return cmp.Compare(a.Uid, b.Uid) })
	return list
}

// unmade reports whether no host has served a disk of a volume yet, so far as the store knows.
func unmade(v *v1.Volume) bool {
	return v.State == v1.VolumeState_VOLUME_STATE_PENDING && v.Generation == 0
}

// unadopted reports whether a volume has moved to its host, and the host has yet to make its copy the volume's disk.
func unadopted(v *v1.Volume) bool {
	return v.Generation > v.DiskGeneration && v.GetMove().GetGeneration() == v.Generation
}

// diskElsewhere returns a host that has a disk of a volume, and is not the volume's host; nil: none has one. If the volume's record
// were deleted before that disk, the volume would be known again.
func (p *pass) diskElsewhere(v *v1.Volume) *v1.Host {
	for _, name := range sortedKeys(p.Hosts) {
		if host := p.Hosts[name]; name != v.Host && p.diskOn(host, v) != nil {
			return host
		}
	}
	return nil
}

// diskOn returns the report of a connected host of its disk of a volume; nil: it has none.
func (p *pass) diskOn(host *v1.Host, v *v1.Volume) *v1.VolumeObserved {
	report, _, connected := p.Observed(host.Meta.Name)
	if o := volumeOn(report, v.Meta.Uid); connected && o != nil && p.sealed(host.Meta.Name, o) {
		return o
	}
	return nil
}

// staleVolumes returns a host's orders to delete its out-of-date disks of volumes that are ready on another host, or are deleted.
func (p *pass) staleVolumes(host string) (list []*v1.VolumeWanted) {
	report, _, _ := p.Observed(host)
	for _, o := range report.GetVolumes() {
		for _, v := range p.Volumes {
			if v.Meta.Uid != o.Uid || slices.Contains(volumeHosts(v), host) {
				continue
			}
			old := v.State == v1.VolumeState_VOLUME_STATE_READY && o.GetFacts().GetGeneration() < v.Generation
			now, _, connected := p.Observed(v.Host)
			if v.Meta.Deleting != nil || old && connected && latestDisk(v, volumeOn(now, o.Uid)) {
				list = append(list, &v1.VolumeWanted{Uid: o.Uid, Discard: true, Facts: o.Facts})
			}
		}
	}
	return list
}
