package store

// batch.go - many independent changes in one etcd transaction: one round trip and one write of its log.

import (
	"context"
	"fmt"

	v1 "watari/api/watariv1"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// Change is operations that are made together or not at all.
type Change []Op

// Bounds of one etcd transaction that Batch makes.
const (
	// maxBatchChanges is below 1<<eventIndexBits, so that each event of a transaction has an id of its own.
	maxBatchChanges = 1000
	// maxBatchBytes stays below the 1.5 MiB that an etcd takes in one request by default.
	maxBatchBytes = 1 << 20
)

// Batch makes each change or refuses it, as if Txn were called for one after the other, but independent changes
// share one etcd transaction. A refused change does not stop the others. The result has an error for each change, as
// Txn returns it; nil: it was made, and Snapshot shows it. Changes compare the revisions that their objects have when
// Batch is called; of two that write the same object the second is therefore refused. Each may record an event.
func (s *Store) Batch(ctx context.Context, changes []Change) []error {
	b := batch{store: s, errs: make([]error, len(changes)), fence: s.fence()}
	var pending []indexed
	for i, change := range changes {
		t, err := newTxn(change)
		if err == nil && t.size() > s.MaxOps() {
			err = fmt.Errorf("store: a change of %d operations, and etcd takes %d in a transaction (--max-txn-ops)", t.size(), s.MaxOps())
		}
		if b.errs[i] = err; err == nil && len(change) > 0 {
			pending = append(pending, indexed{i, t})
		}
	}
	for len(pending) > 0 {
		now, later := s.fit(pending)
		if err := b.commit(ctx, now); err != nil {
			b.fail(err, now)
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
	revision int64   // of the latest write that a result rests on
	recorded bool
}

// indexed is a change and its place in the list of them.
type indexed struct {
	index int
	*txn
}

func (b *batch) fail(err error, changes []indexed) {
	for _, c := range changes {
		b.errs[c.index] = err
	}
}

// fit chooses the changes of the next etcd transaction, at least one. The others keep their order. etcd compares
// before it writes anything, so a change must wait when one before it writes what it touches, or waits for its turn
// and touches what it writes.
func (s *Store) fit(pending []indexed) (now, later []indexed) {
	written, waiting := map[string]bool{}, map[string]bool{}
	bytes, most := 0, min(maxBatchChanges, s.maxOps/2)
	for _, c := range pending {
		// etcd bounds the changes of a transaction and the operations of each by the same number, together.
		fits := len(now) == 0 || len(now) < most && c.size() <= s.maxOps/2 && now[0].size() <= s.maxOps/2 && bytes+c.bytes <= maxBatchBytes
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
			now, bytes = append(now, c), bytes+c.bytes
		} else {
			later = append(later, c)
		}
	}
	return now, later
}

// commit makes or refuses each of the changes in one etcd transaction: one that holds a transaction for each of
// them. The error is one of all of them.
func (b *batch) commit(ctx context.Context, changes []indexed) error {
	if err := b.store.roomToWrite(); err != nil {
		return err
	}
	var led []clientv3.Cmp
	if b.fence != 0 {
		led = append(led, clientv3.Compare(clientv3.ModRevision(termKey), "=", b.fence))
	}
	var each []clientv3.Op
	for i, c := range changes {
		puts := c.puts
		if c.event != nil {
			put, err := putEvent(c.event, i)
			if err != nil {
				return err
			}
			puts = append(puts[:len(puts):len(puts)], put)
		}
		each = append(each, clientv3.OpTxn(c.compares, puts, c.looks))
	}
	resp, err := b.store.client.Txn(ctx).If(led...).Then(each...).Commit()
	switch {
	case isNoSpace(err):
		return fmt.Errorf("write to etcd: %w", ErrNoSpace)
	case err != nil:
		return fmt.Errorf("write to etcd: %w", err)
	case !resp.Succeeded:
		return ErrNotLeader
	}
	for i, c := range changes {
		b.take(c, i, resp.Responses[i].GetResponseTxn(), resp.Header.Revision)
	}
	return nil
}

// take keeps the result of a change, which was the transaction's i-th.
func (b *batch) take(c indexed, i int, result *etcdserverpb.TxnResponse, revision int64) {
	if !result.Succeeded {
		// What refused it is to be in the snapshot on which the caller decides anew.
		b.revision = max(b.revision, latest(result.Responses))
		b.errs[c.index] = c.explain(result.Responses)
		return
	}
	if len(result.Responses) == 0 { // it only expected
		return
	}
	b.revision = max(b.revision, revision)
	for _, op := range c.ops {
		if op.action == create || op.action == update {
			op.object.GetMeta().Revision = revision
		}
	}
	if c.event != nil {
		c.event.Id = eventID(revision, uint64(i))
		b.recorded = true
	}
}

// putEvent writes an event, the i-th of its transaction.
func putEvent(e *v1.Event, i int) (clientv3.Op, error) {
	value, err := encodeEvent(e, uint64(i))
	if err != nil {
		return clientv3.Op{}, fmt.Errorf("encode an event: %w", err)
	}
	return clientv3.OpPut(eventsDir+NewUID(), string(value)), nil
}
