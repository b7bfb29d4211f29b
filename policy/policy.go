// Package policy decides which hosts guests have to leave without a person's request, and how. It reads the policy file, and
// evaluates its conditions on hosts' samples. It is pure: text, samples and times go in, decisions come out.
package policy

import (
	"cmp"
	_ "embed"
	"fmt"
	"path"
	"slices"
	"time"

	v1 "watari/api/watariv1"
)

// Default is the text of the policy that new installations have.
//
//go:embed default.yaml
var Default string

// The policies, as Withdrawal.policy and Migration.policy name them.
const (
	HarvestName     = "harvest"
	MaintenanceName = "maintenance"
	BalanceName     = "balance"
	PackName        = "pack"
	SpreadName      = "spread"
	LocalityName    = "locality"
	// ApportionName is the policy of moves that keep the guests of abstract clusters in proportion to the hosts' speeds. It
	// is not part of the policy file: a user asks for it by making an abstract cluster.
	ApportionName = "apportion"
)

// Policy is a policy file that was read and checked. It never changes.
type Policy struct {
	Text        string
	Owners      []*OwnerRule
	Harvest     *Harvest     // nil: it is off
	Maintenance *Maintenance // nil: it is off
	Balance     *Balance     // nil: it is off, like the next ones
	Pack        *Pack
	Spread      *Spread
	Locality    *Locality
	Exempt      Exempt
}

// OwnerRule says how the presence of an owner shows on the hosts that the rule matches. The first rule that matches a host
// applies.
type OwnerRule struct {
	Match *Expression
	Busy  []Condition // the owner is back if one of them holds
	Idle  Condition   // the owner is away
}

// HasOwner reports whether hosts of the rule can have an owner. A rule without conditions exempts its hosts from later
// rules.
func (r *OwnerRule) HasOwner() bool { return r != nil && len(r.Busy) > 0 }

// Condition is an expression that counts once it has held for a time without interruption.
type Condition struct {
	When *Expression
	For  time.Duration
}

// Harvest moves guests away from hosts whose owner is back.
type Harvest struct {
	Bounds
	Throttle Throttle
	// SuspendAfter is how long guests may stay without a place elsewhere before their cluster is suspended: it waits in a
	// checkpoint until there is room. Negative: never.
	SuspendAfter time.Duration
}

// Throttle bounds the guests that are still on a host whose owner is back.
type Throttle struct {
	Weight    uint32        // against 100 of each other machine of the host; 0: as usual
	Permille  uint32        // of each virtual CPU's time; 0: no limit
	StopAfter time.Duration // then guests are stopped; negative: never
}

// Maintenance empties hosts before and during windows.
type Maintenance struct {
	Bounds
	Windows []MaintenanceWindow
}

// MaintenanceWindow is a time in which the hosts that it matches must have no guests.
type MaintenanceWindow struct {
	Match *Expression
	Lead  time.Duration // how long before the window guests begin to leave
	Window
}

// Bounds bound the moves of a policy.
type Bounds struct {
	CoolDown     time.Duration // least time between two moves of one guest by policies; 0: none
	MovesPerHour int           // of all guests together; 0: no bound
	Bandwidth    uint64        // of a move, bytes per second; 0: no bound
	PerLink      uint64        // bytes that all moves together send between two sites within an hour; 0: no bound
	QuietHours   []Window      // without moves
	Exempt       Exempt
}

// Exempt names the guests that policies never move.
type Exempt struct {
	Clusters []string // patterns of path.Match
	Guests   []string
}

// Has reports whether a guest must not be moved.
func (e Exempt) Has(g *v1.Guest) bool {
	matches := func(name string) func(string) bool {
		return func(pattern string) bool {
			is, err := path.Match(pattern, name)
			return err == nil && is
		}
	}
	return slices.ContainsFunc(e.Clusters, matches(g.Cluster)) || slices.ContainsFunc(e.Guests, matches(g.Meta.Name))
}

// Rule returns the index of the rule of a host, and the rule; -1: no rule matches it.
func (p *Policy) Rule(h *v1.Host) (int, *OwnerRule) {
	if p == nil {
		return -1, nil
	}
	for i, r := range p.Owners {
		if ok, err := r.Match.True(hostVariables(h)); err == nil && ok {
			return i, r
		}
	}
	return -1, nil
}

// GetMaintenance returns the maintenance policy; nil: it is off.
func (p *Policy) GetMaintenance() *Maintenance {
	if p == nil {
		return nil
	}
	return p.Maintenance
}

// For returns the windows that match a host.
func (m *Maintenance) For(h *v1.Host) (windows []MaintenanceWindow) {
	for _, w := range m.Windows {
		if ok, err := w.Match.True(hostVariables(h)); err == nil && ok {
			windows = append(windows, w)
		}
	}
	return windows
}

// Apportion has the bounds of moves that keep guests in proportion to the hosts' speeds.
var Apportion = &Bounds{CoolDown: 5 * time.Minute}

// BoundsOf returns the bounds of a policy, and why it makes guests leave a host, with %s for the host; nil: it is off.
func (p *Policy) BoundsOf(name string) (bounds *Bounds, why string) {
	switch {
	case name == ApportionName:
		return Apportion, ""
	case p == nil:
	case name == HarvestName && p.Harvest != nil:
		return &p.Harvest.Bounds, "the owner of host %s is back"
	case name == MaintenanceName && p.Maintenance != nil:
		return &p.Maintenance.Bounds, "host %s is maintained"
	case name == BalanceName && p.Balance != nil:
		return &p.Balance.Bounds, ""
	case name == PackName && p.Pack != nil:
		return &p.Pack.Bounds, ""
	case name == SpreadName && p.Spread != nil:
		return &p.Spread.Bounds, ""
	case name == LocalityName && p.Locality != nil:
		return &p.Locality.Bounds, ""
	}
	return nil, ""
}

// Withdrawn returns the withdrawal of a host by a policy; nil: there is none.
func Withdrawn(h *v1.Host, policy string) *v1.Withdrawal {
	for _, w := range h.GetWithdrawn() {
		if w.Policy == policy {
			return w
		}
	}
	return nil
}

// OwnerUses is what users are told about a host that is withdrawn because of its owner.
const OwnerUses = "its owner uses it"

// Why says why policies keep guests from a host; empty: they do not.
func Why(h *v1.Host) string {
	switch w := h.GetWithdrawn(); {
	case len(w) == 0:
		return ""
	case w[0].Policy == HarvestName:
		return OwnerUses // only administrators see the condition
	default:
		return fmt.Sprintf("%s: %s", w[0].Policy, w[0].Reason)
	}
}

// GuestLimits returns the limits of the guests on a host; nil: they have none. again is when the limits change; zero: they
// do not.
func (p *Policy) GuestLimits(h *v1.Host, now time.Time) (limits *v1.GuestLimits, again time.Time) {
	w := Withdrawn(h, HarvestName)
	if w == nil || p == nil || p.Harvest == nil {
		return nil, time.Time{}
	}
	t := p.Harvest.Throttle
	limits = &v1.GuestLimits{CpuWeight: t.Weight, CpuPermille: t.Permille}
	if t.StopAfter >= 0 {
		if stop := w.Since.AsTime().Add(t.StopAfter); now.Before(stop) {
			again = stop
		} else {
			limits.CpuPermille = min(cmp.Or(t.Permille, stopped), stopped)
		}
	}
	if limits.CpuWeight == 0 && limits.CpuPermille == 0 {
		return nil, again
	}
	return limits, again
}

// stopped is the processor time of a stopped guest, in thousandths. For practical purposes the guest's virtual CPUs do not
// run. With less time, a virtual CPU could hold a lock of QEMU's so long that the guest's own move would take longer.
const stopped uint32 = 5
