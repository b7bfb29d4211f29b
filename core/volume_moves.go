package core

// volume_moves.go - moves of volumes to other hosts, while clusters use them. docs/design/volumes.md describes the hand-over
// and why it loses no write.

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "watari/api/watariv1"
	"watari/checkpoint"
	"watari/policy"
)

// retryVolumeMove is the pause before a volume on a host that is emptied is moved again after a move of it has failed.
const retryVolumeMove = time.Minute

// handOverMost is how much of a copy may be missing while its volume is handed over, in bytes. The guests of the volume cannot move
// meanwhile.
const handOverMost = 256 << 20

// volumeMoves reports whether a move of a volume has not ended.
func volumeMoves(v *v1.Volume) bool {
	state := v.GetMove().GetState()
	return state == v1.VolumeMoveState_VOLUME_MOVE_STATE_COPYING || handsOver(v)
}

// handsOver reports whether a volume's host may give the disk up.
func handsOver(v *v1.Volume) bool {
	return v.GetMove().GetState() == v1.VolumeMoveState_VOLUME_MOVE_STATE_HANDING_OVER
}

// volumeHosts returns the hosts that have orders about a volume.
func volumeHosts(v *v1.Volume) []string {
	if volumeMoves(v) {
		return []string{v.Host, v.Move.Target}
	}
	return []string{v.Host}
}

// VolumesLeft returns the volumes that are still on a host that is emptied, by name: with their files, or because they move
// there. A volume that is being deleted is not among them.
func VolumesLeft(s *Objects, r Reports, host string) (list []*v1.HostVolume) {
	report, _, _ := r.Observed(host)
	for _, name := range sortedKeys(s.Volumes) {
		v := s.Volumes[name]
		seen, m := volumeOn(report, v.Meta.Uid), v.Move
		if v.Meta.Deleting != nil || seen == nil && !slices.Contains(volumeHosts(v), host) {
			continue
		}
		left := &v1.HostVolume{Name: name}
		switch {
		case volumeMoves(v) && v.Host == host:
			left.Message = strings.TrimSuffix(fmt.Sprintf("moves to host %s: %s", m.Target, m.Message), ": ")
		case volumeMoves(v) && m.Target == host:
			left.Message = "stops moving here from host " + v.Host
		case v.Host != host:
			left.Message = "is on host " + v.Host + "; the old disk is not deleted yet"
		case v.State == v1.VolumeState_VOLUME_STATE_READY && v.Message != "":
			left.Stays, left.Message = true, v.Message
		case !seen.GetReady():
			left.Message = "waits until it is served: " + cmp.Or(v.Message, seen.GetMessage(), "host "+host+" does not serve it")
		case m.GetState() == v1.VolumeMoveState_VOLUME_MOVE_STATE_FAILED && m.Source == host:
			left.Message = fmt.Sprintf("has not moved to host %s, which will be tried again: %s", m.Target, m.Message)
		default:
			left.Message = "is about to move"
		}
		list = append(list, left)
	}
	return list
}

// newVolumeMove returns the beginning of a move of a volume.
func newVolumeMove(v *v1.Volume, target, reason string, now time.Time) *v1.VolumeMove {
	return &v1.VolumeMove{Id: fmt.Sprintf("%s@%s", v.Meta.Uid, now.UTC().Format("20060102T150405.000000000")), Source: v.Host, Target: target,
		State: v1.VolumeMoveState_VOLUME_MOVE_STATE_COPYING, Reason: reason, Generation: NextGeneration(v.Generation, now), Asked: timestamppb.New(now)}
}

// endVolumeMove ends the move of a volume, if one is under way.
func endVolumeMove(c *Change, update *v1.Volume, state v1.VolumeMoveState, why string, now time.Time) {
	if !volumeMoves(update) {
		return
	}
	m := update.Move
	m.State, m.Message, m.Ended = state, why, timestamppb.New(now)
	switch state {
	case v1.VolumeMoveState_VOLUME_MOVE_STATE_DONE:
		c.event(v1.Severity_SEVERITY_INFO, "volume", update.Meta.Name, "has moved from host %s to host %s", m.Source, m.Target)
	case v1.VolumeMoveState_VOLUME_MOVE_STATE_CANCELLED:
		c.event(v1.Severity_SEVERITY_INFO, "volume", update.Meta.Name, "stays on host %s: its move to host %s was cancelled", update.Host, m.Target)
	default:
		c.event(v1.Severity_SEVERITY_WARNING, "volume", update.Meta.Name, "has not moved to host %s: %s", m.Target, why)
	}
}

// copyOn returns a host's report of a copy of a volume; nil: none.
func copyOn(report *v1.HostObserved, uid string) *v1.VolumeCopyObserved {
	for _, o := range report.GetVolumeCopies() {
		if o.Uid == uid {
			return o
		}
	}
	return nil
}

// moveVolume takes a step for a volume that moves. It reports whether that changed the volume's record.
//
// While the source has not reported that it has given the disk up in this move, its disk is the volume, and only the source
// serves it. When the source has reported that, the copy is complete, and the target becomes the volume's host. The move ends
// otherwise only when the source has reported, under orders that do not let it give the disk up, that it has not done so.
func (p *pass) moveVolume(c *Change, v, update *v1.Volume) bool {
	m := update.Move
	report, _, connected := p.Observed(v.Host)
	seen := volumeOn(report, v.Meta.Uid)
	given, sending := seen.GetGivenUp(), seen.GetSending()
	if given.GetMove() == m.Id && p.present(m.Target, given.GetTargetUid()) {
		m.Copy, m.Restored = given.GetCopy(), given.GetRestored()
		update.Host, update.State, update.Message = m.Target, v1.VolumeState_VOLUME_STATE_READY, ""
		update.Generation = max(v.Generation+1, m.Generation)
		m.Generation = update.Generation
		c.write(Expect, p.Hosts[m.Target])
		endVolumeMove(c, update, v1.VolumeMoveState_VOLUME_MOVE_STATE_DONE, "", p.Now)
		return true
	}
	targetReport, _, targetConnected := p.Observed(m.Target)
	made := copyOn(targetReport, v.Meta.Uid)
	ready := targetConnected && made.GetReady() && made.Move == m.Id
	state, why := p.volumeMoveEnds(v, seen, made)
	settled := connected && p.current(v.Host) && (sending.GetMove() != m.Id || !sending.HandsOver)
	switch {
	case handsOver(v) && (why != "" || !ready || made.Copy != m.Copy):
		m.State, m.Message = v1.VolumeMoveState_VOLUME_MOVE_STATE_COPYING, cmp.Or(why, fmt.Sprintf("host %s is not ready for the copy", m.Target))
	case handsOver(v) && settled && sending.GetMove() == m.Id && !sending.Ready &&
		(sending.Message != "" || sending.TotalBytes > sending.CopiedBytes+handOverMost): // it has failed, or guests write too much
		m.State, m.Message = v1.VolumeMoveState_VOLUME_MOVE_STATE_COPYING, sending.Message
	case handsOver(v):
		m.Message = "host " + v.Host + " completes the copy"
	case why != "" && (p.Hosts[v.Host] == nil || settled):
		if made.GetFailed() || sending.GetFailed() {
			p.noRoom[copyKey(m.Target, "", v.Meta.Uid)] = p.Now.Add(noRoomFor)
		}
		endVolumeMove(c, update, state, why, p.Now)
	case why != "":
		m.Message = fmt.Sprintf("%s; waits for host %s to keep the volume", why, v.Host)
	case !ready:
		m.Copy, m.Message = "", cmp.Or(made.GetMessage(), fmt.Sprintf("waits for host %s", m.Target))
	case made.Copy != m.Copy:
		m.Copy, m.Message = made.Copy, ""
	case sending.GetMove() != m.Id || sending.Copy != m.Copy || !sending.Ready:
		m.Message = sending.GetMessage()
	default:
		if m.Message = p.holdsHandOver(v); m.Message == "" && settled {
			m.State = v1.VolumeMoveState_VOLUME_MOVE_STATE_HANDING_OVER
		}
	}
	return !proto.Equal(update, v)
}

// volumeMoveEnds says why a move of a volume has to end before the volume has moved; empty: it goes on. made is the copy on the
// target.
func (p *pass) volumeMoveEnds(v *v1.Volume, seen *v1.VolumeObserved, made *v1.VolumeCopyObserved) (state v1.VolumeMoveState, why string) {
	m, target := v.Move, p.Hosts[v.Move.Target]
	targetReport, _, _ := p.Observed(m.Target)
	state = v1.VolumeMoveState_VOLUME_MOVE_STATE_FAILED
	switch old := volumeOn(targetReport, v.Meta.Uid); {
	case m.Cancel:
		return v1.VolumeMoveState_VOLUME_MOVE_STATE_CANCELLED, "it was cancelled"
	case v.Meta.Deleting != nil:
		return v1.VolumeMoveState_VOLUME_MOVE_STATE_CANCELLED, "the volume is being deleted"
	case p.volumeRestoredFrom(v) != nil:
		return v1.VolumeMoveState_VOLUME_MOVE_STATE_CANCELLED, "the volume is being restored"
	case p.Hosts[v.Host] == nil:
		why = fmt.Sprintf("host %s was removed", v.Host)
	case v.State == v1.VolumeState_VOLUME_STATE_LOST:
		why = fmt.Sprintf("host %s has no disk of it", v.Host)
	case target == nil || target.Meta.Deleting != nil || seen.GetGivenUp().GetMove() == m.Id: // the last to another host of this name
		why = fmt.Sprintf("host %s was removed", m.Target)
	case emptied(target) != "":
		why = fmt.Sprintf("host %s is being %s", m.Target, emptied(target))
	case cutOff(target) != nil:
		why = fmt.Sprintf("host %s is cut off", m.Target)
	case old != nil:
		why = fmt.Sprintf("host %s has an older disk of it", m.Target)
	case seen.GetSending().GetMove() == m.Id && seen.Sending.Failed:
		why = fmt.Sprintf("host %s cannot send it: %s", v.Host, seen.Sending.Message)
	case made.GetMove() == m.Id && made.Failed:
		why = fmt.Sprintf("host %s cannot take it: %s", m.Target, made.Message)
	}
	return state, why
}

// present reports whether a host exists and is not being removed.
func (p *pass) present(host, uid string) bool {
	h := p.Hosts[host]
	return h != nil && h.Meta.Uid == uid && h.Meta.Deleting == nil
}

// holdsHandOver says why a volume cannot be handed over now; empty: it can. Guests wait for the disk during the hand-over, so
// none of them moves or is saved meanwhile.
func (p *pass) holdsHandOver(v *v1.Volume) string {
	cluster := p.Clusters[v.Cluster]
	report, _, _ := p.Observed(v.Host)
	if c := p.unfinishedCheckpoint(v); c != nil && checkpoint.HoldsMoves(c.State) {
		return "waits for snapshot " + c.Meta.Name
	}
	if slices.ContainsFunc(report.GetCheckpoints(), func(o *v1.CheckpointObserved) bool { return o.GuestUid == v.Meta.Uid && o.Busy }) {
		return "waits until host " + v.Host + " has written a checkpoint"
	}
	if cluster == nil {
		return ""
	}
	if c := p.unfinishedCheckpoint(cluster); c != nil && checkpoint.HoldsMoves(c.State) {
		return "waits for checkpoint " + c.Meta.Name
	}
	for _, g := range p.index.guestsOf(v.Cluster) {
		if m := p.index.moves[g.Meta.Uid]; m != nil && m.State != v1.MigrationState_MIGRATION_STATE_PENDING && volumeOf(p.Objects, g) == v {
			return "waits until guest " + g.Meta.Name + " has moved"
		}
	}
	return ""
}

// heldByVolume reports whether a guest's volume keeps the guest from beginning to move: it is handed over, or QEMU at the target
// could not open the disk.
func (p *pass) heldByVolume(g *v1.Guest) bool {
	v := volumeOf(p.Objects, g)
	return v != nil && (handsOver(p.working.Volumes[v.Meta.Name]) || p.laterElsewhere(v))
}

// takeVolumeBack lets a volume's host serve a disk again that it has given up in a move that did not end with the volume on
// the target. The host on which the volume would be must have no disk and no copy of it: then it has never served the volume.
func (p *pass) takeVolumeBack(v, update *v1.Volume) {
	report, _, _ := p.Observed(v.Host)
	given := volumeOn(report, v.Meta.Uid).GetGivenUp()
	if given == nil || given.Move == v.TakeBack || volumeMoves(v) || !p.current(v.Host) || !p.complete() || p.Objects.Held() {
		return
	}
	targetReport, _, _ := p.Observed(given.Target)
	o := volumeOn(targetReport, v.Meta.Uid)
	switch {
	case p.present(given.Target, given.TargetUid) && (!p.current(given.Target) || copyOn(targetReport, v.Meta.Uid) != nil || o != nil && p.sealed(given.Target, o)):
		return
	case !p.present(given.Target, given.TargetUid) && p.Removed[given.TargetUid] == nil:
		return // an older copy of the store was put back, and does not know that host yet
	case v.Move.GetId() != given.Move && slices.ContainsFunc(sortedKeys(p.Hosts), func(host string) bool { return !p.current(host) }):
		return // the same, and the volume may have moved on to another host, which would report it
	}
	update.TakeBack = given.Move
	update.Generation = NextGeneration(v.Generation, p.Now) // the target's disk, if it comes back, is an earlier one
}

// emptied says why volumes leave a host: it is "drained" or "maintained", so it may be switched off. Empty: they may stay.
// They stay if the owner comes back: they need little of the host, and copying them would need more.
func emptied(h *v1.Host) string {
	switch {
	case h.GetDraining():
		return "drained"
	case policy.Withdrawn(h, policy.MaintenanceName) != nil:
		return "maintained"
	}
	return ""
}

// mayStay says why a volume stays on a host that is emptied: maintenance moves nothing in quiet hours, and no volume of a guest
// that it must not move. Empty: the volume must leave.
func (p *pass) mayStay(v *v1.Volume, h *v1.Host) string {
	if emptied(h) != "maintained" {
		return ""
	}
	bounds := p.boundsOf(policy.MaintenanceName)
	if bounds == nil {
		return "the policy no longer says so"
	}
	user := &v1.Guest{Meta: &v1.Meta{}} // of a volume that no guest has
	for g := range p.index.ofCluster[v.Cluster] {
		if volumeOf(p.Objects, g) == v {
			user = g
		}
	}
	why, _ := mustStay(p.Core.policies.policy, policy.MaintenanceName, bounds, user, nil, p.Now)
	return why
}

// moveVolumeAway begins to move a volume from a host that is to be empty. If it cannot, the volume's message says why it stays.
func (p *pass) moveVolumeAway(c *Change, v, update *v1.Volume) {
	host := p.Hosts[v.Host]
	report, _, connected := p.Observed(v.Host)
	if v.State != v1.VolumeState_VOLUME_STATE_READY || v.Meta.Deleting != nil || volumeMoves(v) || p.volumeRestoredFrom(v) != nil {
		return
	}
	leave := emptied(host)
	if leave == "" || host.Meta.Deleting != nil {
		update.Message = ""
		return
	}
	if why := p.mayStay(v, host); why != "" {
		update.Message = "stays on host " + v.Host + ", which is " + leave + ": " + why
		return
	}
	if !connected || !volumeOn(report, v.Meta.Uid).GetReady() {
		return
	}
	if ended := v.Move.GetEnded(); ended != nil && v.Move.State != v1.VolumeMoveState_VOLUME_MOVE_STATE_DONE && p.Now.Before(ended.AsTime().Add(retryVolumeMove)) {
		p.again = earlier(p.again, ended.AsTime().Add(retryVolumeMove))
		return
	}
	target, why := "", "the agent of that host is of an older version"
	if report.GetMovesVolumes() {
		target, why = p.volumeHost(v, true)
	}
	if target == "" {
		if m := v.Move; m.GetState() == v1.VolumeMoveState_VOLUME_MOVE_STATE_FAILED && m.Source == v.Host {
			why += "; its last move failed: " + m.Message
		}
		update.Message = "stays on host " + v.Host + ", which is " + leave + ": " + why
		return
	}
	update.Message = ""
	update.Move = newVolumeMove(v, target, "host "+v.Host+" is being "+leave, p.Now)
	c.write(Expect, host)
	c.write(Expect, p.Hosts[target])
	c.event(v1.Severity_SEVERITY_INFO, "volume", v.Meta.Name, "moves from host %s to host %s: %s", v.Host, target, update.Move.Reason)
}

// moveOrders adds the order of a move to the order of a volume's host.
func (p *pass) moveOrders(w *v1.VolumeWanted, v *v1.Volume) {
	m := v.Move
	w.TakeBack = v.TakeBack
	switch {
	case m.GetState() == v1.VolumeMoveState_VOLUME_MOVE_STATE_DONE && m.Target == v.Host && m.Generation == v.Generation:
		w.Adopt = &v1.VolumeAdoption{Copy: m.Copy, Restored: m.Restored}
	case volumeMoves(v) && m.Copy != "" && !m.Cancel && w.Restore == nil && !w.Discard && p.Hosts[m.Target] != nil:
		w.Send = &v1.VolumeTransfer{Move: m.Id, Host: blobPeers(p.Objects, []string{m.Target})[0], Copy: m.Copy, HandOver: handsOver(v)}
	}
}

// receiveOrder returns the order of the target of a volume's move; nil: none.
func (p *pass) receiveOrder(v *v1.Volume) *v1.VolumeWanted {
	if p.Hosts[v.Host] == nil {
		return nil
	}
	return &v1.VolumeWanted{Uid: v.Meta.Uid, Receive: &v1.VolumeTransfer{Move: v.Move.Id, Host: blobPeers(p.Objects, []string{v.Host})[0]},
		Facts: &v1.VolumeFacts{Name: v.Meta.Name, Owner: v.Meta.Owner, OwnerUid: v.Meta.OwnerUid, SizeBytes: v.SizeBytes, Generation: v.Move.Generation}}
}

// dropCopies adds a host's orders to delete its copies of volumes that are not needed any more. Such a copy has never been
// served. The volume's disk is on another host, or this host has adopted another copy.
func (p *pass) dropCopies(host string, list []*v1.VolumeWanted) []*v1.VolumeWanted {
	report, _, _ := p.Observed(host)
	waits := map[string]bool{}
	for v := range p.index.volumesAt[host] {
		waits[v.Meta.Uid] = p.outdated(v) != ""
	}
	for _, o := range report.GetVolumeCopies() {
		i := slices.IndexFunc(list, func(w *v1.VolumeWanted) bool { return w.Uid == o.Uid })
		switch {
		case o.Copy == "": // it could not be made
		case waits[o.Uid]: // the store may not know what the copy is for
		case i < 0:
			list = append(list, &v1.VolumeWanted{Uid: o.Uid, Drop: o.Copy})
		case list[i].Receive.GetMove() != o.Move && list[i].Adopt.GetCopy() != o.Copy:
			list[i].Drop = o.Copy
		}
	}
	return list
}
