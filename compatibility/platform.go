package compatibility

// platform.go - the platform of a cluster's guests, decided once for each kind of host.

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	v1 "watari/api/watariv1"
)

// preferredMachine is used if all hosts offer it. All supported hosts (Debian 12 and later) offer it, so a host that
// joins later can run the cluster's guests, too.
const preferredMachine = "pc-i440fx-7.2"

// Platforms decides the platforms of a new cluster, one for each kind of host, from all hosts on which its guests may
// be placed. It ignores hosts whose CPUs are unknown.
func Platforms(spec *v1.ClusterSpec, hosts map[string]*v1.HostInfo) []*v1.Platform {
	kinds := map[kind]bool{}
	for _, h := range hosts {
		if !unknownCPU(h) {
			kinds[kindOf(h)] = true
		}
	}
	var platforms []*v1.Platform
	for k := range kinds {
		platforms = append(platforms, decide(spec, k, hosts))
	}
	slices.SortFunc(platforms, func(a, b *v1.Platform) int {
		return cmp.Or(cmp.Compare(a.Acceleration, b.Acceleration), cmp.Compare(a.GetCpu().GetVendor(), b.GetCpu().GetVendor()))
	})
	return platforms
}

// Start decides the platform of a guest on a host that RefuseStart accepts. If the guest is the cluster's first one on
// a host of this kind, added is the platform to be added to the cluster; otherwise it is nil.
func Start(c *v1.Cluster, h *v1.HostInfo, hosts map[string]*v1.HostInfo) (guest, added *v1.Platform) {
	if unknownCPU(h) {
		return &v1.Platform{Acceleration: h.GetAcceleration().GetKind(), QemuVersion: h.GetQemuVersion()}, nil
	}
	p := platformFor(c.GetPlatforms(), kindOf(h))
	if p == nil {
		p = decide(c.GetSpec(), kindOf(h), hosts)
		added = p
	}
	guest = proto.CloneOf(p)
	guest.QemuVersion, guest.Explanation = h.GetQemuVersion(), ""
	if c.GetSpec().GetCpu() == Host {
		guest.Cpu = proto.CloneOf(h.GuestSupport.Cpu)
	}
	return guest, added
}

func platformFor(platforms []*v1.Platform, k kind) *v1.Platform {
	for _, p := range platforms {
		if p.Acceleration == k.acceleration && p.GetCpu().GetVendor() == k.vendor {
			return p
		}
	}
	return nil
}

// decide returns the platform for the hosts of one kind.
func decide(spec *v1.ClusterSpec, k kind, all map[string]*v1.HostInfo) *v1.Platform {
	hosts := map[string]*v1.HostInfo{}
	for name, h := range all {
		if !unknownCPU(h) && kindOf(h) == k {
			hosts[name] = h
		}
	}
	p := &v1.Platform{Acceleration: k.acceleration, Machine: machine(hosts)}
	switch model := spec.GetCpu(); model {
	case Baseline:
		p.Cpu, p.Explanation = baseline(k.vendor, hosts)
	case Host:
		p.Cpu, p.Explanation = &v1.CPU{Vendor: k.vendor}, "all of the CPU of the host that a guest starts on"
	default:
		p.Cpu, p.Explanation = &v1.CPU{Vendor: k.vendor, Model: model}, "as asked for"
	}
	return p
}

// machine returns the preferred machine type if all hosts offer it, or else the newest type that all hosts offer. If
// there is none, it returns the preferred type, and hosts that lack it are refused for that reason.
func machine(hosts map[string]*v1.HostInfo) string {
	var common []string
	first := true
	for _, h := range hosts {
		offered := h.GuestSupport.Machines
		if first {
			common, first = slices.Clone(offered), false
			continue
		}
		common = slices.DeleteFunc(common, func(m string) bool { return !slices.Contains(offered, m) })
	}
	if len(common) == 0 || slices.Contains(common, preferredMachine) {
		return preferredMachine
	}
	return slices.MaxFunc(common, CompareMachines)
}

// baseline returns the CPU with the features that all hosts have. It is described as the CPU model of one of the hosts
// and differences from it. The model that the fewest hosts do not know is preferred, then the one with the fewest
// features to disable, then the one with the fewest features to add.
func baseline(vendor string, hosts map[string]*v1.HostInfo) (*v1.CPU, string) {
	order := slices.Sorted(maps.Keys(hosts))
	common := featuresOfAll(hosts)
	knowing := knownBy(hosts)
	var best []int
	var support *v1.GuestSupport
	for _, name := range order {
		s := hosts[name].GuestSupport
		without := len(hosts) - knowing[s.Cpu.Model]
		if best != nil && without > best[0] {
			continue
		}
		cost := []int{without, len(Without(s.ModelFeatures, common)), len(Without(common, s.ModelFeatures))}
		if best == nil || slices.Compare(cost, best) < 0 {
			best, support = cost, s
		}
	}
	return &v1.CPU{
		Vendor: vendor, Model: support.Cpu.Model, Features: common, Disabled: Without(support.ModelFeatures, common),
	}, explain(order, hosts, common)
}

// featuresOfAll returns the features that all hosts have, sorted.
func featuresOfAll(hosts map[string]*v1.HostInfo) []string {
	var common []string
	first := true
	for _, h := range hosts {
		features := h.GuestSupport.Cpu.Features
		if !slices.IsSorted(features) {
			features = slices.Sorted(slices.Values(features))
		}
		if first {
			common, first = slices.Compact(slices.Clone(features)), false
			continue
		}
		common = inBoth(common, features)
	}
	return common
}

// inBoth returns what two sorted lists have in common, in the first one's memory.
func inBoth(a, b []string) []string {
	both := a[:0]
	for _, name := range a {
		for len(b) > 0 && b[0] < name {
			b = b[1:]
		}
		if len(b) > 0 && b[0] == name {
			both = append(both, name)
		}
	}
	return both
}

// knownBy returns for the CPU model of each host how many hosts know it, by its name.
func knownBy(hosts map[string]*v1.HostInfo) map[string]int {
	knowing := map[string]int{}
	for _, h := range hosts {
		knowing[h.GuestSupport.Cpu.Model] = 0
	}
	for _, h := range hosts {
		for name := range knowing {
			if slices.ContainsFunc(h.GuestSupport.Models, func(m *v1.CPUModel) bool { return m.Name == name }) {
				knowing[name]++
			}
		}
	}
	return knowing
}

// explain says which hosts have the features in common, which features some hosts have in addition, and which hosts
// lack those.
func explain(order []string, hosts map[string]*v1.HostInfo, common []string) string {
	lost := map[string]bool{}
	for _, h := range hosts {
		for _, f := range Without(h.GuestSupport.Cpu.Features, common) {
			lost[f] = true
		}
	}
	if len(order) == 1 {
		return "all that guests can have on " + order[0]
	}
	text := "all that guests can have on each of " + names(order)
	if len(lost) == 0 {
		return text
	}
	all := slices.Sorted(maps.Keys(lost))
	var lacking []string
	for _, name := range order {
		if len(Without(all, hosts[name].GuestSupport.Cpu.Features)) > 0 {
			lacking = append(lacking, name)
		}
	}
	return fmt.Sprintf("%s; %s left out, not to be had on %s", text, names(all)+isAre(len(all)), strings.Join(lacking[:min(len(lacking), 4)], ", "))
}

func isAre(n int) string {
	if n == 1 {
		return " is"
	}
	return " are"
}
