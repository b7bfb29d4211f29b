package vm

// job.go - whether libvirt is at something with a domain.

import (
	"context"
	"errors"
	"fmt"

	"libvirt.org/go/libvirt"
)

// Busy tells whether libvirt has a job (a migration in either direction, a save) under way on the domain. It fails
// with ErrNotFound where there is no such domain.
func (l *Libvirt) Busy(ctx context.Context, uid string) (busy bool, err error) {
	err = l.withDomain(ctx, uid, func(domain *libvirt.Domain) error {
		info, err := domain.GetJobStats(0)
		var e libvirt.Error
		if errors.As(err, &e) && e.Code == libvirt.ERR_OPERATION_UNSUPPORTED {
			busy = true // the target of a migration, by libvirt's only way to say so
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
