package test

// whole_test.go - the tests on whole hosts, whose guests run under KVM. WATARI_TEST_HOSTS selects them: "whole" means
// two hosts of Debian 12, "mixed" one of Debian 12 and one of Debian 13.

import (
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"watari/lab/machine"
)

var (
	mixedHosts = os.Getenv("WATARI_TEST_HOSTS") == "mixed"
	// wholeHosts means that the lab's hosts are virtual machines, in which guests run under KVM.
	wholeHosts = os.Getenv("WATARI_TEST_HOSTS") == "whole" || mixedHosts
)

// useWholeHosts allows more time: two levels of emulation are slow on a small machine.
func useWholeHosts() {
	labName, listen = "whole", "0.0.0.0:17071"
	// One CPU each: with several CPUs, the emulation crashes guests under KVM (docs/design/kvm.md).
	labShape = []string{"--sites", "1", "--hosts", "2", "--whole", "--cells", "1", "--cpu-model", "a2=" + machine.DefaultModel + "," + lacking}
	if mixedHosts {
		labShape = append(labShape, "--suite", "a2=trixie")
	}
	packages = "openmpi-bin,lammps"
	hosts = []string{"a1", "a2"}
	settle, patience = 10*time.Minute, 30*time.Minute
}

// lacking are CPU features that host a1 has and host a2 lacks.
const lacking = "-sse4.2,-movbe"

// needWholeHosts skips a test unless the lab has whole hosts of one release, or of two if mixed.
func needWholeHosts(t *testing.T, mixed bool) {
	t.Helper()
	switch {
	case !wholeHosts:
		t.Skip("needs whole hosts: make test-whole test-mixed")
	case mixed != mixedHosts:
		t.Skip("needs other whole hosts: make test-whole has two of Debian 12, test-mixed one of Debian 12 and one of Debian 13")
	}
}

// copiesOnWholeHosts counts a guest's QEMU processes; -1 if a host does not answer.
func copiesOnWholeHosts(uid string) (n int) {
	for _, host := range hosts {
		out, err := shared.watari(time.Minute, "lab", "exec", "--name", labName, host, "--",
			"sh", "-c", "pgrep -c -f -- '[-]uuid "+uid+"' || true") // with [-], the pattern does not match the shell itself
		found, errNumber := strconv.Atoi(strings.TrimSpace(out))
		if err != nil || errNumber != nil {
			return -1
		}
		n += found
	}
	return n
}

// TestWholeHostsUnderKVM tests the main use on two stock Debian hosts with different CPUs. Its parts share a cluster,
// because making one takes minutes here.
func TestWholeHostsUnderKVM(t *testing.T) {
	needWholeHosts(t, false)
	must(t, "volume", "create", "kvm-home", "--size", "256M")
	t.Cleanup(func() { must(t, "volume", "delete", "kvm-home") })
	kvmCluster(t, "--volume", "kvm-home", "--lease", "2m", "--on-host-loss", "restore")
	t.Run("guests are forked from a template", kvmForks)
	t.Run("QEMU is confined", kvmIsConfined)
	t.Run("guests have the CPU that both hosts can give", kvmBaseline)
	t.Run("a guest moves under a program, whose answer is right", func(t *testing.T) { kvmMoves(t, "kvm-1", "kvm-0") })
	t.Run("daemons are killed under a run", func(t *testing.T) { killDaemonsUnderARun(t, "kvm") })
	t.Run("systemd restarts the agents", kvmAgentsRestart)
	t.Run("a drained host's guests move away", func(t *testing.T) { drainFirst(t, "kvm") })
	t.Run("a cluster is saved and restored with its volume", kvmKeeps)
	t.Run("the owner of a host comes back", kvmOwnerComesBack)
	t.Run("a host is lost for good", kvmHostIsLost)
}

// TestWholeHostsOfTwoReleases moves guests between QEMU 7.2 of Debian 12 and QEMU 10.0 of Debian 13: to the newer one
// while a program runs, and back.
func TestWholeHostsOfTwoReleases(t *testing.T) {
	needWholeHosts(t, true)
	kvmCluster(t)
	for host, want := range map[string]string{"a1": "QEMU 7.2", "a2": "QEMU 10.0"} {
		if shown := must(t, "host", "show", host); !strings.Contains(shown, want) {
			t.Errorf("host %s does not have %s:\n%s", host, want, shown)
		}
	}
	t.Run("guests are forked from a template", kvmForks)
	t.Run("QEMU is confined", kvmIsConfined)
	t.Run("guests have the CPU that both hosts can give", kvmBaseline)
	older, newer := "kvm-0", "kvm-1" // by the version of QEMU that started the guest
	if guestNamed(t, older).Host != "a1" {
		older, newer = newer, older
	}
	t.Run("a guest moves to the newer QEMU under a program, whose answer is right", func(t *testing.T) { kvmMoves(t, older, newer) })
	t.Run("guests move to the older QEMU", func(t *testing.T) {
		unmarked := mark(t, older, newer)
		for _, name := range []string{older, newer} {
			if m := decoded[migration](t, "migrate", name, "--to", "a1"); !strings.HasSuffix(m.State, "_DONE") {
				t.Errorf("the move of %s: %s: %s", name, m.State, m.Message)
			}
		}
		noneRestarted(t, unmarked)
		settled(t, "kvm", 2)
	})
	t.Run("a host's power fails", kvmPowerFails)
}

// kvmCluster makes the cluster kvm of two guests, one on each host. The guests must have KVM and be confined.
func kvmCluster(t *testing.T, more ...string) {
	t.Helper()
	for _, host := range hosts {
		for _, want := range []string{"KVM: ", "as libvirt-qemu, confined by apparmor"} {
			until(t, 3*time.Minute, "host "+host+" runs guests under KVM, confined", func() (bool, string) {
				shown := must(t, "host", "show", host)
				return strings.Contains(shown, want), shown
			})
		}
	}
	booted := map[string]string{}
	for _, host := range hosts {
		booted[host] = bootID(t, host)
	}
	t.Cleanup(func() { // a bug of the emulation may reset an emulated machine; then its guests are restarted
		for host, id := range booted {
			if t.Failed() && bootID(t, host) != id {
				t.Logf("host %s was restarted, by this test or by itself: its log/emulator.log has the state of its processors", host)
			}
			if t.Failed() {
				logged, _ := onHost(t, host, "sh", "-c", "tail -n 30 /var/log/libvirt/qemu/watari-kvm-*.log; journalctl --no-pager -u watari-agent -u libvirtd -n 60; dmesg | tail -n 20")
				t.Logf("host %s:\n%s", host, logged)
			}
		}
		if t.Failed() {
			t.Logf("events:\n%s", must(t, "events"))
		}
	})
	newCluster(t, "kvm", 2, append(more, "--spread", "host")...)
	settled(t, "kvm", 2)
}

func kvmForks(t *testing.T) {
	for _, host := range hosts {
		if shown := must(t, "host", "show", host); strings.Contains(shown, "booted plainly") {
			t.Errorf("host %s:\n%s", host, shown)
		}
	}
}

func kvmIsConfined(t *testing.T) {
	for _, host := range hosts {
		out, err := onHost(t, host, "sh", "-c", "for p in $(pgrep -f -- '[-]name guest=watari-kvm'); do "+
			"cat /proc/$p/attr/current; ps -o user:20= -p $p; grep Seccomp: /proc/$p/status; tr '\\0' ' ' < /proc/$p/cmdline; done")
		for _, want := range []string{"libvirt-", "(enforce)", "libvirt-qemu", "Seccomp:\t2", "-accel kvm"} {
			if err != nil || !strings.Contains(out, want) {
				t.Errorf("host %s: %v: QEMU's confinement lacks %q:\n%s", host, err, want, out)
			}
		}
	}
}

func kvmBaseline(t *testing.T) {
	for who, want := range map[string]bool{"a1": true, "a2": false, "kvm-0": false, "kvm-1": false} {
		words := []string{"guest", "exec", who, "--"}
		if slices.Contains(hosts, who) {
			words = []string{"lab", "exec", "--name", labName, who, "--"}
		}
		flags := strings.Fields(must(t, append(words, "grep", "-m1", "^flags", "/proc/cpuinfo")...))
		for _, feature := range []string{"sse4_2", "movbe"} {
			if has := slices.Contains(flags, feature); has != want {
				t.Errorf("%s has %s: %v, want %v", who, feature, has, want)
			}
		}
		if !slices.Contains(flags, "ssse3") {
			t.Errorf("%s lacks ssse3, which both hosts have: %v", who, flags)
		}
	}
}

// kvmMoves tests the main promise: a guest under KVM moves to the host of another guest while a program runs in both. The clocks
// of the hosts are ten minutes apart.
func kvmMoves(t *testing.T, guest, other string) {
	var lines []string
	despitePanics(t, func(attempt string) (err error) {
		lines = nil
		unmarked := mark(t, guest, other)
		defer clockAhead(t, guestNamed(t, guest).Host, 10*time.Minute)() // the guest gets the clock of its next host
		p := program{"kvm", "kvm-moved" + attempt}
		must(t, meltOf("kvm", p.name, endless, "--detach")...)
		defer func() { _, _ = shared.watari(time.Minute, "run", "cancel", p.name) }()
		computing(t, 3*time.Minute, p.name)
		m, err := decode[migration]("migrate", guest, "--to", guestNamed(t, other).Host)
		if err != nil {
			return err
		}
		if !strings.HasSuffix(m.State, "_DONE") {
			return fmt.Errorf("the move: %s: %s", m.State, m.Message)
		}
		t.Logf("moved to %s in %d ms, stopped %d ms", m.Target, m.TotalMs, m.DowntimeMs)
		before := len(p.lines())
		for begun := time.Now(); len(lines) < before+3; time.Sleep(time.Second) {
			if lines, err = p.running(); err != nil {
				return err
			}
			if time.Since(begun) > 3*time.Minute {
				return fmt.Errorf("after the move, the program does not go on: %v", lines)
			}
		}
		if lost := unmarked(); lost != nil {
			return fmt.Errorf("guests were restarted: %v", lost)
		}
		return nil
	})
	got := strings.Join(lines, "")
	steps := lastStep(t, got)
	var alone string
	despitePanics(t, func(attempt string) error {
		name := "kvm-undisturbed" + attempt
		out, err := shared.watari(patience, meltOf("kvm", name, strconv.Itoa(steps))...)
		if err != nil {
			return fmt.Errorf("watari run: %w: %s", err, out)
		}
		alone = must(t, "run", "logs", name)
		return nil
	})
	if want, whole := meltTable(alone); !whole || !strings.HasPrefix(want, got) {
		t.Errorf("the answers differ:\n%s\n---\n%s", alone, got)
	}
	t.Logf("the first %d steps are right", steps)
	settled(t, "kvm", 2)
	out := must(t, "guest", "exec", guest, "--", "date", "+%s.%N")
	clock, err := strconv.ParseFloat(strings.TrimSpace(out), 64)
	if err != nil {
		t.Fatal(err)
	}
	if off := clock - float64(time.Now().UnixNano())/1e9; math.Abs(off) > 10 {
		t.Errorf("after the move the guest's clock is off by %.1f s", off)
	}
}

// clockAhead sets a host's clock ahead until setBack is called.
func clockAhead(t *testing.T, host string, by time.Duration) (setBack func()) {
	t.Helper()
	step := func(by time.Duration) {
		if out, err := onHost(t, host, "date", "-s", fmt.Sprintf("%+d seconds", int(by.Seconds()))); err != nil {
			t.Errorf("set the clock of host %s: %v: %s", host, err, out)
		}
	}
	step(by)
	return func() { step(-by) }
}

func kvmPowerFails(t *testing.T) {
	host := guestNamed(t, "kvm-0").Host
	boot := bootID(t, host)
	must(t, "lab", "host", "crash", "--name", labName, host)
	until(t, time.Minute, "the guest's host is missed", func() (bool, string) {
		g := guestNamed(t, "kvm-0")
		return strings.HasSuffix(g.State, "_UNKNOWN"), g.State
	})
	must(t, "lab", "host", "start", "--name", labName, host)
	settled(t, "kvm", 2)
	if bootID(t, host) == boot {
		t.Errorf("host %s has not rebooted", host)
	}
}

// bootID returns the id of the current boot of a host's Linux.
func bootID(t *testing.T, host string) string {
	t.Helper()
	id, err := onHost(t, host, "cat", "/proc/sys/kernel/random/boot_id")
	if err != nil {
		t.Errorf("host %s does not answer: %v: %s", host, err, id)
	}
	return id
}

// despitePanics makes at most three attempts. The emulation of KVM makes kernels panic now and then, whether or not anything
// moves (docs/design/kvm.md). An attempt fails for good if no guest's kernel has panicked.
func despitePanics(t *testing.T, do func(attempt string) error) {
	t.Helper()
	const panicked = "Kernel panic"
	for _, attempt := range []string{"", "-2", "-3"} {
		before := strings.Count(must(t, "events"), panicked)
		err := do(attempt)
		if err == nil {
			return
		}
		if strings.Count(must(t, "events"), panicked) == before {
			t.Fatal(err)
		}
		t.Logf("the emulation made a guest's kernel panic; the attempt is made again: %v", err)
		settled(t, "kvm", 2)
	}
	t.Fatal("in each attempt, a guest's kernel panicked")
}
