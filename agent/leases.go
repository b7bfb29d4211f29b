package agent

// leases.go - guests with leases: the manager's renewals, and the watchdog that ends guests even if this agent cannot.

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"

	"watari/agent/machine"
	v1 "watari/api/watariv1"
)

// Watchdog ends guests whose leases end; *watchdog.Client implements it.
type Watchdog interface {
	// Keep tells the watchdog all guests with leases, and until when each may run, by the host's clock. After it has
	// returned nil, the watchdog ends each guest at its time, even if this process dies. unguarded has the guests that would
	// outlive the watchdog, and the reason.
	Keep(guests map[string]time.Duration) (unguarded map[string]string, err error)
	// Kept returns what the watchdog was told last, perhaps by an earlier agent; nil: no watchdog runs.
	Kept() (map[string]time.Duration, error)
}

// leaseKeeper passes leases on to the watchdog.
type leaseKeeper struct {
	agent    *Agent
	watchdog Watchdog             // nil: the host takes no guests with leases
	clock    func() time.Duration // since the host's boot

	renewed chan struct{} // has a token when leases were renewed

	telling sync.Mutex // serializes calls of the watchdog, so that each has newer leases than the one before
	told    bool       // the watchdog knows a guest; under telling

	mu      sync.Mutex
	problem string // empty: none
}

// tellEvery is how often the agent tells the watchdog the leases, if they are not renewed: the watchdog may have been killed.
const tellEvery = time.Second

// keptPatience is how long a starting agent waits for the answer of a watchdog that runs. Then its guests with leases end: nobody
// would end them when their leases do.
const keptPatience = 30 * time.Second

// kept returns the leases that an earlier agent told the watchdog.
func (a *Agent) kept(ctx context.Context, w Watchdog) map[string]time.Duration {
	for began := time.Now(); ; {
		leases, err := w.Kept()
		if err == nil {
			return leases
		}
		if ctx.Err() != nil || time.Since(began) > keptPatience {
			a.log.Error("the watchdog does not say which guests have leases, so guests with leases end", "error", err)
			return nil
		}
		a.log.Warn("the watchdog does not say yet which guests have leases", "error", err)
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
		}
	}
}

// run keeps the watchdog's leases up to date.
func (k *leaseKeeper) run(ctx context.Context) {
	tick := time.NewTicker(tellEvery)
	defer tick.Stop()
	for {
		_ = k.keep() // a failure is reported as a problem
		select {
		case <-tick.C:
		case <-k.renewed:
			tick.Reset(tellEvery)
		case <-ctx.Done():
			return
		}
	}
}

// keep tells the watchdog until when guests may run.
func (k *leaseKeeper) keep() error {
	if k.watchdog == nil {
		return nil
	}
	k.telling.Lock()
	defer k.telling.Unlock()
	k.agent.mu.Lock()
	leased := k.agent.machine.Leased()
	k.agent.mu.Unlock()
	if len(leased) == 0 && !k.told {
		return nil
	}
	unguarded, err := k.watchdog.Keep(leased)
	k.told = err != nil || len(leased) > 0
	problem := ""
	switch {
	case err != nil:
		problem = fmt.Sprintf("guests with leases may not be started: %v", err)
	case len(unguarded) > 0:
		uids := slices.Sorted(maps.Keys(unguarded))
		problem = fmt.Sprintf("guests with leases would run on if the watchdog died: %s: %s", strings.Join(uids, ", "), unguarded[uids[0]])
	}
	k.mu.Lock()
	changed := k.problem != problem
	k.problem = problem
	k.mu.Unlock()
	if changed {
		if problem != "" {
			k.agent.log.Warn(problem)
		}
		k.agent.publish()
	}
	return err
}

// allow returns nil if a guest may be started or resumed now: it has no lease, or an unexpired one that the watchdog knows.
func (k *leaseKeeper) allow(g *guest) error {
	k.agent.mu.Lock()
	until, leased := k.agent.machine.Lease(g.uid)
	k.agent.mu.Unlock()
	if !leased {
		return nil
	}
	if k.watchdog == nil {
		return fmt.Errorf("guest %s: this host cannot end guests whose leases end", g.name)
	}
	if err := k.keep(); err != nil {
		return fmt.Errorf("guest %s: %w", g.name, err)
	}
	if k.clock() >= until {
		return fmt.Errorf("guest %s: its lease has ended", g.name)
	}
	return nil
}

// problems returns the problems for the report.
func (k *leaseKeeper) problems() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.problem == "" {
		return nil
	}
	return []string{k.problem}
}

// RenewLeases renews leases, and returns the host's time.
func (s service) RenewLeases(_ context.Context, r *connect.Request[v1.RenewLeasesRequest]) (*connect.Response[v1.RenewLeasesResponse], error) {
	boot := s.config.Info.GetBootId()
	if m := r.Msg; m.HeardNs > 0 && m.BootId == boot {
		s.feed(func(machine *machine.Machine, now time.Time) { machine.Renew(now, time.Duration(m.HeardNs), m.Guests) })
		poke(s.leases.renewed)
	}
	return connect.NewResponse(&v1.RenewLeasesResponse{BootId: boot, NowNs: uint64(s.leases.clock())}), nil
}
