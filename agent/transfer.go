package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	v1 "watari/api/watariv1"
)

// progressEvery is how often a transfer's progress is reported.
const progressEvery = 200 * time.Millisecond

// sendEndWait is how long a transfer that failed may take to be over.
const sendEndWait = time.Minute

// send transfers the guest. It returns when that has ended, one way or the other.
func (g *guest) send(ctx context.Context, w *v1.GuestWanted) error {
	err := g.sendOnce(ctx, w)
	if err != nil {
		if ctx.Err() != nil {
			err = fmt.Errorf("the transfer was cancelled (%w)", err)
		}
		// It has failed only once the hypervisor is not at it any more.
		wait, cancel := context.WithTimeout(context.WithoutCancel(ctx), sendEndWait)
		g.awaitSendEnd(wait)
		cancel()
	}
	g.mu.Lock()
	if err == nil {
		g.sendDone = true
		if g.stoppedAt.IsZero() {
			g.stoppedAt = time.Now()
		}
	} else {
		g.failure = Failure{Epoch: w.Epoch, Message: err.Error()}
		g.stoppedAt = time.Time{}
	}
	g.mu.Unlock()
	g.agent.domains.refresh(context.WithoutCancel(ctx))
	return err
}

func (g *guest) sendOnce(ctx context.Context, w *v1.GuestWanted) error {
	options, closeTunnel, err := g.agent.tunnels.Open(ctx, w.Migration, g.uid)
	if err != nil {
		return fmt.Errorf("open the tunnel to host %s: %w", w.Migration.TargetHost, err)
	}
	defer closeTunnel()
	watchCtx, stop := context.WithCancel(ctx)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		g.watchProgress(watchCtx)
	}()
	begun := time.Now()
	err = g.agent.hypervisor.Migrate(ctx, g.uid, options)
	g.log.Info("transfer ended", "to", w.Migration.TargetHost, "took", time.Since(begun), "error", err)
	stop()
	<-watched
	return err
}

func (g *guest) watchProgress(ctx context.Context) {
	tick := time.NewTicker(progressEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if p, err := g.agent.hypervisor.Progress(ctx, g.uid); err == nil && p != nil {
			g.mu.Lock()
			g.progress = p
			g.mu.Unlock()
			g.agent.publish()
		}
	}
}

// awaitSendEnd waits until the hypervisor has no transfer of the guest under way any more.
func (g *guest) awaitSendEnd(ctx context.Context) error {
	tick := time.NewTicker(progressEvery)
	defer tick.Stop()
	for {
		p, err := g.agent.hypervisor.Progress(ctx, g.uid)
		if _, current := g.agent.domains.get(g.uid); current && (err != nil || p == nil) {
			break
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
	_, err := g.agent.domains.refresh(ctx)
	return err
}

// noteStop keeps when the guest stopped during a transfer.
func (g *guest) noteStop(state Domain, at time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.log.Debug("state changed", "state", state)
	if g.operation == OperationSending && state == DomainPaused && g.stoppedAt.IsZero() {
		g.stoppedAt = at
	}
}

// expectIncoming lets the tunnel take the guest's transfer in for as long as the manager wants that.
func (g *guest) expectIncoming() {
	g.mu.Lock()
	r, w := g.record, g.wanted
	wanted := ""
	if r != nil && w != nil && w.Role == v1.GuestRole_GUEST_ROLE_INCOMING && !w.Migration.GetCancel() && w.Epoch == r.Epoch &&
		w.Migration.GetId() == r.Migration && (r.Phase == PhaseReserved || r.Phase == PhaseReceiving || r.Phase == PhaseReceived) {
		wanted = r.Migration
	}
	if wanted == g.expected {
		g.mu.Unlock()
		return
	}
	g.mu.Unlock()
	g.expectNothing()
	if wanted == "" {
		return
	}
	stop := g.agent.tunnels.Expect(Expected{Migration: wanted, Source: r.Source, UID: g.uid,
		Admit: func() error { return g.admit(wanted) }, Changed: func() { poke(g.wake) }})
	g.mu.Lock()
	g.expect, g.expected = stop, wanted
	g.mu.Unlock()
}

func (g *guest) expectNothing() {
	g.mu.Lock()
	stop := g.expect
	g.expect, g.expected = nil, ""
	g.mu.Unlock()
	if stop != nil {
		stop()
	}
}

// admit is called before the first byte of a transfer is let in.
func (g *guest) admit(migration string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	r, w := g.record, g.wanted
	if r == nil || r.Migration != migration || w.GetRole() != v1.GuestRole_GUEST_ROLE_INCOMING || w.GetMigration().GetCancel() {
		return errors.New("this transfer is not wanted any more")
	}
	switch r.Phase {
	case PhaseReceiving, PhaseReceived:
		return nil
	case PhaseReserved:
		next := record(r, PhaseReceiving).Record
		if err := g.agent.records.Save(next, true); err != nil {
			return err
		}
		g.record = next
		poke(g.wake)
		return nil
	}
	return fmt.Errorf("the guest is %s here already", r.Phase)
}
