package doctor

// judge.go - judgements about facts. They depend only on the facts.

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"watari/cmd/internal/output"
)

// Role is the role of a machine.
type Role string

// The roles. A finding with both roles concerns every machine.
const (
	RoleHost    Role = "host"
	RoleManager Role = "manager"
	RoleBoth    Role = "both"
)

// Level is the severity of a finding.
type Level string

// The levels. A machine with a finding of level Missing cannot fulfil its role.
const (
	OK      Level = "ok"
	Warning Level = "warning"
	Missing Level = "missing"
)

// Finding is a judgement about one thing.
type Finding struct {
	Check  string
	Role   Role
	Level  Level
	Found  string // sentence about this machine
	Remedy string // what to do; "" if nothing is wrong
}

// Watari's minimum requirements.
const (
	leastLibvirt   = "9.0.0"
	leastQEMU      = "7.2.0"
	leastMTU       = 1280
	usualMTU       = 1500
	leastAvailable = 1 << 30   // bytes of memory for one guest with a usual image
	leastDisk      = 5 << 30   // bytes of disk for an image, its copy and a template
	littleDisk     = 512 << 20 // bytes of disk; below it the manager keeps no output
	clockTolerance = 5 * time.Second
)

// check judges one thing.
type check struct {
	name  string
	role  Role
	judge func(Facts) (level Level, found, remedy string)
}

var checks = []check{
	{"KVM", RoleHost, judgeKVM},
	{"nested paging", RoleHost, judgeNestedPaging},
	{"agent", RoleHost, judgeAgent},
	{"libvirt", RoleHost, judgeLibvirt},
	{"QEMU", RoleHost, judgeQEMU},
	{"confinement", RoleHost, judgeConfinement},
	{"nftables", RoleHost, judgeNftables},
	{"packet filters", RoleHost, judgeForwarding},
	{"MTU", RoleHost, judgeMTU},
	{"cgroups", RoleHost, judgeCgroups},
	{"userfaultfd", RoleHost, judgeUserfaultfd},
	{"huge pages", RoleHost, judgeHugePages},
	{"memory", RoleHost, judgeMemory},
	{"clock", RoleBoth, judgeClock},
	{"disk", RoleBoth, judgeDisk},
}

// Judge returns the findings for a role, always in the same order.
func Judge(f Facts, role Role) []Finding {
	var all []Finding
	add := func(name string, of Role, level Level, found, remedy string) {
		if of == RoleBoth || role == RoleBoth || of == role {
			all = append(all, Finding{name, of, level, found, remedy})
		}
	}
	for _, c := range checks {
		level, found, remedy := c.judge(f)
		add(c.name, c.role, level, found, remedy)
	}
	for _, port := range f.Ports {
		level, found, remedy := judgePort(port)
		add(fmt.Sprintf("port %d", port.Number), port.Role, level, found, remedy)
	}
	return all
}

func judgeKVM(f Facts) (Level, string, string) {
	switch {
	case f.Probe != nil && f.Probe.KVM:
		return OK, f.Probe.Acceleration, ""
	case f.CPUFlag == "":
		return Warning, "the CPU has neither the vmx nor the svm flag: guests are emulated, many times slower",
			"switch on virtualisation in the firmware; in a virtual machine, enable nested virtualisation on the machine that runs it"
	case !f.KVMDevice:
		return Warning, "the CPU has " + f.CPUFlag + ", but there is no /dev/kvm: guests are emulated, many times slower",
			"modprobe " + kvmModule(f.CPUFlag) + "; if that fails, switch on virtualisation in the firmware"
	case f.Probe != nil:
		return Warning, f.Probe.Acceleration, "in a virtual machine, enable nested virtualisation on the machine that runs it"
	}
	return Warning, "the CPU has " + f.CPUFlag + " and /dev/kvm exists; a guest was not tried under it",
		"install watari-agent and run watari doctor as root"
}

func kvmModule(flag string) string {
	if flag == "vmx" {
		return "kvm_intel"
	}
	return "kvm_amd"
}

func judgeNestedPaging(f Facts) (Level, string, string) {
	switch f.NestedPaging {
	case "Y", "1":
		return OK, "the CPU translates guests' addresses itself", ""
	case "N", "0":
		return Warning, "KVM translates guests' addresses in software, which is slow", "load the module " + kvmModule(f.CPUFlag) + " without ept=0 or npt=0, if the CPU can do it"
	}
	return OK, "does not matter: KVM is not loaded", ""
}

func judgeAgent(f Facts) (Level, string, string) {
	switch {
	case f.AgentProgram == "":
		return Missing, "no program watari-agent was found", "apt install watari-agent, or put it beside watari"
	case f.Probe == nil && f.ProbeError != "":
		return Missing, f.AgentProgram + " does not work: " + f.ProbeError, "fix the error; it needs libvirt's client library (libvirt0)"
	}
	return OK, f.AgentProgram, ""
}

func judgeLibvirt(f Facts) (Level, string, string) {
	switch {
	case f.Probe != nil && f.Probe.Libvirt != "":
		if olderThan(f.Probe.Libvirt, leastLibvirt) {
			return Missing, "libvirt " + f.Probe.Libvirt + " is older than " + leastLibvirt, "upgrade libvirt"
		}
		return OK, "libvirt " + f.Probe.Libvirt + " answers", ""
	case f.LibvirtSocket != "" && f.Probe == nil:
		return Warning, "libvirt answers at " + f.LibvirtSocket + "; its version is not known without watari-agent", "install watari-agent"
	case f.Probe != nil && f.Probe.LibvirtError != "" && f.LibvirtSocket != "":
		return Missing, f.Probe.LibvirtError, "run watari doctor as root; systemctl restart libvirtd"
	}
	if f.Libvirtd {
		return Warning, "no libvirt daemon answers", "systemctl start libvirtd; without systemd, watari up starts one"
	}
	return Missing, "no libvirt daemon is installed", "apt install libvirt-daemon-system"
}

func judgeQEMU(f Facts) (Level, string, string) {
	switch {
	case f.Probe == nil || f.Probe.Libvirt == "":
		return Warning, "unknown: libvirt did not answer", "see libvirt"
	case f.Probe.QEMU == "":
		return Missing, "libvirt finds no QEMU", "apt install qemu-system-x86"
	case olderThan(f.Probe.QEMU, leastQEMU):
		return Missing, "QEMU " + f.Probe.QEMU + " is older than " + leastQEMU, "upgrade QEMU"
	}
	return OK, "QEMU " + f.Probe.QEMU, ""
}

func judgeConfinement(f Facts) (Level, string, string) {
	if f.Probe == nil || f.Probe.Libvirt == "" {
		return Warning, "unknown: libvirt did not answer", "see libvirt"
	}
	switch {
	case f.Probe.User == "root":
		return Warning, "QEMU runs as root: the host runs no guests, because a guest that escapes from QEMU would be root on the host",
			"take user and group out of /etc/libvirt/qemu.conf, restart libvirtd; or accept it with watari up --allow-unconfined"
	case f.Probe.SecurityModel == "":
		return Warning, "neither AppArmor nor SELinux confines QEMU: the host runs no guests",
			"apt install apparmor, boot with it, take security_driver out of /etc/libvirt/qemu.conf; or accept it with watari up --allow-unconfined"
	}
	return OK, fmt.Sprintf("QEMU runs as user %s, confined by %s", f.Probe.User, f.Probe.SecurityModel), ""
}

func judgeNftables(f Facts) (Level, string, string) {
	if !f.Nftables {
		return Missing, "no program nft was found", "apt install nftables"
	}
	return OK, "the program nft is there", ""
}

func judgeForwarding(f Facts) (Level, string, string) {
	for _, chain := range f.ForwardDrops {
		if chain != "ip filter FORWARD" { // the agent adds its own rules to iptables' chain
			return Warning, "nftables chain " + chain + " drops forwarded packets by default",
				"let it accept interfaces wt* and watari0, and guests' addresses on the LAN's interface"
		}
	}
	if len(f.ForwardDrops) > 0 {
		return OK, "iptables drops forwarded packets by default; the agent has it accept guests' packets", ""
	}
	return OK, "no packet filter drops forwarded packets by default", ""
}

func judgeMTU(f Facts) (Level, string, string) {
	switch {
	case f.LANInterface == "":
		return Warning, "there is no default route, so the LAN's interface is unknown", "use watari up --lan-address"
	case f.LANMTU < leastMTU:
		return Missing, fmt.Sprintf("%s has an MTU of %d, less than %d", f.LANInterface, f.LANMTU, leastMTU), fmt.Sprintf("ip link set %s mtu %d", f.LANInterface, usualMTU)
	case f.LANMTU < usualMTU:
		return Warning, fmt.Sprintf("%s has an MTU of %d, less than the usual %d; guests get less still", f.LANInterface, f.LANMTU, usualMTU), "set the MTU that the network really has"
	}
	return OK, fmt.Sprintf("%s has an MTU of %d", f.LANInterface, f.LANMTU), ""
}

func judgeCgroups(f Facts) (Level, string, string) {
	if !f.CgroupV2 {
		return Warning, "cgroups of version 1 are in use", "boot with systemd.unified_cgroup_hierarchy=1"
	}
	return OK, "version 2", ""
}

func judgeUserfaultfd(f Facts) (Level, string, string) {
	switch {
	case f.UnprivilegedUserfaultfd == "1":
		return OK, "unprivileged processes may use it", ""
	case f.UnprivilegedUserfaultfd == "":
		return Warning, "the kernel has no userfaultfd: guests cannot be saved while they run", "a kernel with CONFIG_USERFAULTFD, as Debian's"
	case f.UserfaultfdDevice:
		return Warning, "QEMU may use it only through /dev/userfaultfd, which QEMU before 8.1 does not support",
			"sysctl vm.unprivileged_userfaultfd=1, and in /etc/sysctl.d; the package watari-agent does that"
	}
	return Warning, "QEMU does not run as root and may not use it: guests cannot be saved while they run",
		"sysctl vm.unprivileged_userfaultfd=1, and in /etc/sysctl.d; the package watari-agent does that"
}

func judgeHugePages(f Facts) (Level, string, string) {
	switch {
	case f.HugePages > 0:
		return OK, output.Count(int(f.HugePages), "huge page") + " free", ""
	case f.TransparentHugePages == "always" || f.TransparentHugePages == "madvise":
		return OK, "transparent huge pages (" + f.TransparentHugePages + ")", ""
	}
	return Warning, "there are none: guests are slower", "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled"
}

func judgeMemory(f Facts) (Level, string, string) {
	found := fmt.Sprintf("%s of %s are available", output.Size(f.MemoryAvailable), output.Size(f.Memory))
	if f.MemoryAvailable < leastAvailable {
		return Warning, found + ", too little for more than a small guest", "end other programs"
	}
	return OK, found, ""
}

func judgeClock(f Facts) (Level, string, string) {
	switch {
	case !f.ClockSynchronised:
		return Warning, "the clock is not synchronised: certificates are refused if clocks differ too much", "apt install systemd-timesyncd or chrony"
	case f.ClockError > clockTolerance:
		return Warning, fmt.Sprintf("the clock may be off by %.0f s", f.ClockError.Seconds()), "check the time server"
	}
	return OK, "synchronised", ""
}

func judgeDisk(f Facts) (Level, string, string) {
	found := fmt.Sprintf("%s are free at %s", output.Size(f.DiskAvailable), f.StateFolder)
	switch {
	case f.DiskAvailable < littleDisk:
		return Missing, found, "make room"
	case f.DiskAvailable < leastDisk:
		return Warning, found + ", little for images and templates", "make room"
	}
	return OK, found, ""
}

func judgePort(p Port) (Level, string, string) {
	name := fmt.Sprintf("%s %d (%s)", strings.ToUpper(p.Network), p.Number, p.Use)
	switch {
	case !p.Taken:
		return OK, name + " is free", ""
	case strings.HasPrefix(p.Owner, "watari"):
		return OK, name + " is " + p.Owner + "'s", ""
	case p.Owner == "" && p.Network == "udp":
		return OK, name + " is the kernel's, for WireGuard, or another program's", ""
	case p.Owner == "":
		return Warning, name + " is taken", "run watari doctor as root to see by which program"
	}
	remedy := "end it"
	if p.Role == RoleManager {
		remedy = "end it, or use watari up --listen"
	}
	return Missing, name + " is taken by " + p.Owner, remedy
}

// olderThan compares versions such as 9.0.0 numerically.
func olderThan(version, least string) bool {
	a, b := strings.Split(version, "."), strings.Split(least, ".")
	for i := range min(len(a), len(b)) {
		x, _ := strconv.Atoi(a[i])
		y, _ := strconv.Atoi(b[i])
		if x != y {
			return x < y
		}
	}
	return len(a) < len(b)
}
