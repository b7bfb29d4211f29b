package vm

// job.go - reports whether libvirt has a job on a domain.

import (
	"context"
	"errors"
	"fmt"

	"libvirt.org/go/libvirt"
)

// Busy reports whether libvirt has a job on the domain: a migration in either direction, or a save. It fails with
// ErrNotFound if there is no such domain.
func (l *Libvirt) Busy(ctx context.Context, uid string) (busy bool, err error) {
	err = l.withDomain(ctx, uid, func(domain *libvirt.Domain) error {
		info, err := domain.GetJobStats(0)
		var e libvirt.Error
		if errors.As(err, &e) && e.Code == libvirt.ERR_OPERATION_UNSUPPORTED {
			busy = true // by this error libvirt says that the domain is a migration's target
			return nil
		}
		if err == nil {
			busy = info.Type != libvirt.DOMAIN_JOB_NONE
		}
		return err
	})
	if err != nil {
		return false, fmt.Errorf("ask for jobs on domain %s: %w", uid, err)
	}
	return busy, nil
}
