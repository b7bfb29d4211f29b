package core

// core.go - one decision: marks what has changed, makes the orders of hosts, and decides about objects.

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

// Captured are the reports at one time, by host.
type Captured map[string]Seen

// Capture captures the reports of the hosts in s. It leaves out other hosts.
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

// World is the input of a decision besides Core's memory.
type World struct {
	*Objects
	Reports Captured
	Runs    map[string]RunSeen // by the run's uid
	Signals Signals
	Usage   *Usage               // nil: nothing is known
	Leases  map[string]LeaseSeen // of granted copies, by guest uid
	Now     time.Time
}

// Observed makes World a Reports.
func (w *World) Observed(host string) (*v1.HostObserved, time.Time, bool) {
	return w.Reports.Observed(host)
}

// Identify returns the identity of a guest for an epoch, without its peers, with a certificate of a generation; nil: it could
// not be made. Equal calls have equal results until renew, when it has another certificate; zero: never.
type Identify func(c *v1.Cluster, g *v1.Guest, epoch uint64, generation uint32) (identity *v1.Identity, renew time.Time)

// Config has a Core's settings.
type Config struct {
	Term  uint64
	Began time.Time // when the manager began to lead
	// NoSharing makes each host fetch images from the manager, and make templates itself.
	NoSharing bool
	Identify  Identify
	// Seal returns the seal of the facts that a host gets about a volume (VolumeFacts.seal). Sealed reports whether facts
	// have their seal. If the store does not know that a host has a volume, the host's report of it is believed only with
	// the seal. nil: there are no seals.
	Seal   func(host, uid string, facts *v1.VolumeFacts) []byte
	Sealed func(host, uid string, facts *v1.VolumeFacts) bool
	// FenceAfter is how long a host with guests may be out of reach before it is switched off; 0: the manager cannot switch
	// hosts off.
	FenceAfter time.Duration
	// Hurry divides cool-downs and pauses of abstract clusters and relays, because a simulation is short; 0 and 1: no
	// change.
	Hurry int
}

// Decision is the result of a decision.
type Decision struct {
	// Orders replace the hosts' earlier orders. They include only hosts whose orders have changed, or that have a new
	// connection.
	Orders map[string]*v1.HostWanted
	// Changes must be written in this order.
	Changes []Change
	// Runs are the orders for runs that have begun and not ended.
	Runs []RunOrder
	// Fences are the hosts to switch off. A host is named again until Fenced was written for it.
	Fences []Fence
	// Notes are for the log.
	Notes []string
	// Again is when to decide again even if nothing changes.
	Again time.Time
}

// maxChanges bounds the changes of one decision, so that orders go out between batches.
const maxChanges = 512

const (
	// idlePass is the time to the next decision if nothing happens.
	idlePass = 2 * time.Second
	// movePass is the same while a guest moves.
	movePass = 250 * time.Millisecond
)

// Core decides for one manager while it leads. Its memory can be lost: a new Core decides from objects and reports. It
// is not safe for concurrent use.
type Core struct {
	Config
	index    *index
	orders   orderBook
	shared   shareMemory
	inState  map[string]stateSince // of moves and checkpoints that have not ended, by uid
	avoid    map[string]avoided    // hosts that could not start or keep a guest, by guest uid
	memory   map[string]memoryTold // last events about guests' memory, by guest uid
	due      map[string]time.Time  // when guests are decided about again, by name
	dueHost  map[string]time.Time  // when hosts' orders are made again, by name
	rest     map[string]time.Time  // until when objects are not decided about, by Change.Key
	policies policyMemory
	// noRoom has the time until which a host that could not keep a copy of a checkpoint's file, or could not put a volume
	// back, is not asked again, by copyKey.
	noRoom map[string]time.Time
	looked map[string]time.Time // when policy locality has last looked at a cluster, by name
	last   time.Time            // time of day of the last decision
	// apportionment is about abstract clusters.
	apportionment apportionMemory
	probes        map[string][]*v1.Probe // the last orders to probe hosts, by host
	// described are the hosts whose description was changed just now.
	described map[string]described
	told      map[hostEvent]eventsLeft
	// later has the volumes with a later disk than the store knows, by uid.
	later map[string]laterDisk
}

// stateSince is the state of a move or a checkpoint, and when Core first saw it in this state.
type stateSince struct {
	state int32
	since time.Time
}

// avoided are the hosts that could not start a guest, or whose QEMU or KVM failed under it.
type avoided struct {
	failed  []string
	restore string    // the id of the restore that the rest is about
	refused []string  // hosts that refused to restore the guest
	rounds  int       // how often all hosts have refused
	until   time.Time // until then those that refused are not asked again
	lacking time.Time // since when no host has room for the guest; zero: one has
}

// New returns a Core that has seen nothing.
func New(config Config) *Core {
	return &Core{Config: config, index: newIndex(), orders: newOrderBook(), inState: map[string]stateSince{}, avoid: map[string]avoided{},
		memory: map[string]memoryTold{}, due: map[string]time.Time{}, dueHost: map[string]time.Time{}, rest: map[string]time.Time{}, noRoom: map[string]time.Time{}, looked: map[string]time.Time{}, described: map[string]described{}, told: map[hostEvent]eventsLeft{}, probes: map[string][]*v1.Probe{}}
}

// Fresh returns a copy with c's memory except the objects. Its next decision is about everything.
func (c *Core) Fresh() *Core {
	fresh := *c
	fresh.index, fresh.orders = newIndex(), c.orders.clone()
	fresh.inState, fresh.avoid, fresh.rest = maps.Clone(c.inState), maps.Clone(c.avoid), maps.Clone(c.rest)
	fresh.memory, fresh.due, fresh.described, fresh.told = maps.Clone(c.memory), maps.Clone(c.due), maps.Clone(c.described), maps.Clone(c.told)
	fresh.dueHost, fresh.policies, fresh.looked = maps.Clone(c.dueHost), c.policies.clone(), maps.Clone(c.looked)
	fresh.noRoom = maps.Clone(c.noRoom)
	fresh.probes = maps.Clone(c.probes)
	fresh.apportionment = c.apportionment.clone()
	return &fresh
}

// Rest prevents a change from being decided again before a time. The change could not be written, for a lasting reason.
func (c *Core) Rest(key string, until time.Time) {
	c.rest[key] = until
	c.index.everything = true
}

// Decide makes a decision about w. Changes of an earlier decision count as made only if w shows them.
func (c *Core) Decide(w World) Decision {
	c.index.see(&w)
	day := w.Now.Round(0)   // without the monotonic time, which never goes back
	if day.Before(c.last) { // the clock was set back: what was due may not be due now
		c.index.everything = true
	}
	c.last = day
	maps.DeleteFunc(c.due, func(name string, at time.Time) bool {
		due := !w.Now.Before(at)
		if due {
			c.index.guests[name] = true
		}
		return due
	})
	maps.DeleteFunc(c.dueHost, func(name string, at time.Time) bool {
		due := !w.Now.Before(at)
		if due {
			c.index.hosts[name] = true
		}
		return due
	})
	for v := range c.index.unmade {
		c.index.hosts[v.Host] = true
	}
	maps.DeleteFunc(c.rest, func(_ string, until time.Time) bool { return !w.Now.Before(until) })
	maps.DeleteFunc(c.noRoom, func(_ string, until time.Time) bool { return !w.Now.Before(until) })
	p := &pass{Core: c, World: &w, working: newWorking(w.Objects), asked: map[string]bool{}, statuses: map[string]ClusterStatus{}, fetching: map[*v1.CheckpointMember][]string{}}
	p.again = w.Now.Add(idlePass)
	p.inForce()
	p.paths()
	p.seeNoRoom()
	p.seeLater()
	p.makeOrders()
	p.hosts()
	p.cutOffQuarantined()
	p.withdraw()
	p.relay()
	p.checkpoints()
	p.volumes()
	p.restores()
	p.moves()
	p.cancelArrivals()
	p.guests()
	p.clusters()
	p.outOfMemory()
	p.drain()
	p.suspend()
	p.bringTogether()
	p.rebalance()
	p.apportion()
	p.prune()
	p.runs()
	if len(p.changes) < maxChanges && len(c.rest) == 0 {
		c.index.settled()
	} else {
		c.index.unsettled()
	}
	for _, until := range c.rest {
		p.again = earlier(p.again, until)
	}
	for _, at := range c.due {
		p.again = earlier(p.again, at)
	}
	for _, at := range c.dueHost {
		p.again = earlier(p.again, at)
	}
	fences := p.fences() // it may bring Again forward
	return Decision{Orders: p.orders, Changes: p.changes, Runs: p.runOrders, Fences: fences, Notes: p.notes, Again: p.again}
}

// wake makes a later decision decide about a guest at a time, unless one does so earlier.
func (p *pass) wake(name string, at time.Time) {
	if due, is := p.due[name]; !is || at.Before(due) {
		p.due[name] = at
	}
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// pass is one decision under way. World is its input; working also shows the changes that it has already decided.
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
	leaving   *leavingView                      // of the last guest that had to leave its host; nil: none had
	lately    *lately                           // what policies' moves have used within the last hour; nil: not counted yet
	asked     map[string]bool                   // guests whose move this decision has begun, by uid
	statuses  map[string]ClusterStatus          // by cluster
	fetching  map[*v1.CheckpointMember][]string // hosts that are to fetch a file
	between   map[string][]*v1.Relayed          // the pairs between which a host relays, by port
	pairs     []hostPair                        // hosts that may need a relay, or have one
	out       *[]string                         // keys of the hosts that were cut off, sorted; nil: not collected yet
	void      *[]*v1.RevokedHost                // hosts of which certificates were revoked, by uid; nil: not collected yet
	keys      map[string]string                 // the hosts of WireGuard keys; nil: not collected yet
}

// full reports whether the decision has maxChanges changes.
func (p *pass) full() bool { return len(p.changes) >= maxChanges }

// propose adds a change, unless it rests.
func (p *pass) propose(key string, c Change) {
	if _, resting := p.rest[key]; resting {
		return
	}
	c.Key = key
	for _, op := range c.Ops {
		if m, is := op.Object.(*v1.Migration); is && op.Kind == Create {
			p.asked[m.GuestUid] = true
		}
	}
	p.working.apply(c)
	p.changes = append(p.changes, c)
}

// changed reports whether this decision has already changed an object. The next decision about the object follows when
// that change is written.
func (p *pass) changed(o Object) bool { return p.working.touched[o] }

// current reports whether a host has made its report under the present orders.
func (p *pass) current(host string) bool {
	report, _, connected := p.Observed(host)
	sent := p.Core.orders.sent[host].wanted
	return connected && sent != nil && report.GetTerm() == p.Core.Term && report.GetGeneration() >= sent.Generation
}

// sortedMoves returns moves in the order of their turns: older moves first.
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
