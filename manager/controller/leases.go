package controller

// leases.go - renews the leases of guests on their hosts (docs/design/leases.md; core/leases.go decides which).

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"connectrpc.com/connect"

	v1 "watari/api/watariv1"
	"watari/api/watariv1/watariv1connect"
	"watari/core"
	"watari/hostlink"
	"watari/manager/store"
)

const (
	// renewEvery is how often leases are renewed. A lease lasts at least ten times as long.
	renewEvery = time.Second
	// renewPause is the least time between two renewals.
	renewPause = 50 * time.Millisecond
	// renewTime bounds a call to a host, and the question to the store whether this manager leads.
	renewTime = 3 * time.Second
	// maxRenewal bounds a host's answer to a renewal, bytes.
	maxRenewal = 64 << 10
)

// leases renews leases while this manager leads.
type leases struct {
	deps  Deps
	began time.Time
	wake  chan struct{} // holds a token when a guest may have got a grant

	mu     sync.Mutex
	known  core.Leases
	heard  map[string]heardTime // the latest time of each host
	asking map[string]bool      // hosts that have not answered yet
}

// heardTime is a host's time in a response, and when the response came.
type heardTime struct {
	response *v1.RenewLeasesResponse
	at       time.Duration
}

func newLeases(d Deps) *leases {
	return &leases{deps: d, began: time.Now(), wake: make(chan struct{}, 1), heard: map[string]heardTime{}, asking: map[string]bool{}}
}

// now returns the time since this manager began to lead. That clock is never set.
func (l *leases) now() time.Duration { return time.Since(l.began) }

// see notes the grants in a snapshot, and returns the known state of the leases.
func (l *leases) see(s *store.Snapshot) map[string]core.LeaseSeen {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.known.See(s, l.now()) {
		l.soon()
	}
	return l.known.Seen(l.now())
}

// run renews leases until ctx ends.
func (l *leases) run(ctx context.Context) {
	tick := time.NewTicker(renewEvery)
	defer tick.Stop()
	var calls sync.WaitGroup
	defer calls.Wait()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-l.wake:
		}
		l.renew(ctx, &calls)
		select { // batches many new grants into few calls
		case <-time.After(renewPause):
		case <-ctx.Done():
		}
	}
}

// renew renews all leases once. It uses only host times that the hosts had sent before the store confirmed that this manager
// leads: a later leader has begun after these times.
func (l *leases) renew(ctx context.Context, calls *sync.WaitGroup) {
	snapshot := l.deps.Store.Snapshot()
	hosts := leasingHosts(snapshot)
	if len(hosts) == 0 {
		return
	}
	l.mu.Lock()
	l.known.See(snapshot, l.now())
	heard := maps.Clone(l.heard)
	l.mu.Unlock()
	asked, cancel := context.WithTimeout(ctx, renewTime)
	err := l.deps.Store.Confirm(asked)
	cancel()
	if err != nil {
		if ctx.Err() == nil {
			l.deps.Log.Warn("leases are not renewed", "error", err)
		}
		return
	}
	for _, host := range hosts {
		l.mu.Lock()
		if l.asking[host] {
			l.mu.Unlock()
			continue
		}
		l.asking[host] = true
		request := &v1.RenewLeasesRequest{BootId: heard[host].response.GetBootId(), HeardNs: heard[host].response.GetNowNs()}
		if heard[host].response != nil {
			request.Guests = l.known.Renew(host, heard[host].at, l.now())
		}
		l.mu.Unlock()
		calls.Go(func() { l.call(ctx, host, request) })
	}
}

// leasingHosts returns the hosts that may run guests with leases, now or after a move.
func leasingHosts(s *store.Snapshot) []string {
	hosts := map[string]bool{}
	leased := map[string]bool{} // by uid
	for _, g := range s.Guests {
		if g.LeaseMs > 0 {
			leased[g.Meta.Uid] = true
			hosts[g.Host] = true
		}
	}
	if len(leased) == 0 {
		return nil
	}
	for _, m := range core.ActiveMoves(s) {
		if leased[m.GuestUid] {
			hosts[m.Target] = true
		}
	}
	delete(hosts, "")
	return slices.Sorted(maps.Keys(hosts))
}

// call renews the leases of a host's guests, and keeps the time in the host's answer.
func (l *leases) call(ctx context.Context, host string, request *v1.RenewLeasesRequest) {
	defer func() {
		l.mu.Lock()
		delete(l.asking, host)
		l.mu.Unlock()
	}()
	client, err := l.deps.Sessions.HTTPClient(host)
	if err != nil {
		return // the host is not connected
	}
	ctx, cancel := context.WithTimeout(ctx, renewTime)
	defer cancel()
	response, err := watariv1connect.NewAgentServiceClient(client, hostlink.BaseURL, connect.WithReadMaxBytes(maxRenewal)).
		RenewLeases(ctx, connect.NewRequest(request))
	if err != nil {
		if ctx.Err() == nil && connect.CodeOf(err) != connect.CodeUnimplemented {
			l.deps.Log.Warn("leases could not be renewed", "host", host, "error", err)
		}
		return
	}
	l.mu.Lock()
	first := l.heard[host].response.GetBootId() != response.Msg.BootId
	l.heard[host] = heardTime{response.Msg, l.now()}
	l.mu.Unlock()
	if first { // only now can leases be renewed
		l.soon()
	}
}

// soon starts a renewal without waiting for the next tick.
func (l *leases) soon() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}
