package test

// waits_test.go - commands that wait, and Ctrl-C.

import (
	"strings"
	"testing"
	"time"
)

// interrupted runs a command that waits, and interrupts it (Ctrl-C) after a while. The command must end at once with
// status 130.
func interrupted(t *testing.T, after time.Duration, words []string, args ...string) {
	t.Helper()
	begun := time.Now()
	out, err := shared.watari(after, args...)
	if code := exitCode(err); code != 130 {
		t.Errorf("watari %s: status %d after an interrupt, want 130:\n%s", strings.Join(args, " "), code, out)
	}
	if took := time.Since(begun) - after; took > 8*time.Second {
		t.Errorf("watari %s went on for %v after an interrupt", strings.Join(args, " "), took)
	}
	for _, word := range words {
		if !strings.Contains(out, word) {
			t.Errorf("watari %s: the answer does not name %q:\n%s", strings.Join(args, " "), word, out)
		}
	}
}

func TestInterruptOfEachWait(t *testing.T) {
	hostsReady(t)
	newCluster(t, "waits", 1)
	long := []string{"--", "sh", "-c", "echo begun; sleep 300"}
	t.Run("events", func(t *testing.T) { interrupted(t, time.Second, nil, "events", "-f") })
	t.Run("guest console", func(t *testing.T) {
		full(t)
		interrupted(t, time.Second, nil, "guest", "console", "-f", "waits-0")
	})
	t.Run("guest exec", func(t *testing.T) {
		interrupted(t, 5*time.Second, []string{"begun"}, append([]string{"guest", "exec", "waits-0"}, long...)...)
	})
	t.Run("run", func(t *testing.T) {
		full(t)
		interrupted(t, 6*time.Second, []string{"begun", "waits-run", "interrupted"}, append([]string{"run", "waits", "--name", "waits-run"}, long...)...)
	})
	t.Run("run logs, run attach", func(t *testing.T) {
		full(t)
		must(t, append([]string{"run", "waits", "--name", "waits-again", "--detach"}, long...)...)
		started(t, "waits-again")
		interrupted(t, time.Second, []string{"begun"}, "run", "logs", "-f", "waits-again")
		interrupted(t, time.Second, []string{"begun", "waits-again", "interrupted"}, "run", "attach", "waits-again")
	})
	t.Run("migrate", func(t *testing.T) {
		full(t)
		from, to := elsewhere(t, "waits-0")
		interrupted(t, 4*time.Second, []string{"cancelled", "waits-0", from}, "migrate", "waits-0", "--to", to, "--bandwidth", "1M")
		settled(t, "waits", 1)
		if g := guestNamed(t, "waits-0"); g.Host != from {
			t.Errorf("the guest is on %s, though its move from %s was cancelled", g.Host, from)
		}
	})
	t.Run("image build", func(t *testing.T) {
		full(t)
		interrupted(t, 2*time.Second, nil, "image", "build", "unfinished", "--packages", "hwloc")
		if out := must(t, "image", "list"); strings.Contains(out, "unfinished") {
			t.Errorf("an interrupted build made an image:\n%s", out)
		}
	})
	t.Run("host drain", func(t *testing.T) {
		home := guestNamed(t, "waits-0").Host
		t.Cleanup(func() {
			for _, host := range hosts {
				must(t, "host", "drain", "--undo", host)
			}
		})
		for _, host := range hosts {
			if host != home {
				must(t, "host", "drain", host)
			}
		}
		interrupted(t, 2*time.Second, []string{home, "waits-0", "--undo"}, "host", "drain", home, "--wait")
		if out := must(t, "status"); !strings.Contains(out, "guest waits-0 cannot be moved") {
			t.Errorf("status does not say that the drain has nowhere to go:\n%s", out)
		}
	})
	settled(t, "waits", 1)
}

func TestInterruptOfADeleteThatWaitsForAHost(t *testing.T) {
	full(t)
	must(t, "cluster", "create", "stays", "--guests", "1", "--memory", "256M", "--image", imageName, "--wait")
	g := guestNamed(t, "stays-0")
	must(t, "lab", "host", "crash", "--name", labName, g.Host)
	until(t, settle, "the host is missed", func() (bool, string) {
		g := guestNamed(t, "stays-0")
		return strings.HasSuffix(g.State, "_UNKNOWN"), g.State
	})
	interrupted(t, 2*time.Second, []string{"is still being deleted"}, "cluster", "delete", "stays", "--wait")
	must(t, "lab", "host", "start", "--name", labName, g.Host)
	until(t, settle, "the cluster is gone", func() (bool, string) {
		out := must(t, "cluster", "list")
		return !strings.Contains(out, "stays"), out
	})
	if n := copies(g.Meta.UID); n != 0 {
		t.Errorf("%d copies are left", n)
	}
}
