package core

// checkpoint_copies.go - keeps copies of the files of checkpoints on several hosts: which hosts have them, and which fetch them.

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"maps"
	"math"
	"slices"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "watari/api/watariv1"
	"watari/checkpoint"
)

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

// fewestHolders returns on how many hosts that file of a checkpoint is that is on the fewest.
func fewestHolders(c *v1.Checkpoint) int {
	fewest := math.MaxInt
	for _, m := range checkpoint.Files(c) {
		fewest = min(fewest, len(m.File.GetHosts()))
	}
	return fewest
}

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
