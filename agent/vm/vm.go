// Package vm drives one host's hypervisor through libvirt: Watari's domains are listed, booted, forked from a
// saved template, resumed, migrated and ended. It keeps nothing of its own: what runs is what libvirt says runs.
//
// It is the only package that links libvirt (cgo). All domains are transient, are named "watari-" and the
// guest's name, and have the guest's uid as UUID; others on the host are never touched.
package vm

import (
	"errors"

	v1 "watari/api/watariv1"
)

// NamePrefix begins the names of Watari's domains.
const NamePrefix = "watari-"

// ChannelName is the virtio-serial port's name, as the guest sees it under /dev/virtio-ports.
const ChannelName = "org.watari.guest.0"

// Spec is a guest as it is to be made. All paths must be the same on each host, for they are part of the domain
// that migrates. The folders of Channel and Console must exist.
type Spec struct {
	UID, Name   string // UUID; the guest's name, without prefix
	VCPUs       uint32
	MemoryBytes uint64
	// Kernel, Initrd and Root are files of the image; RootType is "squashfs" or "erofs".
	Kernel, Initrd, Root, RootType string
	KernelArgs                     string // the image's own, added to Watari's
	Tap                            string // an existing tap device
	Channel                        string // Unix socket that QEMU listens on: the host's end of the virtio-serial port
	Console                        string // file to which the serial console is appended
	ImageDigest                    string // part of the template's key
	// Platform has the machine type and the CPU that the manager asks for; nil, or a part of it that is empty: the host's
	// own choice.
	Platform *v1.Platform
}

// State is what a domain does, as far as its owner must know.
type State int

// The states. Only a Running domain executes guest code.
const (
	StateUnknown  State = iota
	StateStarting       // being made or restored; not yet to be touched
	StateRunning
	StatePaused   // whole, and does not run; Domain.Reason says why
	StateIncoming // a migration's target that is not whole yet: can only be ended
	StateEnding   // shutting down or being ended
	StateGone     // ended; libvirt is about to forget it
)

func (s State) String() string {
	names := [...]string{"unknown", "starting", "running", "paused", "incoming", "ending", "gone"}
	if s < 0 || int(s) >= len(names) {
		return "unknown"
	}
	return names[s]
}

// Domain is one of Watari's domains.
type Domain struct {
	UID, Name   string // Name is the guest's, without prefix
	State       State
	Reason      string // libvirt's, in its words: "migration", "ioerror", "user"
	CPUTimeNS   uint64
	MemoryBytes uint64 // resident on the host
}

// EventKind is what an event tells.
type EventKind int

// The kinds of events.
const (
	Changed      EventKind = iota + 1 // the domain's state changed: look at it again
	Connected                         // libvirt answers, or events were lost: look at everything again
	Disconnected                      // libvirt does not answer; domains run on
)

func (k EventKind) String() string {
	switch k {
	case Changed:
		return "changed"
	case Connected:
		return "connected"
	case Disconnected:
		return "disconnected"
	}
	return "unknown"
}

// Event says that something changed. UID is set for Changed.
type Event struct {
	UID  string
	Kind EventKind
}

// Errors that callers tell apart with errors.Is.
var (
	// ErrNotFound: there is no such domain.
	ErrNotFound = errors.New("no such domain")
	// ErrUnavailable: libvirt did not answer, or the connection broke while it was asked. What was asked for may
	// or may not have been done, or may yet be: List tells, once libvirt answers again.
	ErrUnavailable = errors.New("libvirt does not answer")
	// ErrIncoming: the domain is a migration's target that is not whole yet.
	ErrIncoming = errors.New("the domain is still being received")
	// ErrTemplateUnusable: the template file is missing, damaged, or of a form that this program or this libvirt
	// does not know. Boot the guest plainly, and make the template anew.
	ErrTemplateUnusable = errors.New("template cannot be used")
)
