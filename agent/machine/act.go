package machine

// act.go - what the machine has the agent do, and what comes back.

import (
	"watari/agent/domain"
	v1 "watari/api/watariv1"
)

// Kind is what an act does.
type Kind string

// Acts of the host. Each act says which of Act's and Result's fields it uses.
const (
	// KeepTerm writes Act.Term and Act.Stamp to disk, so that they survive a crash. Stamp is nil where the orders have none.
	KeepTerm Kind = "keep term"
	// ReadTerm reads what KeepTerm has written: Result.Term and Result.Stamp, zero where it never did. With Err, a term may
	// be there.
	ReadTerm Kind = "read term"
	// Obey hands Act.Orders to what keeps the network, the images and the templates. It is carried out before the acts that
	// follow it.
	Obey Kind = "obey"
	// List lists the domains: Result.Domains. Afterwards it asks which guests of Act.Late the hypervisor is still creating:
	// Result.Creating.
	List Kind = "list"
)

// Acts of one guest.
const (
	// ReadRecord reads the guest's record: Result.Record, nil where there is none, and Result.Damaged. With
	// Err and without Damaged, a record is there, and may be read later.
	ReadRecord Kind = "read record"
	// WriteRecord writes Act.Record to disk, so that it survives a crash. Where it fails, the old record may be in force or
	// the new one. Act.Vital: use the space that is set aside. Act.Was is the record before.
	WriteRecord Kind = "write record"
	// Explain finds out why a domain ended by itself. Result.Message is the message of Act.Record with the reason added,
	// Result.LastLines is what the console ends with.
	Explain Kind = "explain"
	// Plug makes the tap of a guest that was here when the agent started.
	Plug Kind = "plug"
	// Prepare makes everything ready for Act.Wanted: image, template, tap. Act.Reserved is the memory that other guests
	// are still to take. Act.Record is the guest's record; where it has ended, its console is put aside.
	Prepare Kind = "prepare"
	// Route waits a moment for the guest's address to be routed to its tap. A guest without a route is let run all the same.
	Route Kind = "route"
	// Start creates the domain of Act.Wanted: from its template where Prepare made one and Act.Plain is not set, else by
	// booting it. It is not cut short: what the hypervisor was asked for could come into being later, unseen.
	Start Kind = "start"
	// Send sends the guest as Act.Wanted says. It ends when the hypervisor has ended the transfer.
	Send Kind = "send"
	// Busy asks whether the hypervisor is at something with the domain, and waits up to Act.Patience for it to be done.
	Busy Kind = "busy"
	// Resume lets the paused domain run.
	Resume Kind = "resume"
	// Destroy ends the domain, and the processes of the guest that the hypervisor has lost sight of.
	Destroy Kind = "destroy"
	// Confirm looks for processes of the guest, begun after the act was handed out: Result.PIDs.
	Confirm Kind = "confirm"
	// Expect has the tunnel admit the transfer Act.Migration from host Act.Source, uid Act.SourceUID.
	Expect Kind = "expect"
	// Unexpect ends Expect. Connections that were let in go on.
	Unexpect Kind = "unexpect"
	// LetIn answers Admit: the connection Act.Connection is let in, or refused because of Act.Err.
	LetIn Kind = "let in"
	// Forget takes away tap, sockets, reservation, expectation and connections of the guest: all but Act.Record, its
	// record.
	Forget Kind = "forget"
	// Interrupt cuts the act Act.Of short. That act ends by itself, soon.
	Interrupt Kind = "interrupt"
)

// Act is one act. The agent carries it out beside all others and tells its end by Ended, once. Obey, LetIn and Interrupt need
// no Ended.
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

// Result is how an act ended. Err is nil where it was done. Of the other fields, those are used that the act's kind names.
type Result struct {
	Err error

	Term      uint64
	Stamp     *v1.Stamp
	Domains   []domain.Info
	Creating  []string // uids
	Record    *Record
	Damaged   bool // a record was there, and it was put aside as damaged
	Message   string
	LastLines string
	// Final, of Prepare: another host may have what this one lacks, so that the epoch has failed.
	Final bool
	// Cut, of Prepare: it failed because it was interrupted.
	Cut bool
	// Unplugged, of Prepare and Forget: the guest has no tap any more.
	Unplugged bool
	Note      string // of Prepare: a problem that keeps nothing from being done
	// Uncertain, of Start: the domain may have been created, or may yet be.
	Uncertain bool
	// Unforked, of Start: the template could not be restored. The guest may be booted once what the attempt left has ended.
	Unforked bool
	Busy     bool
	PIDs     []int
}

// Tap is a guest as the overlay sees it.
type Tap struct {
	UID, Cluster, Address, MAC, Prefix string
}
