package vm

// domain.go - what is done to one domain: listed, booted, resumed, ended.

import (
	"context"
	"errors"
	"fmt"
	"time"

	"libvirt.org/go/libvirt"
)

// List returns Watari's domains, but those that have ended. It does not wait for domains that are busy.
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

// Boot makes the guest's domain and starts it. The tap and the image's files must exist. It fails if a domain of
// that name or uid exists. After ErrUnavailable the domain may come to be: Destroy it or look for it.
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

// Resume lets a paused domain run; one that runs is left alone. The caller must hold the grant for it. It fails with
// ErrIncoming if the domain is a migration's target that is not whole yet.
func (l *Libvirt) Resume(ctx context.Context, uid string) error {
	err := l.withDomain(ctx, uid, func(domain *libvirt.Domain) error {
		state, reason, err := domain.GetState()
		if err != nil || state == libvirt.DOMAIN_RUNNING {
			return err
		}
		// libvirt would not refuse, but wait for the migration to end, and resume the guest some time later.
		if migrating(state, reason) && receives(domain) {
			return ErrIncoming
		}
		return domain.Resume()
	})
	if err != nil {
		return fmt.Errorf("resume domain %s: %w", uid, err)
	}
	return nil
}

// Destroy ends a domain at once, whatever it is doing, and returns when its QEMU is gone. One that does not exist
// is no error.
func (l *Libvirt) Destroy(ctx context.Context, uid string) error {
	ctx, cancel := context.WithTimeout(ctx, destroyTime)
	defer cancel()
	for {
		err := l.callAlone(ctx, 0, onDomain(uid, func(domain *libvirt.Domain) error {
			err := domain.Destroy()
			var e libvirt.Error
			if errors.As(err, &e) && e.Code == libvirt.ERR_OPERATION_INVALID {
				return nil // not running any more; the next look-up tells whether it is gone
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
