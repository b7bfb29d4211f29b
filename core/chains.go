package core

// chains.go - checkpoint files that have only the differences from a file of an earlier checkpoint. A file is kept as long
// as another one builds on it.

import (
	"iter"
	"maps"
	"slices"

	v1 "watari/api/watariv1"
	"watari/checkpoint"
)

// longestChain is the largest number of files from which a state is put together.
const longestChain = 8

// chainFile is a file of a chain.
type chainFile struct {
	checkpoint *v1.Checkpoint
	member     *v1.CheckpointMember
}

// fileOnly returns a file's description without the hosts that have it.
func fileOnly(f *v1.CheckpointFile) *v1.CheckpointFile {
	return &v1.CheckpointFile{Blob: f.GetBlob(), StateBytes: f.GetStateBytes(), Base: f.GetBase()}
}

// fileMember returns a guest's or a volume's part of a checkpoint, by its uid; nil: none.
func fileMember(c *v1.Checkpoint, uid string) *v1.CheckpointMember {
	for _, m := range checkpoint.Files(c) {
		if m.GuestUid == uid {
			return m
		}
	}
	return nil
}

// chain returns the file of a member of a checkpoint and the files on which it builds; the last one has a complete state.
// whole is false if one of them is gone or the chain is too long.
func (p *pass) chain(c *v1.Checkpoint, m *v1.CheckpointMember) (list []chainFile, whole bool) {
	return chainAmong(maps.Keys(p.index.checkpointsOf[keyOfCheckpoint(c)]), c, m)
}

// chainAmong is chain, with the checkpoints among which the files are looked for.
func chainAmong(all iter.Seq[*v1.Checkpoint], c *v1.Checkpoint, m *v1.CheckpointMember) (list []chainFile, whole bool) {
	list = []chainFile{{c, m}}
	for base := m.File.GetBase(); base != ""; {
		found := false
		for other := range all {
			if f := fileMember(other, m.GuestUid); f.GetFile().GetBlob().GetDigest() == base && other.State == v1.CheckpointState_CHECKPOINT_STATE_DONE {
				list, base, found = append(list, chainFile{other, f}), f.File.Base, true
				break
			}
		}
		if !found || len(list) > longestChain {
			return list, false
		}
	}
	return list, true
}

// chainToRestore returns the files of chain, or none if c or m is nil: then nothing is restored.
func (p *pass) chainToRestore(c *v1.Checkpoint, m *v1.CheckpointMember) (list []chainFile) {
	if c != nil && m != nil {
		list, _ = p.chain(c, m)
	}
	return list
}

// needs reports whether a restore of a member from checkpoint from needs the member's file of checkpoint c. from may be nil.
func (p *pass) needs(from *v1.Checkpoint, m *v1.CheckpointMember, c *v1.Checkpoint) bool {
	return slices.ContainsFunc(p.chainToRestore(from, m), func(f chainFile) bool { return f.checkpoint == c })
}

// buildsOn returns the uid of the checkpoint on whose file of a member a new file may build: the latest one, if the member's
// host has that file. Empty: the whole state must be written. That is so if the chain is long, if the differences are larger
// than the state, or if the agent of any host cannot restore increments.
func (p *pass) buildsOn(c *v1.Checkpoint, m *v1.CheckpointMember) string {
	for _, h := range p.Hosts {
		if h.Info != nil && !h.Info.Increments {
			return ""
		}
	}
	latest := latestCheckpoint(p.Objects, originOf(p.Objects, c), c)
	base := fileMember(latest, m.GuestUid)
	if base == nil || !slices.Contains(base.File.GetHosts(), m.Host) {
		return ""
	}
	chain, whole := p.chain(latest, base)
	differs := uint64(0)
	for _, f := range chain[:len(chain)-1] {
		differs += f.member.File.GetBlob().GetSize()
	}
	if !whole || len(chain) >= longestChain || differs > chain[len(chain)-1].member.File.GetBlob().GetSize() {
		return ""
	}
	return latest.Meta.Uid
}

// needed reports whether one of the other checkpoints builds on this one, or may do so because it is being made.
func needed(c *v1.Checkpoint, others iter.Seq[*v1.Checkpoint]) bool {
	whole, damaged := v1.CheckpointState_CHECKPOINT_STATE_DONE, v1.CheckpointState_CHECKPOINT_STATE_DAMAGED
	if c.State != whole && c.State != damaged {
		return false
	}
	for other := range others {
		if other == c || keyOfCheckpoint(other) != keyOfCheckpoint(c) {
			continue
		}
		if checkpoint.HoldsMoves(other.State) {
			return true
		}
		if other.State != whole { // a checkpoint that builds on a damaged one is found to be damaged, too
			continue
		}
		for _, m := range checkpoint.Files(other) {
			if base := m.File.GetBase(); base != "" && fileMember(c, m.GuestUid).GetFile().GetBlob().GetDigest() == base {
				return true
			}
		}
	}
	return false
}

func (p *pass) needed(c *v1.Checkpoint) bool {
	return needed(c, maps.Keys(p.index.checkpointsOf[keyOfCheckpoint(c)]))
}
