// Package controller is the leader's loop. It shows package core the store's objects and the agents' reports, sends the
// orders that core decides, writes core's changes to the store, and follows the processes of runs. Each step may be
// repeated after a crash at any point, because no part acts on a decision that is not in the store.
package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"sync"
	"time"

	"connectrpc.com/connect"

	v1 "watari/api/watariv1"
	"watari/ca"
	"watari/core"
	"watari/manager/store"
	"watari/manager/view"
)

// Sessions are the sessions of connected agents.
type Sessions interface {
	core.Reports
	// Send sends orders to a host. They replace earlier orders that have not been sent yet.
	Send(host string, wanted *v1.HostWanted)
	// HTTPClient returns a client of the host's agent.
	HTTPClient(host string) (connect.HTTPClient, error)
	// Cut ends a host's sessions with certificates of generations before the given one.
	Cut(host string, before uint32)
}

// Deps are the controller's dependencies.
type Deps struct {
	Store    *store.Store
	Sessions Sessions
	// SessionChanges holds a token when an agent reported, connected or disconnected.
	SessionChanges <-chan struct{}
	// Signals returns the present knowledge of hosts; nil: always none.
	Signals func(now time.Time) core.Signals
	// Usage returns what hosts and guests have used lately. nil, or a nil result: unknown.
	Usage func() *core.Usage
	// SignalChanges holds a token when signals or the usage have changed.
	SignalChanges <-chan struct{}
	// RunsDir keeps the output of runs: <RunsDir>/<run uid>/{stdout,stderr}.
	RunsDir string
	// NoSharing makes each host fetch images from the manager, and make templates itself.
	NoSharing bool
	// FenceCommand switches off a host with guests that has been out of reach for FenceAfter; empty: no host can be switched
	// off.
	FenceCommand string
	FenceAfter   time.Duration
	Term         uint64
	TermID       string // may be empty in tests, like the next two
	Stamps       *view.Stamps
	Authority    *ca.Authority // signs the stamps of orders
	Log          *slog.Logger
}

// Controller is the loop's memory between passes; all of it can be lost.
type Controller struct {
	Deps
	core       *core.Core
	identities map[string]map[uint64]madeIdentity // by the guest's uid and the epoch
	runners    map[string]*runner                 // by the run's uid
	strays     map[string]string                  // the last restore whose strays are being ended, or were, by cluster
	rests      map[string]rest                    // by the change's key
	leases     *leases
	outputs    outputs
	fencing    sync.Map // hosts that are being switched off, by name
	driving    sync.WaitGroup
	changed    chan struct{} // holds a token when a runner has news
}

const (
	// conflictPause is the pause after a pass that could not write its changes.
	conflictPause = 200 * time.Millisecond
	// heldPass is how often a manager that holds checks whether the hold has ended.
	heldPass = 2 * time.Second
	// restPause is the pause before a failed change is tried again. It doubles up to longestRest each time that the change
	// itself is the reason, such as a record that is too large.
	restPause   = time.Second
	longestRest = 30 * time.Second
)

// rest is the latest pause of a change that could not be written.
type rest struct {
	pause time.Duration
	until time.Time
}

// Run runs the loop until ctx ends, leadership is lost, an object cannot be read, or a new term is needed
// (*LeadAgainError).
func Run(ctx context.Context, d Deps) error {
	if d.Log == nil {
		d.Log = slog.Default()
	}
	c := &Controller{Deps: d, identities: map[string]map[uint64]madeIdentity{}, runners: map[string]*runner{}, strays: map[string]string{}, rests: map[string]rest{}, changed: make(chan struct{}, 1)}
	c.leases = newLeases(c.Deps)
	c.outputs = outputs{dir: c.RunsDir, used: map[string]usedOutput{}}
	config := core.Config{Term: d.Term, Began: time.Now(), NoSharing: d.NoSharing, Identify: c.identify}
	if d.Authority != nil {
		config.Seal, config.Sealed = c.seal, c.sealed
	}
	if d.FenceCommand != "" {
		config.FenceAfter = d.FenceAfter
	}
	c.core = core.New(config)
	ctx, stop := context.WithCancel(ctx)
	// Wait for the runners: if this process leads again, a run with two runners would have its output written twice.
	defer c.driving.Wait()
	defer stop()
	c.driving.Go(func() { c.leases.run(ctx) })
	changes := d.Store.Subscribe(ctx)
	timer := time.NewTimer(0)
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changes:
		case <-d.SessionChanges:
		case <-d.SignalChanges:
		case <-c.changed:
		case <-timer.C:
		}
		again, err := c.pass(ctx)
		var unreadable *store.UnreadableError
		var leadAgain *LeadAgainError
		switch {
		case errors.Is(err, store.ErrNotLeader), errors.As(err, &unreadable), errors.As(err, &leadAgain):
			return err
		case err != nil && ctx.Err() == nil:
			c.Log.Error("decisions could not be written down; trying again", "error", err)
			again = time.Now().Add(conflictPause)
		}
		timer.Reset(time.Until(again))
	}
}

// pass makes one decision and carries it out. It returns when to decide again even if nothing changes.
func (c *Controller) pass(ctx context.Context) (again time.Time, err error) {
	return c.decide(ctx, c.Store.Snapshot())
}

// decide is a pass over a snapshot. It decides nothing if the snapshot lacks an object that cannot be read.
func (c *Controller) decide(ctx context.Context, s *store.Snapshot) (again time.Time, err error) {
	if err := store.Readable(s); err != nil {
		return time.Time{}, err
	}
	for name, h := range s.Hosts {
		if h.Quarantine.GetCutOff() != nil {
			c.Sessions.Cut(name, math.MaxUint32)
		} else if h.Generation > 0 {
			c.Sessions.Cut(name, h.Generation)
		}
	}
	reports := core.Capture(s, c.Sessions) // held and Decide must see the same reports
	if held, err := c.held(ctx, s, reports); held || err != nil {
		return time.Now().Add(heldPass), err
	}
	w := core.World{Objects: s, Reports: reports, Runs: c.runsSeen(), Leases: c.leases.see(s), Now: time.Now()}
	if c.Signals != nil {
		w.Signals = c.Signals(w.Now)
	}
	if c.Usage != nil {
		w.Usage = c.Usage()
	}
	d := c.core.Decide(w)
	for _, note := range d.Notes {
		c.Log.Info(note)
	}
	if err := c.send(s, d.Orders); err != nil {
		return time.Time{}, err
	}
	c.drive(ctx, s, d.Runs)
	c.endStrays(ctx, s)
	c.fence(ctx, d.Fences)
	if len(d.Changes) == 0 {
		return d.Again, nil
	}
	// Decide again at once, about the changes that the store refused. The store also wakes the loop after its writes.
	return time.Now(), c.commit(ctx, s, d.Changes)
}

// send gives hosts their orders. New orders get the stamp of the snapshot from which they were computed.
func (c *Controller) send(s *store.Snapshot, orders map[string]*v1.HostWanted) error {
	var made *v1.Stamp
	for host, w := range orders {
		if w.Stamp == nil && made == nil {
			var err error
			if made, err = c.stamp(s); err != nil {
				return &LeadAgainError{c.Term, fmt.Sprintf("orders could not be signed: %v", err)}
			}
		}
		if w.Stamp == nil {
			w.Stamp = made
		}
		c.Sessions.Send(host, w)
	}
	return nil
}

// commit writes changes together with their events. It returns an error if no change can be written. A change that fails for
// a reason of its own rests.
func (c *Controller) commit(ctx context.Context, s *store.Snapshot, changes []core.Change) error {
	batch := make([]store.Change, len(changes))
	for i, change := range changes {
		batch[i] = store.Operations(change)
	}
	var failed error
	for i, err := range c.Store.Batch(ctx, batch) {
		change := changes[i]
		switch {
		case err == nil:
			delete(c.rests, change.Key)
			c.committed(s, change)
		case ctx.Err() != nil:
			failed = ctx.Err()
		case errors.Is(err, store.ErrNotLeader), errors.Is(err, store.ErrNoSpace):
			failed = err
			c.core.Rest(change.Key, time.Now().Add(conflictPause))
		case errors.Is(err, store.ErrConflict), errors.Is(err, store.ErrExists), errors.Is(err, store.ErrNotFound):
			// Another writer changed the object; its write starts a new decision.
		default:
			c.Log.Error("a decision could not be written down", "about", change.Key, "error", err)
			c.core.Rest(change.Key, c.restUntil(change.Key, errors.Is(err, store.ErrWrite), time.Now()))
		}
	}
	return failed
}

// restUntil returns when to decide again about a change that could not be written. passing means that the change is not the
// reason, so it must not rest for long once etcd answers again.
func (c *Controller) restUntil(key string, passing bool, now time.Time) time.Time {
	if passing {
		return now.Add(restPause)
	}
	// A change that was not tried again for this long is not wanted any more.
	maps.DeleteFunc(c.rests, func(_ string, r rest) bool { return now.Sub(r.until) > longestRest })
	pause := min(max(2*c.rests[key].pause, restPause), longestRest)
	c.rests[key] = rest{pause, now.Add(pause)}
	return now.Add(pause)
}

// committed logs a change that was written.
func (c *Controller) committed(before *store.Snapshot, change core.Change) {
	for _, op := range change.Ops {
		switch o := op.Object.(type) {
		case *v1.Migration:
			if op.Kind == core.Update && before.Migrations[o.Meta.Name].GetState() != o.State {
				c.Log.Info("migration", "name", o.Meta.Name, "state", core.StateName(o.State.String()), "message", o.Message)
			}
		case *v1.Guest:
			if op.Kind == core.Delete {
				c.forgetIdentities(o.Meta.Uid)
			}
		}
	}
}
