package machine

// record.go - what a host remembers of a guest over crashes. Package agent keeps it on disk.

import v1 "watari/api/watariv1"

// Phase is how far an epoch has come on this host. It is written to disk before the step that it names is taken.
type Phase string

const (
	// PhaseReserved: room is made for an incoming guest; no byte of it was let in.
	PhaseReserved Phase = "reserved"
	// PhaseReceiving: its tunnel was opened; a domain may exist.
	PhaseReceiving Phase = "receiving"
	// PhaseReceived: all of it was seen here, paused.
	PhaseReceived Phase = "received"
	// PhaseStarted: it was, or was about to be, started or resumed. This happens once for an epoch.
	PhaseStarted Phase = "started"
	// PhaseSending: its transfer to another host was, or was about to be, begun.
	PhaseSending Phase = "sending"
	// PhaseEnded: nothing of it exists here, and this epoch is not started here again.
	PhaseEnded Phase = "ended"
)

// Outcome says how an ended epoch ended.
type Outcome string

const (
	OutcomeGone   Outcome = "gone"   // it ran here, or may have, and is no more
	OutcomeFailed Outcome = "failed" // it never ran here
	OutcomeSent   Outcome = "sent"   // it was passed on to another host
	// OutcomeForgotten: the manager wants nothing of it here. Kept for a while, so that no late order starts it.
	OutcomeForgotten Outcome = "forgotten"
)

// Record is what a host remembers of a guest over crashes.
type Record struct {
	UID         string  `json:"uid"`
	Name        string  `json:"name"`
	Cluster     string  `json:"cluster,omitempty"`
	Epoch       uint64  `json:"epoch"`
	Phase       Phase   `json:"phase"`
	Migration   string  `json:"migration,omitempty"` // uid; reserved to received, sending, sent
	Source      string  `json:"source,omitempty"`    // host it is received from
	Target      string  `json:"target,omitempty"`    // host it is, or was, sent to
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
	ChangedAt   string  `json:"changed_at,omitempty"` // RFC 3339, for people and for clearing away old ones
	Facts       *Facts  `json:"facts,omitempty"`      // nil: an older manager gave the orders
}

// bootID is the boot in which the record's epoch began; empty: there is no record, or it does not say.
func (r *Record) bootID() string {
	if r == nil {
		return ""
	}
	return r.BootID
}

// These are acts that write the record that follows from another one, or from a wish.

func record(r *Record, phase Phase) Action {
	next := *r
	next.Phase, next.Outcome, next.Message, next.Target = phase, "", "", ""
	return Action{Kind: ActionRecord, Record: &next}
}

func end(r *Record, outcome Outcome, message string) Action {
	next := *r
	next.Phase, next.Outcome, next.Message = PhaseEnded, outcome, message
	return Action{Kind: ActionRecord, Record: &next}
}

func sending(r *Record, w *v1.GuestWanted) Action {
	a := record(r, PhaseSending)
	a.Record.Migration, a.Record.Target = w.Migration.Id, w.Migration.TargetHost
	return a
}

func newRecord(w *v1.GuestWanted, phase Phase) *Record {
	return &Record{UID: w.Uid, Name: w.Name, Cluster: w.Cluster, Epoch: w.Epoch, Phase: phase,
		Address: w.Identity.GetAddress(), Prefix: w.Identity.GetPrefix(), MAC: w.Identity.GetMac(),
		MTU: w.Identity.GetMtu(), MemoryBytes: w.Shape.GetMemoryBytes(), Image: w.Image.GetDigest(), Facts: factsOf(w)}
}
