package core

// checkpoints.go - turns the decisions of package checkpoint into changes and orders. It also keeps copies of files on other
// hosts, deletes old checkpoints, and begins the checkpoints that plans ask for.

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
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

// origin is what a checkpoint saves: a *v1.Cluster, or a *v1.Volume, whose checkpoints are called snapshots.
type origin interface {
	proto.Message
	GetMeta() *v1.Meta
	GetCheckpointKey() string
	GetCheckpointRecipient() string
	GetCheckpoints() *v1.CheckpointPlan
	GetRestore() *v1.Restore
	GetVerified() *timestamppb.Timestamp
	GetLeftBehind() []*v1.CheckpointNumbers
}

// isSnapshot reports whether a checkpoint is of a volume alone.
func isSnapshot(c *v1.Checkpoint) bool { return c.GetCluster() == "" && c.GetVolume() != nil }

// originOf returns the cluster or the volume of a checkpoint; nil: it no longer exists.
func originOf(s *Objects, c *v1.Checkpoint) origin {
	if isSnapshot(c) {
		if v := s.Volumes[c.Volume.Guest]; v != nil && v.Meta.Uid == c.Volume.GuestUid {
			return v
		}
	} else if cluster := s.Clusters[c.GetCluster()]; cluster != nil && cluster.Meta.Uid == c.ClusterUid {
		return cluster
	}
	return nil
}

// checkpointIsOf reports whether a checkpoint belongs to this cluster or volume, not to an earlier one of its name.
func checkpointIsOf(c *v1.Checkpoint, o origin) bool {
	if _, volume := o.(*v1.Volume); o == nil || volume != isSnapshot(c) {
		return false
	}
	if isSnapshot(c) {
		return c.Volume.GuestUid == o.GetMeta().GetUid()
	}
	return o.GetMeta() != nil && c.Cluster == o.GetMeta().Name && c.ClusterUid == o.GetMeta().Uid
}

// checkpointsOf and snapshotsOf are the keys of all checkpoints of a cluster, and of all snapshots of a volume. Names have no spaces.
func checkpointsOf(cluster string) string { return "checkpoints of " + cluster }
func snapshotsOf(volume string) string    { return "snapshots of " + volume }

// checkpointsKey returns the key of the checkpoints of a cluster or a volume. It is also the key of the change that begins a
// checkpoint.
func checkpointsKey(o origin) string {
	if v, is := o.(*v1.Volume); is {
		return snapshotsOf(v.Meta.Name)
	}
	return checkpointsOf(o.GetMeta().GetName())
}

// keyOfCheckpoint returns checkpointsKey of a checkpoint's cluster or volume.
func keyOfCheckpoint(c *v1.Checkpoint) string {
	if isSnapshot(c) {
		return snapshotsOf(c.Volume.Guest)
	}
	return checkpointsOf(c.GetCluster())
}

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
		emptied := h == nil || h.Draining || len(h.Withdrawn) > 0 && !c.Suspends
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

// keepCopies records in a whole checkpoint which hosts have its files, and deletes the checkpoint if there are enough newer
// ones.
func (p *pass) keepCopies(c *v1.Checkpoint) {
	if p.superseded(c) {
		p.deleteCheckpoint(c)
		return
	}
	if c.State != v1.CheckpointState_CHECKPOINT_STATE_DONE {
		return
	}
	now := proto.CloneOf(c)
	lost := ""
	for _, m := range checkpoint.Files(now) {
		m.File.Hosts = p.holders(c, m)
		if _, whole := p.chain(c, m); !whole || len(m.File.Hosts) == 0 {
			lost = m.Guest
		}
	}
	var change Change
	if lost != "" {
		now.State, now.Message = v1.CheckpointState_CHECKPOINT_STATE_DAMAGED, "no host has the file of "+lost+" any more"
		change.event(v1.Severity_SEVERITY_ERROR, "checkpoint", c.Meta.Name, "cannot be restored: %s", now.Message)
		if verifying(now) {
			now.Verification.State, now.Verification.Message, now.Verification.Ended = v1.VerificationState_VERIFICATION_STATE_FAILED, now.Message, timestamppb.New(p.Now)
		}
	} else {
		p.verify(&change, now)
	}
	if proto.Equal(now, c) {
		return
	}
	change.write(Update, now)
	p.propose("checkpoint/"+c.Meta.Name, change)
}

// holders returns the hosts that have a member's file. A disconnected host still counts.
func (p *pass) holders(c *v1.Checkpoint, m *v1.CheckpointMember) (hosts []string) {
	candidates := maps.Clone(p.index.filesAt[c.Meta.Uid])
	if candidates == nil {
		candidates = map[string]bool{}
	}
	for _, name := range m.File.Hosts {
		candidates[name] = true
	}
	for _, name := range sortedKeys(candidates) {
		report, _, connected := p.Observed(name)
		listed := slices.Contains(m.File.Hosts, name)
		has := checkpointOn(report, c.Meta.Uid, m.GuestUid)
		switch {
		case p.Hosts[name] == nil:
		case has.GetFile().GetBlob().GetDigest() == m.File.Blob.GetDigest() && has.GetPhase() == v1.CheckpointPhase_CHECKPOINT_PHASE_WRITTEN:
			hosts = append(hosts, name)
		case listed && !(connected && p.current(name)):
			hosts = append(hosts, name)
		}
	}
	return hosts
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

// fewestHolders returns on how many hosts that file of a checkpoint is that is on the fewest.
func fewestHolders(c *v1.Checkpoint) int {
	fewest := math.MaxInt
	for _, m := range checkpoint.Files(c) {
		fewest = min(fewest, len(m.File.GetHosts()))
	}
	return fewest
}

// compareCheckpoints orders the checkpoints of a cluster or volume by age, the oldest first. The numbers in their names grow
// even if the manager's clock is set back.
func compareCheckpoints(a, b *v1.Checkpoint) int {
	return cmp.Or(cmp.Compare(checkpointNumber(a), checkpointNumber(b)), a.Meta.Created.AsTime().Compare(b.Meta.Created.AsTime()), cmp.Compare(a.Meta.Revision, b.Meta.Revision), cmp.Compare(a.Meta.Name, b.Meta.Name))
}

// latestCheckpoint returns the newest checkpoint of a cluster or volume that can be restored and was not left behind, or the newest
// such one of which the state of checkpoint before has come; nil: none. before may be nil.
func latestCheckpoint(s *Objects, of origin, before *v1.Checkpoint) (latest *v1.Checkpoint) {
	left := before.GetLeftBefore()
	if before == nil && of != nil {
		left = of.GetLeftBehind()
	}
	for _, c := range s.Checkpoints {
		if c.State != v1.CheckpointState_CHECKPOINT_STATE_DONE || c.Meta.Deleting != nil || !checkpointIsOf(c, of) || isAmong(c, left) ||
			before != nil && compareCheckpoints(c, before) >= 0 {
			continue
		}
		if latest == nil || compareCheckpoints(c, latest) > 0 {
			latest = c
		}
	}
	return latest
}

// leftBehind returns the checkpoints that a cluster or volume has left behind when it has gone back to one of them: those that had
// been left behind when that one was made, and those that were made later. Restores that nobody asks for would otherwise return to
// a state that was given up.
func leftBehind(s *Objects, of origin, from *v1.Checkpoint) []*v1.CheckpointNumbers {
	later := &v1.CheckpointNumbers{After: uint32(checkpointNumber(from))}
	var all []*v1.Checkpoint
	for _, c := range s.Checkpoints {
		if checkpointIsOf(c, of) {
			all = append(all, c)
			later.Upto = max(later.Upto, uint32(checkpointNumber(c)))
		}
	}
	return slices.DeleteFunc(append(slices.Clone(from.LeftBefore), later), func(n *v1.CheckpointNumbers) bool {
		return !slices.ContainsFunc(all, func(c *v1.Checkpoint) bool { return isAmong(c, []*v1.CheckpointNumbers{n}) })
	})
}

// lastSnapshotBefore returns the last snapshot of a volume that was made before a checkpoint of its cluster. If there is none, it
// returns one that has no number: all snapshots were made after it.
func lastSnapshotBefore(s *Objects, v *v1.Volume, c *v1.Checkpoint) *v1.Checkpoint {
	last := &v1.Checkpoint{Meta: &v1.Meta{}}
	for _, other := range s.Checkpoints {
		if checkpointIsOf(other, v) && other.Taken != nil && other.Taken.AsTime().Before(c.Taken.AsTime()) && compareCheckpoints(other, last) > 0 {
			last = other
		}
	}
	return last
}

// isAmong reports whether a checkpoint has one of these numbers.
func isAmong(c *v1.Checkpoint, list []*v1.CheckpointNumbers) bool {
	n := uint32(checkpointNumber(c))
	return slices.ContainsFunc(list, func(r *v1.CheckpointNumbers) bool { return n > r.After && n <= r.Upto })
}

// IsLeftBehind reports whether a checkpoint was left behind by its cluster or volume.
func IsLeftBehind(s *Objects, c *v1.Checkpoint) bool {
	of := originOf(s, c)
	return of != nil && isAmong(c, of.GetLeftBehind())
}

// planned begins the checkpoints that the plans of clusters and volumes ask for.
func (p *pass) planned() {
	for _, name := range sortedKeys(p.Clusters) {
		cluster := p.Clusters[name]
		p.plannedOf(cluster, func() bool {
			guests := p.index.guestsOf(name)
			return allReady(cluster, p.status(cluster, guests)) && p.outdated(p.Volumes[cluster.Spec.GetVolume()]) == "" && !slices.ContainsFunc(guests, func(g *v1.Guest) bool { return g.Stopped })
		})
	}
	for _, name := range sortedKeys(p.Volumes) {
		v := p.Volumes[name]
		p.plannedOf(v, func() bool {
			report, _, connected := p.Observed(v.Host)
			return connected && volumeOn(report, v.Meta.Uid).GetReady() && v.State == v1.VolumeState_VOLUME_STATE_READY && p.volumeRestoredFrom(v) == nil && p.outdated(v) == ""
		})
	}
}

const (
	// retryPlanned is the pause before a plan makes another checkpoint after one that failed or was cancelled. It doubles with
	// each further failure, up to mostRetryPlanned: the guests stand still at each attempt.
	retryPlanned     = 5 * time.Minute
	mostRetryPlanned = time.Hour
)

// nextPlanned returns when the next checkpoint of a plan is due.
func (p *pass) nextPlanned(of origin, every time.Duration) time.Time {
	done, cancelled, failed := of.GetMeta().Created.AsTime(), time.Time{}, []time.Time(nil)
	for c := range p.index.checkpointsOf[checkpointsKey(of)] {
		if now := p.working.Checkpoints[c.Meta.Name]; now != nil { // it may have ended in this pass
			c = now
		}
		switch ended := c.Ended.AsTime(); {
		case c.Ended == nil || ended.After(p.Now): // the clock may have been set back since
		case c.State == v1.CheckpointState_CHECKPOINT_STATE_FAILED && !c.Suspends:
			failed = append(failed, ended)
		case c.State == v1.CheckpointState_CHECKPOINT_STATE_FAILED || c.State == v1.CheckpointState_CHECKPOINT_STATE_CANCELLED:
			cancelled = later(cancelled, ended)
		default:
			done = later(done, ended)
		}
	}
	due := later(done.Add(every), cancelled.Add(min(every, retryPlanned)))
	failed = slices.DeleteFunc(failed, func(ended time.Time) bool { return ended.Before(done) })
	pause := mostRetryPlanned
	if n := len(failed); n < keepFailed { // more are not kept
		pause = retryPlanned << max(n-1, 0)
	}
	for _, ended := range failed {
		due = later(due, ended.Add(min(every, pause)))
	}
	return due
}

// putsOff reports whether a checkpoint that a person has cancelled keeps its plan from beginning another one at once. Its record
// stays until then.
func (p *pass) putsOff(c *v1.Checkpoint, of origin) bool {
	every := time.Duration(of.GetCheckpoints().GetEverySeconds()) * time.Second
	until := c.Ended.AsTime().Add(min(every, retryPlanned))
	if c.State != v1.CheckpointState_CHECKPOINT_STATE_CANCELLED || !p.Now.Before(until) || c.Ended.AsTime().After(p.Now) {
		return false
	}
	p.again = earlier(p.again, until)
	return true
}

// plannedOf begins a checkpoint of a cluster or a volume if its plan asks for one now and ready returns true.
func (p *pass) plannedOf(of origin, ready func() bool) {
	every := time.Duration(of.GetCheckpoints().GetEverySeconds()) * time.Second
	if every == 0 || of.GetMeta().Deleting != nil || restoring(of) || p.full() || p.unfinishedCheckpoint(of) != nil {
		return
	}
	due := p.nextPlanned(of, every)
	if p.Now.Before(due) {
		p.again = earlier(p.again, due)
		return
	}
	if !ready() {
		return
	}
	var change Change
	change.write(Create, newCheckpoint(p.Objects, of, fmt.Sprintf("every %s", every)))
	change.write(Expect, of)
	p.propose(checkpointsKey(of), change)
}

// newCheckpoint returns the record of a checkpoint that has not begun.
func newCheckpoint(s *Objects, of origin, reason string) *v1.Checkpoint {
	meta := of.GetMeta()
	c := &v1.Checkpoint{Meta: &v1.Meta{Name: nextCheckpointName(s, of), Owner: meta.Owner, OwnerUid: meta.OwnerUid},
		State: v1.CheckpointState_CHECKPOINT_STATE_PENDING, Reason: reason, Recipient: of.GetCheckpointRecipient(), Copies: of.GetCheckpoints().GetCopies(), LeftBefore: of.GetLeftBehind()}
	if _, volume := of.(*v1.Volume); volume {
		c.Volume = &v1.CheckpointMember{Guest: meta.Name, GuestUid: meta.Uid}
	} else {
		c.Cluster, c.ClusterUid = meta.Name, meta.Uid
	}
	return c
}

// checkpointNumber returns the number at the end of a checkpoint's name; 0: it has none.
func checkpointNumber(c *v1.Checkpoint) int { return numberIn(c.Meta.Name) }

// numberIn returns the number in a checkpoint's name; 0: there is none.
func numberIn(name string) int {
	n, err := strconv.Atoi(strings.TrimLeft(name[strings.LastIndexByte(name, '-')+1:], "cs"))
	if err != nil {
		return 0
	}
	return n
}

// nextCheckpointName returns a name that follows those of all checkpoints of the cluster or volume, so that a later one has a higher number.
func nextCheckpointName(s *Objects, of origin) string {
	prefix, highest := of.GetMeta().Name+"-c", 0
	if _, volume := of.(*v1.Volume); volume {
		prefix = of.GetMeta().Name + "-s"
	}
	for name := range s.Checkpoints {
		if number, is := strings.CutPrefix(name, prefix); is {
			if n, err := strconv.Atoi(number); err == nil {
				highest = max(highest, n)
			}
		}
	}
	for _, left := range of.GetLeftBehind() { // they may have been deleted
		highest = max(highest, int(left.Upto))
	}
	return fmt.Sprintf("%s%d", prefix, highest+1)
}

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

// CopiesOf returns the number of hosts that keep each file of a checkpoint.
func CopiesOf(c *v1.Checkpoint) int { return int(cmp.Or(c.Copies, checkpointCopies)) }

// fetchers returns the hosts that are to fetch a member's file: the host that restores it, and one for another copy.
func (p *pass) fetchers(c *v1.Checkpoint, m *v1.CheckpointMember) (hosts []string) {
	if known, is := p.fetching[m]; is {
		return known
	}
	defer func() { p.fetching[m] = hosts }()
	restores := ""
	if m == c.Volume {
		v := p.Volumes[m.Guest]
		if from := p.volumeRestoredFrom(v); p.needs(from, from.GetVolume(), c) {
			restores = v.Host
		}
	} else if g := p.Guests[m.Guest]; g != nil {
		if from := p.restoredFrom(g); p.needs(from, memberOf(from, g), c) {
			restores = g.Host
		}
	}
	if restores != "" && cutOff(p.Hosts[restores]) == nil && !slices.Contains(m.File.GetHosts(), restores) {
		hosts = append(hosts, restores)
	}
	if len(m.File.GetHosts()) < CopiesOf(c) {
		if host := p.copyTarget(c, m); host != "" && !slices.Contains(hosts, host) {
			hosts = append(hosts, host)
		}
	}
	return hosts
}

// noRoomFor is how long a host is not asked again to keep a copy that it could not keep.
const noRoomFor = 2 * time.Hour

// copyKey names a copy of a file of a checkpoint on a host. For a volume that the host could not put back, checkpoint is empty
// and guest is the volume's uid.
func copyKey(host, checkpoint, guest string) string { return host + " " + checkpoint + " " + guest }

// seeNoRoom notes the hosts that cannot keep a copy, usually for lack of room, so that others are asked.
func (p *pass) seeNoRoom() {
	for host := range p.Hosts {
		if !p.index.hosts[host] && !p.index.everything {
			continue
		}
		report, _, _ := p.Observed(host)
		for _, o := range report.GetCheckpoints() {
			key := copyKey(host, o.CheckpointId, o.GuestUid)
			if _, known := p.noRoom[key]; o.Phase == v1.CheckpointPhase_CHECKPOINT_PHASE_FAILED && !known {
				p.noRoom[key] = p.Now.Add(noRoomFor)
				p.index.everything = true // another host gets the order instead
			}
		}
	}
}

// copyTarget chooses the host that keeps another copy of a member's file: preferably one of another site, and then one
// that is not lent. The choice stays the same as long as the hosts do (rendezvous hashing), and spreads guests' files over
// the hosts. Empty: there is none.
func (p *pass) copyTarget(c *v1.Checkpoint, m *v1.CheckpointMember) (best string) {
	var score uint64
	sites := map[string]bool{}
	for _, name := range m.File.GetHosts() {
		sites[p.Hosts[name].GetInfo().GetSite()] = true
	}
	for _, name := range sortedKeys(p.Hosts) {
		h := p.Hosts[name]
		report, _, connected := p.Observed(name)
		if !connected || emptied(h) != "" || h.Meta.Deleting != nil || !report.GetSharing() || slices.Contains(m.File.GetHosts(), name) {
			continue
		}
		if _, full := p.noRoom[copyKey(name, c.Meta.Uid, m.GuestUid)]; full {
			continue
		}
		sum := sha256.Sum256([]byte(m.GuestUid + "/" + name))
		now := binary.BigEndian.Uint64(sum[:]) >> 2
		if !sites[h.GetInfo().GetSite()] {
			now |= 1 << 63
		}
		if !h.GetInfo().GetLent() {
			now |= 1 << 62
		}
		if best == "" || now > score {
			best, score = name, now
		}
	}
	return best
}

// checkpointShare returns the hosts from which a host fetches a member's file, or the hosts that may fetch it from there;
// nil: neither.
func (p *pass) checkpointShare(c *v1.Checkpoint, m *v1.CheckpointMember, host string) *v1.BlobShare {
	if c.State != v1.CheckpointState_CHECKPOINT_STATE_DONE {
		return nil
	}
	fetchers := p.fetchers(c, m)
	if len(fetchers) == 0 {
		return nil
	}
	share := &v1.BlobShare{Digest: m.File.GetBlob().GetDigest(), Reason: "checkpoint " + c.Meta.Name}
	if slices.Contains(m.File.GetHosts(), host) {
		share.Readers = blobPeers(p.Objects, fetchers)
	} else {
		share.Sources = blobPeers(p.Objects, m.File.GetHosts())
	}
	return share
}

// blobPeers returns hosts with the addresses at which other hosts reach them.
func blobPeers(s *Objects, names []string) (peers []*v1.BlobPeer) {
	for _, name := range names {
		if host := s.Hosts[name]; host != nil {
			peers = append(peers, &v1.BlobPeer{Name: name, Uid: host.GetMeta().GetUid(), Address: tunnelAddress(host)})
		}
	}
	return peers
}
