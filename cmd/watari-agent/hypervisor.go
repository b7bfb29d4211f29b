package main

// hypervisor.go - adapts package vm to the agent's interface.

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"time"

	"watari/agent"
	"watari/agent/vm"
	v1 "watari/api/watariv1"
)

// hypervisor adapts libvirt.
type hypervisor struct {
	*vm.Libvirt
	events chan agent.DomainEvent
}

func newHypervisor(l *vm.Libvirt) *hypervisor {
	h := &hypervisor{l, make(chan agent.DomainEvent, 16)}
	go func() {
		defer close(h.events)
		for e := range l.Events() {
			h.events <- agent.DomainEvent{UID: e.UID, At: time.Now(), Lost: e.Kind == vm.Disconnected}
		}
	}()
	return h
}

// Resume resumes a domain.
func (h *hypervisor) Resume(ctx context.Context, uid string) error {
	return plain(h.Libvirt.Resume(ctx, uid))
}

// Destroy ends a domain.
func (h *hypervisor) Destroy(ctx context.Context, uid string) error {
	return plain(h.Libvirt.Destroy(ctx, uid))
}

// SaveTemplate saves and ends a domain.
func (h *hypervisor) SaveTemplate(ctx context.Context, uid, path string) error {
	return plain(h.Libvirt.SaveTemplate(ctx, uid, path))
}

// Events passes libvirt's events on.
func (h *hypervisor) Events() <-chan agent.DomainEvent { return h.events }

// List lists Watari's domains.
func (h *hypervisor) List(ctx context.Context) ([]agent.DomainInfo, error) {
	list, err := h.Libvirt.List(ctx)
	if err != nil {
		return nil, plain(err)
	}
	infos := make([]agent.DomainInfo, 0, len(list))
	for _, d := range list {
		state := domainState(d.State)
		if state == agent.DomainAbsent {
			continue
		}
		infos = append(infos, agent.DomainInfo{UID: d.UID, Name: d.Name, State: state, CPUTimeNS: d.CPUTimeNS, MemoryBytes: d.MemoryBytes})
	}
	return infos, nil
}

func domainState(s vm.State) agent.Domain {
	switch s {
	case vm.StateStarting:
		return agent.DomainStarting
	case vm.StateRunning:
		return agent.DomainRunning
	case vm.StatePaused:
		return agent.DomainPaused
	case vm.StateIncoming:
		return agent.DomainIncoming
	case vm.StateEnding:
		return agent.DomainEnding
	case vm.StateGone:
		return agent.DomainAbsent
	}
	return agent.DomainUnknown
}

func (h *hypervisor) Boot(ctx context.Context, s agent.Spec) error {
	return uncertain(h.Libvirt.Boot(ctx, vm.Spec(s)))
}

func (h *hypervisor) Fork(ctx context.Context, s agent.Spec, template string) error {
	err := h.Libvirt.Fork(ctx, vm.Spec(s), template)
	if errors.Is(err, vm.ErrTemplateUnusable) {
		return fmt.Errorf("%w (%w)", plain(err), agent.ErrTemplateUnusable)
	}
	return uncertain(err)
}

func (h *hypervisor) TemplateKey(s agent.Spec) string { return h.Libvirt.TemplateKey(vm.Spec(s)) }

func (h *hypervisor) Migrate(ctx context.Context, uid string, o agent.MigrateOptions) error {
	return plain(h.Libvirt.Migrate(ctx, uid, vm.MigrateOptions{DestURI: o.DestURI, MigrateURI: o.MigrateURI, BandwidthBytes: o.BandwidthBytes}))
}

// Ended returns how a domain ended.
func (h *hypervisor) Ended(uid, name string) agent.Ending {
	ending, said := h.Libvirt.Ended(uid, name)
	if ending == vm.EndingUnknown {
		return agent.Ending{Said: said}
	}
	return agent.Ending{How: ending.String(), Said: said}
}

// Progress returns the progress of a transfer.
func (h *hypervisor) Progress(ctx context.Context, uid string) (*v1.MigrationProgress, error) {
	return h.Libvirt.Progress(ctx, uid)
}

// uncertain marks errors after which libvirt may still do what was requested.
func uncertain(err error) error {
	if errors.Is(err, vm.ErrUnavailable) {
		return fmt.Errorf("%w (%w)", plain(err), agent.ErrUncertain)
	}
	return plain(err)
}

// plainError is an error of libvirt in a form for people.
type plainError struct{ error }

var virError = regexp.MustCompile(`virError\(Code=\d+, Domain=\d+, Message='((?s).*?)'\)`)

// Error leaves out libvirt's error numbers.
func (e plainError) Error() string { return virError.ReplaceAllString(e.error.Error(), "$1") }

// Unwrap returns the original error.
func (e plainError) Unwrap() error { return e.error }

func plain(err error) error {
	if err == nil {
		return nil
	}
	return plainError{err}
}
