// Package controller is the leader's loop: it shows package core the store's objects and the agents' reports, sends the
// orders and writes down the changes that core decides, and does for runs what core asks for. All of it may be repeated
// after a crash at any point: what has to be remembered is in the store before anybody acts on it.
package controller

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"connectrpc.com/connect"

	v1 "watari/api/watariv1"
	"watari/core"
	"watari/manager/store"
)

// Sessions are the agents that are connected.
type Sessions interface {
	core.Reports
	// Send hands a host its orders; later ones replace those that have not left yet.
	Send(host string, wanted *v1.HostWanted)
	// HTTPClient calls what the host's agent serves.
	HTTPClient(host string) (connect.HTTPClient, error)
}

// Deps is what the controller works with.
type Deps struct {
	Store    *store.Store
	Sessions Sessions
	// SessionChanges holds a token when an agent reported, connected or disconnected.
	SessionChanges <-chan struct{}
	// RunsDir is where runs' output is kept: <RunsDir>/<run uid>/{stdout,stderr}.
	RunsDir string
	// NoSharing has each host fetch images from the manager, and make templates itself.
	NoSharing bool
	Term      uint64
	Log       *slog.Logger
}

// Controller holds what the loop remembers between passes; all of it can be lost.
type Controller struct {
	Deps
	core       *core.Core
	identities map[identityKey]*v1.Identity
	runners    map[string]*runner // by the run's uid
	driving    sync.WaitGroup
	changed    chan struct{} // holds a token when a runner has something to tell
}

const (
	// conflictPause is how long the loop waits after it could not write anything.
	conflictPause = 200 * time.Millisecond
	// restPause is how long a change rests that could not be written for a reason of its own: a record that is too large.
	restPause = time.Second
)

// Run works until ctx ends, leadership is lost, or an object cannot be read.
func Run(ctx context.Context, d Deps) error {
	if d.Log == nil {
		d.Log = slog.Default()
	}
	c := &Controller{Deps: d, identities: map[identityKey]*v1.Identity{}, runners: map[string]*runner{}, changed: make(chan struct{}, 1)}
	c.core = core.New(core.Config{Term: d.Term, Began: time.Now(), NoSharing: d.NoSharing, Identify: c.identify})
	ctx, stop := context.WithCancel(ctx)
	// Should this process lead again, no run may have two runners, which would write its output twice.
	defer c.driving.Wait()
	defer stop()
	changes := d.Store.Subscribe(ctx)
	timer := time.NewTimer(0)
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changes:
		case <-d.SessionChanges:
		case <-c.changed:
		case <-timer.C:
		}
		again, err := c.pass(ctx)
		var unreadable *store.UnreadableError
		switch {
		case errors.Is(err, store.ErrNotLeader), errors.As(err, &unreadable):
			return err
		case err != nil && ctx.Err() == nil:
			c.Log.Error("decisions could not be written down; trying again", "error", err)
			again = time.Now().Add(conflictPause)
		}
		timer.Reset(time.Until(again))
	}
}

// pass decides once and does what follows. It returns when to decide again though nothing changes.
func (c *Controller) pass(ctx context.Context) (again time.Time, err error) {
	return c.decide(ctx, c.Store.Snapshot())
}

// decide is a pass over a snapshot. It decides nothing while an object of it cannot be read.
func (c *Controller) decide(ctx context.Context, s *store.Snapshot) (again time.Time, err error) {
	if err := store.Readable(s); err != nil {
		return time.Time{}, err
	}
	d := c.core.Decide(core.World{Objects: s, Reports: c.reports(s), Runs: c.runsSeen(), Now: time.Now()})
	for _, note := range d.Notes {
		c.Log.Info(note)
	}
	for host, orders := range d.Orders {
		c.Sessions.Send(host, orders)
	}
	c.drive(ctx, s, d.Runs)
	if len(d.Changes) == 0 {
		return d.Again, nil
	}
	// The store wakes the loop for what it has written; what it refused is decided anew at once.
	return time.Now(), c.commit(ctx, s, d.Changes)
}

func (c *Controller) reports(s *store.Snapshot) map[string]core.Seen {
	seen := make(map[string]core.Seen, len(s.Hosts))
	for name := range s.Hosts {
		report, since, connected := c.Sessions.Observed(name)
		seen[name] = core.Seen{Report: report, Since: since, Connected: connected}
	}
	return seen
}

// commit writes changes. It returns an error where none can be written; a change that fails for a reason of its own rests.
func (c *Controller) commit(ctx context.Context, s *store.Snapshot, changes []core.Change) error {
	var failed error
	for _, change := range changes {
		err := c.Store.Txn(ctx, operations(change)...)
		switch {
		case err == nil:
			c.committed(ctx, s, change)
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, store.ErrNotLeader), errors.Is(err, store.ErrNoSpace):
			return err
		case errors.Is(err, store.ErrConflict), errors.Is(err, store.ErrExists), errors.Is(err, store.ErrNotFound):
			// Somebody else changed the object, which decides it anew.
		default:
			c.Log.Error("a decision could not be written down", "about", change.Key, "error", err)
			c.core.Rest(change.Key, time.Now().Add(restPause))
		}
	}
	return failed
}

func operations(change core.Change) []store.Op {
	ops := make([]store.Op, 0, len(change.Ops))
	for _, op := range change.Ops {
		switch op.Kind {
		case core.Create:
			ops = append(ops, store.Create(op.Object))
		case core.Update:
			ops = append(ops, store.Update(op.Object))
		case core.Delete:
			ops = append(ops, store.Delete(op.Object))
		case core.Expect:
			ops = append(ops, store.Expect(op.Object))
		}
	}
	return ops
}

// committed tells the log and the history of a change that was written. An event that cannot be written must not stop the
// work that it tells of.
func (c *Controller) committed(ctx context.Context, before *store.Snapshot, change core.Change) {
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
	for _, e := range change.Events {
		if err := c.Store.AddEvent(ctx, e); err != nil && ctx.Err() == nil {
			c.Log.Error("an event could not be written", "event", e.Message, "error", err)
		}
	}
}
