package vm

// domainxml.go - the domain that a guest becomes. A saved template freezes all of it but name, UUID, tap and
// paths, so everything else is the same for guests of one image and shape.

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

	"libvirt.org/go/libvirtxml"

	v1 "watari/api/watariv1"
)

// templateMAC is every guest's MAC address as QEMU makes it. The guest agent sets its own when it gives the guest
// its identity: the address is device state, so a forked guest would have its template's in any case. Taps are
// routed, never bridged, so equal addresses do not meet.
const templateMAC = "02:77:00:00:00:01"

// translationCacheMiB bounds what TCG keeps of translated code for each guest; QEMU's default is up to 1 GiB.
const translationCacheMiB = 128

// domainXML writes the domain of a guest on a host.
func domainXML(spec Spec, host *hostFacts) (string, error) {
	domain, err := newDomain(spec, host)
	if err != nil {
		return "", err
	}
	return domain.Marshal()
}

func newDomain(spec Spec, host *hostFacts) (*libvirtxml.Domain, error) {
	if err := checkSpec(spec); err != nil {
		return nil, err
	}
	cpu, machine, err := platform(spec, host)
	if err != nil {
		return nil, err
	}
	cpu.Topology = &libvirtxml.DomainCPUTopology{Sockets: 1, Dies: 1, Cores: int(spec.VCPUs), Threads: 1}
	domain := &libvirtxml.Domain{
		Type:          host.virtType,
		Name:          NamePrefix + spec.Name,
		UUID:          spec.UID,
		GenID:         &libvirtxml.DomainGenID{},
		Memory:        &libvirtxml.DomainMemory{Value: uint(spec.MemoryBytes / 1024), Unit: "KiB"},
		CurrentMemory: &libvirtxml.DomainCurrentMemory{Value: uint(spec.MemoryBytes / 1024), Unit: "KiB"},
		VCPU:          &libvirtxml.DomainVCPU{Placement: "static", Value: uint(spec.VCPUs)},
		OS: &libvirtxml.DomainOS{
			Type:    &libvirtxml.DomainOSType{Arch: "x86_64", Machine: machine, Type: "hvm"},
			Kernel:  spec.Kernel,
			Initrd:  spec.Initrd,
			Cmdline: kernelArguments(spec, host),
		},
		Features:   features(host),
		CPU:        &cpu,
		Clock:      clock(),
		OnPoweroff: "destroy",
		OnReboot:   "destroy", // a reboot is a new start, for which a grant is needed
		OnCrash:    "destroy",
		PM: &libvirtxml.DomainPM{
			SuspendToMem:  &libvirtxml.DomainPMPolicy{Enabled: "no"},
			SuspendToDisk: &libvirtxml.DomainPMPolicy{Enabled: "no"},
		},
		Devices: devices(spec, host),
	}
	if host.virtType == "qemu" {
		domain.QEMUCommandline = watchedMemory(spec.MemoryBytes)
	}
	if spec.Tap != "" {
		domain.QEMUOverride = plainNetwork()
	}
	return domain, nil
}

// plainNetwork takes from the guest's network device the one feature that is the host kernel's to give and not the machine
// type's: resetting a single queue (VIRTIO_F_RING_RESET). Linux's vhost-net has it in 6.12 and not in 6.1, and a guest that
// uses it cannot move to a host without it: QEMU there refuses the device's state, after all memory was sent.
func plainNetwork() *libvirtxml.DomainQEMUOverride {
	property := libvirtxml.DomainQEMUOverrideProperty{Name: "queue_reset", Type: "bool", Value: "false"}
	return &libvirtxml.DomainQEMUOverride{Devices: []libvirtxml.DomainQEMUOverrideDevice{{
		Alias:    "net0", // libvirt's name for the only network device
		Frontend: libvirtxml.DomainQEMUOverrideFrontend{Properties: []libvirtxml.DomainQEMUOverrideProperty{property}},
	}}}
}

// platform returns the CPU and the machine type that the manager asks for, or the host's own where it asks for none.
func platform(spec Spec, host *hostFacts) (cpu libvirtxml.DomainCPU, machine string, err error) {
	wanted := spec.Platform
	if kind := wanted.GetAcceleration(); kind != v1.AccelerationKind_ACCELERATION_KIND_UNSPECIFIED && kind != host.kind() {
		return cpu, "", fmt.Errorf("guest %s is to be of virtualisation type %s, but this host's guests are of type %s; has its "+
			"acceleration changed?", spec.Name, virtTypes[kind], host.virtType)
	}
	cpu, machine = host.cpu, cmp.Or(wanted.GetMachine(), host.machine)
	if wanted.GetCpu().GetModel() != "" {
		cpu = spelledCPU(wanted.Cpu)
	}
	return cpu, machine, nil
}

// watchedMemory gives an emulated guest 8 KiB more memory than libvirt's whole MiB, with which QEMU before 9.0 finds all
// that the guest writes while it migrates. When the size is a multiple of 64 pages, QEMU takes dirty bits 64 at a time,
// and forgets to watch these pages again (mended by QEMU's commit 03bfc2188f, "physmem: Fix migration dirty bitmap
// coherency with TCG memory access"): what is then written to them may stay behind at the source, and the guest that
// arrives is corrupt. Every emulated guest gets it, since it may come to a host with such a QEMU later.
func watchedMemory(bytes uint64) *libvirtxml.DomainQEMUCommandline {
	size := strconv.FormatUint(bytes/1024+8, 10) + "k"
	line := &libvirtxml.DomainQEMUCommandline{}
	for _, arg := range []string{
		"-object", "memory-backend-ram,id=watched.ram,size=" + size,
		"-machine", "memory-backend=watched.ram", // instead of libvirt's, which then takes no memory
		"-m", "size=" + size,
	} {
		line.Args = append(line.Args, libvirtxml.DomainQEMUCommandlineArg{Value: arg})
	}
	return line
}

// checkSpec refuses what libvirt would take and misunderstand.
func checkSpec(spec Spec) error {
	switch {
	case spec.VCPUs == 0:
		return fmt.Errorf("guest %s: no vCPUs", spec.Name)
	case spec.MemoryBytes < 64<<20 || spec.MemoryBytes%(1<<20) != 0:
		return fmt.Errorf("guest %s: %d bytes of memory is not a whole number of MiB from 64 on", spec.Name, spec.MemoryBytes)
	case strings.ContainsAny(spec.Name, "/\n"):
		return fmt.Errorf("guest %q: the name cannot be a domain's", spec.Name)
	}
	return nil
}

// kernelArguments: a panic ends the guest (the reboot it asks for is an end) instead of leaving it to spin.
//
// Under emulation on a busy host the kernel's watchdog soon takes the time stamp counter to be unstable, and that of
// several vCPUs at once: reading the clock then costs 1-5 us instead of 70 ns, and MPI libraries read it all the time.
// tsc=reliable ends that, and no_timer_check a panic at boot when the timer's ticks come late. The price: QEMU passes
// on the host's own counter, so on a host whose counter runs faster the guest's clock does, too.
//
// norandmaps: QEMU translates code anew at each address it is seen at, so with randomized addresses (ASLR) each start of
// an mpirun costs 47,000 translations, 26 MB of them, and without only the first does; the second takes half the CPU time.
func kernelArguments(spec Spec, host *hostFacts) string {
	args := "console=ttyS0 panic=-1"
	if host.virtType == "qemu" {
		args += " tsc=reliable no_timer_check norandmaps"
	}
	if spec.Root != "" {
		args += " watari.root=/dev/vda watari.rootfstype=" + spec.RootType
	}
	if spec.KernelArgs != "" {
		args += " " + spec.KernelArgs
	}
	return args
}

func features(host *hostFacts) *libvirtxml.DomainFeatureList {
	list := &libvirtxml.DomainFeatureList{
		ACPI:   &libvirtxml.DomainFeature{},
		APIC:   &libvirtxml.DomainFeatureAPIC{},
		VMPort: &libvirtxml.DomainFeatureState{State: "off"},
	}
	if host.virtType == "qemu" {
		list.TCG = &libvirtxml.DomainFeatureTCG{
			TBCache: &libvirtxml.DomainFeatureTCGTBCache{Size: translationCacheMiB, Unit: "MiB"},
		}
	}
	return list
}

// clock: no HPET, whose reads are slow exits and whose ticks wake an idle guest's thread.
func clock() *libvirtxml.DomainClock {
	return &libvirtxml.DomainClock{
		Offset: "utc",
		Timer:  []libvirtxml.DomainTimer{{Name: "hpet", Present: "no"}},
	}
}

func devices(spec Spec, host *hostFacts) *libvirtxml.DomainDeviceList {
	port := uint(0)
	list := &libvirtxml.DomainDeviceList{
		Emulator:    host.emulator,
		Controllers: []libvirtxml.DomainController{{Type: "usb", Model: "none"}},
		Serials: []libvirtxml.DomainSerial{{
			Source: &libvirtxml.DomainChardevSource{File: &libvirtxml.DomainChardevSourceFile{Path: spec.Console, Append: "on"}},
			Target: &libvirtxml.DomainSerialTarget{Type: "isa-serial", Port: &port},
		}},
		Channels: []libvirtxml.DomainChannel{{
			Source: &libvirtxml.DomainChardevSource{UNIX: &libvirtxml.DomainChardevSourceUNIX{Mode: "bind", Path: spec.Channel}},
			Target: &libvirtxml.DomainChannelTarget{VirtIO: &libvirtxml.DomainChannelTargetVirtIO{Name: ChannelName}},
		}},
		MemBalloon: &libvirtxml.DomainMemBalloon{Model: "none"},
		RNGs: []libvirtxml.DomainRNG{{
			Model:   "virtio",
			Backend: &libvirtxml.DomainRNGBackend{BuiltIn: &libvirtxml.DomainRNGBackendBuiltIn{}},
		}},
	}
	if spec.Root != "" {
		list.Disks = []libvirtxml.DomainDisk{rootDisk(spec)}
	}
	if spec.Tap != "" {
		list.Interfaces = []libvirtxml.DomainInterface{network(spec)}
	}
	return list
}

func rootDisk(spec Spec) libvirtxml.DomainDisk {
	return libvirtxml.DomainDisk{
		Device:   "disk",
		Driver:   &libvirtxml.DomainDiskDriver{Name: "qemu", Type: "raw"},
		Source:   &libvirtxml.DomainDiskSource{File: &libvirtxml.DomainDiskSourceFile{File: spec.Root}},
		Target:   &libvirtxml.DomainDiskTarget{Dev: "vda", Bus: "virtio"},
		ReadOnly: &libvirtxml.DomainDiskReadOnly{},
	}
}

func network(spec Spec) libvirtxml.DomainInterface {
	return libvirtxml.DomainInterface{
		MAC:    &libvirtxml.DomainInterfaceMAC{Address: templateMAC},
		Source: &libvirtxml.DomainInterfaceSource{Ethernet: &libvirtxml.DomainInterfaceSourceEthernet{}},
		Target: &libvirtxml.DomainInterfaceTarget{Dev: spec.Tap, Managed: "no"},
		Model:  &libvirtxml.DomainInterfaceModel{Type: "virtio"},
		ROM:    &libvirtxml.DomainROM{Enabled: "no"},
	}
}

// guestName returns the guest's name from its domain's, and whether the domain is one of Watari's.
func guestName(domain string) (string, bool) { return strings.CutPrefix(domain, NamePrefix) }
