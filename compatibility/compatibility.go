// Package compatibility decides the virtual machine (acceleration, machine type and CPU) in which a guest is started,
// and which hosts can run it. The package is pure. Functions that return a reason return "" for yes; any other reason
// says what is missing.
package compatibility

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	v1 "watari/api/watariv1"
)

// Special values of ClusterSpec.cpu; any other value is the name of a CPU model.
const (
	Baseline = ""
	Host     = "host"
)

// kind is a kind of hosts. Guests on hosts of different kinds cannot have the same CPU, so a running guest never moves
// from one kind to another.
type kind struct {
	acceleration v1.AccelerationKind
	vendor       string
}

func kindOf(h *v1.HostInfo) kind {
	return kind{h.GetAcceleration().GetKind(), h.GetGuestSupport().GetCpu().GetVendor()}
}

// unknownCPU reports that the manager does not know which CPUs guests can have on a host: its agent is older, or its
// libvirt cannot describe the CPU. Guests there get a CPU that the host chooses.
func unknownCPU(h *v1.HostInfo) bool { return h.GetGuestSupport().GetCpu() == nil }

// unanswered reports that a host's libvirt has not yet told the agent what it supports.
func unanswered(h *v1.HostInfo) bool {
	return h.GetGuestSupport() != nil && len(h.GuestSupport.Machines) == 0
}

// noLeases is why a host does not take a guest that has a lease.
const noLeases = "its agent cannot end guests whose leases end; upgrade watari-agent"

// RefuseStart returns the reason why a guest of a cluster cannot be started on a host.
func RefuseStart(c *v1.Cluster, h *v1.HostInfo) string {
	model := c.GetSpec().GetCpu()
	named := model != Baseline && model != Host
	switch {
	case c.GetSpec().GetLeaseMs() > 0 && !h.GetLeases():
		return noLeases
	case unanswered(h):
		return "its libvirt has not answered its agent yet"
	case unknownCPU(h) && named:
		return fmt.Sprintf("its agent does not say whether guests can have CPU model %s there; upgrade watari-agent", model)
	case unknownCPU(h):
		return ""
	}
	p := platformFor(c.GetPlatforms(), kindOf(h))
	if p == nil && named { // the cluster has no guest on a host of this kind yet
		p = &v1.Platform{Cpu: &v1.CPU{Model: model}}
	}
	if reason := refuseMachine(p, h); reason != "" {
		return reason
	}
	return refuseCPU(p.GetCpu(), h, "the cluster's guests have")
}

// RefuseMove returns the reason why a running guest cannot move to the target. source is the guest's current host.
func RefuseMove(g *v1.Guest, source, target *v1.HostInfo) string {
	p := g.GetPlatform()
	from := cmp.Or(p.GetAcceleration(), source.GetAcceleration().GetKind())
	if to := target.GetAcceleration().GetKind(); from != to {
		return fmt.Sprintf("it runs guests by %s, and the guest was started with %s", acceleration(to), acceleration(from))
	}
	if g.GetLeaseMs() > 0 && !target.GetLeases() {
		return noLeases
	}
	if unanswered(target) {
		return "its libvirt has not answered its agent yet"
	}
	if p.GetCpu() == nil {
		return refuseHostCPU(from, source, target)
	}
	if unknownCPU(target) {
		return "its agent does not say which CPUs guests can have there; upgrade watari-agent"
	}
	if reason := refuseMachine(p, target); reason != "" {
		return reason
	}
	return refuseCPU(p.Cpu, target, "the guest was started with")
}

// refuseHostCPU handles a guest that was started with the whole CPU of its host, without a list of features. It can
// move only to a host with an equal CPU. Emulated CPUs of such guests are all equal.
func refuseHostCPU(kind v1.AccelerationKind, source, target *v1.HostInfo) string {
	if kind != v1.AccelerationKind_ACCELERATION_KIND_KVM || source.GetCpuModel() == target.GetCpuModel() {
		return ""
	}
	return fmt.Sprintf("its CPU is %s, and the guest was started with all of %s; restart the guest to give it a CPU that can move",
		target.GetCpuModel(), source.GetCpuModel())
}

// refuseMachine is the only rule about QEMU's version. A machine type has the same devices in all versions of QEMU that
// offer it. So a guest can move to a newer QEMU, and to an older one that offers its machine type. QEMU's developers
// test moves to a newer version more. If the older QEMU cannot read the state of the newer one, it refuses the state,
// and the guest goes on at its source.
func refuseMachine(p *v1.Platform, h *v1.HostInfo) string {
	if p.GetMachine() == "" || slices.Contains(h.GetGuestSupport().GetMachines(), p.Machine) {
		return ""
	}
	return fmt.Sprintf("its QEMU %s does not offer machine type %s", h.GetQemuVersion(), p.Machine)
}

// refuseCPU returns the part of a CPU that a host cannot provide. whose ends the reason: "the guest was started with".
func refuseCPU(cpu *v1.CPU, h *v1.HostInfo, whose string) string {
	if cpu.GetModel() == "" {
		return ""
	}
	support := h.GetGuestSupport()
	if cpu.Vendor != support.GetCpu().GetVendor() && len(cpu.Features) > 0 {
		return fmt.Sprintf("its CPU is by %s, and %s one by %s", vendor(support.GetCpu().GetVendor()), whose, vendor(cpu.Vendor))
	}
	at := slices.IndexFunc(support.GetModels(), func(m *v1.CPUModel) bool { return m.Name == cpu.Model })
	switch {
	case at < 0:
		return fmt.Sprintf("its libvirt %s does not offer CPU model %s, which %s", h.GetLibvirtVersion(), cpu.Model, whose)
	case len(cpu.Features) == 0 && !support.Models[at].Usable:
		return fmt.Sprintf("it cannot give guests CPU model %s: it lacks %s", cpu.Model, lackedFeatures(support.Models[at].Lacks))
	}
	if missing := Without(cpu.Features, support.Cpu.Features); len(missing) > 0 {
		return fmt.Sprintf("it lacks CPU %s, which %s", features(missing), whose)
	}
	return ""
}

// features returns "feature avx2" or "features avx2, bmi2".
func features(list []string) string {
	if len(list) == 1 {
		return "feature " + list[0]
	}
	return "features " + names(list)
}

// names joins the first few names.
func names(list []string) string {
	const shown = 4
	if len(list) <= shown {
		return strings.Join(list, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(list[:shown], ", "), len(list)-shown)
}

// lackedFeatures joins the features that a host lacks for a named model. Hosts report only the first few.
func lackedFeatures(list []string) string {
	const shown = 4
	switch {
	case len(list) == 0:
		return "some of its features"
	case len(list) > shown:
		return strings.Join(list[:shown], ", ") + " and others"
	}
	return strings.Join(list, ", ")
}

// acceleration returns the name of a kind for people.
func acceleration(kind v1.AccelerationKind) string {
	switch kind {
	case v1.AccelerationKind_ACCELERATION_KIND_KVM:
		return "KVM"
	case v1.AccelerationKind_ACCELERATION_KIND_TCG:
		return "emulation (TCG)"
	}
	return "unknown acceleration"
}

func vendor(name string) string { return cmp.Or(name, "QEMU (emulated)") }

// Without returns the names of a that are not in b, in a's order. Most hosts have equal lists, of about a hundred names.
func Without(a, b []string) []string {
	if slices.Equal(a, b) {
		return nil
	}
	known := make(map[string]bool, len(b))
	for _, name := range b {
		known[name] = true
	}
	var rest []string
	for _, name := range a {
		if !known[name] {
			rest = append(rest, name)
		}
	}
	return rest
}

// CompareMachines compares machine types of one family, such as "pc-i440fx-7.2", by version.
func CompareMachines(a, b string) int {
	return cmp.Or(slices.Compare(version(a), version(b)), cmp.Compare(a, b))
}

func version(machine string) []int {
	var parts []int
	for part := range strings.SplitSeq(machine[strings.LastIndex(machine, "-")+1:], ".") {
		n, _ := strconv.Atoi(part)
		parts = append(parts, n)
	}
	return parts
}
