package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"watari/lab/machine"
)

// needWhole skips a test if whole hosts are not possible. Installing and booting the first host of a release takes
// minutes, and each boot from disk up to a minute. So only `make test-full-machines` runs these tests.
func needWhole(t *testing.T) {
	t.Helper()
	if os.Getenv("WATARI_TEST_HOSTS") != "whole" {
		t.Skip("needs whole hosts: make test-full-machines")
	}
	missing := machine.Missing()
	if len(missing) > 0 && os.Getenv("CI") != "" {
		t.Fatalf("missing: %v", missing)
	}
	if len(missing) > 0 {
		t.Skipf("missing: %v", missing)
	}
}

func patient(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 40*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// TestWholeHost has a whole host on one site and a host made of namespaces on the other.
func TestWholeHost(t *testing.T) {
	needWhole(t)
	l := upWithin(t, patient(t), Options{Name: "test-machine", Sites: 2, Hosts: 1, Whole: &Whole{Hosts: []string{"a1"}}})
	marks := l.marks()
	for _, step := range []struct {
		name string
		test func(testLab)
	}{
		{"it is a whole machine", func(l testLab) { testMachine(l, "a1") }},
		{"KVM runs inside", testKVMInside},
		{"it has an identity of its own", testIdentity},
		{"it reaches the other hosts and this machine, and is reached over a cut", testWholeReach},
		{"a command keeps its arguments and its status", testWords},
		{"a killed command takes along what it started", testCommandKilled},
		{"its status is shown", testWholeStatus},
		{"it crashes and boots from its own disk", testWholeCrash},
	} {
		if !t.Run(step.name, func(t *testing.T) { step.test(testLab{l.Lab, t}) }) {
			return
		}
	}
	if err := l.Down(deadline(t)); err != nil {
		t.Fatal(err)
	}
	nothingLeft(t, l.Name(), marks)
}

// words returns the whitespace-separated words of a command's output.
func (l testLab) words(host string, argv ...string) string {
	l.t.Helper()
	return strings.Join(strings.Fields(l.must(host, argv...)), " ")
}

func testMachine(l testLab, host string) {
	for what, c := range map[string]struct {
		command string
		want    string
	}{
		"first process":      {"cat /proc/1/comm", "systemd"},
		"state of systemd":   {"systemctl is-system-running", "running"},
		"AppArmor":           {"cat /sys/module/apparmor/parameters/enabled", "Y"},
		"control groups":     {"stat -f -c %T /sys/fs/cgroup", "cgroup2fs"},
		"NUMA cells":         {"cat /sys/devices/system/node/online", "0-1"},
		"processors":         {"nproc", "2"},
		"IOMMU":              {"ls /sys/class/iommu", "dmar0"},
		"user of guests":     {"grep -c '^ *[^# ]' /etc/libvirt/qemu.conf || true", "0"},
		"libvirt's settings": {"dpkg --verify libvirt-daemon-system libvirt-daemon | grep -v ^missing || true", ""},
	} {
		if got := l.words(host, "sh", "-c", c.command); got != c.want {
			l.t.Errorf("%s: %s says %q, want %q", what, c.command, got, c.want)
		}
	}
	if groups := l.words(host, "ls", "/sys/kernel/iommu_groups"); groups == "" {
		l.t.Error("there are no IOMMU groups")
	}
	if profiles := l.must(host, "cat", "/sys/kernel/security/apparmor/profiles"); !strings.Contains(profiles, "libvirtd (") {
		l.t.Errorf("AppArmor does not confine libvirtd: %s", profiles)
	}
}

func testKVMInside(l testLab) {
	l.must("a1", "test", "-c", "/dev/kvm")
	if got := l.words("a1", "cat", "/sys/module/kvm_amd/parameters/nested"); got != "0" {
		l.t.Errorf("kvm_amd emulates SVM: nested is %s", got)
	}
	if out := l.must("a1", "virsh", "-c", "qemu:///system", "domcapabilities", "--virttype", "kvm"); !strings.Contains(out, "<domain>kvm</domain>") {
		l.t.Errorf("libvirt does not know KVM: %.300s", out)
	}
}

// testIdentity compares the host's identity with the one that the lab gave it, and with the template, from which the
// next host starts, too.
func testIdentity(l testLab) {
	var config hostConfig
	if err := readJSON(l.hostFile("a1"), &config); err != nil {
		l.t.Fatal(err)
	}
	s := config.Machine
	for command, want := range map[string]string{
		"hostname":            "a1",
		"cat /etc/machine-id": strings.ReplaceAll(s.MachineID.String(), "-", ""),
		"cat /sys/devices/virtual/dmi/id/product_uuid": s.UUID.String(),
		"cat /sys/class/net/en*/address":               s.MAC.String(),
		"getent hosts b1":                              l.Hosts()[1].Address.String() + " b1",
	} {
		if got := l.words("a1", "sh", "-c", command); got != want {
			l.t.Errorf("%s says %q, want %q", command, got, want)
		}
	}
	capabilities := l.must("a1", "virsh", "-c", "qemu:///system", "capabilities")
	if !strings.Contains(capabilities, "<uuid>"+s.UUID.String()+"</uuid>") {
		l.t.Errorf("libvirt does not have the host UUID %s: %.300s", s.UUID, capabilities)
	}
	// The journal uses the same ids.
	if out := l.must("a1", "journalctl", "-b", "-n", "1", "-o", "cat"); strings.TrimSpace(out) == "" {
		l.t.Error("the journal has nothing of this boot")
	}
	var seconds int64
	if _, err := fmt.Sscan(l.must("a1", "date", "+%s"), &seconds); err != nil {
		l.t.Fatal(err)
	}
	if off := time.Since(time.Unix(seconds, 0)); off.Abs() > 15*time.Second {
		l.t.Errorf("the clock is %s off", off)
	}
}

func testWholeReach(l testLab) {
	for _, pair := range [][2]string{{"a1", "b1"}, {"b1", "a1"}, {"a1", l.RootEnd().String()}} {
		if !l.reaches(pair[0], pair[1]) {
			l.t.Errorf("%s does not reach %s", pair[0], pair[1])
		}
	}
	if out, err := l.on("a1", "ping", "-c", "1", "-M", "do", "-s", "1472", "b1"); err != nil {
		l.t.Errorf("1500 bytes do not pass: %s", out)
	}
	if err := l.WANCut(deadline(l.t), "a"); err != nil {
		l.t.Fatal(err)
	}
	if _, received := l.ping("a1", "b1", 2); received != 0 {
		l.t.Error("packets pass the cut")
	}
	if err := l.WANHeal(deadline(l.t), "a"); err != nil {
		l.t.Fatal(err)
	}
	if !l.reaches("a1", "b1") {
		l.t.Error("the healed WAN does not pass")
	}
}

func testWords(l testLab) {
	out := l.must("a1", "printf", "%s|", "a b", "", "it's", "$HOME", "two\nlines", `\`)
	if want := "a b||it's|$HOME|two\nlines|\\|"; out != want {
		l.t.Errorf("arguments arrive as %q, want %q", out, want)
	}
	cmd := l.Command("a1", "sh", "-c", "cat; pwd; id -u; echo error >&2; exit 7")
	cmd.Stdin = strings.NewReader("input\n")
	written, err := cmd.Output()
	var failed *exec.ExitError
	if !errors.As(err, &failed) || failed.ExitCode() != 7 || string(failed.Stderr) != "error\n" || string(written) != "input\n/\n0\n" {
		l.t.Errorf("the command gave %q, %v", written, err)
	}
}

func testWholeStatus(l testLab) {
	s, err := l.Status()
	if err != nil {
		l.t.Fatal(err)
	}
	l.AskDaemons(l.t.Context(), s)
	host := s.Sites[0].Hosts[0]
	if host.Machine == nil || host.Machine.Suite != "bookworm" || !host.Running || len(host.Daemons) != 1 || host.Daemons[0].Error != "" {
		l.t.Errorf("status is %+v", host)
	}
}

func testWholeCrash(l testLab) {
	boot := l.words("a1", "cat", "/proc/sys/kernel/random/boot_id")
	l.must("a1", "sh", "-c", "echo kept > /var/lib/kept; sync; echo lost > /run/lost")
	waiting := l.Command("a1", "sleep", "4321")
	if err := waiting.Start(); err != nil {
		l.t.Fatal(err)
	}
	if err := l.HostCrash(deadline(l.t), "a1"); err != nil {
		l.t.Fatal(err)
	}
	if err := waiting.Wait(); err == nil {
		l.t.Error("a command on a host that crashed ends well")
	}
	if _, err := l.on("a1", "true"); err == nil {
		l.t.Error("a command runs in a host that crashed")
	}
	started := time.Now()
	if err := l.HostStart(patient(l.t), "a1"); err != nil {
		l.t.Fatal(err)
	}
	l.t.Logf("booted from its disk in %s", time.Since(started))
	after := l.words("a1", "cat", "/proc/sys/kernel/random/boot_id")
	if after == boot || !regexp.MustCompile(`^[0-9a-f-]{36}$`).MatchString(after) {
		l.t.Errorf("boot id %q, before the crash %q", after, boot)
	}
	if got := l.words("a1", "cat", "/var/lib/kept"); got != "kept" {
		l.t.Errorf("the disk has %q", got)
	}
	if _, err := l.on("a1", "test", "-e", "/run/lost"); err == nil {
		l.t.Error("/run outlived the crash")
	}
	testMachine(l, "a1")
	testIdentity(l)
	if !l.reaches("b1", "a1") {
		l.t.Error("b1 does not reach a1 after its start")
	}
}

// TestWholeHostsDiffer starts two hosts of each release from the same saved states.
func TestWholeHostsDiffer(t *testing.T) {
	needWhole(t)
	suites := map[string]string{"a": "bookworm", "b": "trixie"}
	l := upWithin(t, patient(t), Options{Name: "test-machines", Sites: 2, Hosts: 2, Whole: &Whole{Suites: suites, Memory: 2048}})
	for _, file := range []string{
		"/etc/machine-id", "/proc/sys/kernel/random/boot_id", "/sys/devices/virtual/dmi/id/product_uuid", "/sys/class/net/en*/address",
		"/etc/ssh/ssh_host_ed25519_key", "/proc/sys/kernel/random/uuid",
	} {
		owner := map[string]string{}
		for _, h := range l.Hosts() {
			text := l.words(h.Name, "sh", "-c", "cat "+file)
			if other := owner[text]; other != "" {
				t.Errorf("%s of %s and %s is %q", file, other, h.Name, text)
			}
			owner[text] = h.Name
		}
	}
	for host, version := range map[string]string{"a1": "12", "b2": "13"} {
		if got := l.words(host, "sh", "-c", ". /etc/os-release; echo $VERSION_ID"); got != version {
			t.Errorf("%s runs Debian %s, want %s", host, got, version)
		}
		testMachine(l, host)
	}
	if !l.reaches("a1", "a2") || !l.reaches("a1", "b2") {
		t.Error("a1 does not reach a2 and b2")
	}
}
