package core

// verify.go - verifies checkpoints: all hosts that have the files of a checkpoint read them again, and one host restores a
// guest on trial.

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "watari/api/watariv1"
	"watari/checkpoint"
	"watari/compatibility"
	"watari/placement"
)

// verifyEvery is how often the latest checkpoint of a cluster or a volume is verified automatically.
const verifyEvery = 7 * 24 * time.Hour

// verifying reports whether a checkpoint is being verified.
func verifying(c *v1.Checkpoint) bool {
	switch c.GetVerification().GetState() {
	case v1.VerificationState_VERIFICATION_STATE_READING, v1.VerificationState_VERIFICATION_STATE_TRYING:
		return true
	}
	return false
}

func newVerification(now time.Time) *v1.Verification {
	return &v1.Verification{Id: now.UTC().Format("20060102T150405.000000000"), State: v1.VerificationState_VERIFICATION_STATE_READING, Asked: timestamppb.New(now)}
}

// VerifyCheckpoint begins a verification of a checkpoint. If one is under way, the change has no operations.
func (a *Admission) VerifyCheckpoint(name string) (change Change, err error) {
	c, err := a.wholeCheckpoint(name)
	if err != nil || verifying(c) {
		return change, err
	}
	c = proto.CloneOf(c)
	c.Verification = newVerification(a.Now)
	change.write(Update, c)
	a.audited(&change, "checkpoint", name, "to be verified")
	return change, nil
}

// verify takes a step of the verification of a checkpoint that is done, or begins a verification that is due. It changes
// now, the new record.
func (p *pass) verify(change *Change, now *v1.Checkpoint) {
	v := now.Verification
	of := originOf(p.Objects, now)
	switch {
	case of == nil || restoring(of) || p.changed(of):
	case verifying(now) && v.State == v1.VerificationState_VERIFICATION_STATE_READING:
		p.verifyRead(change, of, now)
	case verifying(now):
		p.verifyTried(change, of, now)
	case latestCheckpoint(p.Objects, of, nil).GetMeta().GetUid() == now.Meta.Uid:
		last := of.GetMeta().Created.AsTime()
		if at := of.GetVerified(); at != nil {
			last = at.AsTime()
		}
		if due := last.Add(verifyEvery); p.Now.Before(due) {
			p.again = earlier(p.again, due)
		} else if !slices.ContainsFunc(slices.Collect(maps.Keys(p.index.checkpointsOf[keyOfCheckpoint(now)])), verifying) { // one at a time
			now.Verification = newVerification(p.Now)
		}
	}
}

// verifyRead waits until all connected hosts have read the files, and then chooses the host for the trial.
func (p *pass) verifyRead(change *Change, of origin, now *v1.Checkpoint) {
	v := now.Verification
	for _, m := range checkpoint.Files(now) {
		chain, _ := p.chain(now, m)
		for _, f := range chain {
			read := false
			for _, host := range f.member.File.GetHosts() {
				report, _, connected := p.Observed(host)
				if o := checkpointOn(report, f.checkpoint.Meta.Uid, m.GuestUid); connected && o.GetVerified() != v.Id {
					v.Message = fmt.Sprintf("host %s reads the file of %s", host, m.Guest)
					return
				}
				read = read || connected
			}
			if !read {
				v.Message = "no host that has the file of " + m.Guest + " is connected"
				return
			}
		}
	}
	m, host, why := p.trialHost(now)
	if m == nil {
		p.verified(change, of, now, v1.VerificationState_VERIFICATION_STATE_DONE, why)
		return
	}
	v.State, v.Guest, v.Host, v.Message = v1.VerificationState_VERIFICATION_STATE_TRYING, m.Guest, host, ""
}

// verifyTried waits for the end of the trial. If its host is away or has lost the file, the verification begins again.
func (p *pass) verifyTried(change *Change, of origin, now *v1.Checkpoint) {
	v := now.Verification
	report, _, connected := p.Observed(v.Host)
	var o *v1.CheckpointObserved
	for _, m := range now.Members {
		if m.Guest == v.Guest {
			o = checkpointOn(report, now.Meta.Uid, m.GuestUid)
		}
	}
	switch {
	case !connected || p.current(v.Host) && o == nil:
		now.Verification = newVerification(p.Now)
	case o.GetTried() != v.Id:
	case o.TriedError != "":
		p.verified(change, of, now, v1.VerificationState_VERIFICATION_STATE_FAILED, fmt.Sprintf("host %s could not restore guest %s: %s", v.Host, v.Guest, o.TriedError))
	default:
		p.verified(change, of, now, v1.VerificationState_VERIFICATION_STATE_DONE, "")
	}
}

// verified ends a verification.
func (p *pass) verified(change *Change, of origin, now *v1.Checkpoint, state v1.VerificationState, message string) {
	v := now.Verification
	v.State, v.Message, v.Ended = state, message, timestamppb.New(p.Now)
	tried := ""
	if v.Guest != "" {
		tried = fmt.Sprintf(", and host %s has restored guest %s on trial", v.Host, v.Guest)
	}
	if state == v1.VerificationState_VERIFICATION_STATE_FAILED {
		change.event(v1.Severity_SEVERITY_ERROR, "checkpoint", now.Meta.Name, "its files are whole, but %s", message)
	} else {
		change.event(v1.Severity_SEVERITY_INFO, "checkpoint", now.Meta.Name, "verified: its files are whole%s", tried)
	}
	of = proto.Clone(of).(origin)
	switch of := of.(type) {
	case *v1.Cluster:
		of.Verified = v.Ended
	case *v1.Volume:
		of.Verified = v.Ended
	}
	change.write(Update, of)
}

// trialHost chooses a guest, and a host that has the guest's files, room, and platform. If there is none,
// it says why.
func (p *pass) trialHost(c *v1.Checkpoint) (guest *v1.CheckpointMember, host, why string) {
	if len(c.Members) == 0 {
		return nil, "", ""
	}
	free := newRoom(p.Objects, p, p.index.moves)
	for _, m := range c.Members {
		g := p.Guests[m.Guest]
		if g == nil || g.Meta.Uid != m.GuestUid {
			continue
		}
		chain, _ := p.chain(c, m)
		for _, name := range m.File.GetHosts() {
			i, is := free.at[name]
			lacks := slices.ContainsFunc(chain, func(f chainFile) bool { return !slices.Contains(f.member.File.GetHosts(), name) })
			if report, _, _ := p.Observed(name); !is || lacks || hasVolume(c, m) && !report.GetTriesVolumes() {
				continue
			}
			h := free.hosts[i]
			saved := &v1.Guest{Meta: g.Meta, Platform: m.Platform}
			if h.Connected && !h.Draining && h.Withdrawn == "" && placement.Unconfined(h.Confinement) == "" &&
				h.MemoryUsed+g.Shape.GetMemoryBytes() <= h.MemoryBytes && compatibility.RefuseMove(saved, p.Hosts[m.Host].GetInfo(), h.Info) == "" {
				return m, name, ""
			}
		}
	}
	return nil, "", "no guest was restored on trial: no host that has its files has room"
}

// verifiesFor returns the id of the verification that needs a member's file of a checkpoint read again; empty: none.
func (p *pass) verifiesFor(c *v1.Checkpoint, m *v1.CheckpointMember) (id string) {
	for other := range p.index.checkpointsOf[keyOfCheckpoint(c)] {
		if verifying(other) && p.needs(other, fileMember(other, m.GuestUid), c) {
			id = max(id, other.Verification.Id)
		}
	}
	return id
}

// fetchedFor returns why a member's file of a checkpoint is read again: hosts are to fetch it. They discard what they fetch
// of a damaged file, and the host that has the file would not learn of the damage. Empty: no host fetches the file.
func (p *pass) fetchedFor(c *v1.Checkpoint, m *v1.CheckpointMember) string {
	fetchers := p.fetchers(c, m)
	if len(fetchers) == 0 {
		return ""
	}
	restore := ""
	if of := originOf(p.Objects, c); of != nil && restoring(of) {
		restore = of.GetRestore().Id
	}
	return "fetched by " + strings.Join(fetchers, " ") + " " + restore
}

// trialOrder returns a host's order to restore a guest on trial; nil: none.
func (p *pass) trialOrder(c *v1.Checkpoint, m *v1.CheckpointMember, host string) *v1.TrialOrder {
	v, g := c.Verification, p.Guests[m.Guest]
	if v.GetState() != v1.VerificationState_VERIFICATION_STATE_TRYING || v.Host != host || v.Guest != m.Guest || m == c.Volume || g == nil {
		return nil
	}
	order := p.orderToRestore(p.Clusters[c.Cluster], c, m)
	order.Id = v.Id
	trial := &v1.TrialOrder{Verification: v.Id, Shape: g.Shape, Image: p.image(g.ImageDigest), Platform: cmp.Or(m.Platform, g.Platform), Restore: order}
	if hasVolume(c, m) {
		trial.VolumeBytes = p.Volumes[c.Volume.Guest].GetSizeBytes()
	}
	return trial
}

// hasVolume reports whether a guest had its cluster's volume when a checkpoint was made.
func hasVolume(c *v1.Checkpoint, m *v1.CheckpointMember) bool { return c.Volume != nil && m.Index == 0 }
