package store

// txn.go - transactions: each change compares revisions with those that its caller saw, and leadership fences it.

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"strings"

	v1 "watari/api/watariv1"
	"watari/core"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
)

type action int

const (
	create action = iota
	update
	remove
	expect
	record
)

// Op is one change of a transaction.
type Op struct {
	action action
	object Object
	event  *v1.Event
}

// Create adds an object that must not exist, and fills in a missing uid and creation time.
func Create(o Object) Op { return Op{action: create, object: o} }

// Update replaces an object that must still be at o's meta.revision.
func Update(o Object) Op { return Op{action: update, object: o} }

// Delete removes an object that must still be at o's meta.revision.
func Delete(o Object) Op { return Op{action: remove, object: o} }

// Expect changes nothing. The transaction's other changes are made only if the object is still at o's meta.revision.
func Expect(o Object) Op { return Op{action: expect, object: o} }

// Record adds an event to the history in the same transaction as its change.
func Record(e *v1.Event) Op { return Op{action: record, event: e} }

// Operations returns the operations of a decision's change, with its events.
func Operations(change core.Change) Change {
	ops := make(Change, 0, len(change.Ops)+len(change.Events))
	for _, op := range change.Ops {
		switch op.Kind {
		case core.Create:
			ops = append(ops, Create(op.Object))
		case core.Update:
			ops = append(ops, Update(op.Object))
		case core.Delete:
			ops = append(ops, Delete(op.Object))
		case core.Expect:
			ops = append(ops, Expect(op.Object))
		}
	}
	for _, e := range change.Events {
		ops = append(ops, Record(e))
	}
	return ops
}

// Txn makes all changes or none. When it returns nil, Snapshot shows them, and the objects' meta.revision is the new
// one. Its error wraps ErrExists, ErrNotFound, ErrConflict, ErrNotLeader or ErrNoSpace if nothing was written for that
// reason. After another error, such as a timeout, the changes may have been written or not.
func (s *Store) Txn(ctx context.Context, ops ...Op) error { return s.Batch(ctx, []Change{ops})[0] }

// txn is one change, encoded for etcd.
type txn struct {
	events   []*v1.Event
	ops      []Op     // all but the events
	keys     []string // of ops
	names    []string // of ops, for messages
	compares []clientv3.Cmp
	puts     []clientv3.Op
	reads    []clientv3.Op // reads that explain a refusal, one for each of ops
	bytes    int           // its approximate size in etcd's request
}

// newTxn encodes a change, and refuses one that etcd would refuse because of its size. It compares with the revisions that
// the objects have now.
func (s *Store) newTxn(change Change) (*txn, error) {
	t := &txn{}
	for _, op := range change {
		if err := t.add(op); err != nil {
			return nil, err
		}
	}
	switch {
	case t.size() > s.MaxOps() || len(t.events) > maxBatchEvents:
		return nil, fmt.Errorf("%w: it has %d operations, and etcd takes %d in a transaction (--max-txn-ops)", ErrTooLarge, t.size(), s.MaxOps())
	case t.bytes > s.maxBytes:
		return nil, fmt.Errorf("%w: it has %d bytes, and etcd takes %d in a request", ErrTooLarge, t.bytes, s.maxBytes)
	}
	return t, nil
}

func (t *txn) add(op Op) error {
	if op.action == record {
		t.addEvent(op.event)
		return nil
	}
	kind, key, err := kindOf(op.object)
	if err != nil {
		return err
	}
	meta := op.object.GetMeta()
	switch op.action {
	case create:
		t.compares = append(t.compares, clientv3.Compare(clientv3.CreateRevision(key), "=", 0))
		if meta.Uid == "" {
			meta.Uid = NewUID()
		}
		if meta.Created == nil {
			meta.Created = timestamppb.Now()
		}
	default:
		// Revision 0 would mean "does not exist" to etcd; no object was read at 0, so compare with -1.
		rev := meta.Revision
		if rev == 0 {
			rev = -1
		}
		t.compares = append(t.compares, clientv3.Compare(clientv3.ModRevision(key), "=", rev))
	}
	switch op.action {
	case expect:
	case remove:
		t.puts = append(t.puts, clientv3.OpDelete(key))
	default:
		value, err := encode(op.object)
		if err != nil {
			return fmt.Errorf("encode %s %s: %w", kind, meta.Name, err)
		}
		t.puts = append(t.puts, clientv3.OpPut(key, string(value)))
		t.bytes += len(value)
	}
	t.ops = append(t.ops, op)
	t.keys = append(t.keys, key)
	t.names = append(t.names, kind+" "+meta.Name)
	t.reads = append(t.reads, clientv3.OpGet(key, clientv3.WithKeysOnly()))
	t.bytes += 3*len(key) + 64
	return nil
}

// size returns the number of operations that etcd counts for the change: its longest list, including the events that
// are added later.
func (t *txn) size() int { return max(len(t.compares), len(t.puts)+len(t.events)) }

// maxEventText bounds an event's message, bytes: it may hold a command of any length, and all events are in memory.
const maxEventText = 2000

func (t *txn) addEvent(e *v1.Event) {
	more := ""
	if len(e.Message) > maxEventText {
		e.Message, more = e.Message[:maxEventText], " ..."
	}
	// protobuf refuses text that is not UTF-8. That would prevent the whole change.
	e.Message = strings.ToValidUTF8(e.Message, "") + more
	if e.At == nil {
		e.At = timestamppb.Now()
	}
	t.events = append(t.events, e)
	t.bytes += proto.Size(e) + 64
}

// latest returns the newest revision among the keys that were read.
func latest(reads []*etcdserverpb.ResponseOp) (rev int64) {
	for _, look := range reads {
		for _, kv := range look.GetResponseRange().Kvs {
			rev = max(rev, kv.ModRevision)
		}
	}
	return rev
}

// encode marshals without the revision, which etcd knows.
func encode(o Object) ([]byte, error) {
	meta := o.GetMeta()
	rev := meta.Revision
	meta.Revision = 0
	defer func() { meta.Revision = rev }()
	return proto.Marshal(o)
}

// explain turns a refused transaction into the error of the first comparison that failed.
func (t *txn) explain(reads []*etcdserverpb.ResponseOp) error {
	for i, op := range t.ops {
		kvs := reads[i].GetResponseRange().Kvs
		switch {
		case op.action == create && len(kvs) > 0:
			return fmt.Errorf("create %s: %w", t.names[i], ErrExists)
		case op.action != create && len(kvs) == 0:
			return fmt.Errorf("change %s: %w", t.names[i], ErrNotFound)
		case op.action != create && kvs[0].ModRevision != op.object.GetMeta().GetRevision():
			return fmt.Errorf("change %s: %w", t.names[i], ErrConflict)
		}
	}
	return fmt.Errorf("change %v: %w", t.names, ErrConflict)
}

// NewUID makes a random UUID (version 4, RFC 9562).
func NewUID() string {
	var b [16]byte
	rand.Read(b[:])
	b[6] = b[6]&0x0f | 0x40
	b[8] = b[8]&0x3f | 0x80
	h := hex.EncodeToString(b[:])
	return h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:]
}
