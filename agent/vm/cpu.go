package vm

// cpu.go - the CPUs that guests see.

import (
	"slices"
	"strings"

	"libvirt.org/go/libvirtxml"

	v1 "watari/api/watariv1"
)

// hostCPU returns the parts of a passed-through CPU that a guest sees: vendor, model and features. It leaves out parts
// that differ between equal CPUs, such as the counters' frequency.
func hostCPU(cpu *libvirtxml.CapsHostCPU) string {
	if cpu == nil {
		return ""
	}
	var features []string
	for _, feature := range cpu.FeatureFlags {
		features = append(features, feature.Name)
	}
	slices.Sort(features)
	return strings.Join(append([]string{cpu.Arch, cpu.Vendor, cpu.Model}, features...), " ")
}

// passedThroughCPU is the host's CPU, under KVM, without the features that cannot migrate. Guests get it if the manager
// asks for no other CPU.
func passedThroughCPU() libvirtxml.DomainCPU {
	return libvirtxml.DomainCPU{Mode: "host-passthrough", Check: "none", Migratable: "on"}
}

// spelledCPU is the CPU that the manager asks for. It names each feature, because libvirt's versions differ about a
// model's features. With check=partial, libvirt refuses to start a guest if the host lacks a part of its CPU. It also
// keeps the CPU that QEMU made; a migration's target and a restored template must make the same CPU.
func spelledCPU(wanted *v1.CPU) libvirtxml.DomainCPU {
	cpu := libvirtxml.DomainCPU{
		Mode: "custom", Match: "exact", Check: "partial",
		Model: &libvirtxml.DomainCPUModel{Fallback: "forbid", Value: wanted.Model},
	}
	for _, name := range wanted.Features {
		cpu.Features = append(cpu.Features, libvirtxml.DomainCPUFeature{Policy: "require", Name: name})
	}
	for _, name := range wanted.Disabled {
		cpu.Features = append(cpu.Features, libvirtxml.DomainCPUFeature{Policy: "disable", Name: name})
	}
	return cpu
}

// emulatedCPU is QEMU's qemu64 with the instructions that TCG has had since QEMU 7.2. It names all features, so it is the same on every host. The model "maximum" depends on QEMU's version, so its guests could not move between versions.
//
// Two things make it fast under emulation, as measured with Debian's kernel and glibc, in CPU time:
//   - its vendor is AMD. For an Intel CPU, the kernel changes page tables at each system call against Meltdown, and
//     TCG then flushes its TLB: a system call takes 8 us instead of 0.4, a page fault four times as long.
//   - it lacks "enhanced rep movsb" (erms), which "maximum" has. The kernel and glibc would copy and clear memory with
//     it, which TCG does byte by byte: TCP over loopback takes three times as long, a page fault 1.5 times as long.
//
// It has AVX because glibc's copies are then 1.3 to 1.6 times as fast as with SSE2.
func emulatedCPU() libvirtxml.DomainCPU {
	cpu := libvirtxml.DomainCPU{
		Mode: "custom", Match: "exact", Check: "none",
		Model: &libvirtxml.DomainCPUModel{Fallback: "forbid", Value: "qemu64"},
	}
	for _, name := range []string{
		"ssse3", "sse4.1", "sse4.2", "popcnt", "avx", "avx2", "fma", "f16c", "bmi1", "bmi2", "abm", "movbe",
		"xsave", "xsaveopt", "fsgsbase", "aes", "pclmuldq", "rdrand", "rdtscp", "arat", "adx",
	} {
		cpu.Features = append(cpu.Features, libvirtxml.DomainCPUFeature{Policy: "require", Name: name})
	}
	for _, name := range []string{"svm", "erms", "la57"} {
		cpu.Features = append(cpu.Features, libvirtxml.DomainCPUFeature{Policy: "disable", Name: name})
	}
	return cpu
}
