package sim

// volume_moves.go - moves of volumes: the copies that hosts send and receive, and the invariant that a guest never uses a disk
// that lacks what the guest has written.

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"watari/agent/domain"
	v1 "watari/api/watariv1"
	"watari/core"
)

// content is what is on a disk.
type content struct {
	// line identifies the history of the content. It changes when the disk is put back to a checkpoint; then a guest's memory
	// may belong to another line.
	line     string
	written  int // writes in this line
	restored []string
}

// received is a copy of a volume's disk that another host sends, or has sent.
type received struct {
	content
	move, copy string
	ready      bool
}

// sending is the copying of a disk to another host.
type sending struct {
	order    *v1.VolumeTransfer
	ready    bool
	handing  bool // the disk is closed to guests
	again    bool // the next attempt is planned
	failures int
}

// sendFailures is the number of failures after which a host says that it cannot send a volume.
const sendFailures = 5

func sameTransfer(a, b *v1.VolumeTransfer) bool {
	return a.GetMove() == b.GetMove() && a.GetCopy() == b.GetCopy() && a.GetHost().GetName() == b.GetHost().GetName()
}

// workOnCopies follows the orders about copies that other hosts send.
func (h *host) workOnCopies() {
	for _, uid := range slices.Sorted(maps.Keys(h.volumeOrders)) {
		w, r := h.volumeOrders[uid], h.received[uid]
		switch {
		case h.copyWork[uid]:
		case r != nil && w.Drop != "" && w.Drop == r.copy:
			h.onCopy(uid, func() {
				if h.received[uid] == r {
					h.sim.checkDrop(h, uid, r)
					delete(h.received, uid)
				}
			})
		case w.Receive == nil:
		case r == nil:
			h.onCopy(uid, func() {
				if w := h.volumeOrders[uid]; h.received[uid] == nil && w.GetReceive() != nil {
					h.received[uid] = &received{move: w.Receive.Move, copy: h.sim.store.uid(), content: content{line: "empty"}}
				}
			})
		case r.move == w.Receive.Move && !r.ready:
			h.onCopy(uid, func() { r.ready = true })
		}
	}
}

// onCopy does something with the copy of a volume after a delay, unless the agent has ended meanwhile.
func (h *host) onCopy(uid string, do func()) {
	h.work(h.copyWork, uid, h.sim.between(10*time.Millisecond, time.Second), func() {
		if !h.full {
			do()
			h.report()
		}
	})
}

// sends follows the order to send a disk that is served, or that is being handed over.
func (h *host) sends(uid string, w *v1.VolumeWanted, d *disk) {
	if d.sending != nil && !sameTransfer(d.sending.order, w.Send) {
		d.sending = nil
		h.report()
	}
	if w.Send == nil {
		return
	}
	if d.sending == nil {
		d.sending = &sending{order: w.Send}
		h.report()
	}
	switch s := d.sending; {
	case s.handing || s.again:
	case !s.ready:
		s.again = true
		h.later(d, s, h.sim.between(100*time.Millisecond, 8*time.Second), func() {
			s.again = false
			if s.ready = h.reachesCopy(uid, s.order) != nil; !s.ready {
				h.sendFailed(s)
			} else {
				s.failures = 0
			}
		})
	case w.Send.HandOver && d.served:
		h.handsOver(uid, d, s)
	}
}

// later does something about a copy that is being sent after a delay, unless the agent or the order has ended meanwhile.
func (h *host) later(d *disk, s *sending, delay time.Duration, do func()) {
	life := h.life
	h.sim.after(delay, func() {
		if h.life == life && h.agent != nil && d.sending == s {
			do()
			h.report()
			h.workOnVolumes()
		}
	})
}

// handsOver closes a disk, completes its copy, and records that the disk was given up.
func (h *host) handsOver(uid string, d *disk, s *sending) {
	s.handing, d.served = true, false
	h.sim.tell(h.name, "volume %s is closed, to be handed over to %s", uid, s.order.Host.Name)
	h.report()
	life := h.life
	fail := func() {
		h.sendFailed(s)
		h.report()
		h.workOnVolumes()
	}
	lives := func() bool { return h.life == life && h.agent != nil && h.disks[uid] == d }
	h.sim.after(h.sim.between(10*time.Millisecond, 2*time.Second), func() {
		if !lives() {
			return
		}
		r := h.reachesCopy(uid, s.order)
		if r == nil {
			fail()
			return
		}
		r.content = d.content
		r.restored = slices.Clone(d.restored)
		h.sim.after(h.sim.between(0, 300*time.Millisecond), func() {
			w := h.volumeOrders[uid]
			switch {
			case !lives():
			case h.full || !sameTransfer(w.GetSend(), s.order) || !w.Send.HandOver || w.Restore != nil:
				fail()
			default:
				d.sending = nil
				d.givenUp = &v1.VolumeGivenUp{Move: s.order.Move, Copy: s.order.Copy, Target: s.order.Host.Name, TargetUid: s.order.Host.Uid, Restored: d.restored}
				h.sim.count("volume given up")
				h.sim.tell(h.name, "volume %s is given up to %s", uid, s.order.Host.Name)
				h.report()
			}
		})
	})
}

func (h *host) sendFailed(s *sending) {
	s.ready, s.handing = false, false
	s.failures++
}

// reachesCopy returns the copy that a host can send a volume to; nil: none.
func (h *host) reachesCopy(uid string, order *v1.VolumeTransfer) *received {
	target := h.sim.hosts[order.Host.Name]
	if target == nil || !target.up || target.agent == nil || target.full || h.sim.apart(h, target) || !h.up {
		return nil
	}
	w, r := target.volumeOrders[uid], target.received[uid]
	if r == nil || !r.ready || r.move != order.Move || r.copy != order.Copy || w.GetReceive().GetHost().GetName() != h.name {
		return nil
	}
	return r
}

// adopts makes a copy the volume's disk.
func (h *host) adopts(uid string, w *v1.VolumeWanted) {
	r, d := h.received[uid], h.disks[uid]
	if r == nil || r.copy != w.Adopt.Copy || d != nil && d.facts.Generation >= w.Facts.Generation {
		return
	}
	r.restored = w.Adopt.Restored
	h.disks[uid] = &disk{facts: w.Facts, content: r.content}
	delete(h.received, uid)
	h.sim.count("volume moved")
	h.sim.tell(h.name, "volume %s is taken over", uid)
}

// reportCopies returns the part of a report about copies that other hosts send.
func (h *host) reportCopies() (list []*v1.VolumeCopyObserved) {
	for _, uid := range slices.Sorted(maps.Keys(h.received)) {
		r := h.received[uid]
		list = append(list, &v1.VolumeCopyObserved{Uid: uid, Move: r.move, Copy: r.copy, Ready: r.ready})
	}
	return list
}

// reportMove adds to the report of a disk what concerns its move.
func (d *disk) reportMove(o *v1.VolumeObserved) {
	if s := d.sending; s != nil {
		o.Sending = &v1.VolumeSending{Move: s.order.Move, Copy: s.order.Copy, Ready: s.ready, HandsOver: s.handing, Failed: s.failures >= sendFailures}
	}
	if d.givenUp != nil {
		o.GivenUp = proto.CloneOf(d.givenUp)
	}
}

// acked is what the user of a volume has written.
type acked struct {
	line    string
	written int
}

// write makes each running guest write to its disk. The disk must have all that the guest has written before.
func (s *Sim) write() {
	for _, name := range s.names {
		h := s.hosts[name]
		for _, c := range h.live() {
			if c.disk == "" || c.state != domain.Running || h.vouched || h.late(c) || s.tainted[c.uid] {
				continue
			}
			d := s.reach(h, c.disk, c.diskAt)
			if d == nil {
				continue
			}
			if before := s.acked[c.disk]; before.line == d.line && d.written < before.written {
				s.violate("guest %s has written to volume %s %d times, and host %s serves a disk with %d writes", c.name, c.disk, before.written, c.diskAt, d.written)
			}
			d.written++
			s.acked[c.disk] = acked{d.line, d.written}
		}
	}
}

// keepWriting makes guests write every now and then.
func (s *Sim) keepWriting() {
	s.write()
	s.after(s.between(100*time.Millisecond, 500*time.Millisecond), s.keepWriting)
}

// checkDrop checks that a copy may be deleted: another host has a disk of the volume.
func (s *Sim) checkDrop(h *host, uid string, r *received) {
	if s.unwantedVolumes[uid] || r.line == "empty" || r.line != s.acked[uid].line || r.written < s.acked[uid].written {
		return
	}
	for _, name := range s.names {
		if d := s.hosts[name].disks[uid]; d != nil && d.line == r.line && d.written >= s.acked[uid].written {
			return
		}
	}
	s.violate("host %s drops the only copy of volume %s that has all writes", h.name, uid)
}

// moveVolume asks for a volume's move to another host.
func (s *Sim) moveVolume(pick int) {
	v := pickOf(s.store.objects.Volumes, pick)
	if v == nil {
		return
	}
	if !s.writing {
		s.writing = true
		s.keepWriting()
	}
	s.admit(func(a *core.Admission) (core.Change, error) {
		i := pick / 7 % len(s.names)
		if s.names[i] == v.Host && pick%5 > 0 {
			i = (i + 1) % len(s.names)
		}
		return a.MoveVolume(&v1.MoveVolumeRequest{Name: v.Meta.Name, Host: s.names[i]})
	})
}

// cancelVolumeMove asks for a volume's move to be cancelled.
func (s *Sim) cancelVolumeMove(pick int) {
	moving := map[string]*v1.Volume{}
	for name, v := range s.store.objects.Volumes {
		if v.Move != nil && v.Move.Ended == nil {
			moving[name] = v
		}
	}
	if v := pickOf(moving, pick); v != nil {
		s.admit(func(a *core.Admission) (core.Change, error) {
			return a.MoveVolume(&v1.MoveVolumeRequest{Name: v.Meta.Name, Cancel: true})
		})
	}
}

// unsettledMove says what has not settled of a volume's move; empty: all has.
func (s *Sim) unsettledMove(v *v1.Volume) string {
	if v.Move != nil && v.Move.Ended == nil && !s.claimedByItsHost(v.Meta.Uid) { // such a host sends nothing
		return fmt.Sprintf("it moves to host %s: %s", v.Move.Target, v.Move.Message)
	}
	if h := s.hosts[v.Host]; h != nil && s.store.objects.Hosts[v.Host] != nil && h.disks[v.Meta.Uid] != nil && h.disks[v.Meta.Uid].givenUp != nil {
		return fmt.Sprintf("host %s has given it up to host %s", v.Host, h.disks[v.Meta.Uid].givenUp.Target)
	}
	return ""
}
