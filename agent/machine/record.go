package machine

// record.go - the record of a guest, which survives crashes. Package agent keeps it on disk.

import v1 "watari/api/watariv1"

// Phase is an epoch's progress on this host. The record on disk has the phase before the agent takes the step that it
// names.
type Phase string

const (
	// PhaseReserved: the host has reserved resources for an incoming guest, and admitted no byte of it.
	PhaseReserved Phase = "reserved"
	// PhaseReceiving: the tunnel has admitted a connection; a domain may exist.
	PhaseReceiving Phase = "receiving"
	// PhaseReceived: the whole guest is here, paused.
	PhaseReceived Phase = "received"
	// PhaseStarted: the guest was started or resumed, or was about to be. An epoch enters this phase for the first time
	// once.
	PhaseStarted Phase = "started"
	// PhaseSending: the guest's transfer to another host has begun, or was about to begin.
	PhaseSending Phase = "sending"
	// PhaseEnded: nothing of the guest exists here. This host never starts the epoch again.
	PhaseEnded Phase = "ended"
)

// Outcome says how an ended epoch ended.
type Outcome string

const (
	OutcomeGone   Outcome = "gone"   // it ran here, or may have run, and has ended
	OutcomeFailed Outcome = "failed" // it never ran here
	OutcomeSent   Outcome = "sent"   // it was passed on to another host
	// OutcomeForgotten: the manager wants nothing of the guest here. The record stays for a while, so that no late
	// order starts the epoch.
	OutcomeForgotten Outcome = "forgotten"
)

// Record is the state of a guest on a host that survives crashes.
type Record struct {
	UID         string  `json:"uid"`
	Name        string  `json:"name"`
	Cluster     string  `json:"cluster,omitempty"`
	Epoch       uint64  `json:"epoch"`
	Phase       Phase   `json:"phase"`
	Migration   string  `json:"migration,omitempty"` // uid of the last move to or from here
	Restore     string  `json:"restore,omitempty"`   // id of the restore that brings the epoch here
	Source      string  `json:"source,omitempty"`    // host from which it is received
	Target      string  `json:"target,omitempty"`    // host to which it is or was sent
	RanOn       bool    `json:"ran_on,omitempty"`    // the guest continued here after Migration's transfer had failed
	Outcome     Outcome `json:"outcome,omitempty"`
	Message     string  `json:"message,omitempty"`
	LastLines   string  `json:"last_lines,omitempty"` // of the console of a guest that ended by itself, printable
	BeganAt     string  `json:"began_at,omitempty"`   // RFC 3339: when the epoch began here
	BootID      string  `json:"boot_id,omitempty"`    // of the host then; empty: an older agent wrote it
	Address     string  `json:"address,omitempty"`
	Prefix      string  `json:"prefix,omitempty"`
	MAC         string  `json:"mac,omitempty"`
	MTU         uint32  `json:"mtu,omitempty"`
	MemoryBytes uint64  `json:"memory_bytes,omitempty"`
	Image       string  `json:"image,omitempty"`      // digest
	ChangedAt   string  `json:"changed_at,omitempty"` // RFC 3339, for people and for the removal of old records
	LeaseMS     uint64  `json:"lease_ms,omitempty"`   // it runs only while a lease of this length lasts; 0: without one
	Facts       *Facts  `json:"facts,omitempty"`      // nil: an older manager gave the orders
}

// bootID returns the boot in which the record's epoch began; empty: there is no record, or it does not say.
func (r *Record) bootID() string {
	if r == nil {
		return ""
	}
	return r.BootID
}

// The functions below return actions that write a record: the successor of another record, or one made from a wish.

func record(r *Record, phase Phase) Action {
	next := *r
	next.Phase, next.Outcome, next.Message, next.Target = phase, "", "", ""
	next.RanOn = r.RanOn || r.Phase == PhaseSending && phase == PhaseStarted
	return Action{Kind: ActionRecord, Record: &next}
}

// ranOn reports whether the guest ran here after the transfer of r.Migration. A version that did not record RanOn left such
// a record in phase started. The record of a guest that arrived by r.Migration looks the same, so callers ask only for the
// migration's source.
func (r *Record) ranOn() bool { return r.RanOn || r.Phase == PhaseStarted && r.Migration != "" }

func end(r *Record, outcome Outcome, message string) Action {
	next := *r
	next.Phase, next.Outcome, next.Message = PhaseEnded, outcome, message
	next.RanOn = r.ranOn()
	return Action{Kind: ActionRecord, Record: &next}
}

// EndByHand returns the record of a guest that an administrator of the host has ended while no agent ran. killed: the guest
// had a process until then, so a transfer under way had not ended this copy.
func (r *Record) EndByHand(killed bool) *Record {
	next := end(r, OutcomeGone, "ended by an administrator of the host").Record
	next.RanOn = next.RanOn || killed && r.Phase == PhaseSending
	return next
}

func sending(r *Record, w *v1.GuestWanted) Action {
	a := record(r, PhaseSending)
	a.Record.RanOn = r.RanOn && r.Migration == w.Migration.Id // the target may still have what it received before
	a.Record.Migration, a.Record.Target = w.Migration.Id, w.Migration.TargetHost
	return a
}

func newRecord(w *v1.GuestWanted, phase Phase) *Record {
	return &Record{UID: w.Uid, Name: w.Name, Cluster: w.Cluster, Epoch: w.Epoch, Phase: phase,
		Address: w.Identity.GetAddress(), Prefix: w.Identity.GetPrefix(), MAC: w.Identity.GetMac(),
		MTU: w.Identity.GetMtu(), MemoryBytes: w.Shape.GetMemoryBytes(), Image: w.Image.GetDigest(), LeaseMS: w.LeaseMs, Facts: factsOf(w)}
}
