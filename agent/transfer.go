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

// sendEndWait is how long those who interrupt a transfer wait for libvirt to be done with it. Tests shorten it.
var sendEndWait = time.Minute

// send transfers the guest. It returns when libvirt has ended it here, or given up. The source's process is left to
// libvirt until then: ended any earlier, the source's daemon may take the transfer for failed, and have the target's
// give up a guest that is whole and runs there.
func (g *guest) send(ctx context.Context, w *v1.GuestWanted) error {
	socket, err := g.agent.hypervisor.MigrateSocket(g.name)
	if err != nil {
		g.sendFailed(ctx, w, err)
		return err
	}
	way, err := g.agent.tunnels.Open(ctx, w.Migration, socket)
	if err != nil {
		err = fmt.Errorf("open the tunnel to host %s: %w", w.Migration.TargetHost, err)
		g.sendFailed(ctx, w, err)
		return err
	}
	err = g.migrate(ctx, w, way)
	way.Close()
	if err != nil {
		if cause := way.Err(); cause != nil { // libvirt saw no more than that its connection ended
			err = fmt.Errorf("%w (%w)", err, cause)
		}
		g.sendFailed(ctx, w, err)
		return err
	}
	g.sent()
	g.agent.domains.refresh(context.WithoutCancel(ctx))
	return nil
}

func (g *guest) sendFailed(ctx context.Context, w *v1.GuestWanted, err error) {
	if ctx.Err() != nil {
		err = fmt.Errorf("the transfer was cancelled (%w)", err)
	}
	// It has failed only once the hypervisor is not at it any more, however long it cannot be asked: it may yet find that
	// the guest was sent, and end it here.
	wait, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(sendEndWait, cancel) })()
	g.awaitSendEnd(wait)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.failure = Failure{Epoch: w.Epoch, Message: err.Error()}
	g.stoppedAt = time.Time{}
}

func (g *guest) sent() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.sendDone = true
	if g.stoppedAt.IsZero() {
		g.stoppedAt = time.Now()
	}
}

// migrate is the hypervisor's part of a transfer.
func (g *guest) migrate(ctx context.Context, w *v1.GuestWanted, way Way) error {
	watchCtx, stop := context.WithCancel(ctx)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		g.watchProgress(watchCtx)
	}()
	begun := time.Now()
	err := g.agent.hypervisor.Migrate(ctx, g.uid, way.Options)
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
	for {
		_, err := g.agent.domains.refresh(ctx)
		info, current := g.agent.domains.get(g.uid)
		if err == nil && current {
			busy, err := g.agent.hypervisor.Busy(ctx, g.uid)
			if info.State == DomainAbsent || err == nil && !busy {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(progressEvery):
		}
	}
}

// awaitWhole waits until the hypervisor has done with an incoming transfer whose domain is complete: up to then a
// crash of the hypervisor could still make it give the guest up.
func (g *guest) awaitWhole(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, sendEndWait)
	defer cancel()
	for {
		busy, err := g.agent.hypervisor.Busy(ctx, g.uid)
		if err != nil {
			return fmt.Errorf("receive guest %s: %w", g.name, err)
		}
		if !busy {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("receive guest %s: libvirt does not come to an end with it", g.name)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// noteEvent keeps when the guest stopped during a transfer, and when it was resumed: the first event of its domain
// is about that. Asking for its state would wait for libvirt.
func (g *guest) noteEvent(at time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.operation == OperationSending && g.stoppedAt.IsZero() {
		g.stoppedAt = at
	}
	if g.resuming && g.resumedAt.IsZero() {
		g.resumedAt = at
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
	socket, err := g.agent.hypervisor.MigrateSocket(g.name)
	if err != nil {
		g.failed(err)
		return
	}
	stop := g.agent.tunnels.Expect(Expected{Migration: wanted, Source: r.Source, SourceUID: w.Migration.SourceUid, MigrateSocket: socket,
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
