package test

// whole_test.go - the tests on whole hosts, whose guests run under KVM. WATARI_TEST_HOSTS=whole selects them.

import (
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// wholeHosts says that the lab's hosts are virtual machines, in which guests run under KVM.
var wholeHosts = os.Getenv("WATARI_TEST_HOSTS") == "whole"

// useWholeHosts: two levels of emulation on a small machine take their time.
func useWholeHosts() {
	labName, listen = "whole", "0.0.0.0:17071"
	labShape = []string{"--sites", "1", "--hosts", "2", "--whole"}
	packages = "openmpi-bin,lammps"
	hosts = []string{"a1", "a2"}
	settle = 3 * time.Minute
}

// needWholeHosts skips a test that is not for namespace hosts.
func needWholeHosts(t *testing.T) {
	t.Helper()
	if !wholeHosts {
		t.Skip("needs whole hosts: make test-whole")
	}
}

// copiesOnWholeHosts counts a guest's QEMU processes on the hosts that run.
func copiesOnWholeHosts(uid string) (n int) {
	for _, host := range hosts {
		out, err := shared.watari(time.Minute, "lab", "exec", "--name", labName, host, "--", "pgrep", "-c", "-f", "--", "[-]uuid "+uid) // [-]: not the shell that runs this
		if found, errNumber := strconv.Atoi(strings.TrimSpace(out)); err == nil && errNumber == nil {
			n += found
		}
	}
	return n
}

// The main promise on a stock Debian host: a guest under KVM moves while a program runs in it, and the answer is the same.
func TestWholeHostsUnderKVM(t *testing.T) {
	needWholeHosts(t)
	for _, host := range hosts {
		for _, want := range []string{"KVM: ", "as libvirt-qemu, confined by apparmor"} {
			until(t, 3*time.Minute, "host "+host+" runs guests under KVM, confined", func() (bool, string) {
				shown := must(t, "host", "show", host)
				return strings.Contains(shown, want), shown
			})
		}
	}
	newCluster(t, "kvm", 2, "--spread", "host")
	settled(t, "kvm", 2)
	t.Run("guests are forked from a template", func(t *testing.T) {
		for _, host := range hosts {
			if shown := must(t, "host", "show", host); strings.Contains(shown, "booted plainly") {
				t.Errorf("host %s:\n%s", host, shown)
			}
		}
	})
	t.Run("QEMU is confined", func(t *testing.T) {
		for _, host := range hosts {
			out, err := onHost(t, host, "sh", "-c", "for p in $(pgrep -f -- '[-]name guest=watari-kvm'); do "+
				"cat /proc/$p/attr/current; ps -o user= -p $p; grep Seccomp: /proc/$p/status; tr '\\0' ' ' < /proc/$p/cmdline; done")
			for _, want := range []string{"libvirt-", "(enforce)", "libvirt+", "Seccomp:\t2", "accel=kvm"} {
				if err != nil || !strings.Contains(out, want) {
					t.Errorf("host %s: %v: QEMU's confinement lacks %q:\n%s", host, err, want, out)
				}
			}
		}
	})
	unmarked := mark(t, "kvm-0", "kvm-1")
	alone := kvmMelt(t, "kvm-alone", nil)
	moved := kvmMelt(t, "kvm-moved", func() {
		m := decoded[migration](t, "migrate", "kvm-1", "--to", guestNamed(t, "kvm-0").Host)
		if !strings.HasSuffix(m.State, "_DONE") {
			t.Errorf("the move: %s: %s", m.State, m.Message)
		}
		t.Logf("moved to %s in %d ms, stopped %d ms", m.Target, m.TotalMs, m.DowntimeMs)
	})
	if alone != moved {
		t.Errorf("the answers differ:\n%s\n---\n%s", alone, moved)
	}
	if lost := unmarked(); lost != nil {
		t.Errorf("guests were started anew: %v", lost)
	}
	settled(t, "kvm", 2)
	t.Run("the clock is right after a move", func(t *testing.T) {
		out := must(t, "guest", "exec", "kvm-1", "--", "date", "+%s.%N")
		guest, err := strconv.ParseFloat(strings.TrimSpace(out), 64)
		if err != nil {
			t.Fatal(err)
		}
		if off := guest - float64(time.Now().UnixNano())/1e9; math.Abs(off) > 10 {
			t.Errorf("the guest's clock is off by %.1f s", off)
		}
	})
}

// kvmMelt runs LAMMPS and returns the table that it has written. while, where given, is called when the program runs.
func kvmMelt(t *testing.T, name string, while func()) string {
	t.Helper()
	log := filepath.Join(t.TempDir(), name)
	const steps = "60"
	done := make(chan struct{})
	go func() {
		defer close(done)
		must(t, "run", "kvm", "--name", name, "--stage", "../examples/melt/in.melt", "--collect", "log.lammps:"+log,
			"--", "lmp", "-in", "in.melt", "-var", "steps", steps)
	}()
	if while != nil {
		until(t, 3*time.Minute, "the program writes its table", func() (bool, string) {
			out, _ := shared.watari(20*time.Second, "run", "logs", name)
			return strings.Contains(out, "Step"), out
		})
		while()
		if state := decoded[run](t, "run", "show", name).State; !strings.HasSuffix(state, "_RUNNING") {
			t.Errorf("the run was %s before the guest had moved", state)
		}
	}
	<-done
	return table(t, log)
}
