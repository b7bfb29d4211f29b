// Package machine runs the virtual machines of whole hosts, with Debian, systemd and a kernel of their own. QEMU
// emulates them, with SVM, so that KVM works inside.
//
// A machine's disk and memory come from a template: a Debian that was installed, booted and saved once. Machines start
// from the saved state within seconds. Templates are in Cache and contain nothing of a lab: a machine gets its name,
// address and keys from a small disk that the lab writes.
package machine

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"regexp"
	"slices"

	"github.com/google/uuid"
)

// Cache holds the templates, one directory for each suite and recipe, and a newer QEMU if the installed one is too old.
const Cache = "/var/cache/watari/lab"

// Suites are the Debian releases that machines can run.
var Suites = []string{"bookworm", "trixie"}

// Spec describes a machine.
type Spec struct {
	Suite  string `json:"suite"`
	Model  string `json:"model"`  // CPU model, in the form of QEMU's -cpu
	Memory uint64 `json:"memory"` // MiB
	Cells  int    `json:"cells"`  // NUMA cells
}

// DefaultModel has all features that QEMU emulates, except XSAVE and those that depend on it. QEMU does not tell a
// machine's KVM when a nested guest writes XCR0. The guest's kernel then finds XSAVE inconsistent and disables it, and
// programs that ask only CPUID for AVX (Open MPI's reductions) die of an illegal instruction.
const DefaultModel = "max,-xsave,-xsaveopt,-xgetbv1,-avx,-avx2,-f16c,-fma,-vaes,-mpx,-pku"

var modelPattern = regexp.MustCompile(`^[A-Za-z0-9._-]+(,[+-]?[A-Za-z0-9._=-]+)*$`)

// MinMemory is the smallest memory of a machine, in MiB.
const MinMemory = 1024

// Check checks that the machine is possible.
func (s Spec) Check() error {
	switch {
	case !slices.Contains(Suites, s.Suite):
		return fmt.Errorf("suite %q: must be one of %v", s.Suite, Suites)
	case !modelPattern.MatchString(s.Model):
		return fmt.Errorf("CPU model %q: must be a model and features in the form of QEMU's -cpu, such as %s", s.Model, "EPYC,-avx")
	case s.Memory < MinMemory:
		return fmt.Errorf("memory of %d MiB: must be at least %d MiB", s.Memory, MinMemory)
	case s.Cells != 1 && s.Cells != 2 && s.Cells != 4:
		return fmt.Errorf("%d NUMA cells: must be 1, 2 or 4", s.Cells)
	}
	return nil
}

// CPUs returns the number of the machine's virtual CPUs, one for each cell.
func (s Spec) CPUs() int { return s.Cells }

// Identity tells a machine apart from others started from the same template.
type Identity struct {
	Name      string
	UUID      uuid.UUID // of the machine's board; libvirt identifies the host by it
	MachineID uuid.UUID
	MAC       net.HardwareAddr
	Address   netip.Prefix
	Gateway   netip.Addr
	Hosts     string // content of /etc/hosts
	HostKey   []byte // sshd's, ed25519, in OpenSSH's format
	LoginKey  string // public key that may log in as root
	Files     []File // other files, such as the agent and its unit
}

// File is a file of an identity. It contains Data, or the content of the file Source.
type File struct {
	Path   string // path in the machine
	Mode   int64
	Data   []byte
	Source string // path on this machine
}

// Files of a machine's agent. The units in the saved machine use these paths, too.
const (
	AgentUnit   = "/etc/systemd/system/watari-agent.service"
	AgentBinary = "/usr/local/lib/watari-lab/watari-agent"
)

// Missing lists the programs that whole hosts need and this machine lacks, and how to get them.
func Missing() (missing []string) {
	for _, p := range []struct{ program, pkg string }{
		{"qemu-system-x86_64", "qemu-system-x86"}, {"qemu-img", "qemu-utils"}, {"mmdebstrap", "mmdebstrap"},
		{"mke2fs", "e2fsprogs"}, {"ssh", "openssh-client"}, {"ssh-keygen", "openssh-client"}, {"apt-get", "apt"},
	} {
		if _, err := exec.LookPath(p.program); err != nil {
			missing = append(missing, fmt.Sprintf("%s (apt install %s)", p.program, p.pkg))
		}
	}
	return missing
}

// errNoSource means that apt has no source from which a suite could be installed.
var errNoSource = errors.New("this machine's apt has no source of Debian packages: add one to /etc/apt/sources.list.d")
