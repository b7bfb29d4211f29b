package sim

// plan.go - what users ask for, and what breaks, and when.

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"watari/agent/domain"
	v1 "watari/api/watariv1"
	"watari/core"
	"watari/migration"
)

// Step is one thing that happens. Numbers choose among what there is then, so that a step has a meaning in each plan.
type Step struct {
	At    time.Duration
	Kind  string
	On    string // a host, or empty
	Other string
	Pick  int // which guest or cluster
	For   time.Duration
}

// kinds are what may happen, and how likely that is.
var kinds = []struct {
	kind   string
	weight int
}{
	{"create", 8}, {"delete", 3}, {"stop", 3}, {"start", 4}, {"move", 16}, {"cancel", 4}, {"drain", 3}, {"undrain", 3},
	{"kill agent", 10}, {"lose power", 6}, {"cut from managers", 6}, {"cut from host", 5}, {"kill manager", 5}, {"old manager", 3},
	{"libvirt down", 4}, {"libvirt hangs", 5}, {"fill disk", 4}, {"kill guest", 4}, {"hide guest", 2}, {"unreadable record", 3},
	{"clock jumps", 3}, {"manager's clock jumps", 2}, {"remove lost", 2}, {"vouch wrongly", 2}, {"boot id changes", 2}, {"back up", 2}, {"put back", 2},
}

// away are the kinds by which a host cannot be reached.
var away = []string{"kill agent", "lose power", "cut from managers", "kill manager", "old manager", "unreadable record", "boot id changes", "remove lost",
	"vouch wrongly"}

// ballast is how many vital writes a full disk takes.
const ballast = 3

// planOf makes the plan of a seed.
func planOf(seed uint64) []Step {
	rng := rand.New(rand.NewPCG(seed, 3))
	hosts := 2 + rand.New(rand.NewPCG(seed, 2)).IntN(4)
	host := func() string {
		i := rng.IntN(hosts)
		return fmt.Sprintf("%c%d", 'a'+i%2, 1+i/2)
	}
	// Each seed leaves some kinds out, so that those that are left meet more often.
	chosen := kinds[:0:0]
	total := 0
	for _, k := range kinds {
		if k.kind == "create" || k.kind == "move" || rng.IntN(2) == 0 {
			chosen = append(chosen, k)
			total += k.weight
		}
	}
	plan := []Step{{At: 100 * time.Millisecond, Kind: "create", Pick: rng.IntN(1000)}}
	for range 8 + rng.IntN(32) {
		n, kind := rng.IntN(total), ""
		for _, k := range chosen {
			if n -= k.weight; n < 0 {
				kind = k.kind
				break
			}
		}
		plan = append(plan, Step{At: time.Duration(rng.Int64N(int64(chaosFor))), Kind: kind, On: host(), Other: host(), Pick: rng.IntN(1000),
			For: time.Duration(rng.Int64N(int64(20 * time.Second)))})
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
	switch step.Kind {
	case "create":
		s.createCluster(step.Pick)
	case "delete":
		s.changeCluster(step.Pick, func(c *v1.Cluster) {
			c.Meta.Deleting = timestamppb.New(s.now)
			for _, g := range core.GuestsOf(s.store.objects, c.Meta.Name) {
				s.intent[g.Meta.Uid] = false
			}
		})
	case "stop":
		s.changeGuest(step.Pick, func(g *v1.Guest) { g.Stopped, s.stopped[g.Meta.Uid], s.intent[g.Meta.Uid] = true, g.LastEpoch, false })
	case "start":
		s.changeGuest(step.Pick, func(g *v1.Guest) { g.Stopped, g.Failure, g.Restarts, s.intent[g.Meta.Uid] = false, "", 0, true })
	case "move":
		s.move(step.Pick)
	case "cancel":
		s.cancel(step.Pick)
	case "drain":
		s.changeHost(step.On, func(o *v1.Host) { o.Draining = true })
	case "undrain":
		s.undrain(step.On)
	case "kill agent":
		h.killAgent()
		later(h.startAgent)
	case "lose power":
		h.crash()
		later(h.power)
	case "cut from managers":
		h.cut = true
		if h.link != nil {
			h.link.cut("the line is cut")
		}
		later(func() { h.cut = false })
	case "cut from host":
		if step.On != step.Other {
			key := step.On + " " + step.Other
			s.partitions[key] = true
			for _, t := range append([]*transfer(nil), s.transfers...) {
				if s.apart(t.source, t.target) {
					s.after(s.between(0, 5*time.Second), func() { s.breakOff(t, "the line is cut") })
				}
			}
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
		s.manager.offset += time.Duration(step.Pick-500) * 100 * time.Millisecond
	case "boot id changes": // as an agent reads it; the host goes on
		if h.up && !h.makes() {
			h.killAgent()
			h.newBoot()
			s.after(time.Second, h.startAgent)
		}
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

// outlive has another manager lead, while the present one has not noticed for a time: it answers agents, and gives orders by
// what it has seen last.
func (s *Sim) outlive(d time.Duration) {
	if s.manager.dead || s.zombie != nil && !s.zombie.dead {
		return
	}
	old := s.manager
	old.stale = s.store.objects
	s.zombie = old
	s.tell(old.name, "does not notice that it leads no more")
	s.lead()
	// Agents come to the one and to the other.
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

// createCluster makes a cluster of a few guests.
func (s *Sim) createCluster(pick int) {
	s.clusters++
	name := fmt.Sprintf("c%d", s.clusters)
	shape := &v1.GuestShape{Vcpus: 1, MemoryBytes: uint64(256+256*(pick%3)) << 20}
	spec := &v1.ClusterSpec{Guests: uint32(1 + pick%4), Shape: shape, Spread: v1.Spread(pick % 3), Image: "img"}
	if s.clusters > 3 {
		return
	}
	uid := s.store.uid()
	change := create(&v1.Cluster{Meta: &v1.Meta{Name: name, Uid: uid}, ImageDigest: "sha256:img", Spec: spec, Prefix: fmt.Sprintf("10.77.%d.0/24", s.clusters), Mtu: 1420})
	for i := range int(spec.Guests) {
		change.Ops = append(change.Ops, core.Op{Kind: core.Create, Object: &v1.Guest{Meta: &v1.Meta{Name: fmt.Sprintf("%s-%d", name, i),
			Uid: core.GuestUID(uid, uint32(i))}, Cluster: name, ImageDigest: "sha256:img", Index: uint32(i), Shape: shape, Address: fmt.Sprintf("10.77.%d.%d", s.clusters, 10+i)}})
	}
	s.commit(0, change)
	for i := range spec.Guests {
		s.intent[core.GuestUID(uid, i)] = true
	}
	s.wake()
}

func pickOf[T any](m map[string]T, pick int) (o T) {
	names := slices.Sorted(maps.Keys(m))
	if len(names) == 0 {
		return o
	}
	return m[names[pick%len(names)]]
}

func (s *Sim) update(o core.Object) {
	s.commit(0, core.Change{Ops: []core.Op{{Kind: core.Update, Object: o}}})
	s.wake()
}

func (s *Sim) changeCluster(pick int, change func(*v1.Cluster)) {
	if c := pickOf(s.store.objects.Clusters, pick); c != nil {
		c = proto.CloneOf(c)
		change(c)
		s.update(c)
	}
}

func (s *Sim) changeGuest(pick int, change func(*v1.Guest)) {
	g := pickOf(s.store.objects.Guests, pick)
	if g == nil {
		return
	}
	if c := s.store.objects.Clusters[g.Cluster]; c == nil || c.Meta.Deleting != nil {
		return
	}
	g = proto.CloneOf(g)
	change(g)
	s.update(g)
}

func (s *Sim) changeHost(name string, change func(*v1.Host)) {
	if h := s.store.objects.Hosts[name]; h != nil && h.Meta.Deleting == nil {
		h = proto.CloneOf(h)
		change(h)
		s.update(h)
	}
}

func (s *Sim) undrain(name string) { s.changeHost(name, func(o *v1.Host) { o.Draining = false }) }

// move asks for a guest's move, as the API does.
func (s *Sim) move(pick int) {
	o := s.store.objects
	g := pickOf(o.Guests, pick)
	if g == nil || g.Stopped || o.Clusters[g.Cluster] == nil || o.Clusters[g.Cluster].Meta.Deleting != nil || core.ActiveMoves(o)[g.Meta.Uid] != nil {
		return
	}
	m, _, err := core.PlanMove(o, s.manager, g, "", "")
	if err != nil {
		return
	}
	s.commit(0, create(m))
	s.wake()
}

func (s *Sim) cancel(pick int) {
	active := map[string]*v1.Migration{}
	for name, m := range s.store.objects.Migrations {
		if !migration.Ended(m.State) {
			active[name] = m
		}
	}
	if m := pickOf(active, pick); m != nil {
		m = proto.CloneOf(m)
		m.Cancel = true
		s.update(m)
	}
}

// removeLost removes a host as `watari host remove --lost` does.
func (s *Sim) removeLost(h *host) {
	o := s.store.objects.Hosts[h.name]
	if o == nil || o.Info == nil || len(s.store.objects.Hosts) < 3 || s.manager.seen[h.name].Connected {
		return
	}
	s.tell("admin", "removes %s as lost", h.name)
	o = proto.CloneOf(o)
	o.Draining, o.Meta.Deleting, o.FencedBootId = true, timestamppb.New(s.now), o.Info.BootId
	s.remember(o)
	delete(s.manager.seen, h.name)
	s.update(o)
}

// vouchWrongly cuts a host off and has a person say that it is lost though it runs.
func (s *Sim) vouchWrongly(h *host, d time.Duration) {
	if len(s.store.objects.Hosts) < 3 {
		return
	}
	h.cut = true
	if h.link != nil {
		h.link.cut("the line is cut")
	}
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

// evictWithin is how long a host that was removed wrongly may run its guests once it has been told.
const evictWithin = 30 * time.Second

// checkEvicted looks whether a host that was removed has ended its guests.
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

// depends tells whether guests have, or are about to have, their grant on a host.
func depends(o *core.Objects, host string) bool {
	for _, g := range o.Guests {
		if g.Host == host {
			return true
		}
	}
	for _, m := range o.Migrations {
		if m.Target == host && !migration.Ended(m.State) {
			return true
		}
	}
	return false
}
