package sim

// foresee.go - replays measurements of real hosts, to show what a policy would have done with the present guests.

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"watari/agent/domain"
	"watari/agent/machine"
	v1 "watari/api/watariv1"
	"watari/core"
	"watari/policy"
)

// Past is the input of a replay.
type Past struct {
	// Objects are the present objects: the hosts and guests of the past are not kept.
	Objects *core.Objects
	Policy  *policy.Policy
	// Samples are the hosts' usage in the past, oldest first, by host. Seconds is the length of a step.
	Samples map[string][]*v1.HostSample
	// Guests are the guests' usage in the past, oldest first, by uid.
	Guests       map[string][]*v1.GuestStep
	Since, Until time.Time
	// Traffic is the present traffic, which counts for the whole time; nil: none is known.
	Traffic core.Traffic
	// Go is called now and then; the replay ends early once it returns false.
	Go func() bool
}

// foresight collects what a policy does in a replay.
type foresight struct {
	steps  []*v1.PolicyStep
	stale  time.Duration
	policy *policy.Policy
	goOn   func() bool
	// traffic is the traffic between guests.
	traffic core.Traffic
	ended   bool // because goOn returned false
}

// maxSteps bounds the steps of a replay.

const maxSteps = 10_000

// Foresee replays the past under a policy, with the real core and the real agents' machine. Nothing breaks. The second
// result says what limits the answer.
func Foresee(p Past) (steps []*v1.PolicyStep, notes []string) {
	s := newSim(1, nil)
	s.now, s.coolDown = p.begin(), 0 // the policy in the replay has its own
	s.foresight = &foresight{policy: p.Policy, goOn: p.Go, traffic: p.Traffic}
	s.install(p)
	for _, samples := range p.Samples {
		for _, sample := range samples {
			s.foresight.stale = max(s.foresight.stale, 2*time.Duration(sample.Seconds*float64(time.Second)))
		}
	}
	s.lead()
	notes = append(notes, "what was measured is replayed with the hosts and guests of now")
	if p.Policy.Locality != nil {
		notes = append(notes, "which guests talk to each other is not kept: locality is tested with the traffic of now")
	}
	if len(p.Objects.Volumes) > 0 {
		notes = append(notes, "volumes are left out: they do not move in the test, and a cluster that has one is not suspended")
	}
	if strings.Contains(p.Policy.Text, "host.users") {
		notes = append(notes, "who was logged in is not kept: host.users is empty in the test")
	}
	for _, name := range s.names {
		h := s.hosts[name]
		h.up = true
		h.startAgent()
		if len(p.Samples[name]) == 0 {
			notes = append(notes, fmt.Sprintf("nothing was measured on host %s", name))
		}
		for _, sample := range p.Samples[name] {
			step := time.Duration(sample.Seconds * float64(time.Second))
			// A step's values are known at its end.
			s.at(sample.At.AsTime().Add(step), func() {
				if h.link != nil {
					h.show(h.link, sample, 0)
				}
			})
		}
	}
	for _, uid := range slices.Sorted(maps.Keys(p.Guests)) {
		for _, step := range p.Guests[uid] {
			s.at(step.At.AsTime().Add(time.Duration(step.Seconds*float64(time.Second))), func() {
				s.manager.meters("", &v1.HostSample{Seconds: step.Seconds, Guests: []*v1.GuestSample{step.Sample}})
			})
		}
	}
	if s.foresight.stale > time.Minute {
		notes = append(notes, "of times more than an hour ago only steps of ten minutes are kept, so that these times are rough")
	}
	for s.now.Before(p.Until) && len(s.foresight.steps) < maxSteps {
		if s.foresight.over() {
			notes = append(notes, fmt.Sprintf("the replay took too long, and ended at %s", s.now.UTC().Format("2006-01-02 15:04 MST")))
			break
		}
		s.until(earliest(s.now.Add(time.Minute), p.Until))
	}
	if len(s.foresight.steps) >= maxSteps {
		notes = append(notes, fmt.Sprintf("there is more: only the first %d steps are shown", maxSteps))
	}
	return s.foresight.steps, notes
}

// begin returns when the replay begins: shortly before the first measurement.
func (p Past) begin() time.Time {
	first := p.Until
	for _, samples := range p.Samples {
		if len(samples) > 0 {
			first = earliest(first, samples[0].At.AsTime())
		}
	}
	if first = first.Add(-time.Minute); first.Before(p.Since) {
		return p.Since
	}
	return first
}

func earliest(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// install makes hosts and guests in their present state.
func (s *Sim) install(p Past) {
	o := *p.Objects
	o.Term, o.TermID, o.Leader = 0, "", ""
	o.Migrations, o.Runs, o.Holds, o.Terms = map[string]*v1.Migration{}, map[string]*v1.Run{}, map[string]*v1.Hold{}, map[string]*v1.Term{}
	o.Checkpoints, o.Clusters = map[string]*v1.Checkpoint{}, maps.Clone(o.Clusters) // no host here has their files
	for name, c := range o.Clusters {
		if c.Restore != nil {
			c = proto.CloneOf(c)
			c.Restore = nil
			o.Clusters[name] = c
		}
	}
	o.Policies = map[string]*v1.Policy{"v1": core.NewPolicy(1, p.Policy.Text, "", "")}
	o.Hosts, o.Guests = map[string]*v1.Host{}, maps.Clone(o.Guests)
	for name, h := range p.Objects.Hosts {
		if h.Info == nil || h.Meta.Deleting != nil {
			continue
		}
		h = proto.CloneOf(h)
		h.Withdrawn, h.Relayed = nil, nil
		o.Hosts[name] = h
		made := newHost(s, name)
		made.uid, made.site, made.boot, made.info = h.Meta.Uid, h.Info.Site, h.Info.BootId, h.Info
		s.hosts[name] = made
		s.names = append(s.names, name)
	}
	slices.Sort(s.names)
	for name, g := range p.Objects.Guests {
		at := s.hosts[g.Host]
		if at == nil || g.Stopped || g.BootId != at.boot {
			delete(o.Guests, name) // it does not run, so that no policy moves it
			continue
		}
		at.copies[g.Meta.Uid] = &copyOf{uid: g.Meta.Uid, name: name, epoch: g.Epoch, state: domain.Running, whole: true, since: s.now}
		at.records[g.Meta.Uid] = &machine.Record{UID: g.Meta.Uid, Name: name, Cluster: g.Cluster, Epoch: g.Epoch, Phase: machine.PhaseStarted, BootID: at.boot, Address: g.Address}
	}
	s.store.objects = &o
}

// over reports whether the replay is to end.
func (f *foresight) over() bool {
	f.ended = f.ended || f.goOn != nil && !f.goOn()
	return f.ended
}

// see records what a policy has done by a change.
func (f *foresight) see(s *Sim, before, now *core.Objects) {
	add := func(step *v1.PolicyStep) {
		step.At = timestamppb.New(s.now)
		f.steps = append(f.steps, step)
	}
	for _, name := range s.names {
		was, is := before.Hosts[name], now.Hosts[name]
		if was == is {
			continue
		}
		for _, w := range is.GetWithdrawn() {
			if policy.Withdrawn(was, w.Policy) == nil {
				add(&v1.PolicyStep{Policy: w.Policy, Host: name, Message: fmt.Sprintf("host %s takes no guests: %s", name, w.Reason)})
				s.after(time.Second, func() { f.seeStaying(s, name, w.Policy, add) })
			}
		}
		for _, w := range was.GetWithdrawn() {
			if policy.Withdrawn(is, w.Policy) == nil {
				add(&v1.PolicyStep{Policy: w.Policy, Host: name, Message: fmt.Sprintf("host %s takes guests again", name)})
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(now.Clusters)) {
		was, is := before.Clusters[name].GetRestore(), now.Clusters[name].GetRestore()
		switch {
		case is.GetPolicy() != "" && is.GetId() != was.GetId():
			add(&v1.PolicyStep{Policy: is.Policy, Message: fmt.Sprintf("cluster %s is suspended: %s", name, is.Reason)})
		case is.GetPolicy() != "" && is.State == v1.RestoreState_RESTORE_STATE_DONE && was.GetState() != is.State:
			add(&v1.PolicyStep{Policy: is.Policy, Message: fmt.Sprintf("cluster %s goes on", name)})
		}
	}
	for name, m := range now.Migrations {
		switch was := before.Migrations[name]; {
		case was == nil && m.Policy != "":
			add(&v1.PolicyStep{Policy: m.Policy, Host: m.Source, Guest: m.Guest, Target: m.Target,
				Message: fmt.Sprintf("guest %s moves from %s to %s: %s", m.Guest, m.Source, m.Target, m.Reason)})
		case was != nil && policy.Rebalancing(m.Policy) && was.State != m.State && m.State == v1.MigrationState_MIGRATION_STATE_CANCELLED && !m.Cancel:
			add(&v1.PolicyStep{Policy: m.Policy, Host: m.Source, Guest: m.Guest, Target: m.Target,
				Message: fmt.Sprintf("the move of guest %s to %s is cancelled before it begins: %s", m.Guest, m.Target, m.Message)})
		case was != nil && m.Policy != "" && !was.Cancel && m.Cancel:
			add(&v1.PolicyStep{Policy: m.Policy, Host: m.Source, Guest: m.Guest, Target: m.Target,
				Message: fmt.Sprintf("the move of guest %s to %s is cancelled: %s takes no guests any more (%s)", m.Guest, m.Target, m.Target, policy.Why(now.Hosts[m.Target]))})
		}
	}
}

// seeStaying records the guests that stay on a host which they have to leave.
func (f *foresight) seeStaying(s *Sim, host, policyName string, add func(*v1.PolicyStep)) {
	o := s.store.objects
	for _, name := range slices.Sorted(maps.Keys(o.Guests)) {
		g := o.Guests[name]
		if g.Host != host || core.MoveOf(o, g.Meta.Uid) != nil || policy.Withdrawn(o.Hosts[host], policyName) == nil {
			continue
		}
		e := core.Explainer{Objects: o, Reports: s.manager, Now: s.now, Policy: f.policy, Admin: true}
		add(&v1.PolicyStep{Policy: policyName, Host: host, Guest: name, Message: fmt.Sprintf("guest %s stays on host %s: %s", name, host, e.Stays(g))})
	}
}
