package core

// checkpoints.go - turns the decisions of package checkpoint into changes and orders, and deletes old checkpoints.

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/dustin/go-humanize/english"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "watari/api/watariv1"
	"watari/checkpoint"
)

const (
	// keepCheckpoints is how many whole checkpoints of a cluster are kept if its plan sets no number.
	keepCheckpoints = 3
	// keepFailed is how many failed checkpoints are kept for people to read.
	keepFailed = 3
	// checkpointCopies is the number of hosts that keep a file if the plan sets none.
	checkpointCopies = 2
	// checkpointPass is the time to the next decision while a checkpoint is under way.
	checkpointPass = 250 * time.Millisecond
	// checkpointSlack bounds the size of a file: the guest's memory, or the volume's size, and 1/checkpointSlack of it and
	// savedState more.
	checkpointSlack = 10
)

// checkpointOn returns a host's report of a guest of a checkpoint; nil: there is none.
func checkpointOn(report *v1.HostObserved, id, guest string) *v1.CheckpointObserved {
	for _, o := range report.GetCheckpoints() {
		if o.CheckpointId == id && o.GuestUid == guest {
			return o
		}
	}
	return nil
}

// unfinishedCheckpoint returns the checkpoint of a cluster or a volume that has not ended; nil: there is none.
func (p *pass) unfinishedCheckpoint(o origin) *v1.Checkpoint {
	for c := range p.index.checkpointsOf[checkpointsKey(o)] {
		if now := p.working.Checkpoints[c.Meta.Name]; now != nil && !checkpoint.Ended(now.State) {
			return now
		}
	}
	return nil
}

// heldByCheckpoint reports whether a checkpoint keeps a guest from beginning to move. The checkpoint may have been given up:
// the guest's host may still be writing the snapshot.
func (p *pass) heldByCheckpoint(g *v1.Guest) bool {
	if c := p.unfinishedCheckpoint(p.Clusters[g.Cluster]); c != nil && checkpoint.HoldsMoves(c.State) {
		return true
	}
	report, _, _ := p.Observed(g.Host)
	return saving(report, g.Meta.Uid, nil)
}

// saving reports whether a host works on a checkpoint of a guest or volume, other than c.
func saving(report *v1.HostObserved, uid string, c *v1.Checkpoint) bool {
	return slices.ContainsFunc(report.GetCheckpoints(), func(o *v1.CheckpointObserved) bool {
		return o.GuestUid == uid && o.Busy && o.CheckpointId != c.GetMeta().GetUid()
	})
}

// checkpoints decides about all checkpoints.
func (p *pass) checkpoints() {
	busy := map[string]bool{} // hosts that take part in a checkpoint
	for _, name := range sortedKeys(p.Objects.Checkpoints) {
		if c := p.Objects.Checkpoints[name]; checkpoint.HoldsMoves(c.State) {
			for _, m := range checkpoint.Files(c) {
				busy[m.Host] = true
			}
		}
	}
	for _, name := range sortedKeys(p.Objects.Checkpoints) {
		if p.full() {
			return
		}
		c := p.Objects.Checkpoints[name]
		of := originOf(p.Objects, c)
		switch {
		case checkpoint.Ended(c.State) && (of == nil || of.GetMeta().Deleting != nil || c.Meta.Deleting != nil && !p.needed(c) && !p.putsOff(c, of)):
			p.deleteCheckpoint(c)
		case checkpoint.Ended(c.State):
			p.keepCopies(c)
		default:
			p.stepCheckpoint(c, busy)
		}
	}
	p.planned()
}

func (p *pass) deleteCheckpoint(c *v1.Checkpoint) {
	var change Change
	change.write(Delete, proto.CloneOf(c))
	if of := originOf(p.Objects, c); of != nil {
		change.write(Expect, of) // a restore from this checkpoint may begin meanwhile
	}
	if c.State == v1.CheckpointState_CHECKPOINT_STATE_DONE {
		change.event(v1.Severity_SEVERITY_INFO, "checkpoint", c.Meta.Name, "deleted")
	}
	p.propose("checkpoint/"+c.Meta.Name, change)
}

// checkpointMembers returns a cluster's guests as members of a checkpoint.
func (p *pass) checkpointMembers(cluster string) (members []*v1.CheckpointMember) {
	for _, g := range p.index.guestsOf(cluster) {
		if !removing(g) {
			members = append(members, &v1.CheckpointMember{Guest: g.Meta.Name, GuestUid: g.Meta.Uid, Index: g.Index, Host: g.Host, HostBootId: g.BootId,
				Epoch: g.Epoch, Platform: g.Platform, StartedEpoch: g.StartedEpoch})
		}
	}
	return members
}

// checkpointVolume returns the volume that a cluster uses as a member of a checkpoint; nil: none.
func (p *pass) checkpointVolume(cluster string) *v1.CheckpointMember {
	name := p.Clusters[cluster].GetSpec().GetVolume()
	if name == "" {
		return nil
	}
	v := p.Volumes[name]
	return &v1.CheckpointMember{Guest: name, GuestUid: v.GetMeta().GetUid(), Host: v.GetHost()}
}

// stepCheckpoint takes one step for a checkpoint that has not ended. busy are the hosts that take part in another
// checkpoint.
func (p *pass) stepCheckpoint(c *v1.Checkpoint, busy map[string]bool) {
	p.again = earlier(p.again, p.Now.Add(checkpointPass))
	now := proto.CloneOf(c)
	pending := c.State == v1.CheckpointState_CHECKPOINT_STATE_PENDING
	switch {
	case pending && isSnapshot(c):
		now.Volume.Host = p.Volumes[c.Volume.Guest].GetHost()
	case pending:
		now.Members, now.Volume = p.checkpointMembers(c.Cluster), p.checkpointVolume(c.Cluster)
	}
	o := p.checkpointObserved(now, busy)
	d := checkpoint.Step(now, o)
	if d.State == c.State && d.Message == c.Message {
		return
	}
	now.State, now.Message = d.State, d.Message
	if pending && d.State == c.State {
		now.Members, now.Volume = nil, c.Volume
	}
	var change Change
	if d.State != c.State {
		p.enterCheckpoint(&change, c, now, o)
		for _, m := range checkpoint.Files(now) {
			busy[m.Host] = true
		}
	}
	change.write(Update, now)
	if pending && d.State == v1.CheckpointState_CHECKPOINT_STATE_PREPARING {
		if !isSnapshot(now) {
			change.write(Expect, p.Clusters[c.Cluster]) // a resize or a restore would change the guests
		}
		if now.Volume != nil {
			change.write(Expect, p.Volumes[now.Volume.Guest])
		}
	}
	p.propose("checkpoint/"+c.Meta.Name, change)
}

// checkpointObserved returns the input of a step of a checkpoint.
func (p *pass) checkpointObserved(c *v1.Checkpoint, busy map[string]bool) checkpoint.Observed {
	of := originOf(p.Objects, c)
	pending := c.State == v1.CheckpointState_CHECKPOINT_STATE_PENDING
	o := checkpoint.Observed{InState: p.since(c.Meta.Uid, int32(c.State)), Turn: true,
		Unwanted: of == nil || of.GetMeta().Deleting != nil || restoring(of) || len(checkpoint.Files(c)) == 0}
	for _, m := range c.Members {
		g := p.working.Guests[m.Guest]
		report, since, connected := p.Observed(m.Host)
		seen := checkpoint.Member{Connected: connected, Report: checkpointOn(report, c.Meta.Uid, m.GuestUid), Saving: saving(report, m.GuestUid, c)}
		if !connected {
			seen.Away = min(p.Now.Sub(since), p.Now.Sub(p.Began))
		}
		if seen.Report != nil && seen.Report.Epoch != m.Epoch {
			seen.Report = nil
		}
		if g != nil && g.Meta.Uid == m.GuestUid {
			at := GuestOn(report, m.GuestUid)
			seen.Running = connected && at.GetEpoch() == m.Epoch && at.GetReady() && at.GetCondition() == v1.GuestCondition_GUEST_CONDITION_RUNNING
			seen.Moving = p.index.moves[m.GuestUid] != nil
			o.Unwanted = o.Unwanted || unwanted(p.Objects, g)
		}
		if !pending {
			seen.Ended = g == nil || g.Meta.Uid != m.GuestUid || g.Host != m.Host || g.Epoch != m.Epoch
		}
		h := p.Hosts[m.Host]
		emptied := h == nil || !c.Suspends && (h.Draining || len(h.Withdrawn) > 0)
		o.Turn = o.Turn && !emptied && !busy[m.Host]
		o.Unwanted = o.Unwanted || !pending && emptied
		o.Members = append(o.Members, seen)
	}
	if c.Volume != nil {
		o.Volume = p.volumeObserved(c)
		v := p.Volumes[c.Volume.Guest]
		o.Unwanted = o.Unwanted || p.volumeRestoredFrom(v) != nil
		if why := p.outdated(v); why != "" && !pending {
			o.Unwanted, o.Why = true, "volume "+c.Volume.Guest+" waits: "+why
		}
		o.Turn = o.Turn && !busy[c.Volume.Host]
	}
	return o
}

// volumeObserved returns the input of a step of a checkpoint that concerns its volume.
func (p *pass) volumeObserved(c *v1.Checkpoint) *checkpoint.Member {
	m := c.Volume
	v := p.working.Volumes[m.Guest]
	report, since, connected := p.Observed(m.Host)
	seen := &checkpoint.Member{Connected: connected, Report: checkpointOn(report, c.Meta.Uid, m.GuestUid), Saving: saving(report, m.GuestUid, c)}
	if !connected {
		seen.Away = min(p.Now.Sub(since), p.Now.Sub(p.Began))
	}
	seen.Running = connected && v.GetState() == v1.VolumeState_VOLUME_STATE_READY && !handsOver(v) && p.outdated(v) == "" && volumeOn(report, m.GuestUid).GetReady()
	if c.State != v1.CheckpointState_CHECKPOINT_STATE_PENDING {
		seen.Ended = v.GetMeta().GetUid() != m.GuestUid || v.GetHost() != m.Host
	}
	return seen
}

// enterCheckpoint completes the record of a checkpoint in its new state, and adds an event when the checkpoint has ended.
func (p *pass) enterCheckpoint(change *Change, before, c *v1.Checkpoint, o checkpoint.Observed) {
	now := timestamppb.New(p.Now)
	note := func(m *v1.CheckpointMember, r *v1.CheckpointObserved) {
		c.StoodMs = max(c.StoodMs, r.GetStoodMs())
		if r.GetFile() != nil && c.State == v1.CheckpointState_CHECKPOINT_STATE_DONE {
			m.File = fileOnly(r.File)
			if limit := p.stateLimit(m, m == c.Volume); limit > savedState { // another host writes no more than this
				m.File.StateBytes = min(m.File.StateBytes, limit)
			}
			m.File.Hosts = []string{m.Host}
		}
	}
	for i, m := range o.Members {
		note(c.Members[i], m.Report)
	}
	if o.Volume != nil {
		note(c.Volume, o.Volume.Report)
	}
	switch c.State {
	case v1.CheckpointState_CHECKPOINT_STATE_PREPARING:
		c.Started = now
	case v1.CheckpointState_CHECKPOINT_STATE_TAKING: // all guests stand: what is started from now on is not in the checkpoint
		c.Runs = nil
		for _, name := range sortedKeys(p.Objects.Runs) {
			run := p.Objects.Runs[name]
			starting := run.State == v1.RunState_RUN_STATE_STARTING
			if (starting || run.State == v1.RunState_RUN_STATE_RUNNING) && !isSnapshot(c) && IsRunOf(run, p.Clusters[c.Cluster]) && run.Spec.GetCluster() == c.Cluster {
				c.Runs = append(c.Runs, &v1.CheckpointRun{Run: name, Uid: run.Meta.Uid, Starting: starting})
			}
		}
	case v1.CheckpointState_CHECKPOINT_STATE_WRITING:
		c.Taken = now
	case v1.CheckpointState_CHECKPOINT_STATE_DONE:
		c.Ended = now
		if isSnapshot(c) {
			change.event(v1.Severity_SEVERITY_INFO, "checkpoint", c.Meta.Name, "done: %s of volume %s", humanize.IBytes(checkpoint.Bytes(c)), c.Volume.Guest)
			break
		}
		change.event(v1.Severity_SEVERITY_INFO, "checkpoint", c.Meta.Name, "done: %s of %s; guests were paused for %d ms",
			humanize.IBytes(checkpoint.Bytes(c)), english.Plural(len(c.Members), "guest", ""), c.StoodMs)
	case v1.CheckpointState_CHECKPOINT_STATE_FAILED, v1.CheckpointState_CHECKPOINT_STATE_CANCELLED:
		c.Ended = now
		severity := v1.Severity_SEVERITY_WARNING
		if before.Cancel {
			severity = v1.Severity_SEVERITY_INFO
		}
		runOn := "; the guests run on"
		if isSnapshot(c) {
			runOn = ""
		}
		change.event(severity, "checkpoint", c.Meta.Name, "%s: %s%s", StateName(c.State.String()), c.Message, runOn)
	}
}

// superseded reports whether a checkpoint may be deleted because there are enough newer ones.
func (p *pass) superseded(c *v1.Checkpoint) bool {
	of := originOf(p.Objects, c)
	if p.needed(c) || c.Pinned || verifying(c) || of.GetRestore().GetCheckpointUid() == c.Meta.Uid && restoring(of) {
		return false
	}
	done := c.State == v1.CheckpointState_CHECKPOINT_STATE_DONE
	keep := keepFailed
	if done {
		keep = int(cmp.Or(of.GetCheckpoints().GetKeep(), keepCheckpoints))
	}
	newer, safe, copies := 0, false, min(fewestHolders(c), CopiesOf(c))
	for other := range p.index.checkpointsOf[keyOfCheckpoint(c)] {
		same := checkpoint.Ended(other.State) && (other.State == v1.CheckpointState_CHECKPOINT_STATE_DONE) == done
		if same && !other.Pinned && other.Meta.Deleting == nil && (isAmong(c, of.GetLeftBehind()) || !isAmong(other, of.GetLeftBehind())) && compareCheckpoints(other, c) > 0 {
			newer++
			safe = safe || !done || fewestHolders(other) >= min(copies, CopiesOf(other)) && other.Verification.GetState() != v1.VerificationState_VERIFICATION_STATE_FAILED
		}
	}
	return newer >= keep && safe // otherwise the newer ones could be lost with one host, or may not be restorable
}

const (
	// retryPlanned is the pause before a plan makes another checkpoint after one that failed or was cancelled. It doubles with
	// each further failure, up to mostRetryPlanned: the guests stand still at each attempt.
	retryPlanned     = 5 * time.Minute
	mostRetryPlanned = time.Hour
)

// checkpointOrders returns a host's orders about checkpoints, and the files that it may fetch from other hosts or they from
// it.
func (p *pass) checkpointOrders(host string) (list []*v1.CheckpointWanted, shares []*v1.BlobShare) {
	wanted := map[string]bool{}
	concerned := maps.Clone(p.index.checkpointsAt[host])
	if concerned == nil {
		concerned = set[*v1.Checkpoint]{}
	}
	maps.Copy(concerned, p.index.uncopied)
	for g := range p.index.onHost[host] {
		c := p.restoredFrom(g)
		for _, f := range p.chainToRestore(c, memberOf(c, g)) {
			concerned[f.checkpoint] = true
		}
	}
	for v := range p.index.volumesAt[host] {
		c := p.volumeRestoredFrom(v)
		for _, f := range p.chainToRestore(c, c.GetVolume()) {
			concerned[f.checkpoint] = true
		}
	}
	for c := range concerned {
		for _, m := range checkpoint.Files(c) {
			order := p.checkpointOrder(c, m, host)
			if order == nil {
				continue
			}
			list = append(list, order)
			wanted[c.Meta.Uid+"/"+m.GuestUid] = true
			if share := p.checkpointShare(c, m, host); share != nil {
				shares = append(shares, share)
			}
		}
	}
	report, _, _ := p.Observed(host)
	for _, o := range report.GetCheckpoints() {
		if !wanted[o.CheckpointId+"/"+o.GuestUid] {
			list = append(list, &v1.CheckpointWanted{CheckpointId: o.CheckpointId, GuestUid: o.GuestUid, Epoch: o.Epoch, Order: v1.CheckpointOrder_CHECKPOINT_ORDER_DISCARD})
		}
	}
	slices.SortFunc(list, func(a, b *v1.CheckpointWanted) int {
		return cmp.Or(cmp.Compare(a.CheckpointId, b.CheckpointId), cmp.Compare(a.GuestUid, b.GuestUid))
	})
	return list, shares
}

// checkpointOrder returns a host's order about a member of a checkpoint; nil: none.
func (p *pass) checkpointOrder(c *v1.Checkpoint, m *v1.CheckpointMember, host string) *v1.CheckpointWanted {
	w := &v1.CheckpointWanted{CheckpointId: c.Meta.Uid, GuestUid: m.GuestUid, Guest: m.Guest, Epoch: m.Epoch, Order: checkpoint.Order(c.State), Volume: m == c.Volume}
	if w.Volume {
		w.Order = checkpoint.VolumeOrder(c.State)
	}
	switch w.Order {
	case v1.CheckpointOrder_CHECKPOINT_ORDER_PREPARE, v1.CheckpointOrder_CHECKPOINT_ORDER_STOP, v1.CheckpointOrder_CHECKPOINT_ORDER_TAKE:
		if m.Host != host {
			return nil
		}
		w.Recipient = c.Recipient
		w.Limit = p.stateLimit(m, w.Volume)
		w.Base = p.buildsOn(c, m)
		return w
	case v1.CheckpointOrder_CHECKPOINT_ORDER_KEEP:
		if !slices.Contains(m.File.GetHosts(), host) && !slices.Contains(p.fetchers(c, m), host) {
			return nil
		}
		w.File = fileOnly(m.File)
		w.Verify, w.Trial = cmp.Or(p.verifiesFor(c, m), p.fetchedFor(c, m)), p.trialOrder(c, m, host)
		return w
	}
	return nil
}

// stateLimit returns the largest size of the state of a guest, or of a volume, and of its file, in bytes.
func (p *pass) stateLimit(m *v1.CheckpointMember, isVolume bool) uint64 {
	state := p.Guests[m.Guest].GetShape().GetMemoryBytes()
	if isVolume {
		state = p.Volumes[m.Guest].GetSizeBytes()
	}
	return state + state/checkpointSlack + savedState
}

// savedState bounds the state of a guest's devices in a checkpoint, bytes.
const savedState = 64 << 20

// noRoomFor is how long a host is not asked again to keep a copy that it could not keep.
const noRoomFor = 2 * time.Hour
