package sim

// plan.go - the requests of users, and the faults, with their times.

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"watari/agent/domain"
	v1 "watari/api/watariv1"
	"watari/core"
	"watari/migration"
)

// Step is one request or fault. Its numbers choose among what exists then, so that a step has a meaning in each plan.
type Step struct {
	At    time.Duration
	Kind  string
	On    string // a host, or empty
	Other string
	Pick  int // which guest or cluster
	For   time.Duration
}

// kinds are the kinds of steps, and how likely each is.
var kinds = []struct {
	kind   string
	weight int
}{
	{"create", 8}, {"delete", 3}, {"resize", 6}, {"stop", 3}, {"start", 4}, {"move", 16}, {"cancel", 4}, {"drain", 3}, {"undrain", 3}, {"quarantine", 2},
	{"kill agent", 10}, {"lose power", 6}, {"cut from managers", 6}, {"cut from host", 5}, {"kill manager", 5}, {"old manager", 3},
	{"libvirt down", 4}, {"libvirt hangs", 5}, {"fill disk", 4}, {"kill guest", 4}, {"break guest", 3}, {"hide guest", 2}, {"unreadable record", 3},
	{"clock jumps", 3}, {"manager's clock jumps", 2}, {"remove lost", 2}, {"vouch wrongly", 2}, {"boot id changes", 2}, {"back up", 2}, {"put back", 2}, {"refused term", 1}, {"strike a transfer", 6}, {"late order", 4}, {"owner comes back", 8},
	{"checkpoint", 14}, {"restore", 6}, {"kill watchdog", 3}, {"alter files", 3}, {"no room for copies", 2}, {"claim a volume", 2}, {"hosts lack memory", 5},
	{"cut off site", 3}, {"cut off site for a minute", 1}, {"cut off site for good", 1}, {"lose site", 1}, {"all owners come back", 4},
	{"connection flaps", 2}, {"owner flaps", 2}, {"agent flaps", 2}, {"clock jumps far", 3}, {"manager's clock jumps far", 2},
	{"apply a wrong policy", 2}, {"spare", 2}, {"move volume", 10}, {"cancel volume move", 2},
}

// requests are the kinds of steps in which users ask a manager for something.
var requests = map[string]bool{"create": true, "delete": true, "resize": true, "stop": true, "start": true, "move": true, "cancel": true, "drain": true, "undrain": true, "quarantine": true,
	"checkpoint": true, "restore": true, "apply a wrong policy": true, "spare": true, "move volume": true, "cancel volume move": true}

// away are the kinds of steps that put a host out of reach.
var away = []string{"kill agent", "lose power", "cut from managers", "kill manager", "old manager", "unreadable record", "boot id changes", "remove lost",
	"vouch wrongly", "quarantine", "cut off site", "cut off site for a minute", "cut off site for good", "lose site", "connection flaps", "agent flaps"}

// ballast is the number of vital writes for which a full disk has reserved space.
const ballast = 3

// planOf makes the plan of a seed.
func planOf(seed uint64) []Step {
	rng := rand.New(rand.NewPCG(seed, 3))
	hosts := hostsOf(seed)
	host := func() string {
		i := rng.IntN(hosts)
		return fmt.Sprintf("%c%d", 'a'+i%2, 1+i/2)
	}
	// Each seed leaves some kinds out, so that the other kinds meet more often.
	chosen := kinds[:0:0]
	total := 0
	for _, k := range kinds {
		if k.kind == "create" || k.kind == "move" || rng.IntN(2) == 0 {
			chosen = append(chosen, k)
			total += k.weight
		}
	}
	plan := []Step{{At: 2 * time.Second, Kind: "create", Pick: rng.IntN(1000)}}
	for range 8 + rng.IntN(32) {
		n, kind := rng.IntN(total), ""
		for _, k := range chosen {
			if n -= k.weight; n < 0 {
				kind = k.kind
				break
			}
		}
		step := Step{At: time.Duration(rng.Int64N(int64(chaosFor))), Kind: kind, On: host(), Other: host(), Pick: rng.IntN(1000),
			For: time.Duration(rng.Int64N(int64(20 * time.Second)))}
		if d, is := siteCuts[kind]; is {
			step.For = d
		}
		plan = append(plan, step)
	}
	slices.SortStableFunc(plan, func(a, b Step) int { return int(a.At - b.At) })
	return plan
}

// perform does a step.
func (s *Sim) perform(step Step) {
	h := s.hosts[step.On]
	later := func(do func()) { s.after(step.For, do) }
	if s.now.Before(s.calmUntil) && slices.Contains(away, step.Kind) {
		return
	}
	if requests[step.Kind] && (s.manager.dead || s.store.objects.Held()) {
		if s.now.Before(start.Add(chaosFor - time.Second)) {
			s.after(time.Second, func() { s.perform(step) }) // the user tries again
		}
		return
	}
	s.count(step.Kind)
	switch step.Kind {
	case "create":
		s.createCluster(step.Pick)
	case "delete":
		s.deleteCluster(step.Pick)
	case "resize":
		s.resizeCluster(step.Pick)
	case "checkpoint":
		s.createCheckpoint(step.Pick)
	case "restore":
		s.restoreCheckpoint(step.Pick)
	case "stop":
		s.stop(step.Pick)
	case "start":
		s.startGuest(step.Pick)
	case "move":
		s.move(step.Pick)
	case "cancel":
		s.cancel(step.Pick)
	case "drain":
		s.admit(func(a *core.Admission) (core.Change, error) { return a.DrainHost(step.On, true) })
	case "undrain":
		s.undrain(step.On)
	case "quarantine":
		grace := step.For / 2 * time.Duration(step.Pick%2) // or at once
		s.admit(func(a *core.Admission) (core.Change, error) { return a.QuarantineHost(step.On, grace, false) })
		later(func() { s.undrain(step.On) })
	case "owner comes back":
		h.comeBack(step.For)
	case "all owners come back":
		s.allComeBack(step.For)
	case "apply a wrong policy":
		s.applyWrongPolicy(step.Pick)
	case "spare":
		s.admit(func(a *core.Admission) (core.Change, error) { return a.SpareHost(step.On, step.Pick%3 != 0) })
	case "move volume":
		s.moveVolume(step.Pick)
	case "cancel volume move":
		s.cancelVolumeMove(step.Pick)
	case "alter files":
		s.alterFiles(h, step.Pick)
	case "no room for copies":
		h.cramped = true
	case "hosts lack memory": // for restores: what else uses it is not known to the manager
		s.short++
		s.after(4*step.For, func() { s.short-- })
	case "claim a volume":
		s.claimVolume(h, step.Pick)
	case "kill watchdog":
		h.killWatchdog()
	case "kill agent":
		h.killAgent()
		later(h.startAgent)
	case "lose power":
		h.crash()
		later(h.power)
	case "cut from managers":
		h.cutOff()
		later(func() { h.cut = false })
	case "cut off site", "cut off site for a minute", "cut off site for good":
		s.cutSite(h.site, step.For)
	case "lose site":
		s.loseSite(h.site)
	case "connection flaps":
		s.flap(step, h.cutOff, func() { h.cut = false })
	case "owner flaps":
		s.flap(step, func() { h.comeBack(0) }, func() {})
	case "agent flaps":
		s.flap(step, h.killAgent, h.startAgent)
	case "cut from host":
		if step.On != step.Other {
			key := step.On + " " + step.Other
			s.partitions[key] = true
			s.breakApart()
			later(func() { delete(s.partitions, key) })
		}
	case "kill manager":
		if !s.manager.dead {
			s.manager.kill()
			later(s.replaceManager)
		}
	case "old manager":
		s.outlive(step.For)
	case "libvirt down":
		h.setLibvirt(libvirtDown)
		later(func() { h.setLibvirt(libvirtUp) })
	case "libvirt hangs":
		h.setLibvirt(libvirtHangs)
		later(func() { h.setLibvirt(libvirtUp) })
	case "fill disk":
		h.full, h.setAside = true, step.Pick%(ballast+1)
		later(func() { h.full, h.setAside = false, ballast })
	case "kill guest":
		if list := h.live(); len(list) > 0 {
			c := list[step.Pick%len(list)]
			s.endTransferOf(h, c.uid, "QEMU was killed")
			s.died(h, c, "QEMU was killed")
			delete(h.copies, c.uid)
			h.event(c.uid)
		}
	case "break guest":
		if list := h.live(); len(list) > 0 {
			c := list[step.Pick%len(list)]
			c.broken = true
			if c.state == domain.Running {
				c.state, c.since = domain.Paused, s.now
				s.tell(h.name, "guest %s is broken, epoch %d", c.name, c.epoch)
				h.event(c.uid)
			}
		}
	case "hide guest":
		if list := h.live(); len(list) > 0 {
			c := list[step.Pick%len(list)]
			c.hidden = true
			later(func() {
				c.hidden = false
				h.event(c.uid)
			})
		}
	case "unreadable record":
		s.unreadableRecord(h, step, later)
	case "clock jumps":
		h.offset += time.Duration(step.Pick-500) * 100 * time.Millisecond
	case "manager's clock jumps":
		s.jumped = true
		s.manager.offset += time.Duration(step.Pick-500) * 100 * time.Millisecond
	case "clock jumps far":
		h.offset += jumpFar(step.Pick)
	case "manager's clock jumps far":
		s.jumped = true
		s.manager.offset += jumpFar(step.Pick)
	case "boot id changes": // the agent reads another boot id; the host goes on
		if h.up && !h.makes() {
			h.killAgent()
			h.newBoot()
			s.after(time.Second, h.startAgent)
		}
	case "refused term":
		s.refusedTerm(h)
	case "late order":
		h.lateNext = true
	case "strike a transfer":
		s.strike, s.strikeFor = 1+strike(step.Pick%strikes), step.For
	case "back up":
		s.backup = s.store.objects
	case "put back":
		s.putBack()
	case "remove lost":
		h.crash()
		s.removeLost(h)
	case "vouch wrongly":
		s.vouchWrongly(h, step.For)
	default:
		panic("sim: no such step: " + step.Kind)
	}
}

// flap makes something go away and come back several times, at short intervals.
func (s *Sim) flap(step Step, goes, comes func()) {
	every := 200*time.Millisecond + step.For/10
	for i := range 3 + step.Pick%3 {
		s.after(time.Duration(2*i)*every, func() {
			if s.faulty && !s.now.Before(s.calmUntil) {
				goes()
			}
		})
		s.after(time.Duration(2*i+1)*every, comes)
	}
}

func (s *Sim) unreadableRecord(h *host, step Step, later func(func())) {
	files := append(slices.Sorted(maps.Keys(h.records)), "term")
	key := h.name + "/" + files[step.Pick%len(files)]
	s.unreadable[key] = true
	h.killAgent()
	s.after(time.Second, h.startAgent)
	later(func() { delete(s.unreadable, key) })
}

func (s *Sim) replaceManager() {
	if s.manager.dead {
		s.lead()
	}
}

// outlive lets another manager lead while the present one does not notice for a time: it still answers agents, and gives
// orders by its last snapshot.
func (s *Sim) outlive(d time.Duration) {
	if s.manager.dead || s.zombie != nil && !s.zombie.dead {
		return
	}
	old := s.manager
	old.stale = s.store.objects
	s.zombie = old
	s.tell(old.name, "does not notice that it leads no more")
	s.lead()
	// Agents connect to both managers.
	for range 6 {
		s.after(s.between(0, d), func() {
			h := s.hosts[s.names[s.rng.IntN(len(s.names))]]
			if h.link != nil && !old.dead {
				h.link.cut("the line is bad")
			}
		})
	}
	s.after(d, func() {
		if !old.dead {
			old.kill()
		}
	})
}

// pool is the prefix from which clusters' prefixes are taken.
var pool = netip.MustParsePrefix("10.77.0.0/16")

// admit lets the manager decide on a request, and writes the change. It returns whether the request was granted.
func (s *Sim) admit(decide func(*core.Admission) (core.Change, error)) bool {
	m, o := s.manager, s.store.objects
	if m.dead {
		s.tell("user", "reaches no manager")
		return false
	}
	change, err := decide(&core.Admission{Objects: o, Caller: core.Caller{Name: user, UID: o.Users[user].Meta.Uid}, Reports: m, Now: m.now(),
		Began: m.core.Began, Pool: pool})
	if err != nil {
		s.tell("user", "is refused: %v", err)
		return false
	}
	if len(change.Ops) > 0 {
		if err := s.commit(0, change); err != nil {
			s.violate("what was admitted cannot be written: %v", err)
		}
		s.wake()
	}
	return true
}

// refusedTerm makes a host with a full disk start guests, and then changes managers. The host can record neither the failed
// starts nor the new manager's term. Then its agent is killed, its disk has room again, and it connects to the old manager.
func (s *Sim) refusedTerm(h *host) {
	if s.manager.dead || !h.up || s.zombie != nil && !s.zombie.dead {
		return
	}
	h.full, h.setAside, h.takesTerms = true, 0, s.chance(50)
	s.createCluster(h.sim.clusters)
	s.after(100*time.Millisecond, func() {
		if s.manager.dead {
			return
		}
		s.outlive(15 * time.Second)
		old := s.zombie
		if h.link != nil {
			h.link.cut("the line is bad")
		}
		s.after(5*time.Second, func() {
			h.full, h.setAside = false, ballast
			h.killAgent()
			h.prefers = old
			h.startAgent()
		})
		s.after(15*time.Second, func() { h.prefers = nil })
	})
}

// createCluster makes a cluster of a few guests.
func (s *Sim) createCluster(pick int) {
	if s.clusters == mostClusters || s.restored && !s.recovered { // a new cluster could take a lost one's prefix
		return
	}
	spec := &v1.ClusterSpec{Guests: uint32(1 + pick%4), Shape: &v1.GuestShape{Vcpus: 1, MemoryBytes: uint64(256+256*(pick%3)) << 20}, Spread: v1.Spread(pick % 3), Image: image}
	if pick%5 == 0 {
		spec.Abstract, spec.Spread = true, v1.Spread_SPREAD_UNSPECIFIED
		spec.Guests, spec.Shape.MemoryBytes = uint32(4+pick%4), 256<<20 // two guests on a host show something about it
	}
	if hasLeases(pick) {
		spec.LeaseMs, spec.OnHostLoss = uint64(simLease.Milliseconds()), v1.OnHostLoss(pick/9%4)
	}
	if pick%7 < 2 {
		spec.Volume = s.createVolume(pick)
	}
	name := fmt.Sprintf("c%d", s.clusters+1)
	granted := s.admit(func(a *core.Admission) (core.Change, error) {
		change, err := a.CreateCluster(core.ClusterRequest{Name: name, Spec: spec, UID: s.store.uid()})
		if len(change.Ops) > 0 {
			change.Ops[0].Object.(*v1.Cluster).CheckpointRecipient = "public" // as the manager gives a key
		}
		return change, err
	})
	if granted {
		s.clusters++
		for _, g := range core.GuestsOf(s.store.objects, name) {
			s.intent[g.Meta.Uid] = true
		}
	}
}

func pickOf[T any](m map[string]T, pick int) (o T) {
	names := slices.Sorted(maps.Keys(m))
	if len(names) == 0 {
		return o
	}
	return m[names[pick%len(names)]]
}

func (s *Sim) deleteCluster(pick int) {
	if pick%3 == 0 {
		s.deleteVolume()
	}
	c := pickOf(s.store.objects.Clusters, pick)
	if c == nil || !s.admit(func(a *core.Admission) (core.Change, error) { return a.DeleteCluster(c.Meta.Name) }) {
		return
	}
	for _, g := range core.GuestsOf(s.store.objects, c.Meta.Name) {
		s.intent[g.Meta.Uid] = false
	}
}

// resizeCluster asks for another number of a cluster's guests.
func (s *Sim) resizeCluster(pick int) {
	c := pickOf(s.store.objects.Clusters, pick)
	if c == nil || s.restored && !s.recovered {
		return
	}
	before := map[string]bool{}
	for _, g := range core.GuestsOf(s.store.objects, c.Meta.Name) {
		before[g.Meta.Uid] = true
	}
	granted := s.admit(func(a *core.Admission) (core.Change, error) {
		resized, err := a.ResizeCluster(core.ResizeRequest{Name: c.Meta.Name, Guests: uint32(1 + pick/7%5), UID: s.store.uid()})
		return resized.Change, err
	})
	if !granted {
		return
	}
	for _, g := range core.GuestsOf(s.store.objects, c.Meta.Name) {
		switch {
		case g.Meta.Deleting != nil:
			s.intent[g.Meta.Uid] = false
		case !before[g.Meta.Uid]:
			s.intent[g.Meta.Uid] = true
		}
	}
}

// stop asks for a guest to be stopped, and notes the last epoch that users let run.
func (s *Sim) stop(pick int) {
	g := pickOf(s.store.objects.Guests, pick)
	if g != nil && s.admit(func(a *core.Admission) (core.Change, error) { return a.StopGuest(g.Meta.Name) }) {
		s.stopped[g.Meta.Uid], s.intent[g.Meta.Uid] = g.LastEpoch, false
	}
}

func (s *Sim) startGuest(pick int) {
	g := pickOf(s.store.objects.Guests, pick)
	if g != nil && s.admit(func(a *core.Admission) (core.Change, error) { return a.StartGuest(g.Meta.Name) }) {
		s.intent[g.Meta.Uid] = true
	}
}

// undrain trusts a host, if it was quarantined, and lets it take guests again.
func (s *Sim) undrain(name string) {
	s.admit(func(a *core.Admission) (core.Change, error) { return a.QuarantineHost(name, 0, true) })
	s.admit(func(a *core.Admission) (core.Change, error) { return a.DrainHost(name, false) })
}

// move asks for a guest's move.
func (s *Sim) move(pick int) {
	if g := pickOf(s.store.objects.Guests, pick); g != nil {
		s.admit(func(a *core.Admission) (core.Change, error) {
			move, err := a.MoveGuest(&v1.MigrateRequest{Guest: g.Meta.Name})
			return move.Change, err
		})
	}
}

func (s *Sim) cancel(pick int) {
	active := map[string]*v1.Migration{}
	for name, m := range s.store.objects.Migrations {
		if !migration.Ended(m.State) {
			active[name] = m
		}
	}
	if m := pickOf(active, pick); m != nil {
		s.admit(func(a *core.Admission) (core.Change, error) {
			change, _, err := a.CancelMove(m.Meta.Name)
			return change, err
		})
	}
}

// removeLost removes a host as `watari host remove --lost` does.
func (s *Sim) removeLost(h *host) {
	o := s.store.objects.Hosts[h.name]
	if o == nil || o.Info == nil || len(s.store.objects.Hosts) < 3 || s.store.objects.Held() {
		return
	}
	if s.admit(func(a *core.Admission) (core.Change, error) { return a.RemoveHost(h.name, true) }) {
		delete(s.manager.seen, h.name)
		s.doubt(h)
	}
}

// doubt marks the copies that others have received from a host that is off: nobody will learn whether they have the guests'
// last states.
func (s *Sim) doubt(h *host) {
	for _, name := range s.names {
		for uid, c := range s.hosts[name].copies {
			if r := s.hosts[name].records[uid]; c.state == domain.Paused && r != nil && r.Source == h.name {
				c.doubtful = true
			}
		}
	}
}

// vouchWrongly cuts a host off, and makes a person say that the host is lost although it runs.
func (s *Sim) vouchWrongly(h *host, d time.Duration) {
	if len(s.store.objects.Hosts) < 3 {
		return
	}
	h.cutOff()
	s.after(5*time.Second, func() {
		before := s.store.objects.Hosts[h.name]
		s.removeLost(h)
		if now := s.store.objects.Hosts[h.name]; now == before {
			return
		}
		h.vouched = true
		for _, c := range h.live() {
			s.tainted[c.uid] = true
		}
	})
	s.after(5*time.Second+d, func() {
		h.cut = false
		s.checkEvicted(h, 0)
	})
}

// evictWithin is how long a host that was wrongly removed may run its guests once it has been told. A machine waits for up to
// a minute for the end of a transfer, and tries failed acts again.
const evictWithin = 90 * time.Second

// checkEvicted checks that a removed host has ended its guests.
func (s *Sim) checkEvicted(h *host, since time.Duration) {
	s.after(time.Second, func() {
		busy := !h.up || h.agent == nil || h.libvirt != libvirtUp || !h.evicted || h.full
		running := false
		for _, c := range h.live() {
			running = running || c.state == domain.Running
		}
		switch {
		case !h.vouched || !running && h.evicted:
		case busy:
			s.checkEvicted(h, 0)
		case since > evictWithin:
			s.violate("host %s was told that it was removed, and runs guests %v later", h.name, since)
		default:
			s.checkEvicted(h, since+time.Second)
		}
	})
}
