package controller

// hold.go - a manager whose state was rolled back decides nothing and sends no orders (docs/design/manager.md).

import (
	"context"
	"fmt"
	"slices"

	v1 "watari/api/watariv1"
	"watari/core"
	"watari/internal/stamp"
	"watari/manager/store"
	"watari/manager/view"
)

// LeadAgainError ends a term and asks for another. Either the next term's number must exceed one that a host has shown,
// or the manager holds from now on and must end what the term began.
type LeadAgainError struct {
	Above  uint64 // the number that the next term must exceed
	Reason string
}

// Error returns why the term ends.
func (e *LeadAgainError) Error() string { return "a new term is begun: " + e.Reason }

// held checks the stamps that hosts show, before any decision, and reports whether the manager holds. It stores its
// evidence before the manager acts on it.
func (c *Controller) held(ctx context.Context, s *store.Snapshot, reports core.Captured) (bool, error) {
	if c.TermID == "" { // in a test
		return s.Held(), nil
	}
	if s.TermID != c.TermID {
		// The snapshot is of a later term. Compute no orders from it: their stamps would contradict that term's
		// beginning.
		return false, store.ErrNotLeader
	}
	shown, _ := c.Stamps.Shown(s, reports)
	shown = slices.DeleteFunc(shown, func(x core.Shown) bool { return x.Stamp.GetId() == c.TermID })
	if len(shown) == 0 {
		return s.Held(), nil
	}
	found := core.RolledBack(c.Stamps.Terms(s), core.Unanswered(s.Hold(), shown...)...)
	begun, err := c.keepEvidence(ctx, s, found)
	if err != nil {
		return true, err
	}
	above := core.HighestTerm(shown...)
	switch {
	case above >= c.Term:
		return true, &LeadAgainError{above, fmt.Sprintf("a host took up orders of term %d, and this one is term %d", above, c.Term)}
	case begun:
		return true, &LeadAgainError{c.Term, "the manager holds from now on"}
	}
	return s.Held() || len(found) > 0, nil
}

// keepEvidence stores new evidence. begun: the manager did not hold before.
func (c *Controller) keepEvidence(ctx context.Context, s *store.Snapshot, found []core.Evidence) (begun bool, err error) {
	update, fresh := core.Hold(s.Hold(), found)
	if len(fresh) == 0 {
		return false, nil
	}
	op := store.Create(update)
	if s.Hold() != nil {
		op = store.Update(update)
	}
	if err := c.Store.Txn(ctx, op); err != nil {
		return false, fmt.Errorf("write down that the state was rolled back: %w", err)
	}
	for _, e := range fresh {
		c.Log.Error("the state was rolled back; this manager holds", "evidence", e.String())
		told := c.Store.AddEvent(ctx, &v1.Event{Severity: v1.Severity_SEVERITY_ERROR, Kind: "host", Name: e.Host, Actor: "manager", Message: e.String() + ": " + view.HoldNext})
		if told != nil && ctx.Err() == nil {
			c.Log.Error("an event could not be written", "event", e.String(), "error", told)
		}
	}
	return !s.Held(), nil
}

// stamp returns the stamp of orders that are computed from a snapshot; nil in tests without an authority.
func (c *Controller) stamp(s *store.Snapshot) (*v1.Stamp, error) {
	if c.Authority == nil {
		return nil, nil
	}
	return stamp.New(c.Authority, &v1.Term{Number: c.Term, Id: c.TermID}, s.Revision)
}
