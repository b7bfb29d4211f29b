package vm

// support.go - the machine types and CPUs that the host can give guests. It lists each CPU's features, so that the
// manager can compare hosts.

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"libvirt.org/go/libvirt"
	"libvirt.org/go/libvirtxml"

	v1 "watari/api/watariv1"
	"watari/compatibility"
)

// Bounds of what is reported. A host of 2026 has about 40 machine types, 130 features and 60 models.
const (
	maxMachines = 64
	maxFeatures = 512
	maxModels   = 256
	maxLacks    = 5 // of a model: enough to name the reason
)

// expandFunc lists the features of a CPU as the host would make it. Required features are those that a guest gets.
// Disabled features are those that the CPU's model has and the host lacks.
type expandFunc func(cpu libvirtxml.DomainCPU) (libvirtxml.DomainCPU, error)

// readSupport asks libvirt which CPUs guests can have. If that fails, it still returns the machine types.
func readSupport(conn *libvirt.Connect, host *hostFacts) (*v1.GuestSupport, error) {
	support := &v1.GuestSupport{Machines: host.machines[max(len(host.machines)-maxMachines, 0):]}
	text, err := conn.GetDomainCapabilities(host.emulator, "x86_64", host.machine, host.virtType, 0)
	if err != nil {
		return support, fmt.Errorf("read the capabilities of domains: %w", err)
	}
	var caps libvirtxml.DomainCaps
	if err := caps.Unmarshal(text); err != nil {
		return support, fmt.Errorf("read the capabilities of domains: %w", err)
	}
	return support, addCPUs(support, &caps, host.virtType, expander(conn, host))
}

// expander returns an expandFunc that asks libvirt. It leaves out features that cannot migrate.
func expander(conn *libvirt.Connect, host *hostFacts) expandFunc {
	return func(cpu libvirtxml.DomainCPU) (full libvirtxml.DomainCPU, err error) {
		text, err := cpu.Marshal()
		if err != nil {
			return full, err
		}
		text, err = conn.BaselineHypervisorCPU(host.emulator, "x86_64", host.machine, host.virtType, []string{text},
			libvirt.CONNECT_BASELINE_CPU_EXPAND_FEATURES|libvirt.CONNECT_BASELINE_CPU_MIGRATABLE)
		if err != nil {
			return full, err
		}
		return full, full.Unmarshal(text)
	}
}

// addCPUs fills in the CPU that guests can have, and the named models.
func addCPUs(support *v1.GuestSupport, caps *libvirtxml.DomainCaps, virtType string, expand expandFunc) error {
	if caps.CPU == nil {
		return nil
	}
	native := emulatedCPU()
	if virtType == "kvm" {
		native = hostModel(caps)
	}
	if native.Model != nil {
		if err := addNative(support, native, expand); err != nil {
			return fmt.Errorf("spell out CPU model %s: %w", native.Model.Value, err)
		}
	}
	for _, mode := range caps.CPU.Modes {
		if mode.Name != "custom" {
			continue
		}
		for _, model := range mode.Models {
			foreign := virtType == "kvm" && model.Vendor != "unknown" && model.Vendor != native.Vendor
			if foreign || len(support.Models) == maxModels {
				continue
			}
			support.Models = append(support.Models, namedModel(model, expand))
		}
	}
	slices.SortFunc(support.Models, func(a, b *v1.CPUModel) int { return cmp.Compare(a.Name, b.Name) })
	return nil
}

// hostModel is libvirt's description of the host's CPU as guests can have it. It has no model if libvirt names none.
func hostModel(caps *libvirtxml.DomainCaps) libvirtxml.DomainCPU {
	cpu := libvirtxml.DomainCPU{Mode: "custom", Match: "exact"}
	for _, mode := range caps.CPU.Modes {
		if mode.Name != "host-model" || mode.Supported != "yes" || len(mode.Models) == 0 {
			continue
		}
		cpu.Vendor, cpu.Model = mode.Vendor, &libvirtxml.DomainCPUModel{Value: mode.Models[0].Name}
		for _, f := range mode.Features {
			cpu.Features = append(cpu.Features, libvirtxml.DomainCPUFeature{Policy: f.Policy, Name: f.Name})
		}
	}
	return cpu
}

// addNative adds the CPU that guests get if the manager asks for no other.
func addNative(support *v1.GuestSupport, native libvirtxml.DomainCPU, expand expandFunc) error {
	full, err := expand(native)
	if err != nil {
		return err
	}
	model, err := expand(plainModel(native.Model.Value))
	if err != nil {
		return err
	}
	has, _ := split(full)
	own, missing := split(model)
	own = append(own, missing...)
	slices.Sort(own)
	features := slices.DeleteFunc(has, nested)
	support.Cpu = &v1.CPU{Vendor: native.Vendor, Model: native.Model.Value, Features: features[:min(len(features), maxFeatures)]}
	support.ModelFeatures = own[:min(len(own), maxFeatures)]
	support.Cpu.Disabled = compatibility.Without(support.ModelFeatures, support.Cpu.Features)
	return nil
}

// namedModel says whether guests can have a model, and which of its features the host lacks. libvirt before 10 does not
// name these features itself.
func namedModel(model libvirtxml.DomainCapsCPUModel, expand expandFunc) *v1.CPUModel {
	m := &v1.CPUModel{Name: model.Name, Usable: model.Usable == "yes"}
	if m.Usable {
		return m
	}
	if full, err := expand(plainModel(model.Name)); err == nil {
		_, lacks := split(full)
		m.Lacks = lacks[:min(len(lacks), maxLacks)]
	}
	return m
}

func plainModel(name string) libvirtxml.DomainCPU {
	return libvirtxml.DomainCPU{Mode: "custom", Match: "exact", Model: &libvirtxml.DomainCPUModel{Value: name}}
}

// split returns the features that an expanded CPU has and those that it lacks, both sorted.
func split(cpu libvirtxml.DomainCPU) (has, lacks []string) {
	for _, f := range cpu.Features {
		if f.Policy == "disable" || f.Policy == "forbid" {
			lacks = append(lacks, f.Name)
		} else {
			has = append(has, f.Name)
		}
	}
	slices.Sort(has)
	slices.Sort(lacks)
	return has, lacks
}

// nestedFeatures serve virtual machines inside a guest, as do all features that begin with "vmx". Guests do not get
// them. They depend on the host's kernel and its settings as well as on the CPU, so they would prevent moves, and
// compute nodes do not need them.
var nestedFeatures = []string{"svm", "npt", "lbrv", "svm-lock", "nrip-save", "tsc-scale", "vmcb-clean", "flushbyasid",
	"decodeassists", "pause-filter", "pfthreshold", "avic", "v-vmsave-vmload", "vgif", "svme-addr-chk", "vnmi"}

func nested(feature string) bool {
	return strings.HasPrefix(feature, "vmx") || slices.Contains(nestedFeatures, feature)
}

// Support is what the host can give guests, as of the last connection; nil before the first.
func (l *Libvirt) Support() *v1.GuestSupport {
	host := l.hostFacts()
	if host == nil {
		return nil
	}
	return host.support
}
