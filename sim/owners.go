package sim

// owners.go - owners who lent out hosts and come back, and the samples in which managers see them.

import (
	"time"

	v1 "watari/api/watariv1"
	"watari/core"
	"watari/policy"
)

// simPolicy is the policy of the seeds that have one. Its times are short, so that much happens in a minute.
const simPolicy = `
owners:
- match: host.lent
  busy:
  - when: host.input_idle < duration("2s")
  - when: host.owner_cpu > 1.0
    for: 3s
  idle:
    when: host.input_idle > duration("4s") && host.owner_cpu < 0.5
    for: 3s
harvest:
  throttle: {weight: 1, cpu: 20%, stop_after: 3s}
  suspend_after: 4s
locality: {interval: 5s, cool_down: 10s, horizon: 5m}
`

// hasPolicy tells whether a seed has a policy.
func hasPolicy(seed uint64) bool { return seed%3 != 0 }

// signals is a manager's knowledge of owners.
type signals struct {
	watcher *policy.Watcher
	reader  core.PolicyReader
}

// sample sends a sample of the host to its manager every second, while its agent is connected.
func (h *host) sample(c *connection) {
	if h.sim.foresight != nil {
		return
	}
	h.sim.after(time.Second, func() {
		if c.broken || h.link != c || h.agent == nil {
			return
		}
		h.showOwner(c)
		h.sample(c)
	})
}

// showOwner sends the owner's present activity to the manager.
func (h *host) showOwner(c *connection) {
	s := h.sim
	sample := &v1.HostSample{Seconds: 1, Owner: &v1.OwnerActivity{}}
	idle := max(0, s.now.Sub(h.owner).Seconds()) // since the last key
	sample.Owner.InputIdle = &idle
	if idle == 0 {
		sample.CpuOwner = 2
	}
	h.use(sample)
	h.talk(sample)
	h.show(c, sample, s.latency(2*time.Millisecond))
}

// show sends a sample to the manager after a delay.
func (h *host) show(c *connection, sample *v1.HostSample, later time.Duration) {
	h.sim.after(later, func() {
		m := c.manager
		stored := m.objects().Hosts[h.name]
		if c.broken || m.dead || stored == nil {
			return
		}
		core.Talked(m.objects(), h.name, sample, func(from, to string, bytes uint64) { m.matrix.Add(from, to, bytes, m.now()) })
		m.meters(h.name, sample)
		if m.signals.watcher.See(m.signals.reader.Read(m.objects()), stored, sample, m.now()) {
			m.poke()
		}
	})
}

// comeBack makes the owner of a host use it for a while.
func (h *host) comeBack(d time.Duration) {
	h.owner = h.sim.now.Add(d)
	if h.link != nil && h.agent != nil {
		h.showOwner(h.link)
	}
}

// allComeBack makes the owners of all hosts use them at the same time. It lasts long enough for clusters to be suspended.
func (s *Sim) allComeBack(d time.Duration) {
	for _, name := range s.names {
		s.hosts[name].comeBack(10*time.Second + d)
	}
}

// wrongPolicies are policy texts with errors.
var wrongPolicies = []string{
	"harvest: {suspend_after: soon}\n",
	"harvest: [\n",
	"harvester: {}\n",
	"balance: {}\npack: {}\n",
	"owners:\n- match: host.lent &&\n  busy:\n  - when: host.owner_cpu > 1.0\n  idle: {when: host.owner_cpu < 1.0}\n",
	"maintenance: {windows: [{match: 'true', begin: 2030-01-01 00:00, end: 2029-01-01 00:00}]}\n",
}

// applyWrongPolicy asks for a policy with an error. It is refused, and the policy in force stays.
func (s *Sim) applyWrongPolicy(pick int) {
	text, before := wrongPolicies[pick%len(wrongPolicies)], core.InForce(s.store.objects)
	granted := s.admit(func(a *core.Admission) (core.Change, error) { return a.ApplyPolicy(&v1.ApplyPolicyRequest{Text: text}) })
	if granted || core.InForce(s.store.objects) != before {
		s.violate("a policy with an error is in force: %q", text)
	}
}

// noteWithdrawals notes which hosts a change withdraws because of their owners.
func (s *Sim) noteWithdrawals(before, now *core.Objects) {
	for name, h := range now.Hosts {
		if was := before.Hosts[name]; was != h && policy.Withdrawn(h, policy.HarvestName) != nil && policy.Withdrawn(was, policy.HarvestName) == nil {
			s.withdrawnAt[name] = s.now
		}
	}
}

// checkMove checks a move that a policy asks for, and again when a waiting move begins. Unless the move rebalances guests,
// guests have to leave its source. When the move was asked for, its target took guests.
func (s *Sim) checkMove(now *core.Objects, was, m *v1.Migration) {
	if was != nil && was.State != m.State && m.State == v1.MigrationState_MIGRATION_STATE_DONE {
		s.lastTarget = m.Target
	}
	begins := was != nil && was.State != m.State && m.State == v1.MigrationState_MIGRATION_STATE_RESERVING
	if m.Policy == "" || was != nil && !begins {
		return
	}
	switch {
	case m.Policy == policy.ApportionName:
		if was == nil {
			s.checkApportioned(now, m)
		}
	case policy.CanStay(m.Policy):
		if was == nil {
			s.checkRebalanced(now, m)
		}
	case policy.Withdrawn(now.Hosts[m.Source], m.Policy) == nil:
		s.violate("move %s of policy %s begins, though host %s is not withdrawn", m.Meta.Name, m.Policy, m.Source)
	}
	if h := now.Hosts[m.Target]; was == nil && len(h.GetWithdrawn()) > 0 || was == nil && h.GetDraining() {
		s.violate("move %s of policy %s goes to host %s, which takes no guests", m.Meta.Name, m.Policy, m.Target)
	}
}

// checkLimits checks the orders about guests: a guest is slowed down if and only if its host's owner is back.
func (s *Sim) checkLimits(o *core.Objects, host string, w *v1.HostWanted) {
	withdrawn := policy.Withdrawn(o.Hosts[host], policy.HarvestName) != nil && core.InForce(o) != nil
	for _, g := range w.Guests {
		here := g.Role == v1.GuestRole_GUEST_ROLE_RUN || g.Role == v1.GuestRole_GUEST_ROLE_OUTGOING
		if here && withdrawn != (g.Limits != nil) {
			s.violate("host %s is ordered to run guest %s with limits %v, and is withdrawn by harvest: %v", host, g.Name, g.Limits, withdrawn)
		}
	}
}
