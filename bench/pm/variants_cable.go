// variants_cable.go lists the variants between two machines: PM's udp rail, the other transports of each MPI, those of
// them that work with packet loss, and PM over two links.
package main

import (
	"path/filepath"
	"slices"
	"strings"
)

// acrossCables returns the variants for the existing cables.
func (b *bench) acrossCables() []*variant {
	var variants []*variant
	if c := b.cables[whole]; c != nil {
		variants = slices.Concat(b.bareOver(), b.openMPIOver(c), b.hydraOver(c))
		for _, w := range variants {
			w.path, w.cable = whole, c
		}
	}
	if c := b.cables[lossy]; c != nil {
		of := b.openMPIOver(c)
		for _, w := range of {
			w.path, w.cable, w.losing = lossy, c, true
		}
		// libfabric's tcp behaves like the tcp BTL then: both wait for the kernel's TCP.
		of = slices.DeleteFunc(of, func(w *variant) bool { return w.carrier == "libfabric tcp" })
		variants = append(variants, of...)
	}
	if c := b.cables[twoCables]; c != nil {
		variants = append(variants, b.linked(c)...)
	}
	return variants
}

// linkFiles are the contents of $PM_LINKS files, by the carrier that uses them. Both sides use the same interface
// names.
var linkFiles = map[string]string{"pm": "eth0\neth1\n", firstLink: "eth0\n", secondLink: "eth1\n"}

const (
	firstLink  = "pm, one link"
	secondLink = "pm, the other"
	bothLinks  = "sum of the links"
)

// linked returns PM over two links at once, PM over each link alone, and the sum of the two, which addLinks fills in.
func (b *bench) linked(c *cable) []*variant {
	variants := []*variant{{carrier: bothLinks}}
	for _, carrier := range []string{firstLink, secondLink, "pm"} {
		w := &variant{carrier: carrier, streaming: true, environment: []string{"PM_LINKS=" + b.linkFile(carrier)},
			perf: []string{"--csv", "-", "--repeat", "5", "--time", "50", "--curves", "write", "--sizes", "1M"}}
		w.curves = map[string]*variant{"write": w}
		variants = append(variants, w)
	}
	for _, w := range variants {
		w.path, w.rail, w.cable = twoCables, "udp", c
	}
	return variants
}

func (b *bench) linkFile(carrier string) string {
	return filepath.Join(b.programs, "links-"+strings.ReplaceAll(carrier, " ", "-"))
}

// addLinks adds the bandwidths of the two links, turn by turn.
func addLinks(variants []*variant) {
	one, other, sum := find(variants, twoCables, "", firstLink), find(variants, twoCables, "", secondLink), find(variants, twoCables, "", bothLinks)
	k := key{large, bandwidth}
	for turn := range min(len(one.figures[k]), len(other.figures[k])) {
		sum.add(k, one.figures[k][turn]+other.figures[k][turn], one.best[k]+other.best[k])
	}
}

// bareOver returns PM without MPI.
func (b *bench) bareOver() []*variant {
	pm := &variant{rail: "udp", carrier: "pm", perf: []string{"--csv", "-", "--repeat", "51", "--curves", "message,write", "--sizes", "8,1M"}}
	pm.curves = map[string]*variant{"message": pm, "write": pm}
	return []*variant{pm}
}

func (b *bench) openMPIOver(c *cable) []*variant {
	over := func(rail, carrier string, environment []string, arguments ...string) *variant {
		command := slices.Concat(c.in(0), []string{"mpirun.openmpi", "-n", "2", "-H", c.hosts[0] + ":1," + c.hosts[1] + ":1",
			"--mca", "plm_rsh_agent", c.agent, "--mca", "oob_tcp_if_include", control})
		for _, variable := range environment {
			name, _, _ := strings.Cut(variable, "=")
			command = append(command, "-x", name)
		}
		return &variant{rail: rail, mpi: debianOpenMPI, carrier: carrier, abi: "openmpi", slow: true,
			environment: environment, command: append(command, arguments...)}
	}
	const include = "mtl_ofi_provider_include"
	return []*variant{
		over("udp", "pm", b.pmEnvironment(), throughOFI(include, "pm")...),
		over("tcp", "tcp BTL", nil, "--mca", "pml", "ob1", "--mca", "btl", "self,tcp", "--mca", "btl_tcp_if_include", "eth0"),
		over("tcp", "libfabric tcp", []string{"FI_TCP_IFACE=eth0"}, throughOFI(include, "tcp;ofi_rxm")...),
		over("udp", "libfabric udp;ofi_rxd", []string{"FI_UDP_IFACE=eth0"}, throughOFI(include, "udp;ofi_rxd")...),
	}
}

// hydraOver returns MPICH and Intel MPI, whose launchers are both Hydra.
func (b *bench) hydraOver(c *cable) []*variant {
	over := func(rail, mpi, carrier, launcher, option string, environment ...string) *variant {
		return &variant{rail: rail, mpi: mpi, carrier: carrier, abi: "mpich-abi", slow: true, environment: environment,
			command: slices.Concat(c.in(0), []string{launcher, option, "ssh", option + "-exec", c.agent, "-iface", "ctl0",
				"-n", "2", "-ppn", "1", "-hosts", c.hosts[0] + "," + c.hosts[1]})}
	}
	mpich, launcher := b.mpichEnvironment()
	intel, intelLauncher := b.intelEnvironment()
	intel = append(intel, "I_MPI_FABRICS=ofi")
	return []*variant{
		over("udp", pypiMPICH, "pm", launcher, "-launcher", slices.Concat(mpich, b.pmEnvironment())...),
		over("tcp", pypiMPICH, "libfabric tcp", launcher, "-launcher",
			slices.Concat(mpich, []string{"FI_PROVIDER=tcp;ofi_rxm", "FI_TCP_IFACE=eth0"})...),
		over("tcp", pypiMPICH, nativeTCP, launcher, "-launcher", slices.Concat(mpich, []string{"FI_PROVIDER=tcp", "FI_TCP_IFACE=eth0"})...),
		over("udp", intelMPI, "pm", intelLauncher, "-bootstrap", slices.Concat(intel, []string{"I_MPI_OFI_PROVIDER=pm"}, b.pmEnvironment())...),
		over("tcp", intelMPI, "libfabric tcp", intelLauncher, "-bootstrap",
			slices.Concat(intel, []string{"I_MPI_OFI_PROVIDER=tcp", "FI_TCP_IFACE=eth0"})...),
	}
}
