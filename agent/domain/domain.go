// Package domain says what a guest's domain is to the agent: its states, how it is described, sent and made. It is what
// the agent's deciding, its acts and package vm have in common, and links no libvirt.
package domain

import (
	"errors"
	"strings"
	"time"

	v1 "watari/api/watariv1"
)

// State is what the hypervisor says of a domain.
type State string

// The states. Only a running domain executes guest code.
const (
	Unknown  State = "unknown" // the hypervisor cannot be asked
	Absent   State = "absent"
	Running  State = "running"
	Paused   State = "paused"   // whole, and does not run
	Incoming State = "incoming" // a migration's target that is not whole yet: can only be ended
	// Starting and Ending will become something else by themselves; nothing is done about them.
	Starting State = "starting"
	Ending   State = "ending"
)

// Info is one of Watari's domains, as the hypervisor lists it.
type Info struct {
	UID, Name   string // Name is the guest's, without prefix
	State       State
	Reason      string // of the state, in libvirt's words: "migration", "ioerror", "user"
	CPUTimeNS   uint64
	MemoryBytes uint64 // resident on the host
}

// Event says that a domain changed; an empty UID: any may have (the hypervisor was reached again).
type Event struct {
	UID  string
	At   time.Time
	Lost bool // the hypervisor cannot be reached; another event says when it can
}

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

// MigrateOptions say where a domain is sent and how. Both URIs lead through Unix sockets on this host, which the
// tunnel forwards to the target.
type MigrateOptions struct {
	// DestURI is the target's libvirt daemon, as this host's daemon is to reach it:
	// "qemu+unix:///system?socket=/path".
	DestURI string
	// MigrateURI is the socket for QEMU's own stream: "unix:///path". The target's QEMU listens at that path.
	MigrateURI string
	// BandwidthBytes per second; 0: no limit. libvirt counts in MiB, so it is rounded up to those.
	BandwidthBytes uint64
}

// End is how a domain ended, as far as the hypervisor knows.
type End struct {
	How  string   // "its QEMU crashed or was killed"; empty: not known
	Said []string // lines that QEMU wrote to its log
}

// Errors that callers tell apart with errors.Is.
var (
	// ErrUnavailable: the hypervisor did not answer, or the connection broke while it was asked. What was asked for may or
	// may not have been done, or may yet be.
	ErrUnavailable = errors.New("libvirt does not answer")
	// ErrTemplateUnusable: the template file is missing, damaged, or of a form that this program or this hypervisor does not
	// know. The guest is to be booted plainly, and the template made anew.
	ErrTemplateUnusable = errors.New("template cannot be used")
)

// TemplatePrefix begins the names of domains that templates are made of. No guest's name has a dot.
const TemplatePrefix = "template."

// IsTemplate tells whether a domain of this name is one that a template is made of.
func IsTemplate(name string) bool { return strings.HasPrefix(name, TemplatePrefix) }
