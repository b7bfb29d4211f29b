package sim

// volumes.go - volumes: the disks that hosts keep, their work on them, and the invariants of a guest and its disk.

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"watari/agent/domain"
	v1 "watari/api/watariv1"
	"watari/core"
)

// diskSpace is a host's space for volumes, in bytes.
const diskSpace = 100 << 30

// disk is a volume's disk on a host.
type disk struct {
	facts *v1.VolumeFacts
	content
	served  bool
	sending *sending          // it is being copied to another host; nil: it is not
	givenUp *v1.VolumeGivenUp // it was given up to another host; nil: it was not
}

// followVolumes makes a host follow its orders about volumes. It keeps the orders.
func (h *host) followVolumes(w *v1.HostWanted) {
	h.volumeOrders = map[string]*v1.VolumeWanted{}
	for _, v := range w.GetVolumes() {
		h.volumeOrders[v.Uid] = v
	}
	for _, g := range w.GetGuests() {
		if c := h.copies[g.Uid]; c != nil && g.Volume != nil {
			c.disk, c.diskAt = g.Volume.Uid, g.Volume.Host.GetName()
		}
	}
	h.sim.checkDisks()
	h.workOnVolumes()
}

// workOnVolumes carries out the orders, and repeats itself until nothing is left to do.
func (h *host) workOnVolumes() {
	h.workOnCopies()
	again := false
	for _, uid := range slices.Sorted(maps.Keys(h.volumeOrders)) {
		w, d := h.volumeOrders[uid], h.disks[uid]
		if w.Receive != nil || w.Facts == nil {
			continue // it is about a copy
		}
		switch {
		case h.diskWork[uid]:
		case w.Discard && d == nil:
			if h.failing[uid] { // it could not be made
				delete(h.failing, uid)
				h.report()
			}
		case w.Discard && w.Facts.Generation < d.facts.Generation: // it is about an earlier disk
		case w.Discard:
			h.onVolume(uid, func() {
				h.sim.checkDiscard(h, uid, d)
				delete(h.disks, uid)
			})
		case w.Adopt != nil && (d == nil || d.facts.Generation < w.Facts.Generation):
			if h.received[uid] != nil {
				h.onVolume(uid, func() { h.adopts(uid, w) })
			}
		case d != nil && d.givenUp != nil && (w.Restore == nil || w.Facts.Generation <= d.facts.Generation):
			if d.givenUp.Move == w.TakeBack {
				h.onVolume(uid, func() {
					d.givenUp = nil
					h.sim.count("volume taken back")
				})
			}
		case d != nil && d.sending != nil && d.sending.handing:
		case w.Restore != nil && !(d != nil && slices.Contains(d.restored, w.Restore.Id)):
			if d != nil {
				d.served = false
				if w.Facts.Generation < d.facts.Generation {
					continue // the manager does not know this disk
				}
			}
			if !h.hasAll(w.Restore, uid) {
				again = true
				if lacks := h.lacks(w.Restore, uid); lacks != h.failing[uid] {
					h.failing[uid] = lacks
					h.report()
				}
				continue
			}
			h.onVolume(uid, func() {
				if now := h.volumeOrders[uid]; now.GetRestore().GetId() == w.Restore.Id && h.readAll(w.Restore, uid) {
					h.putBack(uid, w)
				}
			})
		case d == nil && w.Make:
			h.onVolume(uid, func() {
				if h.disks[uid] != nil {
					return
				}
				if h.sim.made[uid] && !h.sim.unwantedVolumes[uid] { // an older copy of the store may want it again
					h.sim.violate("host %s makes an empty disk for volume %s, which had one", h.name, uid)
				}
				h.disks[uid] = &disk{facts: w.Facts, content: content{line: "new"}}
			})
		case d != nil && (!d.served || w.Facts.Generation >= d.facts.Generation && string(w.Facts.Seal) != string(d.facts.Seal)):
			h.onVolume(uid, func() {
				if w.Facts.Generation > d.facts.Generation {
					h.sim.checkLatest(h, uid, d, w.Facts.Generation)
				}
				if w.Facts.Generation >= d.facts.Generation {
					d.facts = w.Facts
				}
				d.served, h.sim.made[uid] = true, true
			})
		case d != nil:
			h.sends(uid, w, d)
		}
	}
	if again {
		life := h.life
		h.sim.after(time.Second, func() {
			if h.life == life && h.agent != nil {
				h.workOnVolumes()
			}
		})
	}
}

// onVolume does something with the disk of a volume after a delay, unless the agent has ended meanwhile.
func (h *host) onVolume(uid string, do func()) {
	h.work(h.diskWork, uid, h.sim.between(50*time.Millisecond, 2*time.Second), func() {
		if h.failing[uid] = h.full; !h.full {
			do()
		}
		h.report()
	})
}

// work does something about a volume after a delay, unless the agent has ended meanwhile, and then looks at the orders again. Until
// then, under has the volume's uid.
func (h *host) work(under map[string]bool, uid string, delay time.Duration, do func()) {
	under[uid] = true
	life := h.life
	h.sim.after(delay, func() {
		if h.life != life || h.agent == nil {
			return
		}
		delete(under, uid)
		do()
		h.workOnVolumes()
	})
}

// putBack puts a disk back to a checkpoint.
func (h *host) putBack(uid string, w *v1.VolumeWanted) {
	d := h.disks[uid]
	if d == nil {
		d = &disk{}
		h.disks[uid] = d
	}
	if slices.Contains(d.restored, w.Restore.Id) {
		return
	}
	d.facts, d.line, d.written, d.served, d.givenUp, d.sending = w.Facts, w.Restore.Id, 0, false, nil, nil
	d.restored = append(d.restored, w.Restore.Id)
	h.sim.acked[uid] = acked{line: d.line} // what was written after the checkpoint is given up
	h.sim.tell(h.name, "volume %s is put back: %s", uid, d.line)
	h.sim.checkDisks()
}

// reportVolumes returns the part of a report about volumes.
func (h *host) reportVolumes() (list []*v1.VolumeObserved) {
	for _, uid := range slices.Sorted(maps.Keys(h.disks)) {
		d := h.disks[uid]
		o := &v1.VolumeObserved{Uid: uid, Ready: d.served, Facts: d.facts, Failed: h.failing[uid]}
		if n := len(d.restored); n > 0 {
			o.Restored = d.restored[n-1]
		}
		d.reportMove(o)
		list = append(list, o)
	}
	for _, uid := range slices.Sorted(maps.Keys(h.failing)) {
		if h.failing[uid] && h.disks[uid] == nil && h.volumeOrders[uid] != nil {
			list = append(list, &v1.VolumeObserved{Uid: uid, Failed: true, Message: "it cannot be put back here"})
		}
	}
	for _, uid := range slices.Sorted(maps.Keys(h.claims)) {
		if h.disks[uid] == nil {
			list = append(list, &v1.VolumeObserved{Uid: uid, Ready: true, Facts: h.claims[uid]})
		}
	}
	return list
}

// claimed is added to the generation of a volume that a host claims. Real generations are times in seconds.
const claimed = 1 << 40

// claimVolume makes a host report a volume that it does not have, with facts that another host may know.
func (s *Sim) claimVolume(h *host, pick int) {
	v := pickOf(s.store.objects.Volumes, pick)
	if v == nil {
		return
	}
	facts := &v1.VolumeFacts{Name: v.Meta.Name, Owner: v.Meta.Owner, OwnerUid: v.Meta.OwnerUid, SizeBytes: v.SizeBytes, Generation: v.Generation + claimed}
	if d := s.hosts[v.Host]; d != nil && d.disks[v.Meta.Uid] != nil {
		facts.Seal = d.disks[v.Meta.Uid].facts.Seal
	}
	h.claims[v.Meta.Uid] = facts
}

// seal returns a manager's seal of the facts that a host gets about a volume.
func seal(host, uid string, f *v1.VolumeFacts) []byte {
	return fmt.Append(nil, "sealed ", host, " ", uid, " ", f.Name, " ", f.OwnerUid, " ", f.SizeBytes, " ", f.Generation)
}

// reach returns the disk that a host reaches for a guest; nil: none.
func (s *Sim) reach(from *host, uid, at string) *disk {
	h := s.hosts[at]
	if h == nil || !h.up || h.agent == nil || h != from && s.apart(h, from) {
		return nil
	}
	w, d := h.volumeOrders[uid], h.disks[uid]
	if w == nil || d == nil || !d.served || !slices.ContainsFunc(w.Readers, func(r *v1.BlobPeer) bool { return r.Name == from.name }) {
		return nil
	}
	return d
}

// opens makes a copy that is about to run, or to be restored, open its disk.
func (h *host) opens(c *copyOf, w *v1.VolumeSource) error {
	if w == nil {
		return nil
	}
	d := h.sim.reach(h, w.Uid, w.Host.GetName())
	if d == nil {
		return errLibvirt
	}
	c.disk, c.diskAt, c.line = w.Uid, w.Host.GetName(), d.line
	return nil
}

// checkDisks checks that each running guest writes to a disk of the line to which its memory belongs.
func (s *Sim) checkDisks() {
	for _, name := range s.names {
		h := s.hosts[name]
		for _, c := range h.live() {
			if c.disk == "" || c.state != domain.Running || h.vouched || h.late(c) {
				continue
			}
			if d := s.reach(h, c.disk, c.diskAt); d != nil && d.line != c.line {
				s.violate("guest %s on %s has a disk of line %s, and its memory is of line %s", c.name, name, d.line, c.line)
			}
		}
	}
}

// checkClaims checks that no host has got a volume by claiming to have it.
func (s *Sim) checkClaims(now *core.Objects) {
	for name, v := range now.Volumes {
		if v.Generation >= claimed {
			s.violate("host %s has got volume %s, which it does not have", v.Host, name)
		}
	}
}

// checkLatest checks that a disk, which gets this generation, overtakes no later disk of its volume on another host. A host that boots
// follows the orders on its disk, which may be older than what has been restored elsewhere since: its disk then stays behind.
func (s *Sim) checkLatest(h *host, uid string, d *disk, generation uint64) {
	for _, name := range s.names {
		other := s.hosts[name].disks[uid]
		if other != nil && other.facts.Generation > d.facts.Generation && generation >= other.facts.Generation {
			s.violate("host %s serves its old disk of volume %s, and host %s has a later one", h.name, uid, name)
		}
	}
}

// checkDiscard checks that a disk may be deleted: its user has asked for that, or another host has a newer disk.
func (s *Sim) checkDiscard(h *host, uid string, d *disk) {
	for _, name := range s.names {
		if other := s.hosts[name].disks[uid]; other != nil && other != d && other.facts.Generation > d.facts.Generation {
			return
		}
	}
	if !s.unwantedVolumes[uid] && !s.claimedByItsHost(uid) {
		s.violate("host %s deletes volume %s, which is wanted", h.name, uid)
	}
}

// claimedByItsHost tells whether the host to which a volume was given claims to have it. Managers believe that host.
func (s *Sim) claimedByItsHost(uid string) bool {
	for _, v := range s.store.objects.Volumes {
		if h := s.hosts[v.Host]; v.Meta.Uid == uid && h != nil && h.claims[uid] != nil && h.disks[uid] == nil {
			return true
		}
	}
	return false
}

// createVolume makes a volume, or takes one that no cluster uses. It returns its name; empty: there is none.
func (s *Sim) createVolume(pick int) string {
	if name := s.idleVolume(); name != "" && pick%2 == 0 {
		return name
	}
	name := fmt.Sprintf("v%d", s.clusters+1)
	granted := s.admit(func(a *core.Admission) (core.Change, error) {
		r := &v1.CreateVolumeRequest{Name: name, SizeBytes: 1 << 30}
		if pick%3 == 0 {
			r.Snapshots = &v1.CheckpointPlan{EverySeconds: 30, Copies: uint32(1 + pick%4)}
		}
		return a.CreateVolume(r, checkpointKey)
	})
	if !granted {
		return ""
	}
	return name
}

// latestThere reports whether a host has the latest disk of a volume.
func (s *Sim) latestThere(v *v1.Volume) bool {
	return slices.ContainsFunc(s.names, func(name string) bool {
		d := s.hosts[name].disks[v.Meta.Uid]
		return s.store.objects.Hosts[name] != nil && d != nil && d.givenUp == nil && d.facts.Generation >= v.DiskGeneration
	})
}

// restoreVolume asks for a volume that no cluster uses to go back to its latest snapshot, on its host or on another one.
func (s *Sim) restoreVolume(pick int) {
	if v := pickOf(s.store.objects.Volumes, pick); v != nil {
		host := ""
		if pick%2 == 0 {
			host = s.names[pick%len(s.names)]
		}
		s.admit(func(a *core.Admission) (core.Change, error) {
			change, _, _, err := a.RestoreVolume(v.Meta.Name, host)
			return change, err
		})
	}
}

// deleteVolume deletes a volume that no cluster uses.
func (s *Sim) deleteVolume() {
	if name := s.idleVolume(); name != "" {
		uid := s.store.objects.Volumes[name].Meta.Uid
		if s.admit(func(a *core.Admission) (core.Change, error) { return a.DeleteVolume(name) }) {
			s.unwantedVolumes[uid] = true
		}
	}
}

func (s *Sim) idleVolume() string {
	for _, name := range slices.Sorted(maps.Keys(s.store.objects.Volumes)) {
		if v := s.store.objects.Volumes[name]; v.Cluster == "" && v.Meta.Deleting == nil {
			return name
		}
	}
	return ""
}

// unsettledVolume says what has not settled of a volume; empty: all has. A volume whose host was removed is lost, or waits
// for a restore.
func (s *Sim) unsettledVolume(v *v1.Volume) string {
	if why := s.unsettledMove(v); why != "" {
		return why
	}
	switch {
	case v.Meta.Deleting != nil && s.claimedByItsHost(v.Meta.Uid):
		return "" // its host says that it still has the volume
	case v.Meta.Deleting != nil:
		return "it is being deleted"
	case v.Restore.GetState() == v1.RestoreState_RESTORE_STATE_RESTORING:
		return "it is being put back to snapshot " + v.Restore.Checkpoint
	case v.State == v1.VolumeState_VOLUME_STATE_READY, v.State == v1.VolumeState_VOLUME_STATE_LOST, v.Generation > 0 && !s.latestThere(v):
		return ""
	}
	return "it is not ready: " + v.Message
}
