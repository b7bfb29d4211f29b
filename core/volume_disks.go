package core

// volume_disks.go - the disks of volumes that hosts report: which is the volume's own, which is later than the store knows, and which
// are out of date.

import (
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "watari/api/watariv1"
)

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
