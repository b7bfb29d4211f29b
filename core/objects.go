package core

// objects.go - the stored objects, and changes to them.

import (
	"fmt"
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"

	v1 "watari/api/watariv1"
)

// Objects are all stored objects at one revision, by name. They are shared and never change: an object that is written
// gets a new pointer, and its map is copied.
type Objects struct {
	Revision    int64
	Term        uint64 // of the manager that leads or has led last; 0: none has led
	TermID      string // of that term; empty: an older version began it
	Leader      string // URL of that manager
	Hosts       map[string]*v1.Host
	Images      map[string]*v1.Image
	Clusters    map[string]*v1.Cluster
	Guests      map[string]*v1.Guest
	Migrations  map[string]*v1.Migration
	Runs        map[string]*v1.Run
	Users       map[string]*v1.User
	Tokens      map[string]*v1.Token
	Removed     map[string]*v1.RemovedHost // by uid
	Holds       map[string]*v1.Hold        // see Hold
	Revocations map[string]*v1.Revocations // see revokeGuests
	Terms       map[string]*v1.Term        // every term that began since terms have ids, by id
	Policies    map[string]*v1.Policy      // the kept versions
	Checkpoints map[string]*v1.Checkpoint
	Volumes     map[string]*v1.Volume
	Storages    map[string]*v1.Storage
	Sites       map[string]*v1.Site
	// Unreadable are objects whose stored value cannot be read, by key. Their earlier values stay in force.
	Unreadable map[string]error
}

// NoObjects returns an empty set of objects, with maps that can be written.
func NoObjects() *Objects {
	return &Objects{
		Hosts: map[string]*v1.Host{}, Images: map[string]*v1.Image{}, Clusters: map[string]*v1.Cluster{},
		Guests: map[string]*v1.Guest{}, Migrations: map[string]*v1.Migration{}, Runs: map[string]*v1.Run{},
		Users: map[string]*v1.User{}, Tokens: map[string]*v1.Token{}, Removed: map[string]*v1.RemovedHost{},
		Holds: map[string]*v1.Hold{}, Revocations: map[string]*v1.Revocations{}, Terms: map[string]*v1.Term{}, Policies: map[string]*v1.Policy{}, Checkpoints: map[string]*v1.Checkpoint{},
		Volumes: map[string]*v1.Volume{}, Storages: map[string]*v1.Storage{}, Sites: map[string]*v1.Site{},
	}
}

// HoldName is the name of the only Hold.
const HoldName = "rolled-back"

// Hold returns the reason why the manager holds; nil: it never held.
func (o *Objects) Hold() *v1.Hold { return o.Holds[HoldName] }

// Held reports whether the manager holds, because its store is older than what hosts have seen.
func (o *Objects) Held() bool { return len(o.Hold().GetEvidence()) > 0 }

// Object is anything that is stored.
type Object interface {
	proto.Message
	GetMeta() *v1.Meta
}

// OpKind is what an Op does to its object.
type OpKind int

// The kinds of Op.
const (
	// Create adds an object that must not exist.
	Create OpKind = iota
	// Update replaces an object that must still be at the revision of the given one.
	Update
	// Delete removes an object that must still be at the revision of the given one.
	Delete
	// Expect changes nothing. The change's other operations are made only if the object is still at the given one's
	// revision.
	Expect
)

// Op is one write.
type Op struct {
	Kind   OpKind
	Object Object
}

// Change is a decision: writes that are made together or not at all, and their events. Changes are independent of each
// other. Core decides again about a change that fails.
type Change struct {
	Ops    []Op
	Events []*v1.Event
	// Key names the object that the change is about, for Core.Rest.
	Key string
}

func (c *Change) write(kind OpKind, o Object) { c.Ops = append(c.Ops, Op{kind, o}) }

func (c *Change) event(severity v1.Severity, kind, name, format string, a ...any) {
	c.Events = append(c.Events, &v1.Event{Severity: severity, Kind: kind, Name: name, Actor: "manager", Message: fmt.Sprintf(format, a...)})
}

// Apply returns the objects after a change. It neither checks nor changes revisions.
func (o *Objects) Apply(c Change) *Objects {
	w := newWorking(o)
	w.apply(c)
	return w.Objects
}

// working is a copy of objects that shows the changes of one decision. A map is copied at its first write.
type working struct {
	*Objects
	copied  map[string]bool
	touched map[Object]bool // objects of the original that were changed or deleted
}

func newWorking(o *Objects) *working {
	objects := *o
	return &working{&objects, map[string]bool{}, map[Object]bool{}}
}

func (w *working) apply(c Change) {
	for _, op := range c.Ops {
		switch o := op.Object.(type) {
		case *v1.Host:
			applyTo(w, "host", &w.Hosts, op.Kind, o)
		case *v1.Cluster:
			applyTo(w, "cluster", &w.Clusters, op.Kind, o)
		case *v1.Guest:
			applyTo(w, "guest", &w.Guests, op.Kind, o)
		case *v1.Migration:
			applyTo(w, "migration", &w.Migrations, op.Kind, o)
		case *v1.Run:
			applyTo(w, "run", &w.Runs, op.Kind, o)
		case *v1.RemovedHost:
			applyTo(w, "removed", &w.Removed, op.Kind, o)
		case *v1.Hold:
			applyTo(w, "hold", &w.Holds, op.Kind, o)
		case *v1.Revocations:
			applyTo(w, "revocations", &w.Revocations, op.Kind, o)
		case *v1.Checkpoint:
			applyTo(w, "checkpoint", &w.Checkpoints, op.Kind, o)
		case *v1.Volume:
			applyTo(w, "volume", &w.Volumes, op.Kind, o)
		case *v1.Storage:
			applyTo(w, "storage", &w.Storages, op.Kind, o)
		case *v1.Site:
			applyTo(w, "site", &w.Sites, op.Kind, o)
		case *v1.Policy:
			applyTo(w, "policy", &w.Policies, op.Kind, o)
		default:
			panic(fmt.Sprintf("core: a decision writes a %T", o))
		}
	}
}

func applyTo[T Object](w *working, kind string, m *map[string]T, what OpKind, o T) {
	if what == Expect {
		return
	}
	if !w.copied[kind] {
		w.copied[kind] = true
		*m = maps.Clone(*m)
	}
	name := o.GetMeta().GetName()
	if before, was := (*m)[name]; was {
		w.touched[before] = true
	}
	if what == Delete {
		delete(*m, name)
		return
	}
	(*m)[name] = o
	w.touched[o] = true
}

func sortedKeys[T any](m map[string]T) []string { return slices.Sorted(maps.Keys(m)) }
