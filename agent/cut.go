package agent

// cut.go - this host's part in making a checkpoint: it stops the cluster's guests here, takes their states at the same time,
// resumes the guests, and writes the states to files (docs/design/checkpoint.md).

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"watari/agent/checkpoint"
	"watari/agent/hold"
	"watari/agent/machine"
	v1 "watari/api/watariv1"
	decider "watari/checkpoint"
)

const (
	// holderTime bounds the holder's start and each of its answers.
	holderTime = 20 * time.Second
	answerTime = 2 * time.Second
	// prepareTime bounds how long the host waits for the order to stop its guests.
	prepareTime = 2 * decider.PrepareWait
	// hurryAfter is how long a file is written at the lowest CPU priority at most. Then, or earlier if it falls behind
	// (Snapshot.Behind), the writing process gets normal priority.
	hurryAfter = time.Minute
)

// member is a guest of a cut.
type member struct {
	wanted   *v1.CheckpointWanted
	pipe     string
	snapshot Snapshot           // nil: none is prepared
	held     bool               // the machine leaves the guest stopped
	begun    bool               // its snapshot has begun
	writer   *checkpoint.Writer // writes its file; nil: not started
	file     checkpoint.File

	// Under checkpointKeeper.mu.
	phase   v1.CheckpointPhase
	message string
	stood   time.Duration
}

// cut is the making of a checkpoint on this host.
type cut struct {
	keeper  *checkpointKeeper
	id      string
	members []*member
	cancel  context.CancelFunc
	*ordered

	// Under checkpointKeeper.mu.
	over bool // the checkpoint has ended, and no part of it is under way
}

// ordered is the manager's latest order about a checkpoint that is being made.
type ordered struct {
	mu    *sync.Mutex // checkpointKeeper's
	order v1.CheckpointOrder
	token chan struct{} // has a token when order has changed
	turn  uint64        // higher than those of what was begun before
}

// newOrdered begins with the order to prepare. k.mu is held.
func newOrdered(k *checkpointKeeper) *ordered {
	k.turns++
	return &ordered{mu: &k.mu, order: v1.CheckpointOrder_CHECKPOINT_ORDER_PREPARE, token: make(chan struct{}, 1), turn: k.turns}
}

// set takes an order; mu is held. It ignores an order that is not later than the present one.
func (o *ordered) set(order v1.CheckpointOrder) {
	if order > o.order {
		o.order = order
		poke(o.token)
	}
}

// await waits for an order, or a later one.
func (o *ordered) await(ctx context.Context, order v1.CheckpointOrder, limit time.Duration) error {
	late := time.NewTimer(limit)
	defer late.Stop()
	for {
		o.mu.Lock()
		now := o.order
		o.mu.Unlock()
		if now >= order {
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-late.C:
			return fmt.Errorf("the manager's next order did not come within %s", limit)
		case <-o.token:
		}
	}
}

// beginCut begins a checkpoint of the guests in the orders. k.mu is held.
func beginCut(k *checkpointKeeper, id string, orders []*v1.CheckpointWanted) *cut {
	ctx, cancel := context.WithCancel(k.agent.ctx)
	c := &cut{keeper: k, id: id, cancel: cancel, ordered: newOrdered(k)}
	for _, w := range orders {
		c.members = append(c.members, &member{wanted: w})
	}
	k.agent.acting.Add(1)
	go func() {
		defer k.agent.acting.Done()
		c.run(ctx)
	}()
	return c
}

// take takes an order to stop the guests or to take their states. k.mu is held.
func (c *cut) take(w *v1.CheckpointWanted) {
	if c.ordered == nil { // this agent did not begin the checkpoint
		for _, m := range c.members {
			if m.wanted.GuestUid == w.GuestUid {
				return
			}
		}
		c.members = append(c.members, &member{wanted: w, phase: v1.CheckpointPhase_CHECKPOINT_PHASE_FAILED, message: agentIsNew})
		return
	}
	c.set(w.Order)
}

// agentIsNew is the failure of a checkpoint that an earlier agent began.
const agentIsNew = "its agent was restarted meanwhile"

// report returns the guests' states. k.mu is held.
func (c *cut) report() (list []*v1.CheckpointObserved) {
	for _, m := range c.members {
		list = append(list, &v1.CheckpointObserved{CheckpointId: c.id, GuestUid: m.wanted.GuestUid, Epoch: m.wanted.Epoch, Phase: m.phase, Message: m.message,
			StoodMs: uint32(m.stood.Milliseconds()), Busy: !c.over})
	}
	return list
}

// has reports whether the checkpoint has a guest. k.mu is held.
func (c *cut) has(uid string) bool {
	return slices.ContainsFunc(c.members, func(m *member) bool { return m.wanted.GuestUid == uid })
}

// enter sets the phase of all guests.
func (c *cut) enter(phase v1.CheckpointPhase) {
	c.keeper.mu.Lock()
	for _, m := range c.members {
		m.phase = phase
	}
	c.keeper.mu.Unlock()
	c.keeper.agent.publish()
}

// run makes the checkpoint.
func (c *cut) run(ctx context.Context) {
	defer c.cancel()
	begun := time.Now()
	process, err := c.make(ctx)
	if err != nil {
		c.fail(err) // at once, so that guests on other hosts go on
	}
	c.release(process, err)
	if err == nil {
		if err = c.describe(); err != nil {
			c.fail(err)
		}
	}
	k := c.keeper
	k.mu.Lock()
	c.over = true
	for _, m := range c.members {
		key := fileKey{c.id, m.wanted.GuestUid}
		if err != nil {
			k.remove(key)
		} else {
			k.files[key] = m.saved()
		}
	}
	if err == nil {
		delete(k.cuts, c.id)
		k.log.Info("a checkpoint is written", "checkpoint", c.id, "guests", len(c.members), "took", time.Since(begun))
	}
	k.mu.Unlock()
	k.agent.publish()
}

// fail reports that the checkpoint has failed on this host.
func (c *cut) fail(err error) {
	c.keeper.log.Warn("a checkpoint failed on this host", "checkpoint", c.id, "error", err)
	c.keeper.mu.Lock()
	for _, m := range c.members {
		m.message = err.Error()
	}
	c.keeper.mu.Unlock()
	c.enter(v1.CheckpointPhase_CHECKPOINT_PHASE_FAILED)
}

func (m *member) saved() savedFile {
	return savedFile{Epoch: m.wanted.Epoch, File: m.file, StoodMS: uint32(m.stood.Milliseconds())}
}

// describe writes the descriptions of the files. With a description, a file counts as complete.
func (c *cut) describe() error {
	for _, m := range c.members {
		if err := c.keeper.describeNew(fileKey{c.id, m.wanted.GuestUid}, m.saved()); err != nil {
			return fmt.Errorf("describe the file of guest %s: %w", m.wanted.Guest, err)
		}
		c.keeper.supersede(m.wanted, m.file)
	}
	return nil
}

// make carries out the phases. It returns the holder; nil: none was started. The caller then calls release.
func (c *cut) make(ctx context.Context) (process *hold.Process, err error) {
	if process, err = c.prepare(ctx); err != nil {
		return process, err
	}
	c.enter(v1.CheckpointPhase_CHECKPOINT_PHASE_READY)
	if err := c.await(ctx, v1.CheckpointOrder_CHECKPOINT_ORDER_STOP, prepareTime); err != nil {
		return process, err
	}
	for _, m := range c.members {
		if m.held = c.keeper.agent.holdGuest(m.wanted.GuestUid, m.wanted.Epoch); !m.held {
			return process, fmt.Errorf("guest %s does not just run: it is being stopped, moved or started", m.wanted.Guest)
		}
	}
	stopped := time.Now()
	if err := process.Stop(answerTime); err != nil {
		return process, err
	}
	c.enter(v1.CheckpointPhase_CHECKPOINT_PHASE_STOPPED)
	if err := c.await(ctx, v1.CheckpointOrder_CHECKPOINT_ORDER_TAKE, decider.MaxStop); err != nil {
		return process, err
	}
	written := c.begin(ctx, stopped)
	err = written.begun
	if err == nil {
		err = process.Kept(answerTime)
	}
	if err != nil {
		_ = written.wait(true) // its error follows from err
		return process, err
	}
	c.letGo()
	c.enter(v1.CheckpointPhase_CHECKPOINT_PHASE_TAKEN)
	if err := written.wait(false); err != nil {
		return process, err
	}
	return process, process.Whole(answerTime)
}

// prepare prepares the snapshots and starts the writing processes and the holder before the guests are stopped, so that they
// are stopped only briefly.
func (c *cut) prepare(ctx context.Context) (*hold.Process, error) {
	k := c.keeper
	saver := k.agent.config.Saver
	if saver == nil {
		return nil, errors.New("this host cannot save guests")
	}
	select {
	case <-k.leftKnown:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	for _, m := range c.members {
		if err := k.awaitEarlier(ctx, m.wanted.GuestUid, c.turn); err != nil {
			return nil, err
		}
	}
	var guests []hold.Guest
	for _, m := range c.members {
		if err := k.makeFolder(fileKey{c.id, m.wanted.GuestUid}); err != nil {
			return nil, err
		}
		var err error
		if m.pipe, err = saver.SnapshotPipe(m.wanted.Guest); err != nil {
			return nil, err
		}
		if m.snapshot, err = saver.PrepareSnapshot(ctx, m.wanted.GuestUid, m.pipe); err != nil {
			m.snapshot = nil
			return nil, err
		}
		_, spare := k.room()
		m.writer, err = checkpoint.StartWriter(saver.Writer(), checkpoint.Job{Path: k.path(fileKey{c.id, m.wanted.GuestUid}), Recipient: m.wanted.Recipient,
			Limit: int64(m.wanted.Limit), Spare: spare, Layout: checkpoint.Memory, Base: k.base(m.wanted)})
		if err != nil {
			return nil, err
		}
		guests = append(guests, hold.Guest{UID: m.wanted.GuestUid, Pipe: m.pipe})
	}
	return hold.Start(saver.Holder(guests), holderTime)
}

// writing is the concurrent writing of the guests' states.
type writing struct {
	begun  error // why not all snapshots have begun
	cancel context.CancelFunc
	done   sync.WaitGroup
	mu     sync.Mutex
	err    error
}

func (w *writing) failed(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.err = errors.Join(w.err, err)
}

// wait waits until all states are written; cut: it cancels the writing first.
func (w *writing) wait(cut bool) error {
	if cut {
		w.cancel()
	}
	w.done.Wait()
	w.cancel()
	return w.err
}

// begin begins all snapshots; each guest goes on when its snapshot has begun. The states are written concurrently. stopped
// is when the guests were stopped.
func (c *cut) begin(ctx context.Context, stopped time.Time) *writing {
	ctx, cancel := context.WithCancel(ctx)
	w := &writing{cancel: cancel}
	k := c.keeper
	var began sync.WaitGroup
	errs := make([]error, len(c.members))
	for i, m := range c.members {
		m.begun = true
		written := make(chan struct{})
		w.done.Go(func() { // the first read blocks until Begin, unless QEMU wrote much before
			var err error
			if m.file, err = m.writer.Write(ctx, m.snapshot); err != nil {
				w.failed(err)
			}
			close(written)
		})
		go func() {
			patience := time.NewTimer(hurryAfter)
			defer patience.Stop()
			select {
			case <-m.snapshot.Behind():
				m.writer.Hurry()
			case <-patience.C:
				m.writer.Hurry()
			case <-written:
			}
		}()
		began.Go(func() {
			if errs[i] = m.snapshot.Begin(ctx); errs[i] != nil {
				return
			}
			k.mu.Lock()
			m.stood = time.Since(stopped)
			k.mu.Unlock()
		})
	}
	began.Wait()
	w.begun = errors.Join(errs...)
	return w
}

// letGo tells the machine that it may start, stop and move the guests again.
func (c *cut) letGo() {
	for _, m := range c.members {
		if m.held {
			m.held = false
			c.keeper.agent.releaseGuest(m.wanted.GuestUid)
		}
	}
}

// release ends the holder and the snapshots. failed: why the checkpoint is void; nil: it is complete.
func (c *cut) release(process *hold.Process, failed error) {
	if process != nil {
		_ = process.Done() // the holder resumes the guests
	}
	for _, m := range c.members {
		if m.writer != nil {
			m.writer.Close()
		}
		if m.snapshot == nil {
			continue
		}
		if err := m.snapshot.Close(); err != nil {
			c.keeper.log.Error("end a snapshot", "guest", m.wanted.Guest, "error", err)
		}
		if failed != nil && (m.held || m.begun) { // the holder may have been killed
			ctx, cancel := context.WithTimeout(context.WithoutCancel(c.keeper.agent.ctx), holderTime)
			if err := c.keeper.agent.resumeStarted(ctx, m.wanted.GuestUid, m.wanted.Epoch); err != nil {
				c.keeper.log.Warn("resume a guest", "guest", m.wanted.Guest, "error", err)
			}
			cancel()
		}
	}
	c.letGo()
}

// resumeStarted resumes a guest that a checkpoint has stopped, if its record says that it was started under this epoch. A copy of the same
// guest that has arrived since then, and waits for its grant, stays as it is.
func (a *Agent) resumeStarted(ctx context.Context, uid string, epoch uint64) error {
	a.mu.Lock()
	g, known := a.machine.Guest(uid)
	a.mu.Unlock()
	if !known || g.Record == nil || g.Record.Phase != machine.PhaseStarted || g.Record.Epoch != epoch {
		return nil
	}
	return a.hypervisor.Resume(ctx, uid)
}

// holdGuest makes the machine leave a guest stopped. It returns false if the guest does not run under this epoch, or is
// being started, stopped or moved.
func (a *Agent) holdGuest(uid string, epoch uint64) (held bool) {
	a.feed(func(m *machine.Machine, now time.Time) { held = m.Hold(now, uid, epoch) })
	return held
}

// releaseGuest undoes holdGuest.
func (a *Agent) releaseGuest(uid string) {
	a.feed(func(m *machine.Machine, now time.Time) { m.Release(now, uid) })
}
