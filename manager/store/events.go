package store

// events.go - the history, which is also the audit trail: bounded, in order, followable.

import (
	"context"
	"iter"
	"slices"

	v1 "watari/api/watariv1"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/protobuf/proto"
)

const eventsDir = root + "events/"

// eventIndexBits is the number of low bits in an event's id that distinguish events of one revision.
const eventIndexBits = 10

// eventID is the id of the index-th event that was written at a revision.
func eventID(revision int64, index uint64) uint64 { return uint64(revision)<<eventIndexBits | index }

// encodeEvent marshals an event with its index in place of its id. etcd knows the revision, the id's other part.
func encodeEvent(e *v1.Event, index uint64) ([]byte, error) {
	id := e.Id
	defer func() { e.Id = id }()
	e.Id = index
	return proto.Marshal(e)
}

// trimSlack is the number of events by which the history may exceed its bound before trimEvents removes the oldest.
const trimSlack = 100

type keptEvent struct {
	key   string
	event *v1.Event
}

// dropSlack is the number of events by which the history in memory may exceed its bound before a manager drops the
// oldest. A manager that does not lead does not remove events from etcd. dropSlack is larger than a few of the largest
// batches, so that the leader's trimEvents comes first.
const dropSlack = 4 * maxBatchChanges

// history holds events in the order of ids: by revision, then by index within the revision.
type history struct {
	max    int
	events []keptEvent
}

func newHistory(max int) history { return history{max: max} }

func (h *history) add(kv *mvccpb.KeyValue) {
	e := new(v1.Event)
	if proto.Unmarshal(kv.Value, e) != nil {
		return
	}
	e.Id = eventID(kv.ModRevision, e.Id&(1<<eventIndexBits-1))
	h.events = append(h.events, keptEvent{string(kv.Key), e})
	if len(h.events) > h.max+dropSlack {
		h.events = slices.Clone(h.events[len(h.events)-h.max:])
	}
}

func (h *history) sort() {
	slices.SortFunc(h.events, func(a, b keptEvent) int { return int(int64(a.event.Id) - int64(b.event.Id)) })
}

// after returns the events with greater ids. The caller owns the slice; the events are shared.
func (h *history) after(id uint64) []*v1.Event {
	i, _ := slices.BinarySearchFunc(h.events, id+1, func(k keptEvent, id uint64) int { return int(int64(k.event.Id) - int64(id)) })
	var list []*v1.Event
	for _, k := range h.events[i:] {
		list = append(list, k.event)
	}
	return list
}

// AddEvent adds an event to the history. It sets the event's id, and its time if it has none. To write an event
// together with a change, use Record.
func (s *Store) AddEvent(ctx context.Context, e *v1.Event) error {
	return s.Txn(ctx, Record(e))
}

// trimEvents removes the oldest events if there are too many. After a failure, the next call removes them.
func (s *Store) trimEvents(ctx context.Context) {
	s.cache.mu.Lock()
	h := &s.cache.history
	var old []keptEvent
	if len(h.events) > h.max+trimSlack {
		n := len(h.events) - h.max
		old = h.events[:n:n]
		h.events = slices.Clone(h.events[n:])
	}
	s.cache.mu.Unlock()
	for chunk := range slices.Chunk(old, s.MaxOps()) {
		var ops []clientv3.Op
		for _, k := range chunk {
			ops = append(ops, clientv3.OpDelete(k.key))
		}
		if _, err := s.client.Txn(ctx).Then(ops...).Commit(); err != nil {
			s.log.Warn("old events could not be removed", "error", err)
		}
	}
}

// Events yields the events with ids above after, oldest first. With follow it also yields later events, until ctx ends.
// The events are shared: do not change them. The error is ctx's.
func (s *Store) Events(ctx context.Context, after uint64, follow bool) iter.Seq2[*v1.Event, error] {
	return func(yield func(*v1.Event, error) bool) {
		for {
			s.cache.mu.Lock()
			list, moved := s.cache.history.after(after), s.cache.moved
			s.cache.mu.Unlock()
			for _, e := range list {
				if !yield(e, nil) {
					return
				}
				after = e.Id
			}
			if !follow {
				return
			}
			select {
			case <-moved:
			case <-ctx.Done():
				yield(nil, ctx.Err())
				return
			}
		}
	}
}
