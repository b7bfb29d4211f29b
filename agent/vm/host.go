package vm

// host.go - the host's emulator, machine types, CPU and versions. They are read at each connection, since an upgrade
// may have restarted the daemon.

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"libvirt.org/go/libvirt"
	"libvirt.org/go/libvirtxml"

	v1 "watari/api/watariv1"
	"watari/compatibility"
)

// preferredMachine is the machine type that guests get if the host has it and the manager names no other. It has
// conventional PCI, to which ivshmem can be hot-plugged. All supported hosts (Debian 12 and later) have it, so that
// guests can move between QEMU versions.
const preferredMachine = "pc-i440fx-7.2"

// machinePrefix begins the versioned names of that family.
const machinePrefix = "pc-i440fx-"

// hostFacts is what domains are made from, besides their Spec.
type hostFacts struct {
	virtType       string // "kvm" or "qemu" (TCG)
	emulator       string
	machine        string   // for guests whose orders name no machine type
	machines       []string // all machine types of the family, oldest first
	cpu            libvirtxml.DomainCPU
	hostCPU        string // a passed-through CPU as guests see it; empty: guests see cpu on every host
	libvirtVersion string
	qemuVersion    string
	owner          owner  // QEMU's user and group
	securityModel  string // libvirt's security driver for QEMU: "apparmor", "selinux"; "": none
	support        *v1.GuestSupport
}

// virtTypes are libvirt's names of the kinds of acceleration.
var virtTypes = map[v1.AccelerationKind]string{
	v1.AccelerationKind_ACCELERATION_KIND_KVM: "kvm", v1.AccelerationKind_ACCELERATION_KIND_TCG: "qemu",
}

func (h *hostFacts) kind() v1.AccelerationKind {
	if h.virtType == "kvm" {
		return v1.AccelerationKind_ACCELERATION_KIND_KVM
	}
	return v1.AccelerationKind_ACCELERATION_KIND_TCG
}

// readHostFacts reads the host's facts from libvirt.
func readHostFacts(conn *libvirt.Connect, kind v1.AccelerationKind) (*hostFacts, error) {
	text, err := conn.GetCapabilities()
	if err != nil {
		return nil, fmt.Errorf("read the host's capabilities: %w", err)
	}
	var caps libvirtxml.Caps
	if err := caps.Unmarshal(text); err != nil {
		return nil, fmt.Errorf("read the host's capabilities: %w", err)
	}
	facts := &hostFacts{virtType: "qemu", cpu: emulatedCPU()}
	if kind == v1.AccelerationKind_ACCELERATION_KIND_KVM {
		facts.virtType, facts.cpu = "kvm", passedThroughCPU()
		facts.hostCPU = hostCPU(caps.Host.CPU)
	}
	if facts.emulator, facts.machines, err = findMachines(&caps, facts.virtType); err != nil {
		return nil, err
	}
	facts.machine = chooseMachine(facts.machines)
	facts.owner, facts.securityModel = readConfinement(&caps, facts.virtType)
	library, err := conn.GetLibVersion()
	if err != nil {
		return nil, fmt.Errorf("read libvirt's version: %w", err)
	}
	emulator, err := conn.GetVersion()
	if err != nil {
		return nil, fmt.Errorf("read QEMU's version: %w", err)
	}
	facts.libvirtVersion, facts.qemuVersion = version(library), version(emulator)
	return facts, nil
}

// findMachines finds the emulator and the machine types for x86-64 guests of a virtualisation type.
func findMachines(caps *libvirtxml.Caps, virtType string) (emulator string, machines []string, err error) {
	for _, guest := range caps.Guests {
		if guest.OSType != "hvm" || guest.Arch.Name != "x86_64" {
			continue
		}
		emulator, offered := guest.Arch.Emulator, guest.Arch.Machines
		for _, domain := range guest.Arch.Domains {
			if domain.Type != virtType {
				continue
			}
			if domain.Emulator != "" {
				emulator = domain.Emulator
			}
			if len(domain.Machines) > 0 {
				offered = domain.Machines
			}
			if machines := family(offered); len(machines) > 0 {
				return emulator, machines, nil
			}
			return "", nil, fmt.Errorf("%s offers no %s* machine type", emulator, machinePrefix)
		}
	}
	return "", nil, fmt.Errorf("libvirt offers no x86-64 guests of type %q: is qemu-system-x86 installed?", virtType)
}

// family returns the machine types of preferredMachine's family, oldest first.
func family(offered []libvirtxml.CapsGuestMachine) []string {
	var machines []string
	for _, m := range offered {
		if strings.HasPrefix(m.Name, machinePrefix) {
			machines = append(machines, m.Name)
		}
	}
	slices.SortFunc(machines, compatibility.CompareMachines)
	return machines
}

// chooseMachine returns the preferred machine type, else the newest.
func chooseMachine(machines []string) string {
	if slices.Contains(machines, preferredMachine) {
		return preferredMachine
	}
	return machines[len(machines)-1]
}

// version writes libvirt's number 9000000 as "9.0.0".
func version(n uint32) string {
	return fmt.Sprintf("%d.%d.%d", n/1_000_000, n/1000%1000, n%1000)
}

// Versions of libvirt and QEMU, as of the last connection; ErrUnavailable before the first.
func (l *Libvirt) Versions() (libvirtVersion, qemuVersion string, err error) {
	host := l.hostFacts()
	if host == nil {
		return "", "", ErrUnavailable
	}
	return host.libvirtVersion, host.qemuVersion, nil
}

// hostFacts returns the host's facts; nil before the first connection.
func (l *Libvirt) hostFacts() *hostFacts {
	l.lock.Lock()
	defer l.lock.Unlock()
	return l.host
}

// TemplateKey names the template from which a guest can be forked. Guests with equal keys agree in everything that a
// saved state fixes, even on different hosts. The key is a short hex string, usable as a file name; empty before the
// first connection.
func (l *Libvirt) TemplateKey(spec Spec) string {
	host := l.hostFacts()
	if host == nil {
		return ""
	}
	return templateKey(spec, host)
}

func templateKey(spec Spec, host *hostFacts) string {
	// The key includes the domain without the parts that Fork replaces. So a newer agent that writes domains
	// differently never restores an older agent's template.
	spec.UID, spec.Name, spec.Tap, spec.Channel, spec.Console = "00000000-0000-0000-0000-000000000000", "", "", "", ""
	domain, err := domainXML(spec, host)
	if err != nil {
		domain = err.Error() // no guest can be made from such a Spec; the key only has to be valid
	}
	hostCPU := host.hostCPU
	if spec.Platform.GetCpu().GetModel() != "" {
		hostCPU = "" // the domain has the CPU; hosts of other models may share the template
	}
	sum := sha256.Sum256([]byte(strings.Join([]string{
		"3", spec.ImageDigest, spec.TemplateOwner, host.qemuVersion, host.libvirtVersion, hostCPU, fmt.Sprint(host.owner),
		host.securityModel, domain}, "\x00")))
	return hex.EncodeToString(sum[:16])
}
