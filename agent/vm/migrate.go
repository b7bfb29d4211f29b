package vm

// migrate.go - live migration to another host, and which of its outcomes are certain.

import (
	"context"
	"errors"
	"fmt"
	"time"

	"libvirt.org/go/libvirt"
)

// Settings of the transfer.
const (
	// downtimeMillis is how long the guest may stand still at the end, as QEMU reckons from the bandwidth. A guest
	// that changes memory faster is slowed down step by step (auto-converge) until it fits.
	downtimeMillis = 300
	// convergeInitial and convergeStep are how much of the vCPUs' time is taken away, in per cent, at first and
	// with each further step. An MPI program runs as fast as its slowest rank, but a transfer that never ends
	// is worse than one that slows it for seconds.
	convergeInitial = 30
	convergeStep    = 20
)

// Outcome is what a failed migration left at the source.
type Outcome int

// The outcomes. In all of them the target's copy, if there is one, does not run.
const (
	// OutcomeUnknown: libvirt could not be asked. The domain may be here, running or paused, may still be being
	// sent, or may be gone: List tells, when libvirt answers again.
	OutcomeUnknown Outcome = iota
	// OutcomeRunning: the guest runs on here.
	OutcomeRunning
	// OutcomePaused: the guest is here, whole, and does not run: libvirt cannot tell whether the target has all of
	// it. Resume it once the target's copy is known to have ended.
	OutcomePaused
	// OutcomeGone: there is no such domain here any more, and libvirt did not confirm the transfer: the guest ended.
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

// Is says that libvirt is unavailable where the outcome is unknown, and only there: that the target's daemon could not
// be reached is a failure like any other.
func (e *MigrateError) Is(target error) bool {
	return target == ErrUnavailable && e.Outcome == OutcomeUnknown
}

// Migrate sends a running domain to another host, and returns when that has ended: nil if all of it is at the target,
// paused there, and it exists here no more; else a *MigrateError. When ctx ends, the transfer is aborted and the
// outcome waited for; it may then still have succeeded.
func (l *Libvirt) Migrate(ctx context.Context, uid string, options MigrateOptions) error {
	l.finals.forget(uid)
	// The call itself has its own context: that of the caller aborts the job, it does not end the waiting.
	callCtx, giveUp := context.WithCancel(context.WithoutCancel(ctx))
	defer giveUp()
	ended := make(chan error, 1)
	go func() {
		ended <- l.callAlone(callCtx, 0, onDomain(uid, func(domain *libvirt.Domain) error {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			_ = domain.MigrateSetMaxDowntime(downtimeMillis, 0)
			if err := domain.MigrateToURI3(options.DestURI, parameters(options), migrateFlags); err != nil {
				return fmt.Errorf("%v", err) // its kind is that of either daemon, and so tells callers nothing
			}
			return nil
		}))
	}()
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

// abort asks libvirt to give the transfer up, again and again since the job may not have begun yet, and returns what
// came of it. A daemon that hangs is given up after abortTime.
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

// outcome looks at what a failed migration left here. A job may need a moment to end, during which the domain's
// state may change: it is looked at until there is no job.
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
		case err != nil: // the daemon may be about to start again
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
