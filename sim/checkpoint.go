package sim

// checkpoint.go - checkpoints: users' requests, the hosts' work, and the invariants.

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"watari/agent/domain"
	"watari/agent/machine"
	v1 "watari/api/watariv1"
	"watari/checkpoint"
	"watari/core"
)

// fileOf identifies a guest's file of a checkpoint.
type fileOf struct{ checkpoint, guest string }

// verifiedFile has the verifications for which a file was read, and for which its guest was restored on trial.
type verifiedFile struct{ read, tried string }

// taking is a host's part in a checkpoint that is being made.
type taking struct {
	id      string
	order   v1.CheckpointOrder
	phase   v1.CheckpointPhase
	epochs  map[string]uint64 // by guest uid
	stopped bool              // the guests stand because of this checkpoint
	volume  bool              // this is a volume's part
	bases   map[string]string // the checkpoints on which its files build, by guest uid
	over    bool
	// writes: it is void, and the host has not stopped working on it. discarded: it is forgotten then.
	writes, discarded bool
}

// cutSeen is what really happened in a checkpoint, by guest uid.
type cutSeen struct{ stopped, taken map[string]time.Time }

func (s *Sim) cut(id string) *cutSeen {
	if s.cuts[id] == nil {
		s.cuts[id] = &cutSeen{map[string]time.Time{}, map[string]time.Time{}}
	}
	return s.cuts[id]
}

// followCheckpoints makes a host follow its orders about checkpoints.
func (h *host) followCheckpoints(orders []*v1.CheckpointWanted) {
	h.keeps = map[fileOf]bool{}
	refused := h.refused
	h.refused = map[fileOf]bool{}
	for _, w := range orders {
		key := fileOf{w.CheckpointId, w.GuestUid}
		id := w.CheckpointId
		if w.Volume || h.disks[w.GuestUid] != nil {
			id += "/" + w.GuestUid
		}
		t := h.takings[id]
		switch w.Order {
		case v1.CheckpointOrder_CHECKPOINT_ORDER_PREPARE:
			if h.files[key] != 0 {
				continue
			}
			if t == nil {
				t = &taking{id: w.CheckpointId, epochs: map[string]uint64{}, volume: w.Volume, bases: map[string]string{}}
				h.takings[id] = t
			}
			t.epochs[w.GuestUid] = w.Epoch
			if h.files[fileOf{w.Base, w.GuestUid}] != 0 && h.indexed[w.GuestUid] == w.Base {
				t.bases[w.GuestUid] = w.Base
			}
			h.advanceTaking(t, w.Order)
		case v1.CheckpointOrder_CHECKPOINT_ORDER_STOP, v1.CheckpointOrder_CHECKPOINT_ORDER_TAKE:
			if h.files[key] != 0 {
				continue
			}
			if t == nil {
				t = &taking{id: w.CheckpointId, epochs: map[string]uint64{}, phase: v1.CheckpointPhase_CHECKPOINT_PHASE_FAILED, over: true, volume: w.Volume}
				h.takings[id] = t
			}
			t.epochs[w.GuestUid] = w.Epoch
			h.advanceTaking(t, w.Order)
		case v1.CheckpointOrder_CHECKPOINT_ORDER_KEEP:
			delete(h.takings, id)
			h.keeps[key] = true
			if h.files[key] == 0 {
				h.refused[key] = refused[key]
				if life, fetches := h.fetches[key]; !fetches || life != h.life {
					h.fetches[key] = h.life
					delete(h.failures, key)
					h.fetchFile(key, max(w.Epoch, 1))
				}
			}
			h.verify(key, w)
		case v1.CheckpointOrder_CHECKPOINT_ORDER_DISCARD:
			if t != nil {
				h.endTaking(t, "it is discarded")
				if t.discarded = t.writes; t.discarded {
					continue
				}
				delete(h.takings, id)
			}
			h.dropFile(key)
		}
	}
}

// advanceTaking takes the next step of a checkpoint's making.
func (h *host) advanceTaking(t *taking, order v1.CheckpointOrder) {
	if t.over || order <= t.order {
		return
	}
	t.order = order
	life := h.life
	then := func(usual time.Duration, do func()) {
		h.sim.after(h.sim.latency(usual), func() {
			if h.life == life && !t.over {
				do()
				h.report()
			}
		})
	}
	switch order {
	case v1.CheckpointOrder_CHECKPOINT_ORDER_PREPARE:
		then(100*time.Millisecond, func() { t.phase = v1.CheckpointPhase_CHECKPOINT_PHASE_READY })
	case v1.CheckpointOrder_CHECKPOINT_ORDER_STOP:
		then(10*time.Millisecond, func() { h.stopGuests(t) })
	case v1.CheckpointOrder_CHECKPOINT_ORDER_TAKE:
		then(10*time.Millisecond, func() { h.takeStates(t) })
	}
}

// stopGuests stops the guests of a checkpoint, and lets them go on at the end of their time.
func (h *host) stopGuests(t *taking) {
	if t.phase != v1.CheckpointPhase_CHECKPOINT_PHASE_READY {
		h.endTaking(t, "it was not ready")
		return
	}
	t.stopped = true
	for _, uid := range slices.Sorted(maps.Keys(t.epochs)) {
		c := h.copies[uid]
		if !h.agent.Hold(h.now(), uid, t.epochs[uid]) || c == nil || c.state != domain.Running || h.libvirt != libvirtUp {
			h.endTaking(t, "a guest does not just run")
			return
		}
		c.state, c.stands = domain.Paused, true
		h.sim.cut(t.id).stopped[uid] = h.sim.now
		h.event(uid)
	}
	t.phase = v1.CheckpointPhase_CHECKPOINT_PHASE_STOPPED
	h.sim.after(checkpoint.MaxStop, func() {
		if !t.over && t.phase == v1.CheckpointPhase_CHECKPOINT_PHASE_STOPPED {
			h.endTaking(t, "the guests stood for too long")
			h.report()
		}
	})
}

// takeStates takes the guests' states, and lets them go on.
func (h *host) takeStates(t *taking) {
	from := v1.CheckpointPhase_CHECKPOINT_PHASE_STOPPED
	if t.volume {
		from = v1.CheckpointPhase_CHECKPOINT_PHASE_READY
	}
	if t.phase != from {
		h.endTaking(t, "it has not stopped")
		return
	}
	for uid := range t.epochs {
		if !h.there(t, uid) {
			h.endTaking(t, "a guest has ended")
			return
		}
	}
	for _, uid := range slices.Sorted(maps.Keys(t.epochs)) {
		h.sim.cut(t.id).taken[uid] = h.sim.now
	}
	h.letGo(t)
	t.phase = v1.CheckpointPhase_CHECKPOINT_PHASE_TAKEN
	life := h.life
	h.sim.after(h.sim.between(200*time.Millisecond, 4*time.Second), func() {
		if h.life != life || t.over {
			return
		}
		for uid := range t.epochs {
			if !h.there(t, uid) || h.full {
				h.endTaking(t, "a file could not be written")
				h.report()
				return
			}
		}
		t.over = true
		for uid, epoch := range t.epochs {
			h.files[fileOf{t.id, uid}] = max(epoch, 1)
			delete(h.altered, fileOf{t.id, uid})
			h.sim.bases[fileOf{t.id, uid}] = t.bases[uid]
			h.indexed[uid] = t.id
		}
		maps.DeleteFunc(h.takings, func(_ string, other *taking) bool { return other == t })
		h.report()
	})
}

// there reports whether a guest, or a volume that is served, is on the host.
func (h *host) there(t *taking, uid string) bool {
	if t.volume {
		return h.disks[uid] != nil && h.disks[uid].served
	}
	return h.copies[uid] != nil
}

// goesOnEarly notes that a guest goes on for another reason than the checkpoint. The host does not notice that.
func (h *host) goesOnEarly(uid string) {
	for _, t := range h.takings {
		if _, is := t.epochs[uid]; is && t.stopped {
			delete(h.sim.cut(t.id).stopped, uid)
		}
	}
}

// letGo lets the guests of a checkpoint go on.
func (h *host) letGo(t *taking) {
	if !t.stopped {
		return
	}
	t.stopped = false
	for _, uid := range slices.Sorted(maps.Keys(t.epochs)) {
		if c := h.copies[uid]; c != nil && c.stands {
			c.stands = false
			if c.state == domain.Paused {
				h.sim.runs(h, c)
				h.event(uid)
			}
		}
		if h.agent != nil {
			h.agent.Release(h.now(), uid)
		}
	}
	h.pump()
}

// endTaking ends this host's part in a checkpoint, which is void.
func (h *host) endTaking(t *taking, why string) {
	if t.over {
		return
	}
	h.sim.tell(h.name, "checkpoint %s is void: %s", t.id, why)
	t.over, t.phase = true, v1.CheckpointPhase_CHECKPOINT_PHASE_FAILED
	h.letGo(t)
	t.writes = true
	h.sim.after(h.sim.between(0, 3*time.Second), func() {
		if t.writes = false; t.discarded {
			maps.DeleteFunc(h.takings, func(_ string, other *taking) bool { return other == t })
		}
		if h.agent != nil {
			h.report()
		}
	})
}

// loseTakings ends all checkpoints under way, because their agent has ended. Guests that stand go on.
func (h *host) loseTakings() {
	for _, id := range slices.Sorted(maps.Keys(h.takings)) {
		h.endTaking(h.takings[id], "the agent has ended")
	}
	h.takings = map[string]*taking{}
}

// mostFailures is the number of failures after which a host reports that it cannot fetch a file. It goes on trying.
const mostFailures = 5

// fetchFile fetches a file from another host, and tries again while orders ask for the file.
func (h *host) fetchFile(key fileOf, epoch uint64) {
	life := h.life
	h.sim.after(h.sim.between(100*time.Millisecond, 2*time.Second), func() {
		if h.life != life {
			return
		}
		if h.agent == nil || h.files[key] != 0 || !h.keeps[key] {
			delete(h.fetches, key)
			return
		}
		full := h.full || h.cramped
		if refuse := full || h.failures[key] >= mostFailures; refuse != h.refused[key] {
			h.refused[key] = refuse
			h.turnedDown[key] = h.turnedDown[key] || refuse
			h.report()
		}
		h.failures[key]++
		for _, name := range h.sim.names {
			if other := h.sim.hosts[name]; !full && other != h && !h.sim.apart(h, other) && other.agent != nil && other.files[key] != 0 && !other.altered[key] {
				h.files[key] = epoch
				delete(h.failures, key)
				delete(h.fetches, key)
				h.report()
				return
			}
		}
		h.sim.after(2*time.Second, func() {
			if h.life == life {
				h.fetchFile(key, epoch)
			}
		})
	})
}

// dropFile removes a file.
func (h *host) dropFile(key fileOf) {
	delete(h.files, key)
	delete(h.verified, key)
	delete(h.altered, key)
	delete(h.failures, key)
}

// readFile reports whether a file is here and whole. It removes a file that is not whole.
func (h *host) readFile(key fileOf) bool {
	if h.altered[key] {
		h.sim.tell(h.name, "the file of %s of checkpoint %s is damaged", key.guest, key.checkpoint)
		h.dropFile(key)
		h.report()
	}
	return h.files[key] != 0
}

// alterFiles damages some of the checkpoint files of a host, or of all hosts.
func (s *Sim) alterFiles(h *host, pick int) {
	for i, name := range s.names {
		if other := s.hosts[name]; other == h || pick%2 == 0 {
			keys := slices.SortedFunc(maps.Keys(other.files), compareFiles)
			for j, key := range keys {
				if pick%4 < 2 || (i+j)%2 == 0 {
					other.altered[key] = true
				}
			}
		}
	}
}

// verify reads a file again, and restores its guest on trial.
func (h *host) verify(key fileOf, w *v1.CheckpointWanted) {
	wanted := verifiedFile{w.Verify, w.Trial.GetVerification()}
	h.verifying[key] = wanted
	if wanted == h.verified[key] {
		return
	}
	life := h.life
	h.sim.after(h.sim.between(100*time.Millisecond, 2*time.Second), func() {
		if h.life != life || h.agent == nil || h.verifying[key] != wanted || !h.readFile(key) {
			return
		}
		if w.Trial != nil {
			h.hasAll(w.Trial.Restore, key.guest)
		}
		h.verified[key] = wanted
		h.report()
	})
}

// reportCheckpoints returns the part of a report about checkpoints.
func (h *host) reportCheckpoints() (list []*v1.CheckpointObserved) {
	for _, id := range slices.Sorted(maps.Keys(h.takings)) {
		t := h.takings[id]
		for _, uid := range slices.Sorted(maps.Keys(t.epochs)) {
			list = append(list, &v1.CheckpointObserved{CheckpointId: t.id, GuestUid: uid, Epoch: t.epochs[uid], Phase: t.phase, Busy: !t.over || t.writes})
		}
	}
	keys := slices.SortedFunc(maps.Keys(h.files), compareFiles)
	for _, key := range keys {
		list = append(list, &v1.CheckpointObserved{CheckpointId: key.checkpoint, GuestUid: key.guest, Epoch: h.files[key],
			Phase: v1.CheckpointPhase_CHECKPOINT_PHASE_WRITTEN, File: h.sim.fileNamed(key), Verified: h.verified[key].read, Tried: h.verified[key].tried})
	}
	refused := slices.SortedFunc(maps.Keys(h.refused), compareFiles)
	for _, key := range refused {
		if h.refused[key] && h.files[key] == 0 {
			list = append(list, &v1.CheckpointObserved{CheckpointId: key.checkpoint, GuestUid: key.guest, Phase: v1.CheckpointPhase_CHECKPOINT_PHASE_FAILED,
				Message: "there is no room"})
		}
	}
	return list
}

func compareFiles(a, b fileOf) int {
	return cmp.Or(strings.Compare(a.checkpoint, b.checkpoint), strings.Compare(a.guest, b.guest))
}

func (s *Sim) fileNamed(key fileOf) *v1.CheckpointFile {
	f := &v1.CheckpointFile{Blob: &v1.Blob{Digest: "sha256:" + key.checkpoint + key.guest, Size: 1 << 20}, StateBytes: 2 << 20}
	if base := s.bases[key]; base != "" {
		f.Base, f.Blob.Size = "sha256:"+base+key.guest, 100<<10
	}
	return f
}

// readAll reports whether the files from which a guest or a volume is restored are whole.
func (h *host) readAll(w *v1.RestoreOrder, uid string) bool {
	whole := h.hasAll(w, uid) && h.readFile(fileOf{w.CheckpointId, uid})
	for _, b := range w.Bases {
		whole = whole && h.readFile(fileOf{b.CheckpointId, uid})
	}
	return whole
}

// hasAll reports whether the files from which a guest or a volume is restored are on the host. The orders must name all
// these files.
func (h *host) hasAll(w *v1.RestoreOrder, uid string) bool {
	named := map[string]bool{w.CheckpointId: true}
	has := h.files[fileOf{w.CheckpointId, uid}] != 0
	for _, b := range w.Bases {
		named[b.CheckpointId] = true
		has = has && h.files[fileOf{b.CheckpointId, uid}] != 0
	}
	for id := w.CheckpointId; id != ""; id = h.sim.bases[fileOf{id, uid}] {
		if !named[id] {
			h.sim.violate("%s is restored from checkpoint %s without %s, on which it builds", uid, w.CheckpointId, id)
		}
	}
	return has
}

// lacks reports whether the host refuses to fetch a file from which a guest is restored.
func (h *host) lacks(w *v1.RestoreOrder, uid string) bool {
	refuses := func(checkpoint string) bool {
		key := fileOf{checkpoint, uid}
		return h.refused[key] && h.files[key] == 0
	}
	return refuses(w.CheckpointId) || slices.ContainsFunc(w.Bases, func(b *v1.BaseFile) bool { return refuses(b.CheckpointId) })
}

// restore creates a paused copy from a file.
func (h *host) restore(a machine.Act, end func(machine.Result)) {
	r := h.records[a.Guest]
	if r == nil || r.Epoch != a.Wanted.Epoch || r.Phase != machine.PhaseReserved {
		h.sim.violate("host %s restores guest %s at epoch %d without a record of it: %+v", h.name, a.Name, a.Wanted.Epoch, r)
	}
	key := fmt.Sprint(h.name, "/", h.powers, "/", a.Guest)
	h.sim.creates[key]++
	h.call(200*time.Millisecond, func() error {
		if h.copies[a.Guest] != nil {
			return errDuplicate
		}
		if !h.readAll(a.Wanted.Restore, a.Guest) {
			return errInput
		}
		c := &copyOf{uid: a.Guest, name: a.Name, epoch: a.Wanted.Epoch, state: domain.Paused, whole: true, saved: true}
		if err := h.opens(c, a.Wanted.Volume); err != nil {
			return err
		}
		if c.disk != "" {
			c.line = a.Wanted.Restore.Id
		}
		h.copies[a.Guest] = c
		h.event(a.Guest)
		return nil
	}, func(f fate) { end(machine.Result{Err: f.err, Uncertain: f.uncertain}) }, func() { h.sim.creates[key]-- })
}

// checkpointKey stands for the key pair of a cluster or a volume.
var checkpointKey = core.CheckpointKey{Secret: "secret", Recipient: "public"}

// createCheckpoint asks for a checkpoint of a cluster, or for a snapshot of a volume.
func (s *Sim) createCheckpoint(pick int) {
	if v := pickOf(s.store.objects.Volumes, pick/4); v != nil && pick%4 == 0 {
		s.admit(func(a *core.Admission) (core.Change, error) {
			change, _, err := a.CreateCheckpoint(&v1.CreateCheckpointRequest{Volume: v.Meta.Name}, checkpointKey)
			return change, err
		})
	} else if c := pickOf(s.store.objects.Clusters, pick); c != nil {
		s.admit(func(a *core.Admission) (core.Change, error) {
			change, _, err := a.CreateCheckpoint(&v1.CreateCheckpointRequest{Cluster: c.Meta.Name}, checkpointKey)
			return change, err
		})
	}
}

// restoreCheckpoint asks for a cluster to go back to its latest checkpoint. The work of its guests since then is lost.
func (s *Sim) restoreCheckpoint(pick int) {
	switch pick % 4 {
	case 0:
		s.restoreVolume(pick / 4)
		return
	case 1:
		if c := pickOf(s.store.objects.Checkpoints, pick/4); c != nil {
			s.admit(func(a *core.Admission) (core.Change, error) { return a.VerifyCheckpoint(c.Meta.Name) })
		}
		return
	}
	c := pickOf(s.store.objects.Clusters, pick)
	if c == nil || s.restored && !s.recovered {
		return
	}
	granted := s.admit(func(a *core.Admission) (core.Change, error) {
		change, _, err := a.RestoreCheckpoint(c.Meta.Name)
		return change, err
	})
	if granted {
		for _, g := range core.GuestsOf(s.store.objects, c.Meta.Name) {
			s.stopped[g.Meta.Uid], s.intent[g.Meta.Uid] = g.LastEpoch, true
		}
	}
}

// checkCheckpoints checks the checkpoints that a change ends as done: all guests stood before the first state was taken, and
// each stood until its own state was. It also checks clusters that go on: all guests go on from the same checkpoint.
func (s *Sim) checkCheckpoints(before, now *core.Objects) {
	for name, c := range now.Checkpoints {
		was := before.Checkpoints[name]
		if c.State != v1.CheckpointState_CHECKPOINT_STATE_DONE || was == nil || was.State == c.State {
			continue
		}
		seen := s.cut(c.Meta.Uid)
		var last, first time.Time
		for _, m := range c.Members {
			stopped, taken := seen.stopped[m.GuestUid], seen.taken[m.GuestUid]
			if stopped.IsZero() || taken.IsZero() {
				s.violate("checkpoint %s is done, and guest %s was not saved", name, m.Guest)
			}
			if last.IsZero() || stopped.After(last) {
				last = stopped
			}
			if first.IsZero() || taken.Before(first) {
				first = taken
			}
		}
		if first.Before(last) {
			s.violate("checkpoint %s is no consistent cut: a guest was saved before another one stood", name)
		}
		if v := c.Volume; v != nil && len(c.Members) > 0 {
			if copied := seen.taken[v.GuestUid]; copied.Before(last) || copied.After(first) {
				s.violate("checkpoint %s is no consistent cut: the copy of volume %s was begun while a guest ran", name, v.Guest)
			}
		}
	}
	for name, c := range before.Checkpoints {
		if now.Checkpoints[name] != nil || s.restored {
			continue
		}
		for other, o := range now.Checkpoints {
			for _, m := range checkpoint.Files(o) {
				of := now.Clusters[o.Cluster].GetMeta()
				wanted := of.GetUid() == o.ClusterUid
				if o.Cluster == "" {
					of = now.Volumes[o.Volume.GetGuest()].GetMeta()
					wanted = of.GetUid() == o.Volume.GetGuestUid()
				}
				if s.bases[fileOf{o.Meta.Uid, m.GuestUid}] == c.Meta.Uid && o.State == v1.CheckpointState_CHECKPOINT_STATE_DONE && wanted && of.GetDeleting() == nil {
					s.violate("checkpoint %s is deleted, and %s builds on it", name, other)
				}
			}
		}
	}
	for name, c := range now.Clusters {
		was := before.Clusters[name]
		if was == nil || c.GetRestore().GetState() != v1.RestoreState_RESTORE_STATE_DONE || was.GetRestore().GetState() == v1.RestoreState_RESTORE_STATE_DONE {
			continue
		}
		for _, g := range core.GuestsOf(now, name) {
			if g.Host == "" && g.Meta.Deleting == nil && !s.restored {
				s.violate("cluster %s goes on from checkpoint %s, and guest %s has no host", name, c.Restore.Checkpoint, g.Meta.Name)
			}
			if h := s.hosts[g.Host]; h != nil && h.copies[g.Meta.Uid] != nil && !h.copies[g.Meta.Uid].saved && !s.restored {
				s.violate("cluster %s goes on from checkpoint %s, and guest %s was not restored", name, c.Restore.Checkpoint, g.Meta.Name)
			}
		}
	}
}

// withoutCopies names a file of a checkpoint that lacks copies although a host could keep one; empty: there is none.
func (s *Sim) withoutCopies(c *v1.Checkpoint) string {
	for _, m := range checkpoint.Files(c) {
		hosts := m.File.GetHosts()
		if len(hosts) == 0 || len(hosts) >= core.CopiesOf(c) {
			continue
		}
		key := fileOf{c.Meta.Uid, m.GuestUid}
		for _, name := range s.names {
			if o := s.store.objects.Hosts[name]; o != nil && !o.Draining && !slices.Contains(hosts, name) && !s.hosts[name].turnedDown[key] {
				return "the file of " + m.Guest + ", which host " + name + " could keep"
			}
		}
	}
	return ""
}
