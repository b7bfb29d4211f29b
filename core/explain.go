package core

// explain.go - explains to people why guests are where they are, and how policies treat hosts.

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "watari/api/watariv1"
	"watari/migration"
	"watari/policy"
)

// Explainer explains the present state.
type Explainer struct {
	*Objects
	Reports Reports
	Signals Signals
	Usage   *Usage // nil: nothing is known
	Now     time.Time
	// Policy is the policy in force, if the caller has read it already.
	Policy *policy.Policy
	// Admin: the explanation names the condition by which an owner is back.
	Admin bool
}

// lines collects the lines of an explanation.
type lines []string

func (l *lines) add(format string, a ...any) { *l = append(*l, fmt.Sprintf(format, a...)) }

// policy returns the policy in force, and says which it is.
func (e *Explainer) policy(l *lines) *policy.Policy {
	stored := InForce(e.Objects)
	if stored == nil {
		l.add("no policy is in force: guests move only if somebody asks")
		return nil
	}
	if e.Policy != nil && e.Policy.Text == stored.Text {
		return e.Policy
	}
	p, err := policy.Parse(stored.Text)
	if err != nil {
		l.add("policy version %d is in force, but this manager cannot read it: %v", stored.Version, err)
		return nil
	}
	return p
}

// Guest explains a guest.
func (e *Explainer) Guest(g *v1.Guest) *v1.ExplainResponse {
	var l lines
	if g.Host == "" {
		l.add("guest %s has no host: %s", g.Meta.Name, orElse(g.Message, "it was not placed yet"))
		return &v1.ExplainResponse{Lines: l}
	}
	l.add("guest %s is on host %s, which was granted it with epoch %d", g.Meta.Name, g.Host, g.Epoch)
	p := e.policy(&l)
	h := e.Hosts[g.Host]
	e.host(&l, h)
	if limits, _ := p.GuestLimits(h, e.Now); limits != nil {
		l.add("until it has left, %s", limited(limits))
	}
	if m := MoveOf(e.Objects, g.Meta.Uid); m != nil {
		l.add("it is moving to host %s: %s (%s)", m.Target, m.Reason, StateName(m.State.String()))
	} else if h.GetDraining() || len(h.GetWithdrawn()) > 0 {
		e.leaving(&l, p, g, h)
	} else {
		l.add("nothing asks it to move")
		e.apportion(&l, g)
		e.rebalance(&l, p, g)
	}
	e.talking(&l, p, g)
	e.relays(&l, g.Host)
	e.past(&l, g)
	return &v1.ExplainResponse{Lines: l, Conditions: e.conditions(p, h)}
}

// leaving says what keeps a guest on a host that it has to leave.
func (e *Explainer) leaving(l *lines, p *policy.Policy, g *v1.Guest, h *v1.Host) {
	if !h.Draining {
		at := lookAt(e.Objects, e.Reports, e.Usage, p, e.Now)
		for _, w := range h.Withdrawn {
			bounds, _ := p.BoundsOf(w.Policy)
			if bounds == nil {
				continue
			}
			why, _ := mustStay(p, w.Policy, bounds, g, e.ended(g), e.Now)
			if why == "" {
				why = at.lately.spent(w.Policy, bounds)
			}
			if why != "" {
				l.add("%s does not move it: %s", w.Policy, why)
				continue
			}
			far := at.farSites(g, w.Policy)
			for _, site := range sortedKeys(far) {
				l.add("%s does not move it to site %s: %s", w.Policy, site, far[site])
			}
		}
	}
	_, explanation, err := PlanMove(e.Objects, e.Reports, g, "", "")
	if err != nil {
		l.add("no host has room for it:")
	} else {
		l.add("these hosts were considered:")
	}
	for _, line := range explanation {
		l.add("  %s", line)
	}
}

// farSites returns the sites to which a policy must not move a guest because of the bytes that its moves have sent there, and why.
func (l *look) farSites(g *v1.Guest, name string) map[string]string {
	far := map[string]string{}
	if why := l.toSite(g, name); why != nil {
		for _, h := range l.Hosts {
			if answer := why(siteOf(h)); answer != "" {
				far[siteOf(h)] = answer
			}
		}
	}
	return far
}

// Stays says why a guest stays on a host that it has to leave.
func (e *Explainer) Stays(g *v1.Guest) string {
	var l, policies lines
	e.leaving(&l, e.policy(&policies), g, e.Hosts[g.Host])
	return strings.Join(l, " ")
}

// ended returns a guest's ended moves, oldest first.
func (e *Explainer) ended(g *v1.Guest) (moves []*v1.Migration) {
	for _, m := range e.Migrations {
		if m.GuestUid == g.Meta.Uid && migration.Ended(m.State) {
			moves = append(moves, m)
		}
	}
	oldestFirst(moves)
	return moves
}

// past lists a guest's last moves, newest first.
func (e *Explainer) past(l *lines, g *v1.Guest) {
	moves := e.ended(g)
	slices.Reverse(moves)
	for _, m := range moves[:min(3, len(moves))] {
		l.add("%s: %s, from %s to %s: %s", m.Ended.AsTime().UTC().Format("2006-01-02 15:04:05 MST"), StateName(m.State.String()), m.Source, m.Target, orElse(m.Reason, "somebody asked"))
	}
}

// Host explains a host.
func (e *Explainer) Host(h *v1.Host) *v1.ExplainResponse {
	var l lines
	p := e.policy(&l)
	e.host(&l, h)
	e.relays(&l, h.GetMeta().GetName())
	if limits, _ := p.GuestLimits(h, e.Now); limits != nil {
		l.add("of its guests, %s", limited(limits))
	}
	if rule, _ := p.Rule(h); p != nil && rule < 0 {
		l.add("no entry of `owners` matches it: it is never its owner's")
	} else if p != nil && p.Harvest == nil {
		l.add("the policy has no `harvest`: guests stay when its owner is back")
	} else if p != nil && e.Signals[h.Meta.Name] == nil {
		l.add("nothing is known of its owner now: its agent sends no samples")
	}
	return &v1.ExplainResponse{Lines: l, Conditions: e.conditions(p, h)}
}

func (e *Explainer) host(l *lines, h *v1.Host) {
	name := h.GetMeta().GetName()
	if h.GetDraining() {
		l.add("host %s is drained: an administrator has asked for that", name)
	}
	for _, w := range h.GetWithdrawn() {
		reason := w.Reason
		if w.Policy == policy.HarvestName && !e.Admin {
			reason = policy.OwnerUses
		}
		l.add("host %s takes no guests since %s, by %s: %s", name, w.Since.AsTime().UTC().Format("2006-01-02 15:04:05 MST"), w.Policy, reason)
	}
	if h != nil && !h.Draining && len(h.Withdrawn) == 0 {
		l.add("host %s takes guests", name)
	}
}

// limited describes limits.
func limited(l *v1.GuestLimits) string {
	text := "vCPUs have all the time that is left"
	if l.CpuPermille > 0 {
		text = fmt.Sprintf("each vCPU has at most %.1f %% of a processor's time", float64(l.CpuPermille)/10)
	}
	if l.CpuWeight > 0 {
		text += fmt.Sprintf(", with weight %d against 100 of each other machine of the host", l.CpuWeight)
	}
	return text
}

// conditions returns the conditions of a host, as they are now.
func (e *Explainer) conditions(p *policy.Policy, h *v1.Host) (list []*v1.PolicyCondition) {
	s := e.Signals[h.GetMeta().GetName()]
	if p == nil || s == nil || s.Rule == nil || s.Text != p.Text {
		return nil
	}
	add := func(c policy.Condition, now policy.Signal, busy bool) {
		made := &v1.PolicyCondition{Expression: c.When.Text, Busy: busy, Holds: !now.Since.IsZero(), Wait: durationpb.New(c.For), Error: now.Error}
		if made.Holds {
			made.Since = timestamppb.New(now.Since)
		}
		list = append(list, made)
	}
	for i, c := range s.Rule.Busy {
		if i < len(s.Busy) {
			add(c, s.Busy[i], true)
		}
	}
	if s.Rule.Idle.When != nil {
		add(s.Rule.Idle, s.Idle, false)
	}
	return list
}

func orElse(text, other string) string {
	if text == "" {
		return other
	}
	return text
}
