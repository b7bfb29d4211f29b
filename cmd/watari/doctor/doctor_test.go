package doctor

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"watari/cmd/internal/cli"
	"watari/cmd/internal/probe"
)

// well returns the facts of a machine that lacks nothing.
func well() Facts {
	return Facts{
		Root: true, CPUFlag: "svm", KVMDevice: true, NestedPaging: "1",
		AgentProgram: "/usr/bin/watari-agent", LibvirtSocket: "/run/libvirt/libvirt-sock",
		Probe: &probe.Host{KVM: true, Acceleration: "a trial guest ran under KVM", Libvirt: "9.0.0", QEMU: "7.2.0",
			User: "libvirt-qemu", SecurityModel: "apparmor"},
		Nftables: true, ClockSynchronised: true, ClockError: time.Millisecond, LANInterface: "eth0", LANMTU: 1500, CgroupV2: true,
		UnprivilegedUserfaultfd: "1", TransparentHugePages: "madvise", Memory: 8 << 30, MemoryAvailable: 6 << 30, DiskAvailable: 50 << 30,
		StateFolder: "/var/lib/watari",
		Ports: []Port{{Network: "tcp", Number: 7070, Role: RoleManager}, {Network: "tcp", Number: 7071, Role: RoleHost},
			{Network: "udp", Number: 7072, Role: RoleHost, Taken: true}},
	}
}

func TestNothingIsMissingToAWellMachine(t *testing.T) {
	for _, finding := range Judge(well(), RoleBoth) {
		if finding.Level != OK || finding.Remedy != "" || finding.Found == "" {
			t.Errorf("%+v", finding)
		}
	}
}

func TestEachLackIsNamedWithARemedy(t *testing.T) {
	for _, one := range []struct {
		check  string
		spoil  func(*Facts)
		level  Level
		found  string
		remedy string
	}{
		{"KVM", func(f *Facts) { f.CPUFlag, f.Probe.KVM = "", false }, Warning, "neither the vmx nor the svm", "firmware"},
		{"KVM", func(f *Facts) { f.KVMDevice, f.Probe.KVM = false, false }, Warning, "no /dev/kvm", "modprobe kvm_amd"},
		{"KVM", func(f *Facts) { f.Probe.KVM, f.Probe.Acceleration = false, "it hung for 2s" }, Warning, "it hung", "nested virtualisation"},
		{"KVM", func(f *Facts) { f.Probe = nil }, Warning, "not tried", "watari-agent"},
		{"nested paging", func(f *Facts) { f.NestedPaging = "N" }, Warning, "in software", "npt=0"},
		{"agent", func(f *Facts) { f.AgentProgram, f.Probe = "", nil }, Missing, "no program watari-agent", "apt install"},
		{"agent", func(f *Facts) { f.Probe, f.ProbeError = nil, "libvirt.so.0: no such file" }, Missing, "libvirt.so.0", "libvirt0"},
		{"libvirt", func(f *Facts) { f.Probe.Libvirt = "8.10.1" }, Missing, "8.10.1 is older than 9.0.0", "upgrade"},
		{"libvirt", func(f *Facts) { f.LibvirtSocket, f.Probe = "", nil }, Missing, "no libvirt daemon is installed", "libvirt-daemon-system"},
		{"libvirt", func(f *Facts) { f.LibvirtSocket, f.Probe, f.Libvirtd = "", nil, true }, Warning, "no libvirt daemon answers", "systemctl start"},
		{"libvirt", func(f *Facts) { f.Probe.Libvirt, f.Probe.LibvirtError = "", "permission denied" }, Missing, "permission denied", "as root"},
		{"QEMU", func(f *Facts) { f.Probe.QEMU = "" }, Missing, "no QEMU", "qemu-system-x86"},
		{"QEMU", func(f *Facts) { f.Probe.QEMU = "6.0.0" }, Missing, "older than 7.2.0", "upgrade"},
		{"confinement", func(f *Facts) { f.Probe.User = "root" }, Warning, "as root", "qemu.conf"},
		{"confinement", func(f *Facts) { f.Probe.SecurityModel = "" }, Warning, "neither AppArmor nor SELinux", "apparmor"},
		{"nftables", func(f *Facts) { f.Nftables = false }, Missing, "no program nft", "nftables"},
		{"packet filters", func(f *Facts) { f.ForwardDrops = []string{"inet mine forward"} }, Warning, "inet mine forward", "wt*"},
		{"MTU", func(f *Facts) { f.LANMTU = 1400 }, Warning, "1400", "MTU"},
		{"MTU", func(f *Facts) { f.LANMTU = 576 }, Missing, "576", "ip link set eth0"},
		{"MTU", func(f *Facts) { f.LANInterface = "" }, Warning, "no default route", "--lan-address"},
		{"cgroups", func(f *Facts) { f.CgroupV2 = false }, Warning, "version 1", "systemd.unified_cgroup_hierarchy"},
		{"userfaultfd", func(f *Facts) { f.UnprivilegedUserfaultfd = "0" }, Warning, "may not use it", "vm.unprivileged_userfaultfd=1"},
		{"userfaultfd", func(f *Facts) { f.UnprivilegedUserfaultfd, f.UserfaultfdDevice = "0", true }, Warning, "/dev/userfaultfd", "vm.unprivileged_userfaultfd=1"},
		{"huge pages", func(f *Facts) { f.TransparentHugePages = "never" }, Warning, "none", "transparent_hugepage"},
		{"memory", func(f *Facts) { f.MemoryAvailable = 100 << 20 }, Warning, "100 MiB", "end"},
		{"clock", func(f *Facts) { f.ClockSynchronised = false }, Warning, "not synchronised", "chrony"},
		{"clock", func(f *Facts) { f.ClockError = time.Minute }, Warning, "60 s", "time server"},
		{"disk", func(f *Facts) { f.DiskAvailable = 1 << 20 }, Missing, "1 MiB", "make room"},
		{"disk", func(f *Facts) { f.DiskAvailable = 1 << 30 }, Warning, "1 GiB", "make room"},
		{"port 7070", func(f *Facts) { f.Ports[0].Taken, f.Ports[0].Owner = true, "cassandra" }, Missing, "cassandra", "--listen"},
		{"port 7071", func(f *Facts) { f.Ports[1].Taken = true }, Warning, "is taken", "as root"},
		{"port 7071", func(f *Facts) { f.Ports[1].Taken, f.Ports[1].Owner = true, "watari-agent" }, OK, "watari-agent's", ""},
		{"packet filters", func(f *Facts) { f.ForwardDrops = []string{"ip filter FORWARD"} }, OK, "the agent has it accept", ""},
	} {
		f := well()
		one.spoil(&f)
		all := Judge(f, RoleBoth)
		i := slices.IndexFunc(all, func(finding Finding) bool { return finding.Check == one.check })
		if i < 0 {
			t.Fatalf("no check %s", one.check)
		}
		if got := all[i]; got.Level != one.level || !strings.Contains(got.Found, one.found) || !strings.Contains(got.Remedy, one.remedy) || (got.Remedy == "") != (one.level == OK) {
			t.Errorf("%s: %+v, not %s, %q, %q", one.check, got, one.level, one.found, one.remedy)
		}
	}
}

func TestAManagerNeedsNoKVM(t *testing.T) {
	f := well()
	f.AgentProgram, f.Probe, f.CPUFlag = "", nil, ""
	for _, finding := range Judge(f, RoleManager) {
		if finding.Role == RoleHost || finding.Level != OK {
			t.Errorf("%+v", finding)
		}
	}
}

func TestWhatIsMissingIsTheExitStatus(t *testing.T) {
	f := well()
	f.Nftables, f.ClockSynchronised = false, false
	var out bytes.Buffer
	err := show(&cli.Env{Out: &out, Err: &out}, Judge(f, RoleBoth))
	if exit := (*cli.Exit)(nil); !errors.As(err, &exit) || exit.Code != cli.StatusFailed {
		t.Errorf("%v", err)
	}
	for _, want := range []string{"nftables        host     missing", "What to do:\n  nftables: apt install nftables\n  clock: "} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in:\n%s", want, out.String())
		}
	}
	out.Reset()
	f.Nftables = true
	if err := show(&cli.Env{Out: &out, Err: &out, Output: "json"}, Judge(f, RoleBoth)); err != nil {
		t.Errorf("a warning alone: %v", err)
	}
	var findings []map[string]string
	if err := json.Unmarshal(out.Bytes(), &findings); err != nil || len(findings) < 15 || findings[0]["check"] != "KVM" {
		t.Errorf("%v: %s", err, out.String())
	}
}

func TestKernelsFilesAreRead(t *testing.T) {
	if got := cpuFlag("processor : 0\nflags\t\t: fpu svm sse2\n"); got != "svm" {
		t.Errorf("flag %q", got)
	}
	if got := chosen("always [madvise] never"); got != "madvise" {
		t.Errorf("chosen %q", got)
	}
	memory := meminfo("MemTotal:       24 kB\nHugePages_Free:    7\n")
	if memory["MemTotal"] != 24 || memory["HugePages_Free"] != 7 {
		t.Errorf("%v", memory)
	}
	table := `  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 00000000:1B9E 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 23456 1 0000000000000000 100 0 0 10 0
   1: 0100007F:1B9E 0100007F:1234 01 00000000:00000000 00:00000000 00000000     0        0 34567 1 0000000000000000 100 0 0 10 0
`
	if got := boundSockets(table, true, 7070); !slices.Equal(got, []string{"23456"}) {
		t.Errorf("listeners at 7070: %v", got)
	}
	if got := boundSockets(table, false, 7071); len(got) != 0 {
		t.Errorf("sockets at 7071: %v", got)
	}
	if !olderThan("9.0.0", "10.0.0") || olderThan("11.3.0", "9.0.0") || olderThan("7.2.0", "7.2.0") {
		t.Error("versions are compared wrongly")
	}
}
