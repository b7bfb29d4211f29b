// Package domain describes a guest's domain: its states, and the options to create and to send it. The agent's machine,
// the agent's acts and package vm share these types. The package does not link libvirt.
package domain

import (
	"errors"
	"strings"
	"time"

	v1 "watari/api/watariv1"
)

// NamePrefix begins the names of Watari's domains, before the guest's name.
const NamePrefix = "watari-"

// State is a domain's state, as the hypervisor reports it.
type State string

// The states. Only a running domain executes guest code.
const (
	Unknown  State = "unknown" // the hypervisor cannot be asked
	Absent   State = "absent"
	Running  State = "running"
	Paused   State = "paused"   // complete, and does not run
	Incoming State = "incoming" // the target of a migration that is not complete yet: can only be ended
	// Starting and Ending change by themselves; the agent does nothing about them.
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

// Event reports that a domain changed. With an empty UID, any domain may have changed, because the hypervisor was reached
// again.
type Event struct {
	UID  string
	At   time.Time
	Lost bool // the hypervisor cannot be reached; another event follows when it can
}

// Spec describes the domain to create for a guest. All paths must be the same on each host, because they migrate with
// the domain. The folders of Channel and Console must exist.
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
	Volume                         string // Unix socket at which the guest's volume is served (VolumeSocket); empty: the guest has no volume
	EmptyVolume                    uint64 // bytes of an empty disk that takes the volume's place; the guest never runs
	ImageDigest                    string // part of the template's key
	// TemplateOwner is the uid of the only user whose guests are forked from the template; empty: all users' guests are. It
	// is part of the template's key.
	TemplateOwner string
	// Platform has the machine type and the CPU that the manager asks for. The host chooses the empty ones; nil: both.
	Platform *v1.Platform
}

// MigrateOptions tell where and how a domain is sent. Both URIs name Unix sockets on this host. The tunnel forwards them to
// the target.
type MigrateOptions struct {
	// DestURI is the URI by which this host's libvirt daemon reaches the target's:
	// "qemu+unix:///system?socket=/path".
	DestURI string
	// MigrateURI is the socket for QEMU's own stream: "unix:///path". The target's QEMU listens at that path.
	MigrateURI string
	// BandwidthBytes per second; 0: no limit. It is rounded up to MiB, in which libvirt counts.
	BandwidthBytes uint64
}

// End is how a domain ended, as far as the hypervisor knows.
type End struct {
	How  string   // "its QEMU crashed or was killed"; empty: not known
	Said []string // lines that QEMU wrote to its log
}

// Errors that callers tell apart with errors.Is.
var (
	// ErrUnavailable: the hypervisor did not answer, or the connection broke during the call. The hypervisor may have
	// carried out the request, and may still do so later.
	ErrUnavailable = errors.New("libvirt does not answer")
	// ErrTemplateUnusable: the template file is missing or damaged, or this program or hypervisor does not know its
	// format. The caller boots the guest without it, and makes the template again.
	ErrTemplateUnusable = errors.New("template cannot be used")
)

// TemplatePrefix begins the names of domains from which templates are made. No guest's name has a dot, so the names
// never collide.
const TemplatePrefix = "template."

// IsTemplate reports whether a template is made from the domain of this name.
func IsTemplate(name string) bool { return strings.HasPrefix(name, TemplatePrefix) }
