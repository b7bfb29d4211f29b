package machine

// act.go - the acts that the machine asks the agent to carry out, and their results.

import (
	"watari/agent/domain"
	v1 "watari/api/watariv1"
)

// Kind is the kind of an act.
type Kind string

// Acts of the host. Each act says which of Act's and Result's fields it uses.
const (
	// KeepTerm writes Act.Term and Act.Stamp to disk, so that they survive a crash. Stamp is nil where the orders have
	// none.
	KeepTerm Kind = "keep term"
	// ReadTerm reads what KeepTerm has written: Result.Term and Result.Stamp, zero where it never did. With Err, a term may
	// be there.
	ReadTerm Kind = "read term"
	// ApplyOrders passes Act.Orders to the code that keeps the network, the images and the templates. The agent carries
	// it out before the acts that follow it.
	ApplyOrders Kind = "apply orders"
	// List lists the domains: Result.Domains. Afterwards it asks which guests of Act.Late the hypervisor is still
	// creating: Result.Creating.
	List Kind = "list"
)

// Acts of one guest.
const (
	// ReadRecord reads the guest's record into Result.Record (nil: there is none), and sets Result.Damaged. Err without
	// Damaged means that a record exists, and a later attempt may read it.
	ReadRecord Kind = "read record"
	// WriteRecord writes Act.Record to disk, so that it survives a crash. If it fails, the disk may hold the old record
	// or the new one. Act.Vital permits use of the reserved space. Act.Was is the previous record.
	WriteRecord Kind = "write record"
	// Explain finds out why a domain ended by itself. Result.Message is the message of Act.Record with the reason
	// added. Result.LastLines are the last lines of the console. Act.Broken: the agent ended the domain, because it could never
	// continue.
	Explain Kind = "explain"
	// Plug creates the tap of a guest that ran here when the agent started.
	Plug Kind = "plug"
	// Prepare prepares image, template and tap for Act.Wanted. Act.Reserved is the memory that is promised to other
	// guests on their way here. Act.Record is the guest's record; if it has ended, Prepare moves its console file away.
	Prepare Kind = "prepare"
	// Route waits for a route from the guest's address to its tap. After a short time the guest runs without the route.
	Route Kind = "route"
	// Start creates the domain of Act.Wanted. It forks the template that Prepare made; without one, or with Act.Plain,
	// it boots the image. Nothing interrupts Start: the hypervisor could create the domain later, unseen.
	Start Kind = "start"
	// Restore creates the paused domain of Act.Wanted from the file of its checkpoint. Nothing interrupts it.
	Restore Kind = "restore"
	// Send sends the guest as Act.Wanted says. It ends when the hypervisor has ended the transfer.
	Send Kind = "send"
	// Busy asks whether the hypervisor has a job on the domain, and waits up to Act.Patience for the job's end.
	Busy Kind = "busy"
	// Resume lets the paused domain run.
	Resume Kind = "resume"
	// Destroy ends the domain, and the guest's processes that the hypervisor no longer knows.
	Destroy Kind = "destroy"
	// Confirm lists the guest's processes in Result.PIDs. The search begins after Acts has returned the act.
	Confirm Kind = "confirm"
	// AllowIncoming makes the tunnel admit the transfer Act.Migration from the host Act.Source with uid Act.SourceUID.
	AllowIncoming Kind = "allow incoming"
	// DisallowIncoming ends AllowIncoming. Admitted connections continue.
	DisallowIncoming Kind = "disallow incoming"
	// AnswerAdmission answers Admit: it admits the connection Act.Connection, or refuses it because of Act.Err.
	AnswerAdmission Kind = "answer admission"
	// Forget removes the guest's tap, sockets, reservation, expectation and connections. It keeps the guest's record,
	// Act.Record.
	Forget Kind = "forget"
	// Interrupt cancels the act Act.Of. The agent reports the end of the cancelled act soon after.
	Interrupt Kind = "interrupt"
)

// Act is one act. The agent carries out acts concurrently, and calls Ended once for each. ApplyOrders, AnswerAdmission and
// Interrupt need no Ended.
type Act struct {
	ID          uint64
	Kind        Kind
	Guest, Name string // uid and name; empty: of the host

	Term       uint64
	Stamp      *v1.Stamp
	Orders     *v1.HostWanted
	Late       []string
	Record     *Record
	Was        *Record
	Vital      bool
	Tap        Tap
	MTU        uint32
	Wanted     *v1.GuestWanted
	Reserved   uint64 // bytes
	Plain      bool
	Broken     bool
	Patience   Patience
	Migration  string
	Source     string
	SourceUID  string
	Connection uint64
	Err        error
	Of         uint64
}

// Patience says how long Busy waits.
type Patience string

// The patiences.
const (
	AskOnce   Patience = ""           // not at all
	UntilDone Patience = "until done" // for a minute at most
)

// Result is the result of an act. Err is nil if the act succeeded. The act's kind says which other fields it sets.
type Result struct {
	Err error

	Term      uint64
	Stamp     *v1.Stamp
	Domains   []domain.Info
	Creating  []string // uids
	Record    *Record
	Damaged   bool // the record was damaged, and has been moved away
	Message   string
	LastLines string
	// Final, of Prepare: this host cannot prepare the epoch, and another host may. The epoch has failed.
	Final bool
	// Cut, of Prepare: it failed because it was interrupted.
	Cut bool
	// Unplugged, of Prepare and Forget: the guest has no tap now.
	Unplugged bool
	Note      string // of Prepare: a problem that does not stop the start
	// Uncertain, of Start: the domain may exist, or may still appear.
	Uncertain bool
	// Unforked, of Start: the template could not be restored. The guest may boot after the domain of that attempt has
	// ended.
	Unforked bool
	// Broken, of Resume: the guest can never continue.
	Broken bool
	Busy   bool
	PIDs   []int
}

// Tap is a guest as the overlay sees it.
type Tap struct {
	UID, Cluster, Address, MAC, Prefix string
}
