package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	v1 "watari/api/watariv1"
	"watari/placement"
)

// routeWait is how long a guest that is let run waits for its route: it runs without one rather than not at all.
const routeWait = 2 * time.Second

// memoryMargin is what is left to the host itself when room for a guest is looked for.
const memoryMargin = 64 << 20

// errSettled ends a sequence of acts whose failure has been noted; the next step sees it.
var errSettled = errors.New("noted")

// act does actions in their order; the first that fails ends it.
func (g *guest) act(ctx context.Context, o Observed, actions []Action) error {
	g.setUpcoming(actions)
	defer g.setUpcoming(nil)
	for _, action := range actions {
		attributes := []any{"action", action.Kind}
		if r := action.Record; r != nil {
			attributes = append(attributes, "phase", r.Phase, "epoch", r.Epoch, "outcome", r.Outcome)
		}
		begun := time.Now()
		err := g.actOne(ctx, o, action)
		g.log.Debug("acted", append(attributes, "took", time.Since(begun), "error", err)...)
		if errors.Is(err, errSettled) {
			return nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// setUpcoming keeps reports from showing a state that lasts only between two acts.
func (g *guest) setUpcoming(actions []Action) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.upcoming = OperationNone
	for _, action := range actions {
		switch action.Kind {
		case ActionSend:
			g.upcoming = OperationSending
		case ActionStart:
			g.upcoming = OperationStarting
		}
	}
}

func (g *guest) actOne(ctx context.Context, o Observed, action Action) error {
	switch action.Kind {
	case ActionRecord:
		to := g.withEnding(o.Record, action.Record)
		err := g.recordNow(ctx, o.Record, to)
		if err == nil && to.Phase == PhaseEnded && to.Outcome != OutcomeForgotten {
			g.keepConsole(o.Record, to)
		}
		return err
	case ActionPrepare:
		g.begin(ctx, OperationPreparing, func(ctx context.Context) error { return g.prepare(ctx, o.Wanted) })
	case ActionStart:
		g.begin(ctx, OperationStarting, func(ctx context.Context) error { return g.start(ctx, o.Wanted) })
	case ActionSend:
		g.begin(ctx, OperationSending, func(ctx context.Context) error { return g.send(ctx, o.Wanted) })
	case ActionResume:
		return g.resume(ctx)
	case ActionDestroy:
		return g.destroy(ctx)
	case ActionInterrupt:
		return g.interruptAndWait(ctx)
	case ActionForget:
		return g.forget(ctx)
	case ActionConfirm:
		return g.confirmAbsent(ctx)
	}
	return nil
}

// recordNow writes a record. Two of them are reported before they are on disk, for the guest stands still until the
// manager knows, and nothing rests on them: after a crash the same is found out again, from what exists.
func (g *guest) recordNow(ctx context.Context, from, to *Record) error {
	if to.Phase == PhaseReceived {
		if err := g.awaitWhole(ctx); err != nil {
			return err
		}
	} else if to.Outcome != OutcomeSent {
		return g.write(from, to)
	}
	g.mu.Lock()
	if !sameRecord(g.record, from) {
		g.mu.Unlock()
		return errSettled
	}
	g.record = to
	g.mu.Unlock()
	g.agent.publish()
	return g.agent.records.Save(to, true)
}

func sameRecord(a, b *Record) bool { return a == b || a != nil && b != nil && *a == *b }

// write puts a record on disk and then in force. from is the record that the step saw.
func (g *guest) write(from, to *Record) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !sameRecord(g.record, from) {
		return errSettled // a tunnel was let in meanwhile: step again
	}
	begins := from == nil || to.Epoch > from.Epoch
	if begins {
		to.BeganAt, to.BootID = g.agent.records.Now().UTC().Format(time.RFC3339), g.agent.config.Info.GetBootId()
	}
	// The end of an epoch that never began is vital, too: the manager gives the grant to another host for it.
	if err := g.agent.records.Save(to, !begins || to.Phase == PhaseEnded); err != nil {
		if begins && to.Phase != PhaseEnded {
			g.failure = Failure{Epoch: to.Epoch, NeverRan: true, Final: true, Message: err.Error()}
			return errSettled
		}
		return err
	}
	if begins {
		g.sendDone, g.stoppedAt, g.resumedAt, g.progress, g.notes = false, time.Time{}, time.Time{}, nil, nil
	}
	if to.Phase == PhaseSending {
		g.sendDone, g.stoppedAt, g.progress, g.failure = false, time.Time{}, nil, Failure{}
	}
	g.record = to
	return nil
}

// prepare makes ready what the wanted epoch needs before anything of it exists. It may be repeated.
func (g *guest) prepare(ctx context.Context, w *v1.GuestWanted) error {
	p := &prepared{epoch: w.Epoch}
	err := g.prepareParts(ctx, w, p)
	if err != nil && p.tap != "" { // the guest may not be wanted any more, and nobody would take its tap away
		err = errors.Join(err, g.unplug(context.WithoutCancel(ctx)))
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if err == nil {
		g.prepared, g.plugged = p, true
		if g.failure.Epoch == w.Epoch && !g.failure.Final {
			g.failure = Failure{}
		}
		return nil
	}
	if ctx.Err() != nil {
		return err
	}
	var short *memoryError
	var refused *refusedError
	// Another host may have what this one lacks.
	final := errors.As(err, &short) || errors.As(err, &refused) || errors.Is(err, syscall.ENOSPC)
	g.failure = Failure{Epoch: w.Epoch, NeverRan: true, Final: final, Message: err.Error()}
	if !final {
		g.delay = min(max(2*g.delay, time.Second), 15*time.Second)
		g.backoff = time.Now().Add(g.delay)
	}
	return err
}

func (g *guest) prepareParts(ctx context.Context, w *v1.GuestWanted, p *prepared) (err error) {
	if w.Image == nil || w.Shape == nil || w.Identity == nil {
		return fmt.Errorf("start guest %s: the manager sent no image, shape or identity", w.Name)
	}
	if reason := placement.Unconfined(g.agent.confinement()); reason != "" {
		return fmt.Errorf("start guest %s: %w", w.Name, &refusedError{reason})
	}
	if err := g.agent.room(g, w.Shape.MemoryBytes); err != nil {
		return fmt.Errorf("start guest %s: %w", w.Name, err)
	}
	p.files, err = g.agent.images.Ensure(ctx, w.Image, func(step string) { g.setStep("%s", step) })
	if err != nil {
		return fmt.Errorf("start guest %s: %w", w.Name, err)
	}
	if err := g.makeDirs(); err != nil {
		return fmt.Errorf("start guest %s: %w", w.Name, err)
	}
	g.mu.Lock()
	n, r := g.networkGuestLocked(), g.record
	g.mu.Unlock()
	g.keepConsole(r, r) // of an end that a crash of the agent kept from being settled
	p.tap, err = g.agent.network.PlugGuest(ctx, n, w.Identity.Mtu)
	if err != nil {
		return fmt.Errorf("start guest %s: plug its tap: %w", w.Name, err)
	}
	if w.Role == v1.GuestRole_GUEST_ROLE_RUN && !w.NoFork {
		p.template, err = g.agent.templates.ensure(ctx, g.spec(w, p), func(step string) { g.setStep("%s", step) })
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			g.note("booted plainly, for no template could be made: %v", err)
		}
	}
	return nil
}

func (g *guest) makeDirs() error {
	for _, dir := range []string{g.agent.guestRunDir(g.uid), g.agent.records.GuestDir(g.uid)} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	return nil
}

// spec is the domain to be made.
func (g *guest) spec(w *v1.GuestWanted, p *prepared) Spec {
	return Spec{UID: w.Uid, Name: w.Name, VCPUs: w.Shape.Vcpus, MemoryBytes: w.Shape.MemoryBytes,
		Kernel: p.files.Kernel, Initrd: p.files.Initrd, Root: p.files.Root, RootType: w.Image.RootType,
		KernelArgs: w.Image.KernelArgs, Tap: p.tap, Channel: g.agent.channelSocket(w.Uid),
		Console: g.agent.consoles.path(w.Uid), ImageDigest: w.Image.Digest, Platform: w.Platform}
}

// start creates the domain. The record of it is on disk already.
func (g *guest) start(ctx context.Context, w *v1.GuestWanted) error {
	g.mu.Lock()
	p := g.prepared
	g.prepared = nil
	g.mu.Unlock()
	err := g.create(ctx, w, p)
	if err == nil {
		g.agent.domains.set(g.uid, w.Name, DomainRunning)
		g.identity.restarted()
		return nil
	}
	uncertain := errors.Is(err, ErrUncertain)
	err = fmt.Errorf("start guest %s: %w", w.Name, err)
	// Whether something of it exists after all is for the hypervisor to say.
	_, listErr := g.agent.domains.refresh(context.WithoutCancel(ctx))
	g.mu.Lock()
	defer g.mu.Unlock()
	g.failure = Failure{Epoch: w.Epoch, NeverRan: listErr == nil && !uncertain, Final: true, Message: err.Error()}
	if uncertain {
		g.expectLateLocked()
	}
	return err
}

// lateCreate is for how long a hypervisor that answers may still carry out an earlier request to create a domain. A daemon
// that hung reads its sockets as soon as it goes on; the time allows for a busy host. Tests shorten it.
var lateCreate = 20 * time.Second

// expectLateLocked has nothing concluded from the guest's absence until a create, whose outcome is not known, cannot come
// true any more.
func (g *guest) expectLateLocked() {
	if g.late {
		return
	}
	g.late = true
	go func() {
		g.awaitCreateEnd(g.agent.ctx)
		g.mu.Lock()
		g.late = false
		g.mu.Unlock()
		poke(g.wake)
		g.agent.publish()
	}()
}

// awaitCreateEnd returns when the guest's domain is there, or when the hypervisor has been there for long enough without
// it, and is at no request to create it.
func (g *guest) awaitCreateEnd(ctx context.Context) {
	var since time.Time // the hypervisor answers, and does not have it
	for {
		g.mu.Lock()
		late := g.late
		g.mu.Unlock()
		if !late { // it came, and may have ended since
			return
		}
		g.agent.refresh(ctx) // which wakes the guests that the listing finds changed
		info, current := g.agent.domains.get(g.uid)
		switch {
		case !current || g.agent.hypervisor.Creating(g.uid):
			since = time.Time{}
		case info.State != DomainAbsent:
			return
		case since.IsZero():
			since = time.Now()
		case time.Since(since) >= lateCreate:
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(lateCreate / 20):
		}
	}
}

func (g *guest) create(ctx context.Context, w *v1.GuestWanted, p *prepared) error {
	waitCtx, cancel := context.WithTimeout(ctx, routeWait)
	if err := g.agent.networks.ensure(waitCtx, g.uid); err != nil {
		g.log.Warn("started before its address is routed", "reason", err)
	}
	cancel()
	spec := g.spec(w, p)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	// From here on it is not cut short: what was asked for could come into being later, unseen.
	ctx = context.WithoutCancel(ctx)
	if p.template != "" {
		g.setStep("restoring the template")
		err := g.agent.hypervisor.Fork(ctx, spec, p.template)
		if err == nil {
			return nil
		}
		if errors.Is(err, ErrUncertain) {
			return err
		}
		// What was restored had no identity and did nothing yet; it may be started over once it is surely gone.
		if errors.Is(err, ErrTemplateUnusable) {
			g.agent.templates.discard(p.template)
		}
		if err := errors.Join(g.destroy(ctx), g.confirmAbsent(ctx)); err != nil {
			return err
		}
		g.note("booted plainly, for its template could not be restored: %v", err)
	}
	g.setStep("booting")
	return g.agent.hypervisor.Boot(ctx, spec)
}

func (g *guest) resume(ctx context.Context) error {
	waitCtx, cancel := context.WithTimeout(ctx, routeWait)
	defer cancel()
	if err := g.agent.networks.ensure(waitCtx, g.uid); err != nil {
		g.log.Warn("resumed before its address is routed", "reason", err)
	}
	g.mu.Lock()
	g.resuming, g.resumedAt = true, time.Time{}
	g.mu.Unlock()
	g.identity.resumes()
	err := g.agent.hypervisor.Resume(ctx, g.uid)
	g.mu.Lock()
	g.resuming = false
	if err == nil && g.resumedAt.IsZero() {
		g.resumedAt = time.Now()
	}
	g.mu.Unlock()
	if err != nil {
		return fmt.Errorf("resume guest %s: %w", g.name, err)
	}
	g.agent.domains.set(g.uid, "", DomainRunning)
	g.agent.publish()
	g.identity.resumed()
	return nil
}

func (g *guest) destroy(ctx context.Context) error {
	if err := g.agent.hypervisor.Destroy(ctx, g.uid); err != nil {
		return fmt.Errorf("end guest %s: %w", g.name, err)
	}
	deadline := time.Now().Add(5 * time.Second)
	for {
		pids, err := g.processes()
		if err != nil {
			return fmt.Errorf("end guest %s: %w", g.name, err)
		}
		if len(pids) == 0 {
			break
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("end guest %s: its process %d does not end", g.name, pids[0])
		}
		for _, pid := range pids {
			syscall.Kill(pid, syscall.SIGKILL)
		}
		time.Sleep(20 * time.Millisecond)
	}
	g.agent.domains.set(g.uid, "", DomainAbsent)
	g.identity.poke()
	return nil
}

// confirmAbsent makes sure that the hypervisor lists no domain of the guest and no process of it is left.
func (g *guest) confirmAbsent(ctx context.Context) error {
	if _, err := g.agent.domains.refresh(ctx); err != nil {
		return fmt.Errorf("make sure that guest %s is gone: %w", g.name, err)
	}
	if info, current := g.agent.domains.get(g.uid); !current || info.State != DomainAbsent {
		return errSettled
	}
	pids, err := g.processes()
	if err != nil {
		return fmt.Errorf("make sure that guest %s is gone: %w", g.name, err)
	}
	if len(pids) > 0 {
		return fmt.Errorf("make sure that guest %s is gone: the hypervisor does not know it, but its process %d is there", g.name, pids[0])
	}
	return nil
}

// processes are the pids of the guest's QEMU processes.
func (g *guest) processes() ([]int, error) {
	all, err := g.agent.config.Processes()
	return all[g.uid], err
}

func (g *guest) interruptAndWait(ctx context.Context) error {
	g.mu.Lock()
	interrupt, ended := g.interrupt, g.ended
	g.mu.Unlock()
	if ended == nil {
		return nil
	}
	interrupt()
	select {
	case <-ended:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// forget takes away what the host held for the guest, but for its record.
func (g *guest) forget(ctx context.Context) error {
	g.expectNothing()
	g.mu.Lock()
	r := g.record
	g.mu.Unlock()
	if r != nil && r.Source != "" {
		g.agent.tunnels.Drop(r.Migration)
	}
	if err := g.unplug(ctx); err != nil {
		return err
	}
	g.mu.Lock()
	g.failure = Failure{}
	g.mu.Unlock()
	if err := os.RemoveAll(g.agent.guestRunDir(g.uid)); err != nil {
		return fmt.Errorf("remove the sockets of guest %s: %w", g.name, err)
	}
	if r != nil && r.Source != "" { // QEMU leaves the socket by which the guest arrived
		socket, err := g.agent.hypervisor.MigrateSocket(g.name)
		if err != nil {
			return err
		}
		if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("remove the migration socket of guest %s: %w", g.name, err)
		}
	}
	g.keepConsole(r, r)
	return nil
}

// unplug takes away the guest's tap, and the route to it.
func (g *guest) unplug(ctx context.Context) error {
	if err := g.agent.network.UnplugGuest(ctx, g.uid); err != nil {
		return fmt.Errorf("unplug guest %s: %w", g.name, err)
	}
	g.mu.Lock()
	g.plugged, g.prepared = false, nil
	g.mu.Unlock()
	g.agent.networks.unplugged(g.uid)
	return nil
}

// adopt takes a guest up whose record was found when the agent started. What runs is not touched.
func (g *guest) adopt(ctx context.Context) {
	defer g.setUpcoming(nil)
	g.mu.Lock()
	r := g.record
	if r == nil || r.Phase == PhaseEnded {
		g.mu.Unlock()
		return
	}
	n := g.networkGuestLocked()
	if o, _ := g.observedLocked(); r.Phase == PhaseStarted && !o.EarlierBoot {
		g.expectLateLocked() // the agent before may have ended while it waited for the hypervisor
	}
	g.mu.Unlock()
	if _, err := g.agent.network.PlugGuest(ctx, n, r.MTU); err != nil {
		g.note("plug its tap anew: %v", err)
	}
	poke(g.agent.networks.wake) // whatever was applied before does not know the tap
	if r.Phase == PhaseSending {
		// The transfer that was under way lost its tunnel with the last agent; libvirt breaks it off by itself.
		g.begin(ctx, OperationSending, g.awaitSendEnd)
	}
}

// refusedError says that the host takes no new guests.
type refusedError struct{ reason string }

func (e *refusedError) Error() string { return e.reason }

// memoryError says that there is no room for a guest.
type memoryError struct{ need, free, reserved uint64 }

func (e *memoryError) Error() string {
	return fmt.Sprintf("%d MiB of memory are needed, %d MiB are available, of which %d MiB are reserved for guests that are coming",
		e.need>>20, e.free>>20, e.reserved>>20)
}
