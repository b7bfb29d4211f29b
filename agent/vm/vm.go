// Package vm drives one host's hypervisor through libvirt. It lists, boots, forks, resumes, migrates and ends Watari's
// domains. It keeps no state of domains: libvirt is the only source.
//
// It is the only package that links libvirt (cgo). All of Watari's domains are transient, are named "watari-" and the
// guest's name, and have the guest's uid as UUID. The package never touches other domains of the host.
package vm

import (
	"errors"
	"regexp"

	"watari/agent/domain"
)

// NamePrefix begins the names of Watari's domains.
const NamePrefix = domain.NamePrefix

// ChannelName is the virtio-serial port's name, as the guest sees it under /dev/virtio-ports.
const ChannelName = "org.watari.guest.0"

// Package domain defines the types that this package shares with the agent.
type (
	Spec           = domain.Spec
	State          = domain.State
	Domain         = domain.Info
	Event          = domain.Event
	MigrateOptions = domain.MigrateOptions
)

// The states. Only a Running domain executes guest code.
const (
	StateUnknown  = domain.Unknown
	StateStarting = domain.Starting // being created or restored; must not be touched yet
	StateRunning  = domain.Running
	StatePaused   = domain.Paused   // Domain.Reason says why
	StateIncoming = domain.Incoming // can only be ended
	StateEnding   = domain.Ending   // shutting down or being ended
	StateGone     = domain.Absent   // ended; libvirt will forget it soon
)

// Errors that callers tell apart with errors.Is.
var (
	ErrUnavailable      = domain.ErrUnavailable
	ErrTemplateUnusable = domain.ErrTemplateUnusable
	// ErrNotFound: there is no such domain.
	ErrNotFound = errors.New("no such domain")
	// ErrIncoming: the domain is a migration's target that is not complete yet.
	ErrIncoming = errors.New("the domain is still being received")
)

// plainError is an error of libvirt without its numbers.
type plainError struct{ error }

var virError = regexp.MustCompile(`virError\(Code=\d+, Domain=\d+, Message='((?s).*?)'\)`)

// Error leaves out libvirt's numbers.
func (e plainError) Error() string { return virError.ReplaceAllString(e.error.Error(), "$1") }

// Unwrap returns libvirt's error.
func (e plainError) Unwrap() error { return e.error }

func plain(err error) error {
	if err == nil {
		return nil
	}
	return plainError{err}
}
