package core

// policies.go - keeps guests from hosts as the policy in force says, and bounds the moves that policies ask for.

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "watari/api/watariv1"
	"watari/migration"
	"watari/policy"
)

// Signals are the present signals of hosts, by host. Signals of a policy that is not in force are ignored.
type Signals map[string]*policy.Signals

// InForce returns the stored policy that is in force; nil: there is none.
func InForce(s *Objects) (latest *v1.Policy) {
	for _, stored := range s.Policies {
		if stored.Version > latest.GetVersion() {
			latest = stored
		}
	}
	return latest
}

// PolicyReader reads the policy in force, once for each version.
type PolicyReader struct {
	stored *v1.Policy
	policy *policy.Policy
}

// Read returns the policy in force; nil: there is none, or this version cannot read it.
func (r *PolicyReader) Read(s *Objects) *policy.Policy {
	if stored := InForce(s); stored != r.stored {
		r.stored, r.policy = stored, nil
		if stored != nil {
			r.policy, _ = policy.Parse(stored.Text) // Core notes an error
		}
	}
	return r.policy
}

// policyMemory is what a Core remembers for policies.
type policyMemory struct {
	stored  *v1.Policy     // in force
	policy  *policy.Policy // the same; nil: there is none, or it cannot be read
	matches map[string]hostMatch
	// concerned are the hosts that the policy matches, and the withdrawn hosts, sorted.
	concerned []string
	// usage is the usage by which guests were last rebalanced.
	usage *Usage
	// lapsed are the waiting moves of policies that rebalance, if they no longer gain anything, by uid.
	lapsed map[string]bool
	kept   keptMemory
}

// hostMatch says which entries of the policy match a host. Expressions are evaluated again only if the host has changed.
type hostMatch struct {
	host    *v1.Host
	owned   bool
	alone   string // see policy.Alone
	windows []policy.MaintenanceWindow
}

func (m policyMemory) clone() policyMemory {
	m.matches, m.lapsed = maps.Clone(m.matches), maps.Clone(m.lapsed)
	m.kept = m.kept.clone()
	return m
}

// inForce finds the policy in force. A policy that this version cannot read withdraws no host.
func (p *pass) inForce() {
	stored := InForce(p.Objects)
	memory := &p.Core.policies
	if stored == memory.stored && memory.matches != nil {
		return
	}
	*memory = policyMemory{stored: stored, matches: map[string]hostMatch{}, kept: memory.kept}
	p.index.everything = true
	if stored == nil {
		return
	}
	var err error
	if memory.policy, err = policy.Parse(stored.Text); err != nil {
		p.notes = append(p.notes, fmt.Sprintf("policy version %d cannot be read, so that no policy is in force: %v", stored.Version, err))
	}
}

// match returns the entries of the policy that match a host.
func (p *pass) match(h *v1.Host) hostMatch {
	memory := &p.Core.policies
	m, known := memory.matches[h.Meta.Name]
	if known && m.host == h {
		return m
	}
	m = hostMatch{host: h}
	_, rule := memory.policy.Rule(h)
	m.owned, m.alone = rule.HasOwner(), memory.policy.Alone(h)
	if maintenance := memory.policy.GetMaintenance(); maintenance != nil {
		m.windows = maintenance.For(h)
	}
	memory.matches[h.Meta.Name] = m
	return m
}

// concerned returns the hosts that policies concern now, or that were cut off, sorted.
func (p *pass) concerned() []string {
	memory := &p.Core.policies
	if !p.index.hostChanged && memory.concerned != nil {
		return memory.concerned
	}
	p.index.hostChanged, memory.concerned = false, []string{}
	maps.DeleteFunc(memory.matches, func(host string, _ hostMatch) bool { return p.Hosts[host] == nil })
	for name, h := range p.Hosts {
		if m := p.match(h); m.owned || len(m.windows) > 0 || len(h.Withdrawn) > 0 || cutOff(h) != nil {
			memory.concerned = append(memory.concerned, name)
		}
	}
	slices.Sort(memory.concerned)
	return memory.concerned
}

// withdraw begins and ends the withdrawals of hosts by policies.
func (p *pass) withdraw() {
	for _, name := range p.concerned() {
		h := p.Hosts[name]
		if h.Meta.Deleting != nil || p.changed(h) {
			continue
		}
		if p.full() {
			return
		}
		owner, maintained := p.owner(h), p.maintained(h)
		if !differs(h, policy.HarvestName, owner) && !differs(h, policy.MaintenanceName, maintained) {
			continue
		}
		update := proto.CloneOf(h)
		update.Withdrawn = nil
		var c Change
		for _, w := range []*v1.Withdrawal{owner, maintained} {
			if w != nil {
				update.Withdrawn = append(update.Withdrawn, w)
			}
		}
		withdrawalEvents(&c, h, update)
		c.write(Update, update)
		p.propose("host/"+name, c)
	}
}

// differs reports whether a host's withdrawal by a policy begins, ends, or gets another beginning.
func differs(h *v1.Host, name string, wanted *v1.Withdrawal) bool {
	return !proto.Equal(policy.Withdrawn(h, name), wanted)
}

func withdrawalEvents(c *Change, before, now *v1.Host) {
	for _, w := range now.Withdrawn {
		if policy.Withdrawn(before, w.Policy) != nil {
			continue
		}
		c.event(v1.Severity_SEVERITY_INFO, "host", now.Meta.Name, "%s (%s): its guests are moved away, and no guest is placed there", withdrawnFor(w.Policy), w.Reason)
	}
	for _, w := range before.Withdrawn {
		if policy.Withdrawn(now, w.Policy) == nil {
			c.event(v1.Severity_SEVERITY_INFO, "host", now.Meta.Name, "policy %s allows guests again", w.Policy)
		}
	}
}

// withdrawnFor says of a host why a policy has withdrawn it.
func withdrawnFor(name string) string {
	if name == policy.MaintenanceName {
		return "it is maintained"
	}
	return "its owner is back"
}

// leastWithdrawal is the least time for which a host is withdrawn because of its owner.
const leastWithdrawal = 10 * time.Second

// owner returns the withdrawal of a host because of its owner; nil: there is none.
func (p *pass) owner(h *v1.Host) *v1.Withdrawal {
	memory := &p.Core.policies
	if memory.policy == nil || memory.policy.Harvest == nil || !p.match(h).owned {
		return nil
	}
	before := policy.Withdrawn(h, policy.HarvestName)
	signals := p.Signals[h.Meta.Name]
	if signals == nil || signals.Text != memory.stored.Text {
		return before // nothing is known of it now
	}
	back, reason, again := signals.Owner(before != nil, p.Now)
	if !again.IsZero() {
		p.again = earlier(p.again, again)
	}
	if !back && before != nil {
		// An owner who comes and goes must not fill the store.
		if until := before.Since.AsTime().Add(leastWithdrawal); p.Now.Before(until) && until.Sub(p.Now) <= leastWithdrawal {
			p.again = earlier(p.again, until)
			return before
		}
	}
	switch {
	case !back:
		return nil
	case before != nil && !before.Since.AsTime().After(p.Now):
		return before
	case before != nil: // the clock was set back; pauses and suspensions are counted from the beginning
		return &v1.Withdrawal{Policy: policy.HarvestName, Since: timestamppb.New(p.Now), Reason: before.Reason}
	}
	return &v1.Withdrawal{Policy: policy.HarvestName, Since: timestamppb.New(p.Now), Reason: reason}
}

// maintained returns the withdrawal of a host because of a maintenance window; nil: there is none.
func (p *pass) maintained(h *v1.Host) *v1.Withdrawal {
	for _, w := range p.match(h).windows {
		if _, _, found := w.Around(p.Now, w.Lead); found {
			if before := policy.Withdrawn(h, policy.MaintenanceName); before != nil {
				return before
			}
			return &v1.Withdrawal{Policy: policy.MaintenanceName, Since: timestamppb.New(p.Now), Reason: w.String()}
		}
	}
	return nil
}

// limits returns the limits of the guests on a host.
func (p *pass) limits(host string) *v1.GuestLimits {
	limits, again := p.Core.policies.policy.GuestLimits(p.Hosts[host], p.Now)
	p.orderAgain(host, again)
	return limits
}

// orderAgain has a host's orders made again at a time; zero: that is not necessary.
func (p *pass) orderAgain(host string, at time.Time) {
	if before, has := p.dueHost[host]; !at.IsZero() && (!has || at.Before(before)) {
		p.dueHost[host] = at
	}
}

// cause is why a guest is moved, and how fast.
type cause struct {
	policy    string // empty: a drain
	reason    string
	bandwidth uint64 // bytes per second; 0: no limit
}

// causesToLeave returns why a guest has to leave its host, the most important cause first. Policies that must not move it now
// are no cause.
func (p *pass) causesToLeave(g *v1.Guest, h *v1.Host) (causes []cause) {
	if h.Draining {
		return []cause{{reason: "host " + g.Host + " is drained"}}
	}
	for _, w := range h.Withdrawn {
		bounds, why := p.Core.policies.policy.BoundsOf(w.Policy)
		if bounds == nil || p.forbidden(g, w.Policy, bounds) {
			continue
		}
		causes = append(causes, cause{policy: w.Policy, reason: fmt.Sprintf(why, g.Host), bandwidth: bounds.Bandwidth})
	}
	return causes
}

// forbidden reports whether a policy must not move a guest now, wherever it would go.
func (p *pass) forbidden(g *v1.Guest, name string, bounds *policy.Bounds) bool {
	why, until := mustStay(p.Core.policies.policy, name, bounds, g, p.index.ended[g.Meta.Uid], p.Now)
	if !until.IsZero() {
		p.again = earlier(p.again, until)
	}
	return why != "" || p.usedLately().spent(name, bounds) != ""
}

// lapsed says why a policy's move that waits for its turn must not begin any more; empty: it may.
func (p *pass) lapsed(m *v1.Migration, g *v1.Guest) string {
	if m.Policy == "" {
		return ""
	}
	bounds := p.boundsOf(m.Policy)
	reason := policy.Withdrawn(p.Hosts[m.Source], m.Policy) != nil
	switch {
	case m.Policy == policy.ApportionName:
		reason = !p.Hosts[m.Target].GetDraining()
	case policy.CanStay(m.Policy):
		reason = !p.Core.policies.lapsed[m.Meta.Uid] && !p.Hosts[m.Target].GetDraining()
	}
	if bounds == nil || !reason {
		return "its reason has ended"
	}
	if m.Policy == policy.LocalityName {
		if why := p.noLongerPays(m, g); why != "" {
			return why
		}
	}
	why, _ := mustStay(p.Core.policies.policy, m.Policy, bounds, g, p.index.ended[g.Meta.Uid], p.Now)
	return why
}

// mustStay says why a policy with these bounds must not move a guest now, apart from MovesPerHour and PerLink; empty: it may.
// ended are the guest's ended moves. For a policy that makes guests leave hosts, only moves by such policies count: a guest
// that was moved for another reason must not stay on a host whose owner is back. until is when the reason ends, if that is
// known.
func mustStay(whole *policy.Policy, name string, bounds *policy.Bounds, g *v1.Guest, ended []*v1.Migration, now time.Time) (why string, until time.Time) {
	if whole != nil && whole.Exempt.Has(g) || bounds.Exempt.Has(g) {
		return "the policy exempts it", time.Time{}
	}
	for _, w := range bounds.QuietHours {
		if w.Has(now) {
			return "these are quiet hours: " + w.String(), time.Time{}
		}
	}
	for _, m := range ended {
		if m.Policy == "" || m.State != v1.MigrationState_MIGRATION_STATE_DONE || policy.CanStay(m.Policy) && !policy.CanStay(name) {
			continue
		}
		age := now.Sub(m.Ended.AsTime()) // negative: the clock was set back
		if end := m.Ended.AsTime().Add(bounds.CoolDown); age >= 0 && now.Before(end) && end.After(until) {
			until = end
		}
	}
	if !until.IsZero() {
		return "a policy has moved it lately, and it cools down until " + until.UTC().Format("15:04:05 MST"), until
	}
	return "", until
}

// cancelArrivals cancels moves to hosts that policies have withdrawn, or that were cut off, meanwhile. It cancels moves that
// have not begun to transfer memory and, if the host's owner is back or the host was cut off, all moves that have not passed on
// the grant.
func (p *pass) cancelArrivals() {
	for _, host := range p.concerned() {
		h := p.Hosts[host]
		cut, why := cutOff(h) != nil, "it was cut off"
		switch {
		case cut:
		case len(h.GetWithdrawn()) > 0:
			why = policy.Why(h)
		default:
			continue
		}
		all := cut || policy.Withdrawn(h, policy.HarvestName) != nil
		arriving := slices.Collect(maps.Keys(p.index.movesAt[host]))
		oldestFirst(arriving)
		for _, m := range arriving {
			if p.full() {
				return
			}
			if m.Target != host || m.Cancel || passing(m.State) || p.changed(m) || migration.Ended(m.State) {
				continue
			}
			early := m.State == v1.MigrationState_MIGRATION_STATE_PENDING || m.State == v1.MigrationState_MIGRATION_STATE_RESERVING
			if !early && !all {
				continue
			}
			update := proto.CloneOf(m)
			update.Cancel = true
			var c Change
			c.write(Update, update)
			c.event(v1.Severity_SEVERITY_INFO, "guest", m.Guest, "its move from %s to %s is cancelled: %s takes no guests any more (%s)", m.Source, m.Target, m.Target, why)
			p.propose("migration/"+m.Meta.Name, c)
		}
	}
}
