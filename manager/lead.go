package manager

// lead.go - leads: runs the controller while this manager is the leader.

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"watari/core"
	"watari/manager/api"
	"watari/manager/controller"
	"watari/manager/store"
)

// leadPause is the pause before a manager stands for election again after a failure.
const leadPause = time.Second

// renewalTime is how long requests wait at most for a new term.
const renewalTime = 5 * time.Second

// renewing reports whether this manager has just ended its term and is about to begin another.
func (m *Manager) renewing() bool {
	ended := m.renewed.Load()
	return ended != nil && time.Since(*ended) < renewalTime
}

// leadRepeatedly stands for election, leads, and stands again, until ctx ends.
func (m *Manager) leadRepeatedly(ctx context.Context) {
	for ctx.Err() == nil {
		err := m.leadOnce(ctx)
		if ctx.Err() != nil {
			return
		}
		m.Log.Warn("this manager does not lead", "reason", err)
		pause := leadPause
		if again := (*controller.LeadAgainError)(nil); errors.As(err, &again) {
			pause = leadPause / 20 // no failure
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
}

// standByLook is the pause between two looks of a manager that stands by.
const standByLook = 2 * time.Second

// standBy keeps the administrator's client config of this machine while another manager leads, until end is called.
func (m *Manager) standBy(ctx context.Context) (end func()) {
	ctx, cancel := context.WithCancel(ctx)
	var standing sync.WaitGroup
	standing.Go(func() {
		for ctx.Err() == nil {
			if admin := m.store.Snapshot().Users[api.Admin]; admin != nil { // the leader has made it
				m.complain(ctx, "write the administrator's client config", m.keepAdminConfig(admin))
			}
			select {
			case <-time.After(standByLook):
			case <-ctx.Done():
			}
		}
	})
	return func() {
		cancel()
		standing.Wait()
	}
}

// leadOnce waits until this manager leads, and then leads for one term.
func (m *Manager) leadOnce(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil) // resign: another manager may succeed where this one failed
	if err := store.Readable(m.store.Snapshot()); err != nil {
		return err
	}
	standing := m.standBy(ctx)
	term, lost, err := m.store.Lead(ctx, m.Advertise)
	standing()
	if err != nil {
		return err
	}
	go func() {
		select {
		case <-lost:
			cancel(errors.New("the lease on leadership ended"))
		case <-ctx.Done():
		}
	}()
	if err := m.ensureAdmin(ctx); err != nil {
		return err
	}
	if first := core.FirstSites(m.store.Snapshot()); len(first.Ops) > 0 {
		if err := m.store.Txn(ctx, store.Operations(first)...); err != nil {
			return fmt.Errorf("make the objects of sites: %w", err)
		}
	}
	m.Log.Info("this manager leads", "term", term)
	begun := time.Now()
	m.led.Store(&begun)
	m.leading.Store(true)
	tidying := make(chan struct{})
	go func() {
		defer close(tidying)
		m.tidy(ctx)
	}()
	err = m.RunController(ctx, controller.Deps{
		Store: m.store, Sessions: m.sessions, SessionChanges: m.sessions.Subscribe(ctx), Signals: m.watch.signals, SignalChanges: m.watch.changed, Usage: m.watch.usage.Load,
		RunsDir: m.runsDir(), NoSharing: m.NoSharing, FenceCommand: m.FenceCommand, FenceAfter: m.FenceAfter,
		Term: term, TermID: m.store.Led().GetId(), Stamps: m.stamps, Authority: m.authority, Log: m.Log,
	})
	if again := (*controller.LeadAgainError)(nil); errors.As(err, &again) {
		m.store.RaiseTerm(again.Above)
		ended := time.Now()
		m.renewed.Store(&ended)
	}
	m.leading.Store(false)
	cancel(err)
	<-tidying
	// Agents must connect to the new leader.
	m.sessions.Reset()
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	return err
}
