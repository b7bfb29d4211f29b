package core

// core.go - one decision: what has changed is taken up, hosts are ordered, objects are decided about.

import (
	"cmp"
	"maps"
	"slices"
	"time"

	v1 "watari/api/watariv1"
)

// Seen is what a host's agent last reported.
type Seen struct {
	Report *v1.HostObserved // shared, never changed; nil: none
	// Since is when the host connected or disconnected; zero: it never was connected to this manager.
	Since     time.Time
	Connected bool
}

// Captured are reports as they were at one time, by host.
type Captured map[string]Seen

// Capture takes up what the hosts of some objects have reported. Of other hosts it knows nothing.
func Capture(s *Objects, r Reports) Captured {
	c := make(Captured, len(s.Hosts))
	for name := range s.Hosts {
		report, since, connected := r.Observed(name)
		c[name] = Seen{Report: report, Since: since, Connected: connected}
	}
	return c
}

// Observed makes Captured a Reports.
func (c Captured) Observed(host string) (*v1.HostObserved, time.Time, bool) {
	seen := c[host]
	return seen.Report, seen.Since, seen.Connected
}

// Connected returns the reports of the hosts that were connected, by host.
func (c Captured) Connected() map[string]*v1.HostObserved {
	connected := map[string]*v1.HostObserved{}
	for name, seen := range c {
		if seen.Connected {
			connected[name] = seen.Report
		}
	}
	return connected
}

// World is all that a decision depends on besides what Core remembers.
type World struct {
	*Objects
	Reports Captured
	Runs    map[string]RunSeen // by the run's uid
	Now     time.Time
}

// Observed makes World a Reports.
func (w *World) Observed(host string) (*v1.HostObserved, time.Time, bool) {
	return w.Reports.Observed(host)
}

// Identify returns the identity of a guest for an epoch, without its peers. The same call has the same answer. nil: none
// could be made.
type Identify func(c *v1.Cluster, g *v1.Guest, epoch uint64) *v1.Identity

// Config says for whom a Core decides.
type Config struct {
	Term  uint64
	Began time.Time // when the manager began to lead
	// NoSharing has each host fetch images from the manager, and make templates itself.
	NoSharing bool
	Identify  Identify
}

// Decision is what follows from a World.
type Decision struct {
	// Orders replace what the hosts were told before. Only hosts whose orders changed, or who connected anew, are there.
	Orders map[string]*v1.HostWanted
	// Changes are to be written, in this order.
	Changes []Change
	// Runs are what is to be done about the runs that have begun and not ended.
	Runs []RunOrder
	// Notes are for the log.
	Notes []string
	// Again is when to decide again though nothing changes.
	Again time.Time
}

// maxChanges bounds the changes of one decision, so that orders go out between batches.
const maxChanges = 512

const (
	// idlePass is how long nothing is decided when nothing happens.
	idlePass = 2 * time.Second
	// movePass is the same while a guest moves.
	movePass = 250 * time.Millisecond
)

// Core decides for one manager while it leads. What it remembers can all be lost: a new Core goes by objects and reports.
// It is not safe for concurrent use.
type Core struct {
	Config
	index   *index
	orders  orderBook
	shared  shareMemory
	inState map[string]stateSince // by the move's uid
	avoid   map[string][]string   // hosts that could not start a guest, by guest uid
	memory  map[string]memoryTold // what people were told of guests' memory, by guest uid
	due     map[string]time.Time  // guests that are decided about again at a time, by name
	rest    map[string]time.Time  // objects that are not decided about before, by Change.Key
	// described are the hosts whose description was changed just now.
	described map[string]described
}

// stateSince is since when a move has been in its state.
type stateSince struct {
	state v1.MigrationState
	since time.Time
}

// New returns a Core that has seen nothing.
func New(config Config) *Core {
	return &Core{Config: config, index: newIndex(), orders: newOrderBook(), inState: map[string]stateSince{}, avoid: map[string][]string{},
		memory: map[string]memoryTold{}, due: map[string]time.Time{}, rest: map[string]time.Time{}, described: map[string]described{}}
}

// Fresh returns a copy that remembers what c does but the objects: its next decision is about everything.
func (c *Core) Fresh() *Core {
	fresh := *c
	fresh.index, fresh.orders = newIndex(), c.orders.clone()
	fresh.inState, fresh.avoid, fresh.rest = maps.Clone(c.inState), maps.Clone(c.avoid), maps.Clone(c.rest)
	fresh.memory, fresh.due, fresh.described = maps.Clone(c.memory), maps.Clone(c.due), maps.Clone(c.described)
	return &fresh
}

// Rest keeps a change from being decided again before a time: it could not be written, for a reason that lasts.
func (c *Core) Rest(key string, until time.Time) {
	c.rest[key] = until
	c.index.everything = true
}

// Decide takes the world up and decides. The changes of an earlier decision count as made only if w shows them.
func (c *Core) Decide(w World) Decision {
	c.index.see(&w)
	maps.DeleteFunc(c.due, func(name string, at time.Time) bool {
		due := !w.Now.Before(at)
		if due {
			c.index.guests[name] = true
		}
		return due
	})
	maps.DeleteFunc(c.rest, func(_ string, until time.Time) bool { return !w.Now.Before(until) })
	p := &pass{Core: c, World: &w, working: newWorking(w.Objects), statuses: map[string]ClusterStatus{}}
	p.again = w.Now.Add(idlePass)
	p.tell()
	p.hosts()
	p.moves()
	p.guests()
	p.clusters()
	p.outOfMemory()
	p.drain()
	p.prune()
	p.runs()
	if len(p.changes) < maxChanges && len(c.rest) == 0 {
		c.index.settled()
	}
	for _, until := range c.rest {
		p.again = earlier(p.again, until)
	}
	for _, at := range c.due {
		p.again = earlier(p.again, at)
	}
	return Decision{Orders: p.orders, Changes: p.changes, Runs: p.runOrders, Notes: p.notes, Again: p.again}
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// pass is one decision under way. World is what was seen; working shows the changes that are decided already.
type pass struct {
	*Core
	*World
	working   *working
	changes   []Change
	orders    map[string]*v1.HostWanted
	runOrders []RunOrder
	notes     []string
	again     time.Time
	room      *room
	planned   Moves                    // those under way, and those that this decision begins; nil: it has begun none
	statuses  map[string]ClusterStatus // by cluster
}

// full tells whether the decision has as many changes as one may have.
func (p *pass) full() bool { return len(p.changes) >= maxChanges }

// propose adds a change, unless it has to rest.
func (p *pass) propose(key string, c Change) {
	if _, resting := p.rest[key]; resting {
		return
	}
	c.Key = key
	p.working.apply(c)
	p.changes = append(p.changes, c)
}

// changed tells whether an object was changed by this decision already; it is decided about again when that is written.
func (p *pass) changed(o Object) bool { return p.working.touched[o] }

// current tells whether a host's report was made after its agent took up the present orders.
func (p *pass) current(host string) bool {
	report, _, connected := p.Observed(host)
	told := p.Core.orders.told[host].wanted
	return connected && told != nil && report.GetTerm() == p.Core.Term && report.GetGeneration() >= told.Generation
}

// sortedMoves returns moves in the order in which they take turns: older ones first.
func sortedMoves(moves Moves) []*v1.Migration {
	list := slices.Collect(maps.Values(moves))
	oldestFirst(list)
	return list
}

func oldestFirst(list []*v1.Migration) {
	slices.SortFunc(list, func(a, b *v1.Migration) int {
		return cmp.Or(a.Meta.Created.AsTime().Compare(b.Meta.Created.AsTime()), cmp.Compare(a.Meta.Name, b.Meta.Name))
	})
}
