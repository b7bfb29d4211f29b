// Package checkpoint decides how a coordinated checkpoint of a cluster proceeds. It is pure, without I/O and without a
// clock. Step gets a checkpoint's record and the hosts' reports, and returns the next state. docs/design/checkpoint.md
// lists the states and each host's orders in them.
//
// Two invariants hold whatever fails. In a checkpoint that is done, every guest stood from a moment before the first
// guest's snapshot until its own snapshot, and while the copy of the volume began. No guest stands for long: its host lets it
// go on if its snapshot is late.
package checkpoint

import (
	"fmt"
	"slices"
	"time"

	v1 "watari/api/watariv1"
)

// Time limits of the states.
const (
	PendingWait = 10 * time.Minute // for guests to run and moves to end
	PrepareWait = time.Minute
	// PrepareAway is how long a host may be disconnected while hosts make ready.
	PrepareAway = 10 * time.Second
	StopWait    = 2 * time.Second
	FreezeWait  = time.Second
	TakeWait    = 5 * time.Second
	// MaxStop is how long a host lets a guest stand. It is longer than StopWait, so that a slow host does not make
	// the others let their guests go on while the manager still waits for it.
	MaxStop = 3 * time.Second
	// AwayWait is how long a host may be disconnected while files are written.
	AwayWait = time.Minute
)

// Member is a guest of the checkpoint, or the volume, as the manager knows it. For the volume, Running means that its host
// serves it.
type Member struct {
	// Connected: the host is connected. Away is how long it has been disconnected.
	Connected bool
	Away      time.Duration
	// Ended: the guest's copy with the record's epoch is gone, or its host has died since the record was made.
	Ended bool
	// Running: the host reports that the guest runs and answers, under the record's epoch.
	Running bool
	// Moving: a move of the guest is under way.
	Moving bool
	// Saving: the host still works on another checkpoint of it, which may have been given up.
	Saving bool
	// Report is the host's report of this guest for this checkpoint; nil: none.
	Report *v1.CheckpointObserved
}

// Observed is the input of a step besides the record. Members are in the record's order.
type Observed struct {
	Members []Member
	// Volume is the record's volume; nil: it has none.
	Volume *Member
	// InState is how long the record has been in its state.
	InState time.Duration
	// Unwanted: the cluster is being deleted or stopped, or a guest has to move at once.
	Unwanted bool
	// Why is the reason for Unwanted; empty: one of the usual.
	Why string
	// Turn: the limits on concurrent checkpoints let this one begin.
	Turn bool
}

// Decision is the result of a step. State equals the record's if nothing changes.
type Decision struct {
	State   v1.CheckpointState
	Message string
}

// Ended reports whether a state is final.
func Ended(state v1.CheckpointState) bool {
	switch state {
	case v1.CheckpointState_CHECKPOINT_STATE_DONE, v1.CheckpointState_CHECKPOINT_STATE_FAILED, v1.CheckpointState_CHECKPOINT_STATE_CANCELLED,
		v1.CheckpointState_CHECKPOINT_STATE_DAMAGED:
		return true
	}
	return false
}

// HoldsMoves reports whether no move of the cluster's guests may begin in a state.
func HoldsMoves(state v1.CheckpointState) bool {
	return state > v1.CheckpointState_CHECKPOINT_STATE_PENDING && !Ended(state)
}

// VolumeOrder returns the order for the volume's host in a state. The host begins a copy while the guests stand; the volume
// itself is not stopped.
func VolumeOrder(state v1.CheckpointState) v1.CheckpointOrder {
	switch state {
	case v1.CheckpointState_CHECKPOINT_STATE_STOPPING:
		return v1.CheckpointOrder_CHECKPOINT_ORDER_PREPARE
	case v1.CheckpointState_CHECKPOINT_STATE_FREEZING:
		return v1.CheckpointOrder_CHECKPOINT_ORDER_TAKE
	}
	return Order(state)
}

// Order returns the orders about guests for their hosts in a state.
func Order(state v1.CheckpointState) v1.CheckpointOrder {
	switch state {
	case v1.CheckpointState_CHECKPOINT_STATE_PREPARING:
		return v1.CheckpointOrder_CHECKPOINT_ORDER_PREPARE
	case v1.CheckpointState_CHECKPOINT_STATE_STOPPING, v1.CheckpointState_CHECKPOINT_STATE_FREEZING:
		return v1.CheckpointOrder_CHECKPOINT_ORDER_STOP
	case v1.CheckpointState_CHECKPOINT_STATE_TAKING, v1.CheckpointState_CHECKPOINT_STATE_WRITING:
		return v1.CheckpointOrder_CHECKPOINT_ORDER_TAKE
	case v1.CheckpointState_CHECKPOINT_STATE_DONE:
		return v1.CheckpointOrder_CHECKPOINT_ORDER_KEEP
	case v1.CheckpointState_CHECKPOINT_STATE_FAILED, v1.CheckpointState_CHECKPOINT_STATE_CANCELLED:
		return v1.CheckpointOrder_CHECKPOINT_ORDER_DISCARD
	}
	return v1.CheckpointOrder_CHECKPOINT_ORDER_UNSPECIFIED
}

// stage is what a state waits for.
type stage struct {
	guests v1.CheckpointPhase // that all guests must have reached
	volume v1.CheckpointPhase // that the volume must have reached
	next   v1.CheckpointState
	limit  time.Duration // time limit of the state; 0: none
	away   time.Duration // how long a host may be disconnected
	doing  string
}

const (
	ready   = v1.CheckpointPhase_CHECKPOINT_PHASE_READY
	stopped = v1.CheckpointPhase_CHECKPOINT_PHASE_STOPPED
	taken   = v1.CheckpointPhase_CHECKPOINT_PHASE_TAKEN
	written = v1.CheckpointPhase_CHECKPOINT_PHASE_WRITTEN
)

var stages = map[v1.CheckpointState]stage{
	v1.CheckpointState_CHECKPOINT_STATE_PREPARING: {ready, ready, v1.CheckpointState_CHECKPOINT_STATE_STOPPING, PrepareWait, PrepareAway, "make ready"},
	v1.CheckpointState_CHECKPOINT_STATE_STOPPING:  {stopped, ready, v1.CheckpointState_CHECKPOINT_STATE_FREEZING, StopWait, 0, "stop it"},
	v1.CheckpointState_CHECKPOINT_STATE_FREEZING:  {stopped, taken, v1.CheckpointState_CHECKPOINT_STATE_TAKING, FreezeWait, 0, "begin a copy of it"},
	v1.CheckpointState_CHECKPOINT_STATE_TAKING:    {taken, taken, v1.CheckpointState_CHECKPOINT_STATE_WRITING, TakeWait, TakeWait, "take its state"},
	v1.CheckpointState_CHECKPOINT_STATE_WRITING:   {written, written, v1.CheckpointState_CHECKPOINT_STATE_DONE, 0, AwayWait, "write its file"},
}

// part is a guest of a checkpoint, or its volume.
type part struct {
	Member
	record *v1.CheckpointMember
	volume bool
}

func (p part) String() string {
	if p.volume {
		return "volume " + p.record.GetGuest()
	}
	return "guest " + p.record.GetGuest()
}

// parts returns the guests of a checkpoint, and its volume.
func parts(c *v1.Checkpoint, o Observed) (list []part) {
	for i, m := range o.Members {
		list = append(list, part{m, c.Members[i], false})
	}
	if o.Volume != nil {
		list = append(list, part{*o.Volume, c.Volume, true})
	}
	return list
}

// Step decides the next state of a checkpoint.
func Step(c *v1.Checkpoint, o Observed) Decision {
	switch {
	case Ended(c.State):
		return Decision{c.State, c.Message}
	case c.Cancel:
		return Decision{v1.CheckpointState_CHECKPOINT_STATE_CANCELLED, "cancelled"}
	case o.Unwanted && o.Why != "":
		return Decision{v1.CheckpointState_CHECKPOINT_STATE_CANCELLED, o.Why}
	case o.Unwanted && len(c.Members) == 0 && c.Volume != nil:
		return Decision{v1.CheckpointState_CHECKPOINT_STATE_CANCELLED, "the volume is being deleted or restored"}
	case o.Unwanted:
		return Decision{v1.CheckpointState_CHECKPOINT_STATE_CANCELLED, "the cluster's guests are being stopped or moved"}
	}
	for _, p := range parts(c, o) {
		if p.Ended {
			return failed("%s ended on %s", p, p.record.Host)
		}
	}
	if c.State == v1.CheckpointState_CHECKPOINT_STATE_PENDING {
		return pending(c, o)
	}
	return proceed(c, o, stages[c.State])
}

func failed(format string, a ...any) Decision {
	return Decision{v1.CheckpointState_CHECKPOINT_STATE_FAILED, fmt.Sprintf(format, a...)}
}

func pending(c *v1.Checkpoint, o Observed) Decision {
	waits, saves := "", ""
	for _, p := range parts(c, o) {
		switch {
		case p.Moving:
			waits = fmt.Sprintf("waits until the move of %s has ended", p)
		case !p.Connected && p.record.Host != "":
			waits = fmt.Sprintf("waits for host %s to be connected", p.record.Host)
		case !p.Running && p.volume:
			waits = fmt.Sprintf("waits for %s to be served", p)
		case !p.Running:
			waits = fmt.Sprintf("waits for %s to run", p)
		case p.Saving:
			saves = fmt.Sprintf("waits until an earlier checkpoint of %s has ended", p)
		}
	}
	switch {
	case waits == "" && saves != "": // however long that takes
		return Decision{c.State, saves}
	case waits == "" && o.Turn:
		return Decision{State: v1.CheckpointState_CHECKPOINT_STATE_PREPARING}
	case o.InState > PendingWait && waits != "":
		return failed("%s, for more than %s", waits, PendingWait)
	case waits == "":
		waits = "waits for other checkpoints"
	}
	return Decision{c.State, waits}
}

// proceed waits until all parts have reached the stage's phases.
func proceed(c *v1.Checkpoint, o Observed, s stage) Decision {
	message := ""
	for _, p := range parts(c, o) {
		wanted := s.guests
		if p.volume {
			wanted = s.volume
		}
		away := !p.Connected && c.State == v1.CheckpointState_CHECKPOINT_STATE_PREPARING // the others would be stopped in vain
		switch phase := p.Report.GetPhase(); {
		case phase == v1.CheckpointPhase_CHECKPOINT_PHASE_FAILED:
			return failed("host %s, %s: %s", p.record.Host, p, p.Report.Message)
		case phase >= wanted && !away:
			continue
		case !p.Connected && p.Away > s.away:
			return failed("host %s is not reachable", p.record.Host)
		case s.limit > 0 && o.InState > s.limit:
			return failed("%s: host %s did not %s within %s", p, p.record.Host, s.doing, s.limit)
		}
		doing := s.doing
		if away {
			doing = "be connected"
		}
		message = fmt.Sprintf("%s: waits for host %s to %s", p, p.record.Host, doing)
	}
	if message != "" {
		return Decision{c.State, message}
	}
	next := s.next
	if next == v1.CheckpointState_CHECKPOINT_STATE_FREEZING && o.Volume == nil {
		next = stages[next].next
	}
	return Decision{State: next}
}

// Files returns the parts of a checkpoint that have a file each: its guests, and its volume if there is one.
func Files(c *v1.Checkpoint) []*v1.CheckpointMember {
	if c.GetVolume() == nil {
		return c.GetMembers()
	}
	return append(slices.Clone(c.Members), c.Volume)
}

// Bytes returns the size of a checkpoint's files in bytes. Each file counts once, however many hosts have it.
func Bytes(c *v1.Checkpoint) (bytes uint64) {
	for _, m := range Files(c) {
		bytes += m.GetFile().GetBlob().GetSize()
	}
	return bytes
}
