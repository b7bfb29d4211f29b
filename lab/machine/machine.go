// Package machine runs whole machines: virtual machines with Debian, systemd and a kernel of their own, which play hosts
// of a lab. QEMU emulates them, with SVM, so that KVM runs inside.
//
// A machine's disk and memory come from a template: Debian, installed once and booted once, then saved. Machines start
// from the saved state within seconds. Templates lie in Cache and hold nothing of any lab: a machine finds its name,
// address and keys on a small disk that the lab writes.
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

// Cache holds the templates, in a folder for each suite and recipe, and a QEMU where this machine's own is too old.
const Cache = "/var/cache/watari/lab"

// Suites are the Debian releases that machines can run.
var Suites = []string{"bookworm", "trixie"}

// Spec says what machine to make.
type Spec struct {
	Suite  string `json:"suite"`
	Model  string `json:"model"`  // CPU model, as QEMU's -cpu has it
	Memory uint64 `json:"memory"` // MiB
	Cells  int    `json:"cells"`  // NUMA cells
}

// DefaultModel has all that QEMU emulates but XSAVE and what needs it. QEMU does not tell KVM in a machine when a guest
// writes XCR0, so that the guest's kernel finds XSAVE inconsistent and does without, and programs that ask CPUID alone
// for AVX (Open MPI's reductions) end by an illegal instruction.
const DefaultModel = "max,-xsave,-xsaveopt,-xgetbv1,-avx,-avx2,-f16c,-fma,-vaes,-mpx,-pku"

var modelPattern = regexp.MustCompile(`^[A-Za-z0-9._-]+(,[+-]?[A-Za-z0-9._=-]+)*$`)

// LeastMemory is the least memory of a machine, MiB.
const LeastMemory = 1024

// Check refuses a machine that cannot be.
func (s Spec) Check() error {
	switch {
	case !slices.Contains(Suites, s.Suite):
		return fmt.Errorf("suite %q: must be one of %v", s.Suite, Suites)
	case !modelPattern.MatchString(s.Model):
		return fmt.Errorf("CPU model %q: must be a model and features as QEMU's -cpu has them, such as %s", s.Model, "EPYC,-avx")
	case s.Memory < LeastMemory:
		return fmt.Errorf("memory of %d MiB: must be at least %d MiB", s.Memory, LeastMemory)
	case s.Cells != 1 && s.Cells != 2 && s.Cells != 4:
		return fmt.Errorf("%d NUMA cells: must be 1, 2 or 4", s.Cells)
	}
	return nil
}

// CPUs is the number of the machine's virtual processors: one for each cell.
func (s Spec) CPUs() int { return s.Cells }

// Identity tells a machine from others that were started from the same template.
type Identity struct {
	Name      string
	UUID      uuid.UUID // of the machine's board, which libvirt takes for the host's
	MachineID uuid.UUID
	MAC       net.HardwareAddr
	Address   netip.Prefix
	Gateway   netip.Addr
	Hosts     string // /etc/hosts
	HostKey   []byte // sshd's, ed25519, in OpenSSH's format
	LoginKey  string // public key that may log in as root
	Files     []File // more, such as the agent and its unit
}

// File is a file that a machine is given with its identity. It has Data, or the content of the file at Source.
type File struct {
	Path   string // in the machine
	Mode   int64
	Data   []byte
	Source string // on this machine
}

// Agent files of a machine. The saved machine's units know them, too.
const (
	AgentUnit   = "/etc/systemd/system/watari-agent.service"
	AgentBinary = "/usr/local/lib/watari-lab/watari-agent"
)

// Missing names the programs that whole machines need and this machine lacks, and how to get them.
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

// errNoSource says that apt has no source from which a suite could be installed.
var errNoSource = errors.New("this machine's apt has no source of Debian packages: add one to /etc/apt/sources.list.d")
