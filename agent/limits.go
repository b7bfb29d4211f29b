package agent

// limits.go - keeps the limits of guests' processor time as the orders want them. Correctness does not depend on limits, so
// they are no part of the machine, and no act waits for them.

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	v1 "watari/api/watariv1"
)

// Limiter bounds guests' use of processors; package throttle implements it.
type Limiter interface {
	// Limit applies limits to a guest's QEMU process; nil removes them. It may be repeated. A process that has ended is no
	// error.
	Limit(pid int, limits *v1.GuestLimits) error
	// GiveWay lowers the priority of this agent, which carries the guests' memory, or restores it.
	GiveWay(giveWay bool) error
	// Sweep removes the control groups of guests that have ended, and reports whether it must be called again.
	Sweep() (again bool)
}

const (
	// limitsCheckEvery is how often limits are checked while there are any: a guest's process may have started meanwhile,
	// and libvirt may have moved its threads.
	limitsCheckEvery = time.Second
	// limitsRetryFirst and limitsRetryMost are the pauses after a failure.
	limitsRetryFirst, limitsRetryMost = 100 * time.Millisecond, 5 * time.Second
)

// limitKeeper keeps limits in force.
type limitKeeper struct {
	limiter   Limiter
	wanted    func() map[string]*v1.GuestLimits // limits of the guests that must run here, by uid; nil: no limits
	processes func(context.Context) (map[string][]int, error)
	changed   func() // called when the report changes
	log       *slog.Logger
	wake      chan struct{}

	// free has the guests of which it is known that no limit is in force. An agent that has just started knows none, because
	// an earlier agent may have left limits. A new process has no limits.
	free map[string]bool
	// limited reports whether a guest was limited at the last check, or an earlier agent may have lowered this agent's
	// priority.
	limited bool

	mu      sync.Mutex
	problem string
}

func newLimitKeeper(a *Agent) *limitKeeper {
	return &limitKeeper{limiter: a.config.Limiter, wanted: a.wantedLimits, processes: a.config.Processes, changed: a.publish,
		log: a.log, wake: make(chan struct{}, 1), free: map[string]bool{}, limited: true}
}

// wantedLimits returns the limits of the guests that the orders want to run here, and of those that the host limits by itself. The
// keeper changes no other guests.
func (a *Agent) wantedLimits() map[string]*v1.GuestLimits {
	a.mu.Lock()
	defer a.mu.Unlock()
	select {
	case <-a.limits.wake: // orders wake the keeper under a.mu, so this call sees them and the token is not needed
	default:
	}
	own := a.alone.decision(time.Now())
	wanted := map[string]*v1.GuestLimits{}
	for _, g := range a.machine.Guests() {
		if limits, mine := own.limitsOf(g, a.touched); mine {
			wanted[g.UID] = limits
		}
	}
	return wanted
}

// run keeps limits in force until ctx ends. They stay in force after that.
func (k *limitKeeper) run(ctx context.Context) {
	if k.limiter == nil {
		return
	}
	next := time.NewTimer(time.Hour)
	retry := limitsRetryFirst
	for {
		select {
		case <-ctx.Done():
			return
		case <-k.wake:
		case <-next.C:
		}
		again, err := k.apply(ctx)
		k.tell(err)
		switch {
		case err != nil:
			next.Reset(retry)
			retry = min(2*retry, limitsRetryMost)
		case again:
			next.Reset(limitsCheckEvery)
			retry = limitsRetryFirst
		default:
			next.Reset(time.Hour)
			retry = limitsRetryFirst
		}
	}
}

// apply applies the limits; again: the caller must check them again soon. A failure for one guest does not keep other guests
// from their limits.
func (k *limitKeeper) apply(ctx context.Context) (again bool, err error) {
	wanted := k.wanted()
	limited := slices.ContainsFunc(slices.Collect(maps.Values(wanted)), func(l *v1.GuestLimits) bool { return l != nil })
	if limited || k.limited {
		err := k.limiter.GiveWay(limited)
		if err != nil {
			k.log.Warn("the agent does not give way to the owner's programs, or gives way for too long", "error", err)
		}
		k.limited = limited || err != nil
	}
	maps.DeleteFunc(k.free, func(uid string, _ bool) bool { limits, here := wanted[uid]; return !here || limits != nil })
	maps.DeleteFunc(wanted, func(uid string, _ *v1.GuestLimits) bool { return k.free[uid] })
	if len(wanted) == 0 {
		return k.limiter.Sweep(), nil
	}
	pids, listErr := k.processes(ctx)
	if listErr != nil {
		listErr = fmt.Errorf("limits of guests' processor time are perhaps not in force; trying again: %w", listErr)
	}
	for _, uid := range slices.Sorted(maps.Keys(wanted)) {
		failed := listErr
		for _, pid := range pids[uid] {
			if limitErr := k.limiter.Limit(pid, wanted[uid]); limitErr != nil {
				failed = limitErr
			}
		}
		if failed != nil {
			err = failed
		} else if wanted[uid] == nil {
			k.free[uid] = true
		} else {
			again = true
		}
	}
	return k.limiter.Sweep() || again, err
}

// tell sets the problem that the report shows.
func (k *limitKeeper) tell(err error) {
	problem := ""
	if err != nil {
		problem = err.Error()
	}
	k.mu.Lock()
	changed := problem != k.problem
	k.problem = problem
	k.mu.Unlock()
	if changed {
		k.changed()
	}
}

// problems returns the problems for the report.
func (k *limitKeeper) problems() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.problem == "" {
		return nil
	}
	return []string{k.problem}
}
