package test

// fencing_test.go - a manager that switches lost hosts off.

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// fenceAfter is how long a host may not answer before it is switched off.
const fenceAfter = 12 * time.Second

// fences restarts the manager with a program that switches lost hosts off, until the test ends. The result is the file to
// which the program writes the name of each host that it switches off.
//
// The program may be trusted: it ends with 0 only if the lab says that it has killed the host's first process and that no
// process of the host is left (the kernel kills them with the first one), or that the host did not run.
func fences(t *testing.T) (calls string) {
	t.Helper()
	dir := t.TempDir()
	calls = filepath.Join(dir, "calls")
	script := fmt.Sprintf(`#!/bin/sh
echo "$1" >>%s
out=$(%s lab host crash --name %s "$1" 2>&1) && exit 0
case "$out" in *"does not run"*) exit 0 ;; esac
echo "$out"
exit 1
`, calls, filepath.Join(shared.bin, "watari"), labName)
	file := filepath.Join(dir, "fence")
	if err := os.WriteFile(file, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	restart := func(more ...string) {
		endManager(t)
		must(t, append([]string{"up", "--no-agent", "--state", shared.state, "--listen", listen}, more...)...)
		hostsReady(t)
	}
	t.Cleanup(func() { restart("--fence", "") })
	restart("--fence", file, "--fence-after", fenceAfter.String())
	return calls
}

// The agent of a host hangs, so nobody knows whether its guest runs; in fact it does, because the cluster has no lease. The
// manager has the host switched off, and the cluster goes back to its checkpoint.
func TestTheManagerSwitchesALostHostOff(t *testing.T) {
	full(t)
	hostsReady(t)
	newCluster(t, "fenced", 2, "--spread", "site", "--on-host-loss", "restore")
	settled(t, "fenced", 2)
	calls := fences(t)
	p := computes(t, "fenced")
	made := copied(t, checkpointed(t, "fenced").Meta.Name)
	lost := guestNamed(t, "fenced-1")
	start := func() { must(t, "lab", "host", "start", "--name", labName, lost.Host) }
	t.Cleanup(start)
	t.Cleanup(func() { signal(lost.Host, anAgent, syscall.SIGCONT) })
	signal(lost.Host, anAgent, syscall.SIGSTOP)
	stopped := time.Now()
	until(t, settle, "the manager misses the host", func() (bool, string) {
		g := guestNamed(t, "fenced-1")
		return strings.HasSuffix(g.State, "_UNKNOWN"), g.State
	})
	if n := copies(lost.Meta.UID); n != 1 && time.Since(stopped) < fenceAfter {
		t.Errorf("%d copies before the host is switched off, want 1: the test shows nothing", n)
	}
	until(t, time.Minute, "the host is switched off", func() (bool, string) {
		out := must(t, "events")
		return strings.Contains(out, "was switched off by the fencing command"), out
	})
	settledWithin(t, 3*time.Minute, "fenced", 2)
	t.Logf("the cluster ran again %.0f s after the host's agent had stopped", time.Since(stopped).Seconds())
	if now := guestNamed(t, "fenced-1"); now.Host == lost.Host || now.Epoch == lost.Epoch {
		t.Errorf("the guest is on %s at epoch %s, and was on %s at %s", now.Host, now.Epoch, lost.Host, lost.Epoch)
	}
	eventsTell(t, "goes back to checkpoint "+made.Meta.Name+": guest fenced-1 was lost: host "+lost.Host+" is known to be off")
	off, err := os.ReadFile(calls)
	if err != nil || strings.TrimSpace(string(off)) != lost.Host {
		t.Errorf("the program was called for %q: %v", off, err)
	}
	p.goesOn(t)
	start()
	hostsReady(t)
	p.right(t)
	settled(t, "fenced", 2)
}
