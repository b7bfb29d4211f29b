package vm

// domain.go - lists domains; boots, resumes and ends one.

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"libvirt.org/go/libvirt"
)

// List returns Watari's domains that have not ended. It does not wait for busy domains.
func (l *Libvirt) List(ctx context.Context) ([]Domain, error) {
	var domains []Domain
	err := l.call(ctx, quickTime, func(conn *libvirt.Connect) error {
		found, err := list(conn)
		domains = found
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list the domains: %w", err)
	}
	return domains, nil
}

func list(conn *libvirt.Connect) ([]Domain, error) {
	stats, err := conn.GetAllDomainStats(nil,
		libvirt.DOMAIN_STATS_STATE|libvirt.DOMAIN_STATS_CPU_TOTAL|libvirt.DOMAIN_STATS_BALLOON,
		libvirt.CONNECT_GET_ALL_DOMAINS_STATS_NOWAIT)
	if err != nil {
		return nil, err
	}
	defer func() {
		for _, s := range stats {
			_ = s.Domain.Free()
		}
	}()
	domains := []Domain{}
	for _, s := range stats {
		name, err := s.Domain.GetName()
		if err != nil {
			return nil, err
		}
		guest, ours := guestName(name)
		if !ours {
			continue
		}
		d := Domain{Name: guest, State: StateUnknown}
		if d.UID, err = s.Domain.GetUUIDString(); err != nil {
			return nil, err
		}
		if s.State != nil && s.State.StateSet {
			d.State, d.Reason = domainState(s.State.State, s.State.Reason)
			if migrating(s.State.State, s.State.Reason) && receives(s.Domain) {
				d.State = StateIncoming
			}
		}
		if s.Cpu != nil {
			d.CPUTimeNS = s.Cpu.Time
		}
		if s.Balloon != nil {
			d.MemoryBytes = s.Balloon.Rss * 1024
		}
		if d.State != StateGone {
			domains = append(domains, d)
		}
	}
	return domains, nil
}

// Boot creates the guest's domain and starts it. The tap and the image's files must exist. It fails if a domain of that
// name or uid exists. After ErrUnavailable the domain may still appear: the caller destroys it or lists the domains.
func (l *Libvirt) Boot(ctx context.Context, spec Spec) error {
	host := l.hostFacts()
	if host == nil {
		return fmt.Errorf("boot guest %s: %w", spec.Name, ErrUnavailable)
	}
	text, err := domainXML(spec, host)
	if err != nil {
		return err
	}
	err = l.create(ctx, spec.UID, bootTime, func(conn *libvirt.Connect) error {
		domain, err := conn.DomainCreateXML(text, libvirt.DOMAIN_NONE)
		if isOwnerConflict(err) && forgetOwners(conn, spec.Kernel, spec.Initrd, spec.Root) {
			domain, err = conn.DomainCreateXML(text, libvirt.DOMAIN_NONE)
		}
		if err != nil {
			return err
		}
		return domain.Free()
	})
	if err != nil {
		return fmt.Errorf("boot guest %s: %w", spec.Name, err)
	}
	return nil
}

// Resume lets a paused domain run. It does nothing to a running domain. The caller must hold the grant. It fails with
// ErrIncoming if the domain is a migration's target that is not complete yet.
func (l *Libvirt) Resume(ctx context.Context, uid string) error {
	err := l.withDomain(ctx, uid, func(domain *libvirt.Domain) error {
		state, reason, err := domain.GetState()
		if err != nil || state == libvirt.DOMAIN_RUNNING {
			return err
		}
		// libvirt would not refuse. It would wait for the migration's end and resume the guest later.
		if migrating(state, reason) && receives(domain) {
			return ErrIncoming
		}
		if ctx.Err() != nil { // see onDomain
			return ctx.Err()
		}
		err = domain.Resume()
		if err != nil && strings.Contains(err.Error(), resetRequired) {
			return fmt.Errorf("%w: %w", errBroken, err)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("resume domain %s: %w", uid, err)
	}
	return nil
}

// resetRequired is in QEMU's answer to "cont" if the virtual machine has met an internal error, such as an instruction that KVM cannot
// enter the guest with. QEMU keeps that state in a migration.
const resetRequired = "Resetting the Virtual Machine is required"

var errBroken = errors.New("the virtual machine has met an internal error in QEMU or KVM, and cannot continue")

// Broken reports whether an error of Resume says that the guest can never continue.
func (l *Libvirt) Broken(err error) bool { return errors.Is(err, errBroken) }

// Gone reports whether an error of this package says that there is no such domain.
func (l *Libvirt) Gone(err error) bool { return errors.Is(err, ErrNotFound) }

// Destroy ends a domain at once and returns when its QEMU has ended. A missing domain is no error.
func (l *Libvirt) Destroy(ctx context.Context, uid string) error {
	ctx, cancel := context.WithTimeout(ctx, destroyTime)
	defer cancel()
	for {
		err := l.callAlone(ctx, 0, onDomain(ctx, uid, func(domain *libvirt.Domain) error {
			err := domain.Destroy()
			var e libvirt.Error
			if errors.As(err, &e) && e.Code == libvirt.ERR_OPERATION_INVALID {
				return nil // no longer running; the next look-up shows whether it still exists
			}
			return err
		}))
		switch {
		case errors.Is(err, ErrNotFound):
			return nil
		case err != nil:
			return fmt.Errorf("end domain %s: %w", uid, err)
		}
		if !sleep(ctx, 20*time.Millisecond) {
			return fmt.Errorf("end domain %s: it is still there: %w", uid, ctx.Err())
		}
	}
}
