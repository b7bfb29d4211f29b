package vm

// migrate.go - live migration to another host, and its outcomes.

import (
	"context"
	"errors"
	"fmt"
	"time"

	"libvirt.org/go/libvirt"
)

// Settings of the transfer.
const (
	// firstDowntime and downtimeMillis bound the downtime, as QEMU estimates it from the bandwidth. The limit begins at
	// firstDowntime, and grows to downtimeMillis with the passes over memory (see downtimeLimit). If the guest changes
	// memory too fast for downtimeMillis, QEMU slows the guest down step by step (auto-converge) until the downtime fits.
	firstDowntime  = 50
	downtimeMillis = 300
	// limitEvery is how often the limit is updated.
	limitEvery = 100 * time.Millisecond
	// convergeInitial and convergeStep are the share of the vCPUs' time, in per cent, that the first step and each
	// further step take away. An MPI program runs as fast as its slowest rank, but a transfer that never ends is worse
	// than one that slows it for seconds.
	convergeInitial = 30
	convergeStep    = 20
)

// Outcome is what a failed migration left at the source.
type Outcome int

// The outcomes. In all of them the target's copy, if there is one, does not run.
const (
	// OutcomeUnknown: libvirt did not answer. The domain may run, be paused, still be in transfer, or be gone. List
	// shows its state when libvirt answers again.
	OutcomeUnknown Outcome = iota
	// OutcomeRunning: the guest continues here.
	OutcomeRunning
	// OutcomePaused: the whole guest is here, paused. libvirt does not know whether the target has all of it. The
	// caller may resume it only after the target's copy has ended.
	OutcomePaused
	// OutcomeGone: the domain no longer exists here, and libvirt did not confirm the transfer. The guest has ended.
	OutcomeGone
)

func (o Outcome) String() string {
	switch o {
	case OutcomeRunning:
		return "it runs on here"
	case OutcomePaused:
		return "it is here, paused"
	case OutcomeGone:
		return "it is not here any more"
	}
	return "unknown whether it is here"
}

// MigrateError is a migration that libvirt did not confirm.
type MigrateError struct {
	UID     string
	Outcome Outcome
	Aborted bool // ctx ended
	Err     error
}

func (e *MigrateError) Error() string {
	what := "migrate"
	if e.Aborted {
		what = "migrate (aborted)"
	}
	return fmt.Sprintf("%s domain %s: %v; %v", what, e.UID, e.Err, e.Outcome)
}

// Unwrap returns what libvirt said.
func (e *MigrateError) Unwrap() error { return e.Err }

// Is matches ErrUnavailable if, and only if, the outcome is unknown. If the target's daemon could not be reached, the
// migration has simply failed.
func (e *MigrateError) Is(target error) bool {
	return target == ErrUnavailable && e.Outcome == OutcomeUnknown
}

// Migrate sends a running domain to another host, and returns when the transfer has ended. It returns nil if the whole
// domain is at the target, paused, and no longer exists here; else a *MigrateError. When ctx ends, Migrate aborts the
// transfer and waits for the outcome, which may still be success.
func (l *Libvirt) Migrate(ctx context.Context, uid string, options MigrateOptions) error {
	l.finals.forget(uid)
	// The call has its own context. The end of the caller's context aborts the job, but Migrate still waits for its
	// end.
	callCtx, giveUp := context.WithCancel(context.WithoutCancel(ctx))
	defer giveUp()
	ended := make(chan error, 1)
	go func() {
		ended <- l.callAlone(callCtx, 0, onDomain(ctx, uid, func(domain *libvirt.Domain) error {
			_ = domain.MigrateSetMaxDowntime(firstDowntime, 0)
			if err := domain.MigrateToURI3(options.DestURI, parameters(options), migrateFlags); err != nil {
				return fmt.Errorf("%v", err) // drop the error's kind: it may come from either daemon
			}
			return nil
		}))
	}()
	go l.limitDowntime(callCtx, uid)
	var err error
	select {
	case err = <-ended:
	case <-ctx.Done():
		err = l.abort(uid, ended, giveUp)
	}
	if err == nil {
		l.finals.await(uid)
		return nil
	}
	if errors.Is(err, ErrNotFound) {
		return &MigrateError{UID: uid, Outcome: OutcomeGone, Aborted: ctx.Err() != nil, Err: err}
	}
	return &MigrateError{UID: uid, Outcome: l.outcome(uid), Aborted: ctx.Err() != nil, Err: err}
}

// limitDowntime raises the limit of a transfer's downtime until ctx ends.
func (l *Libvirt) limitDowntime(ctx context.Context, uid string) {
	tick := time.NewTicker(limitEvery)
	defer tick.Stop()
	for set := uint64(firstDowntime); set < downtimeMillis; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		_ = l.withDomain(ctx, uid, func(domain *libvirt.Domain) error {
			info, err := domain.GetJobStats(0)
			if err != nil || info.Type == libvirt.DOMAIN_JOB_NONE {
				return err
			}
			limit := downtimeLimit(info.MemIteration, info.MemDirtyRate*info.MemPageSize, info.MemBps)
			if limit > set && domain.MigrateSetMaxDowntime(limit, 0) == nil {
				set = limit
			}
			return nil
		})
	}
}

// downtimeLimit returns the limit of the downtime, ms, in a pass over memory; pass 1 is the first, over all memory. dirty is
// the rate at which the guest changes memory and sent that of the link, bytes per second. Each further pass is shorter by
// dirty/sent. If that ratio is small, a few more passes make the downtime short. If it is not, more passes only cost time
// and bandwidth.
func downtimeLimit(pass, dirty, sent uint64) uint64 {
	switch {
	case pass <= 2:
		return firstDowntime
	case sent > 0 && 2*dirty > sent:
		return downtimeMillis
	}
	return min(uint64(firstDowntime)<<min(pass-2, 8), downtimeMillis)
}

const migrateFlags = libvirt.MIGRATE_LIVE | libvirt.MIGRATE_PEER2PEER | libvirt.MIGRATE_PAUSED |
	libvirt.MIGRATE_AUTO_CONVERGE

func parameters(o MigrateOptions) *libvirt.DomainMigrateParameters {
	p := &libvirt.DomainMigrateParameters{
		URISet: true, URI: o.MigrateURI,
		AutoConvergeInitialSet: true, AutoConvergeInitial: convergeInitial,
		AutoConvergeIncrementSet: true, AutoConvergeIncrement: convergeStep,
	}
	if o.BandwidthBytes > 0 {
		p.BandwidthSet, p.Bandwidth = true, (o.BandwidthBytes+1<<20-1)>>20
	}
	return p
}

// abort asks libvirt to cancel the transfer, and returns the transfer's result. It repeats the request, since the job
// may not have begun yet. After abortTime it no longer waits for the daemon.
func (l *Libvirt) abort(uid string, ended <-chan error, giveUp func()) error {
	const abortTime = time.Minute
	deadline := time.NewTimer(abortTime)
	defer deadline.Stop()
	again := time.NewTicker(200 * time.Millisecond)
	defer again.Stop()
	for {
		go func() {
			_ = l.withDomain(context.Background(), uid, func(domain *libvirt.Domain) error { return domain.AbortJob() })
		}()
		select {
		case err := <-ended:
			return err
		case <-deadline.C:
			giveUp()
			return <-ended
		case <-again.C:
		}
	}
}

// outcome finds the state in which a failed migration left the domain. The state may change until the job has ended, so
// outcome waits for the job's end.
func (l *Libvirt) outcome(uid string) Outcome {
	ctx, cancel := context.WithTimeout(l.ctx, 2*quickTime)
	defer cancel()
	for {
		var state libvirt.DomainState
		busy := false
		err := l.withDomain(ctx, uid, func(domain *libvirt.Domain) error {
			if info, err := domain.GetJobStats(0); err == nil {
				busy = info.Type != libvirt.DOMAIN_JOB_NONE
			}
			var err error
			state, _, err = domain.GetState()
			return err
		})
		switch {
		case errors.Is(err, ErrNotFound):
			return OutcomeGone
		case err != nil: // the daemon may be restarting
		case !busy && (state == libvirt.DOMAIN_RUNNING || state == libvirt.DOMAIN_BLOCKED):
			return OutcomeRunning
		case !busy && state == libvirt.DOMAIN_PAUSED:
			return OutcomePaused
		}
		if !sleep(ctx, 100*time.Millisecond) {
			return OutcomeUnknown
		}
	}
}
