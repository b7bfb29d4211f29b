// ways_cable.go names what is compared between two machines: PM's udp rail, what else each MPI can do, what of that goes
// on when packets are lost, and PM over two links.
package main

import (
	"path/filepath"
	"slices"
	"strings"
)

// acrossCables are the ways over the cables that there are.
func (b *bench) acrossCables() []*way {
	var ways []*way
	if c := b.cables[whole]; c != nil {
		ways = slices.Concat(b.bareOver(), b.openMPIOver(c), b.hydraOver(c))
		for _, w := range ways {
			w.path, w.cable = whole, c
		}
	}
	if c := b.cables[lossy]; c != nil {
		of := b.openMPIOver(c)
		for _, w := range of {
			w.path, w.cable, w.losing = lossy, c, true
		}
		// libfabric's tcp does the same as the tcp BTL then: it waits for the kernel's.
		of = slices.DeleteFunc(of, func(w *way) bool { return w.carrier == "libfabric tcp" })
		ways = append(ways, of...)
	}
	if c := b.cables[twoCables]; c != nil {
		ways = append(ways, b.linked(c)...)
	}
	return ways
}

// linkFiles are what $PM_LINKS can name, by the carrier whose way it is. Both sides call the ends alike.
var linkFiles = map[string]string{"pm": "eth0\neth1\n", firstLink: "eth0\n", secondLink: "eth1\n"}

const (
	firstLink  = "pm, one link"
	secondLink = "pm, the other"
	bothLinks  = "sum of the links"
)

// linked are PM over two links at once, over either, and what these carry together, which addLinks finds.
func (b *bench) linked(c *cable) []*way {
	ways := []*way{{carrier: bothLinks}}
	for _, carrier := range []string{firstLink, secondLink, "pm"} {
		w := &way{carrier: carrier, streaming: true, environment: []string{"PM_LINKS=" + b.linkFile(carrier)},
			perf: []string{"--csv", "-", "--repeat", "5", "--time", "50", "--curves", "write", "--sizes", "1M"}}
		w.curves = map[string]*way{"write": w}
		ways = append(ways, w)
	}
	for _, w := range ways {
		w.path, w.rail, w.cable = twoCables, "udp", c
	}
	return ways
}

func (b *bench) linkFile(carrier string) string {
	return filepath.Join(b.programs, "links-"+strings.ReplaceAll(carrier, " ", "-"))
}

// addLinks adds up, turn by turn, what either link carries.
func addLinks(ways []*way) {
	one, other, sum := find(ways, twoCables, "", firstLink), find(ways, twoCables, "", secondLink), find(ways, twoCables, "", bothLinks)
	k := key{large, bandwidth}
	for turn := range min(len(one.figures[k]), len(other.figures[k])) {
		sum.add(k, one.figures[k][turn]+other.figures[k][turn], one.best[k]+other.best[k])
	}
}

// pmAcross is what PM needs where processes are apart.
func (b *bench) pmAcross() []string { return append(b.pmEnvironment(), "PM_JOB_KEY="+b.jobKey) }

// bareOver is PM itself.
func (b *bench) bareOver() []*way {
	pm := &way{rail: "udp", carrier: "pm", perf: []string{"--csv", "-", "--repeat", "51", "--curves", "message,write", "--sizes", "8,1M"}}
	pm.curves = map[string]*way{"message": pm, "write": pm}
	return []*way{pm}
}

func (b *bench) openMPIOver(c *cable) []*way {
	over := func(rail, carrier string, environment []string, arguments ...string) *way {
		command := slices.Concat(c.in(0), []string{"mpirun.openmpi", "-n", "2", "-H", c.hosts[0] + ":1," + c.hosts[1] + ":1",
			"--mca", "plm_rsh_agent", c.agent, "--mca", "oob_tcp_if_include", control})
		for _, variable := range environment {
			name, _, _ := strings.Cut(variable, "=")
			command = append(command, "-x", name)
		}
		return &way{rail: rail, mpi: debianOpenMPI, carrier: carrier, abi: "openmpi", slow: true,
			environment: environment, command: append(command, arguments...)}
	}
	const include = "mtl_ofi_provider_include"
	return []*way{
		over("udp", "pm", b.pmAcross(), throughOFI(include, "pm")...),
		over("tcp", "tcp BTL", nil, "--mca", "pml", "ob1", "--mca", "btl", "self,tcp", "--mca", "btl_tcp_if_include", "eth0"),
		over("tcp", "libfabric tcp", []string{"FI_TCP_IFACE=eth0"}, throughOFI(include, "tcp;ofi_rxm")...),
		over("udp", "libfabric udp;ofi_rxd", []string{"FI_UDP_IFACE=eth0"}, throughOFI(include, "udp;ofi_rxd")...),
	}
}

// hydraOver are MPICH and Intel MPI, whose launchers are of one family.
func (b *bench) hydraOver(c *cable) []*way {
	over := func(rail, mpi, carrier, launcher, option string, environment ...string) *way {
		return &way{rail: rail, mpi: mpi, carrier: carrier, abi: "mpich-abi", slow: true, environment: environment,
			command: slices.Concat(c.in(0), []string{launcher, option, "ssh", option + "-exec", c.agent, "-iface", "ctl0",
				"-n", "2", "-ppn", "1", "-hosts", c.hosts[0] + "," + c.hosts[1]})}
	}
	mpich, launcher := b.mpichEnvironment()
	intel, intelLauncher := b.intelEnvironment()
	intel = append(intel, "I_MPI_FABRICS=ofi")
	return []*way{
		over("udp", pypiMPICH, "pm", launcher, "-launcher", slices.Concat(mpich, b.pmAcross())...),
		over("tcp", pypiMPICH, "libfabric tcp", launcher, "-launcher",
			slices.Concat(mpich, []string{"FI_PROVIDER=tcp;ofi_rxm", "FI_TCP_IFACE=eth0"})...),
		over("udp", intelMPI, "pm", intelLauncher, "-bootstrap", slices.Concat(intel, []string{"I_MPI_OFI_PROVIDER=pm"}, b.pmAcross())...),
		over("tcp", intelMPI, "libfabric tcp", intelLauncher, "-bootstrap",
			slices.Concat(intel, []string{"I_MPI_OFI_PROVIDER=tcp", "FI_TCP_IFACE=eth0"})...),
	}
}
