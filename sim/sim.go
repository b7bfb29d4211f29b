package sim

// sim.go - one run: from a seed and a plan to a violation, or none.

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"watari/core"

	v1 "watari/api/watariv1"
)

const (
	// chaosFor is how long users act and faults begin.
	chaosFor = 60 * time.Second
	// settleWithin is how long everything may take to settle afterwards.
	settleWithin = 5 * time.Minute
	// maxEvents bounds the events of a run: a run with more makes no progress.
	maxEvents = 2_000_000
)

const (
	user  = "ann" // the user who makes all requests
	image = "img" // the image of all clusters
	// mostClusters bounds the clusters that a plan asks for.
	mostClusters = 3
)

// quotaOf returns the user's quota: a few guests for some seeds, so that some requests exceed it, and none for the others.
func quotaOf(seed uint64) *v1.Quota {
	switch seed % 5 {
	case 1:
		return &v1.Quota{Vcpus: 5}
	case 2:
		return &v1.Quota{Vcpus: 100, MemoryBytes: 2 << 30}
	}
	return nil
}

// Sim is a simulated Watari.
type Sim struct {
	engine
	store    *store
	manager  *manager // the leading manager
	zombie   *manager // an earlier leader that has not noticed; nil: none
	managers int
	hosts    map[string]*host
	names    []string // of hosts, in order

	faulty          bool // calls fail now and then
	short           int  // while above 0, no host has the memory for a restore
	fencing         bool // managers can switch hosts off
	oracle          bool // each decision is compared with a full one
	unreadable      map[string]bool
	partitions      map[string]bool      // "a b": these hosts cannot reach each other
	cutUntil        map[string]time.Time // until when a site is cut off
	cuts            map[string]*cutSeen  // what really happened in checkpoints, by their uid
	bases           map[fileOf]string    // the checkpoints on which files build
	everyIncrement  bool                 // all agents restore increments
	made            map[string]bool      // volumes that were ready once, by uid
	unwantedVolumes map[string]bool      // volumes that their users have deleted
	acked           map[string]acked     // what was written to volumes, by uid
	writing         bool                 // guests write to their volumes
	creates         map[string]int       // calls under way that create a domain, by host, boot and guest

	transfers   []*transfer
	connections uint64

	counts      map[string]int       // how often each kind of step, and some of what follows, has happened
	withdrawnAt map[string]time.Time // when a host was last withdrawn because of its owner

	started   map[string]string // where an epoch was started
	granted   map[string]string // to whom an epoch was granted
	tainted   map[string]bool   // guests whose host was wrongly called lost
	stopped   map[string]uint64 // the last epoch that a guest had when users stopped it
	intent    map[string]bool   // whether users want a guest to run, by its uid
	raise     uint64            // the next term is above this number
	strike    strike            // the fault of the next transfer
	strikeFor time.Duration
	backup    *core.Objects // an older copy of the store; nil: there is none
	restored  bool          // the copy was put back
	recovered bool          // a recovery was made since
	calmUntil time.Time     // nothing is cut or switched off before this time
	clusters  int
	// How guests' use changes, and the target of the last move.
	pattern    pattern
	lastTarget string
	coolDown   time.Duration        // of the policies that decide by use
	talking    int                  // the pattern of the guests' traffic
	jumped     bool                 // a manager's clock has jumped
	stuck      map[string]time.Time // since when a pair has kept a relay that is gone, although there is another
	foresight  *foresight           // of a replay; nil: this is a run of a seed
	// recovering: a person makes the objects agree with what hosts run.
	recovering bool
	violation  string
}

// Result is how a run ended.
type Result struct {
	Seed      uint64
	Violation string // empty: everything held
	Simulated time.Duration
	Events    uint64
	Plan      []Step
	// Counts says how often each kind of step was done, and how often some of what follows has happened.
	Counts   map[string]int
	Dialogue []string // only where it was asked for
}

// Run runs the plan of a seed.
func Run(seed uint64) Result { return run(seed, planOf(seed), nil) }

// Replay runs a plan with the chance of a seed, and keeps the dialogue.
func Replay(seed uint64, plan []Step) Result {
	var lines []string
	r := run(seed, plan, func(format string, a ...any) { lines = append(lines, fmt.Sprintf(format, a...)) })
	r.Dialogue = lines
	return r
}

func run(seed uint64, plan []Step, log func(string, ...any)) Result {
	s := newSim(seed, log)
	policies := ""
	if hasPolicy(seed) {
		policies = simPolicy + rebalancing(seed)
	}
	s.oracle, s.pattern, s.talking = seed%4 == 0, pattern(seed/7)%patterns, int(seed%7)
	s.fencing, s.everyIncrement = hasFencing(seed), seed%9 != 0
	s.begin(seed, policies)
	for _, step := range plan {
		s.at(start.Add(step.At), func() {
			s.tell("plan", "%s", step)
			s.perform(step)
		})
	}
	s.faulty = true
	s.until(start.Add(endOfFaults(plan)))
	s.heal()
	deadline := s.now.Add(settleWithin)
	why := "not looked at"
	for s.violation == "" && s.now.Before(deadline) {
		s.until(s.now.Add(time.Second))
		s.recover()
		if why = s.unsettled(); why == "" {
			break
		}
	}
	if why != "" {
		s.violate("it has not settled within %v: %s", settleWithin, why)
	}
	return Result{Seed: seed, Violation: s.violation, Simulated: s.now.Sub(start), Events: s.serial, Plan: plan, Counts: s.counts}
}

// newSim makes an empty simulation.
func newSim(seed uint64, log func(string, ...any)) *Sim {
	return &Sim{engine: engine{now: start, rng: rand.New(rand.NewPCG(seed, 1)), log: log}, store: newStore(), hosts: map[string]*host{},
		unreadable: map[string]bool{}, partitions: map[string]bool{}, creates: map[string]int{}, made: map[string]bool{}, bases: map[fileOf]string{}, unwantedVolumes: map[string]bool{}, acked: map[string]acked{}, cuts: map[string]*cutSeen{}, started: map[string]string{},
		granted: map[string]string{}, tainted: map[string]bool{}, stopped: map[string]uint64{}, intent: map[string]bool{}, coolDown: simCoolDown,
		cutUntil: map[string]time.Time{}, counts: map[string]int{}, withdrawnAt: map[string]time.Time{}}
}

// until runs all events up to a time, or to the first violation.
func (s *Sim) until(t time.Time) {
	for s.violation == "" && len(s.queue) > 0 && !s.queue[0].at.After(t) {
		s.step()
		if s.foresight != nil && s.serial%100 == 0 {
			if s.foresight.over() {
				return
			}
		}
		if s.serial > maxEvents {
			s.violate("it goes round in circles: %d events", s.serial)
		}
	}
	if s.violation == "" {
		s.now = t
	}
}

// begin switches hosts on, and starts a manager. policies is the text of the policy in force; empty: there is none.
func (s *Sim) begin(seed uint64, policies string) {
	for i := range hostsOf(seed) {
		name := fmt.Sprintf("%c%d", 'a'+i%2, 1+i/2)
		s.names = append(s.names, name)
		h := newHost(s, name)
		h.drift = int((seed/11+7*uint64(i))%(2*drift+1)) - drift
		s.hosts[name] = h
		s.commit(0, create(&v1.Host{Meta: &v1.Meta{Name: name}, Spare: isSpare(seed, i)}))
		h.uid = s.store.objects.Hosts[name].Meta.Uid
	}
	s.store.objects.Users[user] = &v1.User{Meta: &v1.Meta{Name: user, Uid: s.store.uid()}, Quota: quotaOf(seed)}
	s.store.objects.Images[image] = &v1.Image{Meta: &v1.Meta{Name: image}, Digest: "sha256:" + image}
	if policies != "" {
		s.commit(0, create(core.NewPolicy(1, policies, "", user)))
	}
	s.connectHosts(seed)
	s.lastTarget = s.names[0]
	s.lead()
	for _, name := range s.names {
		s.hosts[name].power()
	}
	s.tidy()
}

// isSpare tells whether a host of a seed is a spare from the start.
func isSpare(seed uint64, host int) bool {
	return seed%4 == 1 && host >= 2 && host == hostsOf(seed)-1
}

// count notes that something has happened.
func (s *Sim) count(what string) { s.counts[what]++ }

// tidy deletes hosts that are being removed once nothing depends on them, and repeats itself.
func (s *Sim) tidy() {
	o := s.store.objects
	for _, name := range s.names {
		if forget := core.ForgetHost(o, name); len(forget.Ops) > 0 {
			s.commit(0, forget)
			s.wake()
		}
	}
	s.after(2*time.Second, s.tidy)
}

// wake makes managers see what was written.
func (s *Sim) wake() { s.manager.poke() }

// apart tells whether two hosts cannot reach each other.
func (s *Sim) apart(a, b *host) bool {
	return s.partitions[a.name+" "+b.name] || s.partitions[b.name+" "+a.name] || a.site != b.site && (s.siteCut(a.site) || s.siteCut(b.site))
}

func create(o core.Object) core.Change {
	return core.Change{Ops: []core.Op{{Kind: core.Create, Object: o}}}
}

// Observed makes a manager a core.Reports.
func (m *manager) Observed(host string) (*v1.HostObserved, time.Time, bool) {
	seen := m.seen[host]
	return seen.Report, seen.Since, seen.Connected
}

// heal ends all faults.
func (s *Sim) heal() {
	s.tell("sim", "nothing breaks any more")
	s.faulty, s.pattern = false, steady
	s.unreadable, s.partitions, s.cutUntil = map[string]bool{}, map[string]bool{}, map[string]time.Time{}
	if s.zombie != nil && !s.zombie.dead {
		s.zombie.kill()
	}
	if s.manager.dead {
		s.lead()
	}
	for _, name := range s.names {
		h := s.hosts[name]
		h.full, h.cut, h.setAside = false, false, ballast
		h.owner = s.now
		for _, c := range h.live() {
			c.hidden = false
		}
		h.power()
		h.setLibvirt(libvirtUp)
		h.startAgent()
		if o := s.store.objects.Hosts[name]; o != nil && o.Draining && o.Meta.Deleting == nil {
			s.undrain(name)
		}
		if o := s.store.objects.Hosts[name]; o.GetSpare() && o.Meta.Deleting == nil { // else there may be no room for all guests
			s.admit(func(a *core.Admission) (core.Change, error) { return a.SpareHost(name, false) })
		}
	}
}

// String is the plan's step as text.
func (step Step) String() string {
	text := fmt.Sprintf("%s %s", step.Kind, strings.TrimSpace(step.On+" "+step.Other))
	if step.For > 0 {
		text += " for " + step.For.String()
	}
	return text
}
