package sim

// store.go - the simulated etcd: objects with revisions, fenced by the term, and backups of it.

import (
	"errors"
	"fmt"
	"maps"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "watari/api/watariv1"
	"watari/core"
)

var (
	errConflict  = errors.New("conflict")
	errNotLeader = errors.New("another manager leads")
	errTimeout   = errors.New("timeout")
)

// store keeps the objects. Each write replaces them, so that a snapshot never changes.
type store struct {
	objects *core.Objects
	nextUID int
}

func newStore() *store { return &store{objects: core.NoObjects()} }

// uid makes a uid that no other object has.
func (s *store) uid() string {
	s.nextUID++
	return fmt.Sprintf("%08x-0000-4000-8000-000000000000", s.nextUID)
}

// commit makes a change as a manager of a term, or, for term 0, as a user. It is atomic.
func (s *Sim) commit(term uint64, change core.Change) error {
	o := s.store.objects
	if term != 0 && term != o.Term {
		return errNotLeader
	}
	for _, op := range change.Ops {
		have := stored(o, op.Object)
		switch {
		case op.Kind == core.Create && have != nil:
			return errConflict
		case op.Kind != core.Create && (have == nil || have.GetMeta().Revision != op.Object.GetMeta().Revision):
			return errConflict
		}
	}
	revision := o.Revision + 1
	written := core.Change{}
	for _, op := range change.Ops {
		if op.Kind == core.Expect {
			continue
		}
		object := proto.Clone(op.Object).(core.Object)
		meta := object.GetMeta()
		meta.Revision = revision
		if op.Kind == core.Create {
			if meta.Uid == "" {
				meta.Uid = s.store.uid()
			}
			meta.Created = timestamppb.New(s.storesTime())
		}
		written.Ops = append(written.Ops, core.Op{Kind: op.Kind, Object: object})
	}
	next := o.Apply(written)
	next.Revision = revision
	s.store.objects = next
	for _, e := range change.Events {
		s.tell("store", "%s %s: %s", e.Kind, e.Name, e.Message)
	}
	if s.foresight != nil {
		s.foresight.see(s, o, next)
		return nil
	}
	s.checkCommit(o, next)
	return nil
}

// storesTime returns the time of day that a new object gets: that of the leading manager.
func (s *Sim) storesTime() time.Time {
	if s.manager == nil {
		return s.now
	}
	return s.manager.now()
}

// stored returns the object of the same kind and name; nil: there is none.
func stored(o *core.Objects, object core.Object) core.Object {
	name := object.GetMeta().GetName()
	switch object.(type) {
	case *v1.Host:
		return orNil(o.Hosts[name])
	case *v1.Cluster:
		return orNil(o.Clusters[name])
	case *v1.Guest:
		return orNil(o.Guests[name])
	case *v1.Migration:
		return orNil(o.Migrations[name])
	case *v1.Run:
		return orNil(o.Runs[name])
	case *v1.RemovedHost:
		return orNil(o.Removed[name])
	case *v1.Hold:
		return orNil(o.Holds[name])
	case *v1.Revocations:
		return orNil(o.Revocations[name])
	case *v1.Checkpoint:
		return orNil(o.Checkpoints[name])
	case *v1.Volume:
		return orNil(o.Volumes[name])
	case *v1.Storage:
		return orNil(o.Storages[name])
	case *v1.Site:
		return orNil(o.Sites[name])
	case *v1.Policy:
		return orNil(o.Policies[name])
	}
	panic(fmt.Sprintf("sim: a %T is stored", object))
}

func orNil[T interface {
	comparable
	core.Object
}](o T) core.Object {
	var none T
	if o == none {
		return nil
	}
	return o
}

// beginTerm makes a manager the leader. The term's number is above all earlier ones, and above raise.
func (s *Sim) beginTerm(name string) *v1.Term {
	next := *s.store.objects
	next.Revision++
	next.Term, next.Leader, next.TermID = max(next.Term, s.raise)+1, name, fmt.Sprintf("term-%d", s.managers)
	term := &v1.Term{Number: next.Term, Id: next.TermID, Leader: name, Revision: next.Revision}
	next.Terms = maps.Clone(next.Terms)
	next.Terms[term.Id] = term
	s.store.objects = &next
	return term
}
