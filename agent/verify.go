package agent

// verify.go - verifies checkpoints: reads files again, and restores guests on trial.

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"github.com/cenkalti/backoff/v5"

	"watari/agent/checkpoint"
	"watari/agent/domain"
	"watari/agent/machine"
	v1 "watari/api/watariv1"
	"watari/placement"
)

// verified records the verifications of a file on this host.
type verified struct {
	read, reading string // the verification for which the file was read and is intact, and the latest one under way
	tried, trying string // the same for trials
	triedError    string
}

// verify reads a file again and restores its guest on trial, if an order asks for that. It does not wait. k.mu is held.
func (k *checkpointKeeper) verify(key fileKey, w *v1.CheckpointWanted) {
	v := k.verified[key]
	if v == nil {
		v = &verified{}
		k.verified[key] = v
	}
	f := k.files[key].File
	if id := w.Verify; id != "" && id != v.read && id != v.reading {
		v.reading = id
		k.oneByOne(func(ctx context.Context) func() {
			_, err := backoff.Retry(ctx, func() (bool, error) { return true, unreadable(checkpoint.Verify(ctx, k.path(key), f)) },
				backoff.WithBackOff(backoff.NewConstantBackOff(fetchAgain)), backoff.WithMaxElapsedTime(0))
			return func() {
				if v.reading == id { // else a later order asks for another reading, which may have ended before this one
					v.read, v.reading = id, ""
				}
				if err != nil { // another host may have an intact copy
					k.log.Error("a file of a checkpoint cannot be read, and is removed", "checkpoint", key.checkpoint, "guest", w.Guest, "error", err)
					k.remove(key)
				}
			}
		})
	}
	if trial := w.Trial; trial != nil && trial.Verification != v.tried && trial.Verification != v.trying {
		v.trying = trial.Verification
		k.oneByOne(func(ctx context.Context) func() {
			err := k.try(ctx, key, w.Guest, trial)
			return func() {
				if v.trying != trial.Verification {
					return
				}
				v.tried, v.trying, v.triedError = trial.Verification, "", ""
				if err != nil {
					v.triedError = err.Error()
				}
			}
		})
	}
}

// unreadable marks an error as permanent if trying again cannot make the file readable.
func unreadable(err error) error {
	if errors.Is(err, checkpoint.ErrDamaged) || errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.EIO) {
		return backoff.Permanent(err)
	}
	return err
}

// oneByOne calls do in the background, one such call at a time. It then calls the function that do returned, with k.mu held,
// unless the agent ends.
func (k *checkpointKeeper) oneByOne(do func(ctx context.Context) func()) {
	ctx := k.agent.ctx
	k.agent.acting.Add(1)
	go func() {
		defer k.agent.acting.Done()
		k.verifies.Lock()
		defer k.verifies.Unlock()
		then := do(ctx)
		if ctx.Err() != nil {
			return
		}
		k.mu.Lock()
		then()
		k.mu.Unlock()
		k.agent.publish()
	}()
}

// try restores a guest from a file under another identity, and ends it. The guest never runs: libvirt leaves it paused when
// QEMU has read the whole state.
func (k *checkpointKeeper) try(ctx context.Context, key fileKey, guest string, trial *v1.TrialOrder) (err error) {
	a := k.agent
	if a.config.Saver == nil || trial.Image == nil || trial.Shape == nil || trial.Restore == nil {
		return errors.New("this host cannot restore guests")
	}
	if reason := placement.Unconfined(a.confinement()); reason != "" {
		return &refusedError{reason}
	}
	if free, need := a.config.FreeMemory(), trial.Shape.MemoryBytes; free < need+memoryMargin {
		return &memoryError{need, free, 0}
	}
	if !k.has(trial.Restore, key.guest) {
		return errors.New("its files are no longer here")
	}
	k.log.Info("a guest is restored on trial", "checkpoint", key.checkpoint, "guest", guest)
	files, err := a.images.Ensure(ctx, trial.Image, func(string) {})
	if err != nil {
		return err
	}
	return a.templates.temporary(ctx, "trial of "+key.guest, func(uid string) error {
		tap, err := a.network.PlugGuest(ctx, machine.Tap{UID: uid, Cluster: "trial", Address: templateAddress, Prefix: templatePrefix4, MAC: templateMAC}, 0)
		if err != nil {
			return fmt.Errorf("plug its tap: %w", err)
		}
		plain := k.path(key) + ".trial"
		spec := domain.Spec{UID: uid, Name: domain.TemplatePrefix + uid[:8], VCPUs: trial.Shape.Vcpus, MemoryBytes: trial.Shape.MemoryBytes,
			Kernel: files.Kernel, Initrd: files.Initrd, Root: files.Root, RootType: trial.Image.RootType, KernelArgs: trial.Image.KernelArgs, Tap: tap,
			Channel: a.channelSocket(uid), Console: filepath.Join(a.guestRunDir(uid), "console.log"), ImageDigest: trial.Image.Digest, Platform: trial.Platform, EmptyVolume: trial.VolumeBytes}
		return k.withState(ctx, trial.Restore, key.guest, plain, func() error { return a.config.Saver.Restore(ctx, spec, plain) })
	})
}
