package agent

// volume_copy.go - a volume's part in a checkpoint. A copy of its disk begins while the guests are stopped, and is then
// written to a file.

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"filippo.io/age"

	"watari/agent/checkpoint"
	"watari/agent/volume"
	v1 "watari/api/watariv1"
)

// volumeCopy is the making of a volume's file of a checkpoint.
type volumeCopy struct {
	*ordered
	keeper *checkpointKeeper
	key    fileKey
	wanted *v1.CheckpointWanted
	cancel context.CancelFunc

	// Under checkpointKeeper.mu.
	phase   v1.CheckpointPhase
	message string
	over    bool // the copy has ended, and no part of it is under way
}

// beginCopy begins the part of a volume in a checkpoint. k.mu is held.
func beginCopy(k *checkpointKeeper, key fileKey, w *v1.CheckpointWanted) *volumeCopy {
	ctx, cancel := context.WithCancel(k.agent.ctx)
	c := &volumeCopy{ordered: newOrdered(k), keeper: k, key: key, wanted: w, cancel: cancel}
	k.agent.acting.Add(1)
	go func() {
		defer k.agent.acting.Done()
		defer cancel()
		c.run(ctx)
	}()
	return c
}

// report returns the copy's phase. k.mu is held.
func (c *volumeCopy) report() *v1.CheckpointObserved {
	return &v1.CheckpointObserved{CheckpointId: c.key.checkpoint, GuestUid: c.key.guest, Phase: c.phase, Message: c.message, Busy: !c.over}
}

func (c *volumeCopy) enter(phase v1.CheckpointPhase) {
	c.keeper.mu.Lock()
	c.phase = phase
	c.keeper.mu.Unlock()
	c.keeper.agent.publish()
}

func (c *volumeCopy) run(ctx context.Context) {
	begun := time.Now()
	f, err := c.make(ctx)
	if err == nil {
		err = c.keeper.describeNew(c.key, f)
	}
	if err == nil {
		c.keeper.supersede(c.wanted, f.File)
	}
	k := c.keeper
	k.mu.Lock()
	c.over = true
	if err != nil {
		k.log.Warn("a checkpoint of a volume failed", "volume", c.wanted.Guest, "error", err)
		c.phase, c.message = v1.CheckpointPhase_CHECKPOINT_PHASE_FAILED, err.Error()
		k.remove(c.key)
	} else {
		k.files[c.key] = f
		delete(k.copies, c.key)
		k.log.Info("a checkpoint of a volume is written", "checkpoint", c.key.checkpoint, "volume", c.wanted.Guest, "took", time.Since(begun))
	}
	k.mu.Unlock()
	k.agent.publish()
}

// make carries out the phases.
func (c *volumeCopy) make(ctx context.Context) (f savedFile, err error) {
	k := c.keeper
	recipient, err := age.ParseX25519Recipient(c.wanted.Recipient)
	if err != nil {
		return f, err
	}
	if err := k.awaitEarlier(ctx, c.key.guest, c.turn); err != nil {
		return f, err
	}
	disk, user, err := k.agent.volumes.disk(c.key.guest)
	if err != nil {
		return f, err
	}
	if err := disk.EndCopy(); err != nil { // what it takes counts as used otherwise
		return f, err
	}
	free, spare := k.room()
	if used := int64(disk.UsedBytes()); free < 2*used+spare {
		return f, fmt.Errorf("%w: it needs up to %d MiB for a while, the disk has %d MiB free, of which %d MiB must stay free", checkpoint.ErrNoRoom, 2*used>>20, free>>20, spare>>20)
	}
	if err := k.makeFolder(c.key); err != nil {
		return f, err
	}
	made, err := disk.PrepareCopy(ctx, user)
	if err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, made.Close()) }()
	c.enter(v1.CheckpointPhase_CHECKPOINT_PHASE_READY)
	if err := c.await(ctx, v1.CheckpointOrder_CHECKPOINT_ORDER_TAKE, prepareTime); err != nil {
		return f, err
	}
	if err := made.Begin(); err != nil {
		return f, err
	}
	c.enter(v1.CheckpointPhase_CHECKPOINT_PHASE_TAKEN)
	path, err := c.whole(ctx, made, spare/2)
	if err != nil {
		return f, err
	}
	state, err := os.Open(path)
	if err != nil {
		return f, err
	}
	defer state.Close()
	var base *checkpoint.Base
	if stored := k.base(c.wanted); stored != nil {
		base = checkpoint.LoadBase(*stored)
	}
	f.File, err = checkpoint.Write(ctx, k.path(c.key), state,
		checkpoint.Options{Recipient: recipient, Limit: int64(c.wanted.Limit), Spare: spare, Layout: checkpoint.Disk, Base: base})
	return f, err
}

// whole waits until a copy is complete. It gives up when the disk has less than low bytes free. If QEMU cannot copy old data
// before a guest overwrites them, it fails the guest's write, not the copy.
func (c *volumeCopy) whole(ctx context.Context, made *volume.Copy, low int64) (path string, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		ticker := time.NewTicker(roomLook)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
			if free, _ := c.keeper.room(); free < low {
				cancel(fmt.Errorf("%w: the disk has only %d MiB free", checkpoint.ErrNoRoom, free>>20))
			}
		}
	}()
	if path, err = made.Wait(ctx); err != nil && errors.Is(context.Cause(ctx), checkpoint.ErrNoRoom) {
		err = context.Cause(ctx)
	}
	return path, err
}

// roomLook is how often the free space is checked while a volume is copied.
const roomLook = 200 * time.Millisecond

// disk returns a served volume of this host, and QEMU's user.
func (k *volumeKeeper) disk(uid string) (*volume.Disk, volume.User, error) {
	if k.host == nil {
		return nil, volume.User{}, errors.New("this host keeps no volumes")
	}
	user, known := k.host.QEMUUser()
	k.mu.Lock()
	defer k.mu.Unlock()
	if v := k.held[uid]; v == nil || !v.ready || !known {
		return nil, user, fmt.Errorf("volume %s is not served", uid)
	}
	return volume.Open(k.folder, k.sockets, uid), user, nil
}
