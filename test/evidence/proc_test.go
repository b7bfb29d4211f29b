package evidence

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// inPlaceOfQEMU makes this program a process that looks like QEMU.
const inPlaceOfQEMU = "WATARI_TEST_IN_PLACE_OF_QEMU"

func TestMain(m *testing.M) {
	if os.Getenv(inPlaceOfQEMU) != "" {
		beQEMU()
		return
	}
	os.Exit(m.Run())
}

// beQEMU runs a thread with the name of a CPU thread. The thread computes while the last line of standard input is
// "run".
func beQEMU() {
	var runs atomic.Bool
	woken := make(chan struct{})
	go beProcessor(&runs, woken)
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		runs.Store(lines.Text() == "run")
		if runs.Load() {
			woken <- struct{}{}
		}
	}
}

func beProcessor(runs *atomic.Bool, woken chan struct{}) {
	runtime.LockOSThread()
	if syscall.Gettid() == os.Getpid() { // the main thread's name is that of the process
		go beProcessor(runs, woken)
		select {}
	}
	if err := os.WriteFile("/proc/thread-self/comm", []byte("CPU 0/TCG"), 0); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	for range woken {
		for runs.Load() {
		}
	}
}

// standIn starts a process that stands for a guest's QEMU. The test writes "run" and "stop" to it.
func standIn(t *testing.T, name, uid string) io.Writer {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "qemu-system-x86_64")
	if err := os.Symlink(self, path); err != nil {
		t.Fatal(err)
	}
	command := exec.Command(path, "-name", "guest="+name+",debug-threads=on", "-uuid", uid, "-m", "256")
	command.Env = append(os.Environ(), inPlaceOfQEMU+"=yes")
	command.Stderr = os.Stderr
	input, err := command.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		input.Close()
		command.Wait()
	})
	return input
}

// looks watches a guest for a time, or until there is a violation.
func looks(t *testing.T, p *Proc, uid string, limit time.Duration) (found []Violation, most int) {
	t.Helper()
	var j Judge
	for begun := time.Now(); time.Since(begun) < limit && found == nil; time.Sleep(50 * time.Millisecond) {
		guests, err := p.Look()
		if err != nil {
			t.Fatal(err)
		}
		for _, g := range guests {
			if g.UID == uid {
				found = append(found, j.See(time.Now(), []Guest{g})...)
				most = max(most, len(g.Copies))
			}
		}
	}
	return found, most
}

func TestRealProcessesAreSeenToRunTwice(t *testing.T) {
	const uid = "c9b1a0de-3a55-4f0c-8f77-5f0f6a1f0001"
	p, err := OpenProc("")
	if err != nil {
		t.Fatal(err)
	}
	first, second := standIn(t, "watari-md-0", uid), standIn(t, "watari-md-0", uid)
	fmt.Fprintln(first, "run")
	if found, most := looks(t, p, uid, 2*time.Second); most != 2 || found != nil {
		t.Errorf("%d processes were seen, one of which runs: %v", most, found)
	}
	fmt.Fprintln(second, "run")
	found, _ := looks(t, p, uid, 30*time.Second)
	if len(found) != 1 || len(found[0].Processes) != 2 {
		t.Fatalf("both run: %v", found)
	}
	fmt.Fprintln(first, "stop")
	if found, most := looks(t, p, uid, 2*time.Second); most != 2 || found != nil {
		t.Errorf("%d processes were seen, one of which was stopped: %v", most, found)
	}
}

func TestTemplatesAreNotLookedAt(t *testing.T) {
	const uid = "c9b1a0de-3a55-8f0c-8f77-5f0f6a1f0002"
	p, err := OpenProc("")
	if err != nil {
		t.Fatal(err)
	}
	standIn(t, "watari-template.c9b1a0de", uid)
	if _, most := looks(t, p, uid, 500*time.Millisecond); most != 0 {
		t.Error("a guest that a template is made of is taken for one of a cluster")
	}
}

func TestWhoseGuestAProcessIs(t *testing.T) {
	for line, want := range map[string]string{
		"qemu-system-x86_64 -name guest=watari-md-1,debug-threads=on -S -uuid u-1 -incoming defer": "u-1 watari-md-1",
		"qemu-system-x86_64 -S -no-user-config -nodefaults -nographic":                             " ",
		"qemu-system-x86_64 -name guest=other,debug-threads=on -uuid u-1":                          " ",
		"qemu-system-x86_64 -uuid": " ",
	} {
		if uid, name := guestOf(strings.Fields(line)); uid+" "+name != want {
			t.Errorf("%s: guest %q, %q", line, uid, name)
		}
	}
	groups := "4:cpuset:/\n3:cpu:/watari-lab/e2e/a1\n0::/\n"
	if lab, host := labOf(groups); lab != "e2e" || host != "a1" {
		t.Errorf("control groups %q are those of lab %q, host %q", groups, lab, host)
	}
	if lab, host := labOf("0::/user.slice\n"); lab != "" || host != "" {
		t.Errorf("a process of no lab is of lab %q, host %q", lab, host)
	}
}
