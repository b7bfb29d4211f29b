package core

// restores.go - lets clusters go on from a checkpoint. All copies of the guests end first. Then hosts restore the guests under
// new epochs, and leave them paused. When all are there, their grants let them run.

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "watari/api/watariv1"
	"watari/checkpoint"
	"watari/compatibility"
	"watari/placement"
)

// ending reports whether the copies of a cluster's guests have to end before the cluster is restored.
func ending(c *v1.Cluster) bool {
	return c.GetRestore().GetState() == v1.RestoreState_RESTORE_STATE_ENDING
}

// restoring reports whether a cluster is being restored, so that its guests must not run, or a volume, so that nobody may
// use it.
func restoring(of origin) bool {
	state := of.GetRestore().GetState()
	return state == v1.RestoreState_RESTORE_STATE_ENDING || state == v1.RestoreState_RESTORE_STATE_RESTORING
}

// restoredFrom returns the checkpoint from which a guest is being restored; nil: none.
func (p *pass) restoredFrom(g *v1.Guest) *v1.Checkpoint {
	return p.beingRestoredFrom(p.Clusters[g.Cluster])
}

// beingRestoredFrom returns the checkpoint to which a cluster or a volume is put back now; nil: none.
func (p *pass) beingRestoredFrom(of origin) *v1.Checkpoint {
	restore := of.GetRestore()
	if restore.GetState() != v1.RestoreState_RESTORE_STATE_RESTORING {
		return nil
	}
	if c := p.Checkpoints[restore.Checkpoint]; c != nil && c.Meta.Uid == restore.CheckpointUid {
		return c
	}
	return nil
}

// memberOf returns a guest's part of a checkpoint; nil: none.
func memberOf(c *v1.Checkpoint, g *v1.Guest) *v1.CheckpointMember {
	for _, m := range c.GetMembers() {
		if m.GuestUid == g.Meta.Uid {
			return m
		}
	}
	return nil
}

// restores takes a step for each cluster that is being restored.
func (p *pass) restores() {
	var free *room // what the clusters being restored leave of the hosts' resources; nil: not known yet
	for _, name := range sortedKeys(p.Clusters) {
		cluster := p.Clusters[name]
		if !restoring(cluster) || cluster.Meta.Deleting != nil || p.full() || p.changed(cluster) {
			continue
		}
		guests := p.index.guestsOf(name)
		if !ending(cluster) {
			p.restoreRestoring(cluster, guests)
			continue
		}
		if !p.ended(guests) {
			continue
		}
		if free == nil {
			free = p.unclaimed()
		}
		p.restoreEnded(cluster, guests, free)
	}
}

// ended reports whether no copy of any of these guests is left.
func (p *pass) ended(guests []*v1.Guest) bool {
	return !slices.ContainsFunc(guests, func(g *v1.Guest) bool { return g.Host != "" || p.changed(g) || p.index.moves[g.Meta.Uid] != nil })
}

// unclaimed returns the hosts' resources without those for guests that are about to be restored.
func (p *pass) unclaimed() *room {
	free := newRoom(p.Objects, p, p.index.moves)
	for _, name := range sortedKeys(p.Clusters) {
		if cluster := p.Clusters[name]; restoring(cluster) && !ending(cluster) && cluster.Meta.Deleting == nil {
			p.claim(cluster, p.index.guestsOf(name), p.Checkpoints[cluster.Restore.Checkpoint], free)
		}
	}
	return free
}

// claim takes resources for the guests of a cluster that have no host yet, if all of them have a place. Otherwise it returns
// a guest without a place, and why.
func (p *pass) claim(cluster *v1.Cluster, guests []*v1.Guest, from *v1.Checkpoint, free *room) (without *v1.Guest, why string) {
	type place struct {
		host  string
		shape *v1.GuestShape
	}
	var taken []place
	var view []placement.Host
	for _, g := range guests {
		m := memberOf(from, g)
		if g.Host != "" || m == nil {
			continue
		}
		if view == nil {
			view = free.forCluster(p, p.index.moves, guests, g.ImageDigest)
		}
		r := p.restoreRequest(g, cluster, m)
		avoid := p.avoided(g)
		r.Shape, r.Standby = g.Shape, p.standby(cluster, g)
		if p.Now.Before(avoid.until) {
			r.Exclude = avoid.refused
		}
		chosen := placement.Pick(r, view)
		if chosen < 0 {
			_, verdicts := placement.Choose(r, view)
			why = (&placement.NoHostError{Guests: 1, Verdicts: verdicts}).Error()
			if len(r.Exclude) > 0 {
				why = fmt.Sprintf("hosts have refused it, and are asked again at %s; %s", avoid.until.UTC().Format("15:04:05 MST"), why)
			}
			return g, why
		}
		view[chosen].Place(g.Shape)
		taken = append(taken, place{view[chosen].Name, g.Shape})
	}
	for _, t := range taken {
		free.take(t.host, t.shape)
	}
	return nil, ""
}

// restoreEnded begins to restore a cluster of which no copy is left, when all its guests have a place. Guests placed one by
// one would hold resources, and might keep another cluster from being complete.
func (p *pass) restoreEnded(cluster *v1.Cluster, guests []*v1.Guest, free *room) {
	from := p.Checkpoints[cluster.Restore.Checkpoint]
	if without, why := p.claim(cluster, guests, from, free); without != nil {
		p.refuseRestore(cluster, guests, without, why)
		return
	}
	p.claim(cluster, guests, from, p.openRoom()) // this decision gives the places to nobody else
	for _, g := range guests {
		if avoid := p.avoided(g); len(avoid.refused) > 0 && !p.Now.Before(avoid.until) {
			avoid.refused = nil
			p.avoid[g.Meta.Uid] = avoid
		}
	}
	update := proto.CloneOf(cluster)
	update.Restore.State = v1.RestoreState_RESTORE_STATE_RESTORING
	var c Change
	c.write(Update, update)
	p.propose("restore of "+cluster.Meta.Name, c)
}

// refuseRestore stores why a guest has no place, and that the others wait for it.
func (p *pass) refuseRestore(cluster *v1.Cluster, guests []*v1.Guest, without *v1.Guest, why string) {
	var c Change
	for _, g := range guests {
		message := "waits for a place for guest " + without.Meta.Name
		if g == without {
			message = why
		}
		if g.Message != message {
			update := proto.CloneOf(g)
			update.Message = message
			c.write(Update, update)
		}
	}
	if len(c.Ops) > 0 {
		p.propose("restore of "+cluster.Meta.Name, c)
	}
}

const (
	// refusedPause is how long hosts are not asked again to restore a guest after all of them have refused. It doubles each time.
	refusedPause        = time.Minute
	longestRefusedPause = time.Hour
)

// restoreLater lets a restore begin again after a pause, because all hosts have refused one of its guests. The guests that
// have been restored end, so that others may use their memory.
func (p *pass) restoreLater(cluster *v1.Cluster, g *v1.Guest) {
	if p.changed(cluster) {
		return
	}
	avoid := p.avoided(g)
	if !p.Now.Before(avoid.until) { // otherwise only hosts that became eligible during the pause have refused
		avoid.until = p.Now.Add(min(refusedPause<<min(avoid.rounds, 10), longestRefusedPause))
		avoid.rounds++
		p.avoid[g.Meta.Uid] = avoid
	}
	p.restoreAgain(cluster, "is restored again at %s at the earliest: no host can restore guest %s now (%s)", avoid.until.UTC().Format("15:04:05 MST"), g.Meta.Name, g.Message)
}

// lackingFor is how long the other guests of a restore keep their memory while no host has room for one. A host that was
// lost may be back by then.
const lackingFor = time.Minute

// lacksRoom notes that no host has room for a guest of a restore that has begun. After lackingFor it lets the restore begin
// again when all guests have a place, and returns true: two such restores could wait for each other's memory.
func (p *pass) lacksRoom(cluster *v1.Cluster, g *v1.Guest, why string) bool {
	if p.changed(cluster) {
		return false
	}
	avoid := p.avoided(g)
	again := !avoid.lacking.IsZero() && p.Now.Sub(avoid.lacking) >= lackingFor
	switch {
	case again:
		avoid.lacking = time.Time{}
		p.restoreAgain(cluster, "is restored again when hosts have room for all its guests: guest %s has had no place for %s (%s)", g.Meta.Name, lackingFor, why)
	case avoid.lacking.IsZero() || p.Now.Before(avoid.lacking): // the clock may have been set back since
		avoid.restore, avoid.lacking = cluster.Restore.Id, p.Now
	}
	p.avoid[g.Meta.Uid] = avoid
	return again
}

// restoreAgain lets a restore begin again, with an event that says why.
func (p *pass) restoreAgain(cluster *v1.Cluster, event string, args ...any) {
	update := proto.CloneOf(cluster)
	update.Restore.State = v1.RestoreState_RESTORE_STATE_ENDING
	var c Change
	c.write(Update, update)
	c.event(v1.Severity_SEVERITY_WARNING, "cluster", cluster.Meta.Name, event, args...)
	p.propose("restore of "+cluster.Meta.Name, c)
}

// restoreRestoring lets the guests go on when all of them are restored.
func (p *pass) restoreRestoring(cluster *v1.Cluster, guests []*v1.Guest) {
	from := p.Checkpoints[cluster.Restore.Checkpoint]
	if from == nil || from.Meta.Uid != cluster.Restore.CheckpointUid {
		p.restoreFailed(cluster, guests, nil, "its checkpoint was deleted")
		return
	}
	for _, run := range p.Objects.Runs {
		if run.Restore == cluster.Restore.Id { // a part of the runs went back already, so all guests were restored
			p.finishRestore(cluster, from)
			return
		}
	}
	whole := true
	for _, g := range guests {
		switch {
		case removing(g):
		case p.runsUnderGrant(g):
			// No guest is let go before all are restored. So the restore was complete, and the store has forgotten that: an
			// older copy of it was put back.
			p.finishRestore(cluster, from)
			return
		case g.Stopped:
			p.restoreFailed(cluster, guests, nil, fmt.Sprintf("guest %s was stopped", g.Meta.Name))
			return
		case g.Failure != "":
			p.restoreFailed(cluster, guests, from, fmt.Sprintf("guest %s: %s", g.Meta.Name, g.Failure))
			return
		case from.State != v1.CheckpointState_CHECKPOINT_STATE_DONE:
			p.restoreFailed(cluster, guests, from, from.Message)
			return
		case !p.restored(g):
			whole = false
		}
	}
	if whole && p.volumeServes(cluster, from) {
		p.finishRestore(cluster, from)
		return
	}
	if file := p.outOfReach(cluster, guests, from); file != "" && cluster.Restore.Losses > 0 && p.olderInReach(cluster, guests, from) != nil {
		p.restoreFailed(cluster, guests, from, fmt.Sprintf("no host that has the file of %s has been in reach for %s", file, filesAway))
	}
}

// volumeServes reports whether the volume of a cluster that is restored has been put back, and is still served. Its host may have been lost
// after a guest was restored on it.
func (p *pass) volumeServes(cluster *v1.Cluster, from *v1.Checkpoint) bool {
	if from.GetVolume() == nil {
		return true
	}
	v := p.Volumes[cluster.Spec.GetVolume()]
	if v.GetMeta().GetUid() != from.Volume.GuestUid || v.ClusterUid != cluster.Meta.Uid {
		return true // the volume is another one now
	}
	report, _, connected := p.Observed(v.Host)
	seen := volumeOn(report, v.Meta.Uid)
	return connected && v.State == v1.VolumeState_VOLUME_STATE_READY && latestDisk(v, seen) && seen.GetRestored() == cluster.Restore.Id
}

// filesAway is how long a file may be out of reach before a cluster that has lost a guest, or the host of its volume, goes
// back to an older checkpoint. A restore that a person asked for waits until the hosts of its checkpoint are back.
const filesAway = time.Minute

// outOfReach names a guest that is not restored yet, or the volume, if one of its files is out of reach; empty: there is
// none.
func (p *pass) outOfReach(cluster *v1.Cluster, guests []*v1.Guest, from *v1.Checkpoint) string {
	missing := func(m *v1.CheckpointMember) bool {
		return slices.ContainsFunc(p.chainToRestore(from, m), func(f chainFile) bool {
			return !slices.ContainsFunc(f.member.File.GetHosts(), func(host string) bool { return !p.away(host, filesAway) })
		})
	}
	for _, g := range guests {
		if m := memberOf(from, g); m != nil && !removing(g) && !p.restored(g) && missing(m) {
			return "guest " + g.Meta.Name
		}
	}
	if v := from.Volume; v != nil {
		report, _, _ := p.Observed(p.Volumes[v.Guest].GetHost())
		if volumeOn(report, v.GuestUid).GetRestored() != cluster.Restore.Id && missing(v) {
			return "volume " + v.Guest
		}
	}
	return ""
}

// olderInReach returns the latest checkpoint that is older than before, has the same guests, and has all its files on
// connected hosts; nil: there is none.
func (p *pass) olderInReach(cluster *v1.Cluster, guests []*v1.Guest, before *v1.Checkpoint) *v1.Checkpoint {
	for c := latestCheckpoint(p.Objects, cluster, before); c != nil; c = latestCheckpoint(p.Objects, cluster, c) {
		away := slices.ContainsFunc(checkpoint.Files(c), func(m *v1.CheckpointMember) bool { return !p.inReach(c, m) })
		if !away && sameMembers(c, guests) == "" {
			return c
		}
	}
	return nil
}

// inReach reports whether each file that the restore of a member needs is on a connected host.
func (p *pass) inReach(c *v1.Checkpoint, m *v1.CheckpointMember) bool {
	return !slices.ContainsFunc(p.chainToRestore(c, m), func(f chainFile) bool {
		return !slices.ContainsFunc(f.member.File.GetHosts(), func(host string) bool { _, _, connected := p.Observed(host); return connected })
	})
}

// lacking returns the hosts that do not have all files that the restore of a member needs.
func (p *pass) lacking(c *v1.Checkpoint, m *v1.CheckpointMember) (hosts []string) {
	for _, host := range sortedKeys(p.Hosts) {
		if slices.ContainsFunc(p.chainToRestore(c, m), func(f chainFile) bool { return !slices.Contains(f.member.File.GetHosts(), host) }) {
			hosts = append(hosts, host)
		}
	}
	return hosts
}

// restored reports whether a guest's host has it, paused.
func (p *pass) restored(g *v1.Guest) bool {
	report, _, connected := p.Observed(g.Host)
	seen := GuestOn(report, g.Meta.Uid)
	return g.Host != "" && connected && p.current(g.Host) && seen.GetEpoch() == g.Epoch && seen.GetCondition() == v1.GuestCondition_GUEST_CONDITION_RECEIVED
}

// finishRestore ends a restore: the guests' grants let them run. Runs go back to how they were, in several changes if they are many.
func (p *pass) finishRestore(cluster *v1.Cluster, from *v1.Checkpoint) {
	var c Change
	if more := p.rewind(&c, cluster, from); more {
		c.write(Expect, cluster)
		p.propose("restore of "+cluster.Meta.Name, c)
		return
	}
	update := proto.CloneOf(cluster)
	update.Restore.State, update.Restore.Ended, update.Restore.Strays = v1.RestoreState_RESTORE_STATE_DONE, timestamppb.New(p.Now), p.strays(cluster, from)
	update.LeftBehind = leftBehind(p.Objects, cluster, from)
	c.write(Update, update)
	c.write(Expect, from)
	if v := p.Volumes[from.Volume.GetGuest()]; v != nil && v.Meta.Uid == from.Volume.GuestUid {
		now := proto.CloneOf(v)
		if now.LeftBehind = leftBehind(p.Objects, v, lastSnapshotBefore(p.Objects, v, from)); !proto.Equal(now, v) {
			if p.changed(v) {
				return
			}
			c.write(Update, now)
		}
	}
	for _, g := range p.index.guestsOf(cluster.Meta.Name) {
		delete(p.avoid, g.Meta.Uid)
	}
	c.event(v1.Severity_SEVERITY_INFO, "cluster", cluster.Meta.Name, "goes on from checkpoint %s of %s", from.Meta.Name, from.Taken.AsTime().Format("2006-01-02 15:04:05 MST"))
	p.propose("restore of "+cluster.Meta.Name, c)
}

// volumeWasPutBack reports whether the volume of a cluster was put back in the cluster's restore.
func (p *pass) volumeWasPutBack(cluster *v1.Cluster) bool {
	v := p.Volumes[cluster.Spec.GetVolume()]
	report, _, connected := p.Observed(v.GetHost())
	return v != nil && connected && volumeOn(report, v.Meta.Uid).GetRestored() == cluster.Restore.Id
}

// strays returns the uids of the runs that ran when a checkpoint was taken and were removed since then.
func (p *pass) strays(cluster *v1.Cluster, from *v1.Checkpoint) (uids []string) {
	for _, r := range from.Runs {
		if run := p.Objects.Runs[r.Run]; run.GetMeta().GetUid() != r.Uid || !IsRunOf(run, cluster) {
			uids = append(uids, r.Uid)
		}
	}
	return uids
}

// One change rewinds so many runs, and so many bytes of their records: the store bounds what it writes at once.
const (
	mostRewound      = 40
	mostRewoundBytes = 1 << 20
)

// rewind puts runs back to their states when a checkpoint was taken. Runs that ran then run again. Those that were cancelled
// since then also do: their processes are back, and are ended like those of any run that is being cancelled. The processes of
// all other runs are gone. rewind reports whether there are more runs than one change may have.
func (p *pass) rewind(c *Change, cluster *v1.Cluster, from *v1.Checkpoint) (more bool) {
	ran, rewound, bytes := map[string]*v1.CheckpointRun{}, 0, 0
	for _, r := range from.Runs {
		ran[r.Uid] = r
	}
	for _, name := range sortedKeys(p.Objects.Runs) {
		run := p.Objects.Runs[name]
		if run.Spec.GetCluster() != cluster.Meta.Name || !IsRunOf(run, cluster) {
			continue
		}
		began := run.State == v1.RunState_RUN_STATE_STARTING || run.State == v1.RunState_RUN_STATE_RUNNING
		then := ran[run.Meta.Uid]
		switch {
		case then != nil && run.Restore == cluster.Restore.GetId() && began, then == nil && !began:
			continue
		case rewound == mostRewound, rewound > 0 && bytes+proto.Size(run) > mostRewoundBytes:
			return true
		}
		update := proto.CloneOf(run)
		if rewound, bytes = rewound+1, bytes+proto.Size(run); then != nil {
			update.State, update.Ended, update.ExitCode, update.Message = v1.RunState_RUN_STATE_RUNNING, nil, 0, ""
			if then.Starting {
				update.State = v1.RunState_RUN_STATE_STARTING
			}
			update.Restores, update.Restore = update.Restores+1, cluster.Restore.GetId()
			c.event(v1.Severity_SEVERITY_INFO, "run", name, "goes on from checkpoint %s", from.Meta.Name)
		} else {
			severity := v1.Severity_SEVERITY_ERROR
			if run.Cancel {
				severity = v1.Severity_SEVERITY_INFO
			}
			update.State = broken(run)
			update.Ended = timestamppb.New(p.Now)
			update.Message = fmt.Sprintf("cluster %s went back to checkpoint %s, which was made before this run began", cluster.Meta.Name, from.Meta.Name)
			c.event(severity, "run", name, "%s: %s", StateName(update.State.String()), update.Message)
		}
		c.write(Update, update)
	}
	return false
}

// restoreFailed proposes failRestore, unless a guest has been changed already.
func (p *pass) restoreFailed(cluster *v1.Cluster, guests []*v1.Guest, from *v1.Checkpoint, why string) {
	for _, g := range guests {
		if p.changed(g) {
			return
		}
	}
	var c Change
	p.failRestore(&c, cluster, guests, from, why)
	p.propose("restore of "+cluster.Meta.Name, c)
}

// failRestore gives up a restore: it tries an older checkpoint, or stops the guests. from is the checkpoint that could not be
// restored; nil: no other checkpoint is tried.
func (p *pass) failRestore(c *Change, cluster *v1.Cluster, guests []*v1.Guest, from *v1.Checkpoint, why string) {
	update := proto.CloneOf(cluster)
	if c := p.Checkpoints[cluster.Restore.Checkpoint]; c.GetMeta().GetUid() == cluster.Restore.CheckpointUid && p.volumeWasPutBack(cluster) {
		update.LeftBehind = leftBehind(p.Objects, cluster, c) // the home is as it was then
	}
	var older *v1.Checkpoint
	if from != nil {
		older = latestCheckpoint(p.Objects, cluster, from)
	}
	if from != nil && cluster.Restore.Losses > 0 {
		older = cmp.Or(p.olderInReach(cluster, guests, from), older)
	}
	if older != nil && sameMembers(older, guests) != "" {
		older = nil
	}
	if older != nil {
		update.Restore = newRestore(older, fmt.Sprintf("checkpoint %s could not be restored: %s", from.Meta.Name, why), timestamppb.New(p.Now))
		update.Restore.Losses = cluster.Restore.Losses
		c.event(v1.Severity_SEVERITY_ERROR, "cluster", cluster.Meta.Name, "is restored from %s: %s", older.Meta.Name, update.Restore.Reason)
	} else {
		update.Restore.State, update.Restore.Message, update.Restore.Ended = v1.RestoreState_RESTORE_STATE_FAILED, why, timestamppb.New(p.Now)
		c.event(v1.Severity_SEVERITY_ERROR, "cluster", cluster.Meta.Name, "could not be restored from %s, and its guests are stopped: %s; "+
			"`watari checkpoint list %s` shows what else there is", cluster.Restore.Checkpoint, why, cluster.Meta.Name)
	}
	c.write(Update, update)
	for _, g := range guests {
		stopped := proto.CloneOf(g)
		stopped.Stopped, stopped.Failure, stopped.Restarts = older == nil, "", 0
		c.write(Update, stopped)
	}
}

// newRestore returns the beginning of a restore.
func newRestore(from *v1.Checkpoint, reason string, now *timestamppb.Timestamp) *v1.Restore {
	return &v1.Restore{Id: from.Meta.Uid + "@" + now.AsTime().Format("20060102T150405.000000000"), Checkpoint: from.Meta.Name, CheckpointUid: from.Meta.Uid,
		State: v1.RestoreState_RESTORE_STATE_ENDING, Reason: reason, Asked: now}
}

// sameMembers returns why a checkpoint is not of exactly these guests; empty: it is.
func sameMembers(c *v1.Checkpoint, guests []*v1.Guest) string {
	in := 0
	for _, g := range guests {
		switch {
		case removing(g):
			return fmt.Sprintf("guest %s is still being removed", g.Meta.Name)
		case memberOf(c, g) == nil:
			return fmt.Sprintf("guest %s is not in it", g.Meta.Name)
		}
		in++
	}
	if in != len(c.Members) {
		return fmt.Sprintf("it has %d guests, and the cluster has %d", len(c.Members), in)
	}
	return ""
}

// restoreOrder returns the order from what a host restores a guest; nil: none.
func (p *pass) restoreOrder(g *v1.Guest) *v1.RestoreOrder {
	c := p.restoredFrom(g)
	m := memberOf(c, g)
	if m == nil {
		return nil
	}
	return p.orderToRestore(p.Clusters[g.Cluster], c, m)
}

// orderToRestore returns the order to restore a member from a checkpoint. If a file on which the member's file builds is lost,
// the order names no checkpoint, and the host waits until the restore is given up. Without an order to restore, the host would
// serve an out-of-date disk of a volume.
func (p *pass) orderToRestore(of origin, c *v1.Checkpoint, m *v1.CheckpointMember) *v1.RestoreOrder {
	order := &v1.RestoreOrder{Id: of.GetRestore().GetId(), Key: of.GetCheckpointKey(), File: fileOnly(m.File)}
	chain, whole := p.chain(c, m)
	if !whole {
		return order
	}
	order.CheckpointId = c.Meta.Uid
	for _, base := range slices.Backward(chain[1:]) {
		order.Bases = append(order.Bases, &v1.BaseFile{CheckpointId: base.checkpoint.Meta.Uid, File: fileOnly(base.member.File)})
	}
	return order
}

// restoreRequest returns the request for a host that restores a guest. The host must have the platform in which the guest
// was saved.
func (p *pass) restoreRequest(g *v1.Guest, cluster *v1.Cluster, m *v1.CheckpointMember) *placement.Request {
	saved, source := &v1.Guest{Meta: g.Meta, Platform: m.Platform, LeaseMs: g.LeaseMs}, p.Hosts[m.Host].GetInfo()
	return &placement.Request{
		Sites: cluster.GetSpec().GetSites(), Spread: cluster.GetSpec().GetSpread(),
		Compatible: func(h *v1.HostInfo) string {
			if m.File.GetBase() != "" && !h.GetIncrements() {
				return "its agent is of an older version, which cannot restore this checkpoint"
			}
			return compatibility.RefuseMove(saved, source, h)
		},
	}
}
