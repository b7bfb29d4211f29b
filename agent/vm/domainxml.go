package vm

// domainxml.go - writes the XML of a guest's domain. A saved template fixes all of it except name, UUID, tap and paths.
// So the rest must be the same for all guests of one image and shape.

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

	"libvirt.org/go/libvirtxml"

	v1 "watari/api/watariv1"
)

// templateMAC is the MAC address that QEMU gives every guest. The address is device state, so a forked guest would have
// its template's in any case. The guest agent sets the guest's own address with its identity. Taps are routed, never
// bridged, so equal addresses never meet.
const templateMAC = "02:77:00:00:00:01"

// translationCacheMiB bounds TCG's cache of translated code for each guest. QEMU's default is up to 1 GiB.
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
		OnReboot:   "destroy", // a reboot is a new start, which needs a new grant
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
	if spec.Volume != "" || spec.EmptyVolume > 0 {
		args, err := volumeArguments(spec)
		if err != nil {
			return nil, err
		}
		if domain.QEMUCommandline == nil {
			domain.QEMUCommandline = &libvirtxml.DomainQEMUCommandline{}
		}
		domain.QEMUCommandline.Args = append(domain.QEMUCommandline.Args, args...)
	}
	if spec.Tap != "" {
		domain.QEMUOverride = plainNetwork()
	}
	return domain, nil
}

// plainNetwork removes one feature of the guest's network device: the reset of a single queue (VIRTIO_F_RING_RESET).
// This feature depends on the host's kernel, not on the machine type: Linux's vhost-net has it in 6.12 and not in 6.1.
// A guest that uses it cannot move to a host without it: QEMU there refuses the device's state after all memory was
// sent.
func plainNetwork() *libvirtxml.DomainQEMUOverride {
	property := libvirtxml.DomainQEMUOverrideProperty{Name: "queue_reset", Type: "bool", Value: "false"}
	return &libvirtxml.DomainQEMUOverride{Devices: []libvirtxml.DomainQEMUOverrideDevice{{
		Alias:    "net0", // libvirt's name for the only network device
		Frontend: libvirtxml.DomainQEMUOverrideFrontend{Properties: []libvirtxml.DomainQEMUOverrideProperty{property}},
	}}}
}

// platform returns the CPU and the machine type that the manager asks for. If it asks for none, they are the host's
// own.
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

// watchedMemory gives an emulated guest 8 KiB more memory than libvirt's whole MiB. This avoids an error in QEMU before
// 9.0. When the size is a multiple of 64 pages, that QEMU reads dirty bits 64 at a time, and does not watch these pages
// again (fixed by QEMU's commit 03bfc2188f, "physmem: Fix migration dirty bitmap coherency with TCG memory access"). It
// may miss later writes to these pages, so that the guest arrives corrupt. Every emulated guest gets the extra memory,
// since it may move to a host with such a QEMU later.
func watchedMemory(bytes uint64) *libvirtxml.DomainQEMUCommandline {
	size := strconv.FormatUint(bytes/1024+8, 10) + "k"
	line := &libvirtxml.DomainQEMUCommandline{}
	for _, arg := range []string{
		"-object", "memory-backend-ram,id=watched.ram,size=" + size,
		"-machine", "memory-backend=watched.ram", // instead of libvirt's backend, which then takes no memory
		"-m", "size=" + size,
	} {
		line.Args = append(line.Args, libvirtxml.DomainQEMUCommandlineArg{Value: arg})
	}
	return line
}

// checkSpec refuses values that libvirt would accept and misunderstand.
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

// kernelArguments returns the kernel's arguments. With panic=, a panic ends the guest instead of leaving it to spin:
// the kernel asks for a reboot, which ends the domain.
//
// tsc=reliable: under emulation on a busy host, the kernel's watchdog soon marks the time stamp counter as unstable,
// and at once that of several vCPUs. A clock read then takes 1-5 us instead of 70 ns, and MPI libraries read the clock
// all the time. no_timer_check avoids a panic at boot when the timer's ticks come late. The price: QEMU passes on the
// host's counter, so the guest's clock runs fast on a host whose counter runs fast.
//
// norandmaps: QEMU translates code again for each address. With randomized addresses (ASLR), each start of an mpirun
// costs 47,000 translations (26 MB). Without, only the first start does, and the second takes half the CPU time.
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

// clock returns the guest's clocks. It leaves out the HPET: its reads are slow exits, and its ticks wake an idle
// guest's thread.
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
