// Package placement chooses the host on which a guest starts, or to which it moves. It is pure: hosts as the manager
// knows them go in, a choice and an explanation for every host come out. Filters refuse hosts and say why; scores order
// the remaining hosts.
package placement

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/dustin/go-humanize"
	"github.com/dustin/go-humanize/english"

	v1 "watari/api/watariv1"
)

// Host has the properties of a host on which placement depends.
type Host struct {
	Name, Site   string
	Connected    bool
	Draining     bool
	Spare        bool   // it takes only requests of Standby
	Withdrawn    string // why policies keep guests from it; empty: they do not
	Cores        uint32
	MemoryBytes  uint64  // offered to guests
	MemoryUsed   uint64  // of its guests, including incoming ones
	VCPUs        uint32  // of guests placed on it
	Capacity     float64 // the measured speed of all its processors, relative to one usual processor
	Acceleration v1.AccelerationKind
	Confinement  *v1.Confinement // nil: not known
	HasImage     bool
	Info         *v1.HostInfo // from its agent
	// ClusterGuests is the number of guests of the request's cluster on this host.
	ClusterGuests int
}

// Request is a guest that needs a host.
type Request struct {
	Shape   *v1.GuestShape
	Sites   []string // empty: any
	Spread  v1.Spread
	Exclude []string // hosts that must not be chosen
	Standby bool     // the guest was lost elsewhere
	// Compatible returns why the guest's virtual machine cannot run on a host; nil: it can run on all hosts.
	Compatible func(*v1.HostInfo) string
}

// Verdict is the answer for one host: why it was refused, or how it ranks.
type Verdict struct {
	Host   string
	Refuse string // empty: it fits
	Rank   int    // 1: chosen; 0: refused
	Why    string // of the rank
}

func (v Verdict) String() string {
	if v.Refuse != "" {
		return fmt.Sprintf("%s: refused: %s", v.Host, v.Refuse)
	}
	return fmt.Sprintf("%s: fits, rank %d: %s", v.Host, v.Rank, v.Why)
}

// Filter refuses hosts. Check returns the reason; empty: the host fits.
type Filter struct {
	Name  string
	Check func(r *Request, h *Host) string
}

// Filters are applied in order. A verdict has the first refusal.
var Filters = []Filter{
	{"connected", func(_ *Request, h *Host) string {
		return refuse(!h.Connected, "it is not reachable")
	}},
	{"draining", func(_ *Request, h *Host) string {
		return refuse(h.Draining, "it is being drained")
	}},
	{"withdrawn", func(_ *Request, h *Host) string {
		return h.Withdrawn
	}},
	{"spare", func(r *Request, h *Host) string {
		return refuse(h.Spare && !r.Standby, "it is a spare, for guests that are lost elsewhere")
	}},
	{"confinement", func(_ *Request, h *Host) string {
		return Unconfined(h.Confinement)
	}},
	{"exclude", func(r *Request, h *Host) string {
		return refuse(slices.Contains(r.Exclude, h.Name), "the guest is there already, or was refused there")
	}},
	{"site", func(r *Request, h *Host) string {
		return refuse(len(r.Sites) > 0 && !slices.Contains(r.Sites, h.Site),
			"it is at site %s, wanted is %s", h.Site, strings.Join(r.Sites, " or "))
	}},
	{"compatible", func(r *Request, h *Host) string {
		if r.Compatible == nil {
			return ""
		}
		return r.Compatible(h.Info)
	}},
	{"vcpus", func(r *Request, h *Host) string {
		if r.Shape.GetVcpus() <= h.Cores {
			return "" // without making the text: this is asked of many hosts
		}
		return fmt.Sprintf("%s wanted, it has %s", english.Plural(int(r.Shape.GetVcpus()), "vCPU", ""), english.Plural(int(h.Cores), "core", ""))
	}},
	{"memory", func(r *Request, h *Host) string {
		free := h.free()
		if r.Shape.GetMemoryBytes() <= free {
			return ""
		}
		return fmt.Sprintf("%s of memory wanted, %s of %s are free",
			humanize.IBytes(r.Shape.GetMemoryBytes()), humanize.IBytes(free), humanize.IBytes(h.MemoryBytes))
	}},
}

// Unconfined returns why a host with this confinement accepts no new guests; empty: it accepts them. An unknown
// confinement is no reason.
func Unconfined(c *v1.Confinement) string {
	var faults []string
	if c.GetUser() == "root" {
		faults = append(faults, "QEMU runs as root")
	}
	if c.GetSecurityModel() == "" {
		faults = append(faults, "libvirt has no security driver (AppArmor or SELinux)")
	}
	return refuse(c != nil && !c.UnconfinedAllowed && len(faults) > 0,
		"it does not confine guests: %s; mend that, or accept it on that host with `watari up --allow-unconfined`", strings.Join(faults, ", and "))
}

func refuse(refused bool, format string, a ...any) string {
	if !refused {
		return ""
	}
	return fmt.Sprintf(format, a...)
}

func (h *Host) free() uint64 {
	if h.MemoryUsed >= h.MemoryBytes {
		return 0
	}
	return h.MemoryBytes - h.MemoryUsed
}

// Choose ranks the hosts for one guest. chosen is empty if none fits. Equal hosts are ranked by name, so that equal
// requests have equal results.
func Choose(r *Request, hosts []Host) (chosen string, verdicts []Verdict) {
	verdicts = make([]Verdict, len(hosts))
	var fit []int
	for i := range hosts {
		verdicts[i] = Verdict{Host: hosts[i].Name, Refuse: Check(r, &hosts[i])}
		if verdicts[i].Refuse == "" {
			fit = append(fit, i)
		}
	}
	sites := siteGuests(hosts)
	slices.SortFunc(fit, func(a, b int) int { return compare(r, &hosts[a], &hosts[b], sites) })
	for rank, i := range fit {
		h := &hosts[i]
		verdicts[i].Rank = rank + 1
		verdicts[i].Why = fmt.Sprintf("%s of the cluster here, %d at site %s, %s on %s, image %s",
			english.Plural(h.ClusterGuests, "guest", ""), sites[h.Site], h.Site, english.Plural(int(h.VCPUs), "vCPU", ""),
			english.Plural(int(h.Cores), "core", ""), map[bool]string{true: "here", false: "to be fetched"}[h.HasImage])
	}
	if len(fit) > 0 {
		chosen = hosts[fit[0]].Name
	}
	return chosen, verdicts
}

// Pick returns the index of the host that Choose ranks first, without explanations; -1: none fits.
func Pick(r *Request, hosts []Host) int {
	best := -1
	sites := siteGuests(hosts)
	for i := range hosts {
		if (best < 0 || compare(r, &hosts[i], &hosts[best], sites) < 0) && Check(r, &hosts[i]) == "" {
			best = i
		}
	}
	return best
}

// Check returns why a host is refused; empty: the guest fits there.
func Check(r *Request, h *Host) string {
	for _, filter := range Filters {
		if reason := filter.Check(r, h); reason != "" {
			return reason
		}
	}
	return ""
}

func siteGuests(hosts []Host) map[string]int {
	sites := map[string]int{}
	for i := range hosts {
		sites[hosts[i].Site] += hosts[i].ClusterGuests
	}
	return sites
}

// compare orders two hosts that fit: negative if a is better.
func compare(r *Request, a, b *Host, sites map[string]int) int {
	switch r.Spread {
	case v1.Spread_SPREAD_SITE:
		if order := cmp.Or(sites[a.Site]-sites[b.Site], a.ClusterGuests-b.ClusterGuests); order != 0 {
			return order
		}
	case v1.Spread_SPREAD_HOST:
		if order := a.ClusterGuests - b.ClusterGuests; order != 0 {
			return order
		}
	}
	return cmp.Or(
		accelerationCost(a)-accelerationCost(b),
		standbyOrder(r, a, b),
		// Fewer vCPUs for each core first. Cross-multiplication avoids rounding.
		int(a.VCPUs*b.Cores)-int(b.VCPUs*a.Cores),
		imageCost(a)-imageCost(b),
		a.ClusterGuests-b.ClusterGuests,
		strings.Compare(a.Name, b.Name))
}

// standbyOrder compares hosts for a guest that was lost: with the guest, fewer vCPUs for the measured speed are better. So the guests
// of a lost host are spread over the other hosts in proportion to their speeds.
func standbyOrder(r *Request, a, b *Host) int {
	if !r.Standby {
		return 0
	}
	load := func(h *Host) float64 { return float64(h.VCPUs+r.Shape.GetVcpus()) / max(h.Capacity, leastCapacity) }
	return cmp.Compare(load(a), load(b))
}

// leastCapacity stands for a capacity that is not known.
const leastCapacity = 0.01

func accelerationCost(h *Host) int {
	if h.Acceleration == v1.AccelerationKind_ACCELERATION_KIND_KVM {
		return 0
	}
	return 1
}

func imageCost(h *Host) int {
	if h.HasImage {
		return 0
	}
	return 1
}

// Room returns how many more guests of a shape the host has memory for.
func (h *Host) Room(shape *v1.GuestShape) int {
	return int(h.free() / max(1, shape.GetMemoryBytes()))
}

// Place adds a guest of the request's cluster to a host, for the next choice.
func (h *Host) Place(shape *v1.GuestShape) {
	h.ClusterGuests++
	h.MemoryUsed += shape.GetMemoryBytes()
	h.VCPUs += shape.GetVcpus()
}

// Plan places n equal guests, one after the other. If one does not fit, the error has each host's reason.
func Plan(r *Request, n int, hosts []Host) ([]string, error) {
	hosts = slices.Clone(hosts)
	chosen := make([]string, 0, n)
	for i := range n {
		at := Pick(r, hosts)
		if at < 0 {
			_, verdicts := Choose(r, hosts)
			return nil, &NoHostError{Guest: i, Guests: n, Verdicts: verdicts}
		}
		hosts[at].Place(r.Shape)
		chosen = append(chosen, hosts[at].Name)
	}
	return chosen, nil
}

// NoHostError says, for every host, why a guest does not fit.
type NoHostError struct {
	Guest, Guests int // number of the guest, counted from 0, out of so many
	Verdicts      []Verdict
}

func (e *NoHostError) Error() string {
	if len(e.Verdicts) == 0 {
		return "there is no host; add one with `watari up` or `watari lab up`"
	}
	lines := make([]string, len(e.Verdicts))
	for i, v := range e.Verdicts {
		lines[i] = v.Host + ": " + v.Refuse
	}
	return fmt.Sprintf("no host for guest %d of %d: %s", e.Guest+1, e.Guests, strings.Join(lines, "; "))
}
