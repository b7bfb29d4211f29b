package agent

// start.go - prepares and creates a guest's domain.

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"

	"watari/agent/domain"
	"watari/agent/machine"
	v1 "watari/api/watariv1"
	"watari/placement"
)

// memoryMargin is the free memory that a new guest must leave to the host, bytes.
const memoryMargin = 64 << 20

// prepare prepares image, folders, tap and template for the wanted epoch. It may be repeated.
func (a *Agent) prepare(ctx context.Context, g *guest, act machine.Act) machine.Result {
	var p prepared
	note, err := a.prepareParts(ctx, g, act, &p)
	result := machine.Result{Err: err, Note: note}
	if err == nil {
		g.prepared = p
		return result
	}
	if p.tap != "" { // remove the tap: if the next orders do not mention the guest, nothing else removes it
		unplugErr := a.unplug(context.WithoutCancel(ctx), g)
		result.Unplugged = unplugErr == nil
		result.Err = errors.Join(err, unplugErr)
	}
	var short *memoryError
	var refused *refusedError
	result.Cut = ctx.Err() != nil
	result.Final = errors.As(err, &short) || errors.As(err, &refused) || errors.Is(err, syscall.ENOSPC)
	return result
}

func (a *Agent) prepareParts(ctx context.Context, g *guest, act machine.Act, p *prepared) (note string, err error) {
	w := act.Wanted
	if w.Image == nil || w.Shape == nil || w.Identity == nil {
		return "", fmt.Errorf("start guest %s: the manager sent no image, shape or identity", w.Name)
	}
	if reason := placement.Unconfined(a.confinement()); reason != "" {
		return "", fmt.Errorf("start guest %s: %w", w.Name, &refusedError{reason})
	}
	if free, need := a.config.FreeMemory(), w.Shape.MemoryBytes; free < need+act.Reserved+memoryMargin {
		return "", fmt.Errorf("start guest %s: %w", w.Name, &memoryError{need, free, act.Reserved})
	}
	step := func(text string) { g.setStep("%s", text) }
	if p.files, err = a.images.Ensure(ctx, w.Image, step); err != nil {
		return "", fmt.Errorf("start guest %s: %w", w.Name, err)
	}
	for _, dir := range []string{a.guestRunDir(g.uid), a.records.GuestDir(g.uid)} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return "", fmt.Errorf("start guest %s: %w", w.Name, err)
		}
	}
	g.keepConsole(act.Record, act.Record) // a crash of the agent may have prevented this at the epoch's end
	if p.tap, err = a.network.PlugGuest(ctx, act.Tap, w.Identity.Mtu); err != nil {
		return "", fmt.Errorf("start guest %s: plug its tap: %w", w.Name, err)
	}
	if p.volume, err = a.volumes.socket(w); err == nil {
		err = a.volumes.await(ctx, w)
	}
	if err != nil {
		return "", fmt.Errorf("start guest %s: %w", w.Name, err)
	}
	if w.Restore != nil {
		return "", a.checkpoints.awaitFile(ctx, w, step)
	}
	if w.Role == v1.GuestRole_GUEST_ROLE_RUN && !w.NoFork && w.Volume == nil {
		p.template, err = a.templates.ensure(ctx, a.spec(w, *p), step)
		if ctx.Err() != nil {
			return "", ctx.Err()
		}
		if err != nil {
			note = fmt.Sprintf("booted plainly, for no template could be made: %v", err)
		}
	}
	return note, nil
}

// spec returns the description of the domain to create.
func (a *Agent) spec(w *v1.GuestWanted, p prepared) domain.Spec {
	spec := domain.Spec{UID: w.Uid, Name: w.Name, VCPUs: w.Shape.Vcpus, MemoryBytes: w.Shape.MemoryBytes,
		Kernel: p.files.Kernel, Initrd: p.files.Initrd, Root: p.files.Root, RootType: w.Image.RootType,
		KernelArgs: w.Image.KernelArgs, Tap: p.tap, Channel: a.channelSocket(w.Uid),
		Console: a.consoles.path(w.Uid), Volume: p.volume, ImageDigest: w.Image.Digest, Platform: w.Platform}
	if w.Image.Private {
		spec.TemplateOwner = w.GetFacts().GetOwnerUid()
	}
	return spec
}

// start creates the domain. The record of the started epoch is already on disk.
func (a *Agent) start(ctx context.Context, g *guest, act machine.Act) machine.Result {
	if err := a.leases.allow(g); err != nil {
		return g.started(err, false)
	}
	spec := a.spec(act.Wanted, g.prepared)
	if template := g.prepared.template; template != "" && !act.Plain {
		g.setStep("restoring the template")
		err := a.hypervisor.Fork(ctx, spec, template)
		if errors.Is(err, domain.ErrTemplateUnusable) && !errors.Is(err, domain.ErrUnavailable) {
			a.templates.discard(template)
		}
		return g.started(err, true)
	}
	g.setStep("booting")
	return g.started(a.hypervisor.Boot(ctx, spec), false)
}

// started returns the result of a start; forked: from a template.
func (g *guest) started(err error, forked bool) machine.Result {
	if err == nil {
		g.identity.restarted()
		return machine.Result{}
	}
	uncertain := errors.Is(err, domain.ErrUnavailable)
	return machine.Result{Err: err, Uncertain: uncertain, Unforked: forked && !uncertain}
}

// refusedError means that the host cannot take the guest now.
type refusedError struct{ reason string }

func (e *refusedError) Error() string { return e.reason }

// memoryError means that the host lacks memory for a guest.
type memoryError struct{ need, free, reserved uint64 }

func (e *memoryError) Error() string {
	return fmt.Sprintf("%d MiB of memory are needed, %d MiB are available, of which %d MiB are reserved for guests that are coming",
		e.need>>20, e.free>>20, e.reserved>>20)
}
