package vm

// cpu.go - the CPUs that guests see.

import (
	"slices"
	"strings"

	"libvirt.org/go/libvirtxml"

	v1 "watari/api/watariv1"
)

// hostCPU names what a guest sees of a host's CPU that is passed through: vendor, model and features. The frequency of
// its counters, say, differs between equal CPUs and is left out.
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

// passedThroughCPU is the host's CPU, under KVM, less what cannot migrate. Guests get it where the manager asks for no
// other CPU.
func passedThroughCPU() libvirtxml.DomainCPU {
	return libvirtxml.DomainCPU{Mode: "host-passthrough", Check: "none", Migratable: "on"}
}

// spelledCPU is the CPU that the manager asks for. Each feature is named, whatever a version of libvirt takes its model
// to have. With check=partial libvirt refuses to start a guest here whose CPU the host cannot give it, and notes what
// QEMU made of it: a migration's target, and a restored template, must make the very same.
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

// emulatedCPU is QEMU's plain qemu64 with the instructions that TCG has had since QEMU 7.2. It is spelled out, and
// so the same on every host, where "maximum" is whatever a host's QEMU can do and cannot move between versions.
//
// Two things make it fast under emulation, as measured with Debian's kernel and glibc, in CPU time:
//   - its vendor is AMD. As an Intel CPU the kernel guards it against Meltdown by changing page tables at each
//     system call, for which TCG throws its TLB away: 8 us a call instead of 0.4, and four times as long for a page
//     fault.
//   - it lacks "enhanced rep movsb" (erms), which "maximum" has: the kernel and glibc would copy and clear by it, and
//     TCG does so byte by byte: three times as long for TCP over loopback, half as long again for a page fault.
//
// AVX is there for glibc's copies, 1.3 to 1.6 times as fast as with SSE2.
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
