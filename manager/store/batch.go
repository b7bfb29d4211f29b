package store

// batch.go - many independent changes in one etcd transaction: one round trip and one write of its log.

import (
	"context"
	"errors"
	"fmt"

	v1 "watari/api/watariv1"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// Change is a set of operations that are made together or not at all.
type Change []Op

// Bounds of one etcd transaction that Batch makes.
const (
	maxBatchChanges = 1000
	// maxBatchEvents is the number of events in a transaction that can have different ids.
	maxBatchEvents = 1 << eventIndexBits
	// maxBatchBytes is below etcd's default limit of a request, 1.5 MiB.
	maxBatchBytes = 1 << 20
)

// Batch makes each change or refuses it, as if Txn were called for one after the other, but independent changes
// share one etcd transaction. A refused change does not stop the others. The result has an error for each change, as
// Txn returns it; nil: it was made, and Snapshot shows it. Changes compare the revisions that their objects have when
// Batch is called; of two that write the same object the second is therefore refused. Each may record events.
func (s *Store) Batch(ctx context.Context, changes []Change) []error {
	b := batch{store: s, errs: make([]error, len(changes)), fence: s.fence()}
	var pending []indexed
	for i, change := range changes {
		t, err := s.newTxn(change)
		if b.errs[i] = err; err == nil && len(change) > 0 {
			pending = append(pending, indexed{i, t})
		}
	}
	for len(pending) > 0 {
		now, later := s.fit(pending)
		if err := b.commitEach(ctx, now); err != nil {
			b.fail(err, later)
			break
		}
		pending = later
	}
	err := s.cache.wait(ctx, b.revision)
	if b.recorded {
		s.trimEvents(ctx)
	}
	if err != nil {
		for i := range b.errs {
			if b.errs[i] == nil {
				b.errs[i] = err
			}
		}
	}
	return b.errs
}

// batch is one call of Batch.
type batch struct {
	store    *Store
	fence    int64   // ModRevision that the term record must have; 0: not fenced
	errs     []error // by change
	revision int64   // of the latest write on which a result depends
	recorded bool
}

// indexed is a change and its index in the call of Batch.
type indexed struct {
	index int
	*txn
}

func (b *batch) fail(err error, changes []indexed) {
	for _, c := range changes {
		b.errs[c.index] = err
	}
}

// fit chooses the changes of the next etcd transaction, at least one. The others keep their order. etcd makes all
// comparisons before it writes. So a change must wait if an earlier change writes a key that it touches, or if an
// earlier change that waits touches a key that it writes.
func (s *Store) fit(pending []indexed) (now, later []indexed) {
	written, waiting := map[string]bool{}, map[string]bool{}
	bytes, events, most := 0, 0, min(maxBatchChanges, s.maxOps/2)
	for _, c := range pending {
		// etcd applies one limit to both: the changes of a transaction, and the operations of each change.
		fits := len(now) == 0 || len(now) < most && c.size() <= s.maxOps/2 && now[0].size() <= s.maxOps/2 &&
			bytes+c.bytes <= maxBatchBytes && events+len(c.events) <= maxBatchEvents
		for i, op := range c.ops {
			key := c.keys[i]
			fits = fits && !written[key] && (op.action == expect || !waiting[key])
		}
		for i, op := range c.ops {
			key := c.keys[i]
			written[key] = written[key] || op.action != expect
			waiting[key] = waiting[key] || !fits
		}
		if fits {
			now, bytes, events = append(now, c), bytes+c.bytes, events+len(c.events)
		} else {
			later = append(later, c)
		}
	}
	return now, later
}

// commitEach makes or refuses each of the changes, in one etcd transaction where it can. It returns the error that
// keeps every change from being written.
func (b *batch) commitEach(ctx context.Context, changes []indexed) error {
	err := b.commit(ctx, changes)
	if errors.Is(err, ErrTooLarge) && len(changes) > 1 {
		// One of them may be too large by itself. The others must not fail with it.
		for i, c := range changes {
			if err := b.commitEach(ctx, []indexed{c}); err != nil {
				b.fail(err, changes[i:])
				return err
			}
		}
		return nil
	}
	if err != nil {
		b.fail(err, changes)
	}
	if errors.Is(err, ErrTooLarge) {
		return nil
	}
	return err
}

// commit makes or refuses each of the changes in one etcd transaction: one that holds a transaction for each of
// them. Its error concerns all of them.
func (b *batch) commit(ctx context.Context, changes []indexed) error {
	if err := b.store.roomToWrite(); err != nil {
		return err
	}
	var led []clientv3.Cmp
	if b.fence != 0 {
		led = append(led, clientv3.Compare(clientv3.ModRevision(termKey), "=", b.fence))
	}
	var each []clientv3.Op
	events := 0
	for _, c := range changes {
		puts := c.puts[:len(c.puts):len(c.puts)]
		for _, e := range c.events {
			put, err := putEvent(e, events)
			if err != nil {
				return err
			}
			puts = append(puts, put)
			events++
		}
		each = append(each, clientv3.OpTxn(c.compares, puts, c.reads))
	}
	resp, err := b.store.client.Txn(ctx).If(led...).Then(each...).Commit()
	switch {
	case isNoSpace(err):
		return fmt.Errorf("%w: %w", ErrWrite, ErrNoSpace)
	case isTooLarge(err):
		return fmt.Errorf("%w: etcd refused it", ErrTooLarge)
	case err != nil:
		return fmt.Errorf("%w: %w", ErrWrite, err)
	case !resp.Succeeded:
		return ErrNotLeader
	}
	events = 0
	for i, c := range changes {
		b.take(c, events, resp.Responses[i].GetResponseTxn(), resp.Header.Revision)
		events += len(c.events)
	}
	return nil
}

// take stores the result of a change. index is the index of its first event.
func (b *batch) take(c indexed, index int, result *etcdserverpb.TxnResponse, revision int64) {
	if !result.Succeeded {
		// The caller decides again on a snapshot. That snapshot must show the write that caused the refusal.
		b.revision = max(b.revision, latest(result.Responses))
		b.errs[c.index] = c.explain(result.Responses)
		return
	}
	if len(result.Responses) == 0 { // the change only has Expect
		return
	}
	b.revision = max(b.revision, revision)
	for _, op := range c.ops {
		if op.action == create || op.action == update {
			op.object.GetMeta().Revision = revision
		}
	}
	for i, e := range c.events {
		e.Id = eventID(revision, uint64(index+i))
		b.recorded = true
	}
}

// putEvent writes an event, the i-th of its etcd transaction.
func putEvent(e *v1.Event, i int) (clientv3.Op, error) {
	value, err := encodeEvent(e, uint64(i))
	if err != nil {
		return clientv3.Op{}, fmt.Errorf("encode an event: %w", err)
	}
	return clientv3.OpPut(eventsDir+NewUID(), string(value)), nil
}
