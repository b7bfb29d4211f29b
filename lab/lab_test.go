package lab

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"
)

// upOnly makes the test program bring up the lab that it names and exit, for tests that kill it meanwhile.
const upOnly = "WATARI_LAB_TEST_UP"

func TestMain(m *testing.M) {
	Helper(os.Args)
	if name := os.Getenv(upOnly); name != "" {
		if _, err := Up(context.Background(), Options{Name: name, Sites: 2, Hosts: 1, WAN: &WAN{RoundTrip: time.Millisecond}}); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func TestLab(t *testing.T) {
	l := up(t, Options{Name: "test-whole", Sites: 2, Hosts: 1})
	marks := l.marks()
	for _, step := range []struct {
		name string
		test func(testLab)
	}{
		{"hosts reach each other and this machine", testReach},
		{"a host has its own files, name and libvirt", testOwn},
		{"an up again changes nothing, another shape is refused", testUpAgain},
		{"a shaped WAN delays and loses as asked", testShaped},
		{"the WAN's link process comes back", testLinkProcess},
		{"a cut is silent and heals", testCut},
		{"a site and a host behind NAT only dial out", testNAT},
		{"QEMU outlives its libvirt daemon", testDaemonKilled},
		{"a host crashes and starts again", testCrash},
		{"a killed command takes along what it started", testCommandKilled},
	} {
		if !t.Run(step.name, func(t *testing.T) { step.test(testLab{l.Lab, t}) }) {
			return
		}
	}
	for ino := range l.marks() {
		marks[ino] = true
	}
	if err := l.Down(deadline(t)); err != nil {
		t.Fatal(err)
	}
	nothingLeft(t, l.Name(), marks)
	if _, err := Open(l.Name()); !errors.Is(err, ErrNotFound) {
		t.Errorf("open after down: %v", err)
	}
}

func testReach(l testLab) {
	for _, to := range []string{"b1", l.RootEnd().String()} {
		if !l.reaches("a1", to) {
			l.t.Errorf("a1 does not reach %s", to)
		}
	}
	if !l.reaches("b1", l.RootEnd().String()) {
		l.t.Error("b1 does not reach this machine")
	}
	if out, err := exec.Command("ping", "-c", "1", "-W", "2", l.Hosts()[1].Address.String()).CombinedOutput(); err != nil {
		l.t.Errorf("this machine does not reach b1: %s", out)
	}
	out := l.must("a1", "ping", "-c", "1", "-M", "do", "-s", "1472", "b1")
	if !strings.Contains(out, "1 received") {
		l.t.Errorf("1500 bytes do not pass: %s", out)
	}
}

func testOwn(l testLab) {
	if name := l.must("a1", "hostname"); strings.TrimSpace(name) != "a1" {
		l.t.Errorf("host name %q", name)
	}
	l.must("a1", "virsh", "-c", "qemu:///system", "list", "--all")
	capabilities := l.must("a1", "virsh", "-c", "qemu:///system", "capabilities")
	if !strings.Contains(capabilities, "<uuid>"+l.state.UUIDs["a1"].String()+"</uuid>") {
		l.t.Errorf("libvirt of a1 does not have its own host UUID: %.300s", capabilities)
	}
	for _, dir := range []string{"/dev/shm", "/tmp", "/run", "/var/lib/watari", "/etc/libvirt"} {
		file := dir + "/watari-lab-test-mark"
		l.must("a1", "touch", file)
		if _, err := os.Stat(file); !errors.Is(err, fs.ErrNotExist) {
			l.t.Errorf("%s of a1 is this machine's", dir)
		}
		if _, err := l.on("b1", "test", "-e", file); err == nil {
			l.t.Errorf("%s of a1 is b1's", dir)
		}
	}
	if out := l.must("a1", "ls", "/sys/class/net"); !slices.Equal(strings.Fields(out), []string{"eth0", "lo"}) {
		l.t.Errorf("a1 sees the links %q", out)
	}
	if out := l.must("a1", "ps", "-e", "-o", "pid="); len(strings.Fields(out)) > 40 {
		l.t.Errorf("a1 sees processes of others: %s", out)
	}
}

func testUpAgain(l testLab) {
	before := l.hostProcess("a1")
	if _, err := Up(deadline(l.t), Options{Name: l.Name(), Sites: 2, Hosts: 1}); err != nil {
		l.t.Fatal(err)
	}
	if after := l.hostProcess("a1"); after != before {
		l.t.Errorf("a1 was started again")
	}
	if _, err := Up(deadline(l.t), Options{Name: l.Name(), Sites: 2, Hosts: 2}); !errors.Is(err, ErrShape) {
		l.t.Errorf("another shape: %v", err)
	}
}

func testShaped(l testLab) {
	set := func(text string) {
		l.t.Helper()
		w, err := ParseWAN(text)
		if err != nil {
			l.t.Fatal(err)
		}
		if err := l.WANSet(deadline(l.t), w); err != nil {
			l.t.Fatal(err)
		}
	}
	set("30ms")
	if least, received := l.ping("a1", "b1", 20); least < 30 || received != 20 {
		l.t.Errorf("30ms: least round trip %.2f ms, %d of 20 came back", least, received)
	}
	if least, _ := l.ping("b1", l.RootEnd().String(), 3); least < 30 {
		l.t.Errorf("30ms: site b reaches this machine in %.2f ms", least)
	}
	if least, _ := l.ping("a1", l.RootEnd().String(), 3); least >= 30 {
		l.t.Errorf("30ms: site a, where this machine is, reaches it in %.2f ms", least)
	}
	set("10ms,1mbit")
	// 20 pings of 1028 bytes of IP (1042 with Ethernet headers) are sent every 2 ms. At 1 Mbit/s each takes 8.3 ms.
	start := time.Now()
	out := l.must("a1", "ping", "-q", "-i", "0.002", "-c", "20", "-s", "1000", "b1")
	if took := time.Since(start); took < 170*time.Millisecond || !strings.Contains(out, "20 received") {
		l.t.Errorf("1mbit: 20 kB took %s: %s", took, out)
	}
	set("20%") // of 1,000 pings, 640 return, with a standard deviation of 15; the bounds are six deviations away
	if _, received := l.ping("a1", "b1", 1000); received < 550 || received > 730 {
		l.t.Errorf("20%%: %d of 1000 came back", received)
	}
	set("none")
	if least, received := l.ping("a1", "b1", 20); least >= 10 || received != 20 {
		l.t.Errorf("none: least round trip %.2f ms, %d of 20 came back", least, received)
	}
	set("20ms")
}

func testLinkProcess(l testLab) {
	pids := l.linkProcesses()
	if l.hasNetem() {
		l.t.Skip("the kernel has netem: there is no link process")
	}
	if len(pids) != 1 {
		l.t.Fatalf("link processes: %v", pids)
	}
	if err := kill(deadline(l.t), pids...); err != nil {
		l.t.Fatal(err)
	}
	if s, err := l.Status(); err != nil || s.Shaper != shaperMissing {
		l.t.Errorf("status says %q, %v", s.Shaper, err)
	}
	if _, err := Up(deadline(l.t), Options{Name: l.Name(), Sites: 2, Hosts: 1}); err != nil {
		l.t.Fatal(err)
	}
	if least, received := l.ping("a1", "b1", 5); least < 20 || received != 5 {
		l.t.Errorf("least round trip %.2f ms, %d of 5 came back", least, received)
	}
}

func testCut(l testLab) {
	for range 2 {
		if err := l.WANCut(deadline(l.t), "b"); err != nil {
			l.t.Fatal(err)
		}
	}
	for _, pair := range [][2]string{{"a1", "b1"}, {"b1", "a1"}, {"b1", l.RootEnd().String()}} {
		out, err := l.on(pair[0], "ping", "-n", "-i", "0.1", "-W", "1", "-c", "3", pair[1])
		if err == nil || strings.Contains(strings.ToLower(out), "unreachable") {
			l.t.Errorf("%s to %s over the cut: %v %s", pair[0], pair[1], err, out)
		}
	}
	if err := l.WANSet(deadline(l.t), WAN{}); err != nil { // a change of shape does not heal the cut
		l.t.Fatal(err)
	}
	if _, err := Up(deadline(l.t), Options{Name: l.Name(), Sites: 2, Hosts: 1}); err != nil {
		l.t.Fatal(err)
	}
	if _, received := l.ping("a1", "b1", 3); received != 0 {
		l.t.Error("the cut ended by itself")
	}
	for range 2 {
		if err := l.WANHeal(deadline(l.t), "b"); err != nil {
			l.t.Fatal(err)
		}
	}
	if !l.reaches("a1", "b1") || !l.reaches("b1", l.RootEnd().String()) {
		l.t.Error("the healed WAN does not pass")
	}
	if err := l.WANCut(deadline(l.t), "z"); err == nil {
		l.t.Error("an unknown site is cut")
	}
}

func testNAT(l testLab) {
	for _, names := range [][]string{{"b"}, {"b1"}} {
		if err := l.WANNAT(deadline(l.t), names...); err != nil {
			l.t.Fatal(err)
		}
		if !l.reaches("b1", "a1") || !l.reaches("b1", l.RootEnd().String()) {
			l.t.Errorf("b1 does not dial out from behind the NAT of %v", names)
		}
		if out, err := l.on("a1", "ping", "-n", "-i", "0.1", "-W", "1", "-c", "3", "b1"); err == nil || strings.Contains(strings.ToLower(out), "unreachable") {
			l.t.Errorf("a1 to b1 behind the NAT of %v: %v %s", names, err, out)
		}
	}
	if err := l.WANNAT(deadline(l.t), "z"); err == nil {
		l.t.Error("an unknown site is behind NAT")
	}
	if err := l.WANNAT(deadline(l.t)); err != nil {
		l.t.Fatal(err)
	}
	if !l.reaches("a1", "b1") {
		l.t.Error("a1 does not reach b1 after the NAT has ended")
	}
}

const guest = `<domain type='qemu'><name>idle</name><memory unit='MiB'>16</memory><vcpu>1</vcpu>
<os><type arch='x86_64' machine='pc'>hvm</type></os>
<devices><emulator>/usr/bin/qemu-system-x86_64</emulator><memballoon model='none'/></devices></domain>`

func (l testLab) startGuest(host string) {
	l.t.Helper()
	cmd := l.Command(host, "sh", "-c", "cat > /tmp/idle.xml && virsh -c qemu:///system create --paused /tmp/idle.xml")
	cmd.Stdin = strings.NewReader(guest)
	if out, err := cmd.CombinedOutput(); err != nil {
		l.t.Fatalf("start a guest on %s: %v\n%s", host, err, out)
	}
}

func testDaemonKilled(l testLab) {
	l.startGuest("a1")
	qemu := l.must("a1", "pgrep", "-f", "qemu-system.*idle")
	started := time.Now()
	l.must("a1", "pkill", "-9", "-x", "libvirtd")
	l.until("libvirt daemon to answer again", func() bool {
		out, err := l.on("a1", "virsh", "-c", "qemu:///system", "list")
		return err == nil && strings.Contains(out, "idle")
	})
	l.t.Logf("libvirt answered again after %s", time.Since(started))
	if now := l.must("a1", "pgrep", "-f", "qemu-system.*idle"); now != qemu {
		l.t.Errorf("QEMU was process %q, is %q", qemu, now)
	}
}

func testCrash(l testLab) {
	boot := l.must("a1", "cat", "/run/watari/boot-id")
	l.must("a1", "sh", "-c", "echo kept > /var/lib/watari/kept; echo lost > /run/lost")
	namespace := namespaceOf(l.hostProcess("a1"), "net")
	if err := l.HostCrash(deadline(l.t), "a1"); err != nil {
		l.t.Fatal(err)
	}
	if left := inNamespaces(map[uint64]bool{namespace: true}); len(left) > 0 {
		l.t.Errorf("processes %v outlived the crash", left)
	}
	if _, err := l.on("a1", "true"); err == nil {
		l.t.Error("a command runs in a host that crashed")
	}
	if err := l.HostCrash(deadline(l.t), "a1"); err == nil {
		l.t.Error("a host that is down crashes")
	}
	for range 2 {
		if err := l.HostStart(deadline(l.t), "a1"); err != nil {
			l.t.Fatal(err)
		}
	}
	if after := l.must("a1", "cat", "/run/watari/boot-id"); after == boot || len(after) != len(boot) {
		l.t.Errorf("boot id %q, before the crash %q", after, boot)
	}
	l.must("a1", "test", "-e", "/var/lib/watari/kept")
	if _, err := l.on("a1", "test", "-e", "/run/lost"); err == nil {
		l.t.Error("/run outlived the crash")
	}
	if !l.reaches("b1", "a1") {
		l.t.Error("b1 does not reach a1 after its start")
	}
}

func testCommandKilled(l testLab) {
	cmd := l.Command("a1", "sleep", "4321")
	if err := cmd.Start(); err != nil {
		l.t.Fatal(err)
	}
	sleeps := func() bool { _, err := l.on("a1", "pgrep", "-x", "sleep"); return err == nil }
	l.until("the command to run", sleeps)
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	l.until("the command to be gone", func() bool { return !sleeps() })
	var failed *exec.ExitError
	if _, err := l.on("a1", "sh", "-c", "exit 7"); !errors.As(err, &failed) || failed.ExitCode() != 7 {
		l.t.Errorf("exit 7 gives %v", err)
	}
}
