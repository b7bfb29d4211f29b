package test

// story_test.go - the main use: a program on two sites that moves while it runs.

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

func TestProgramOverTwoSites(t *testing.T) {
	newCluster(t, "hello", 4, "--spread", "site")
	settled(t, "hello", 4)
	out := must(t, "run", "hello", "--", "hostname")
	for _, name := range []string{"hello-0", "hello-1", "hello-2", "hello-3"} {
		if !strings.Contains(out, name) {
			t.Errorf("mpirun hostname did not run on %s:\n%s", name, out)
		}
	}
	t.Run("exit status is the program's", func(t *testing.T) {
		_, err := shared.watari(time.Minute, "run", "hello", "-n", "1", "--", "sh", "-c", "exit 7")
		if code := exitCode(err); code != 7 {
			t.Errorf("status %d, want 7", code)
		}
	})
	t.Run("large messages pass between sites", func(t *testing.T) {
		// 3 MB go through a pipe of the launcher and over the overlay. With a wrong MTU, only small messages pass.
		out := must(t, "run", "hello", "-n", "4", "--", "sh", "-c", "head -c 750000 /dev/zero | tr '\\0' x; echo")
		if n := strings.Count(out, "x"); n < 3000000 {
			t.Errorf("%d bytes arrived, want 3000000", n)
		}
	})
	t.Run("messages pass over PM", func(t *testing.T) {
		netpipe := "exec NPopenmpi -i -n 3 -l 1000 -u 50000"
		out := must(t, append(append([]string{"run", "hello", "-n", "2"}, overPM...), "--", "sh", "-c", keyHidden+netpipe)...)
		wholeUpTo(t, 32768, out)
		carriedByPM(t, out, 2, 5e5)
		if strings.Count(out, "a key of 64 digits") != 2 || strings.Contains(out, "told") {
			t.Errorf("the ranks' key:\n%s", out)
		}
	})
	t.Run("home is shared", func(t *testing.T) {
		must(t, "guest", "exec", "hello-3", "--", "sh", "-c", "echo there > /home/watari/shared-file && sync")
		if out := must(t, "guest", "exec", "hello-1", "--", "cat", "/home/watari/shared-file"); !strings.Contains(out, "there") {
			t.Errorf("another guest read %q", out)
		}
	})
	t.Run("guests do not share what is to be their own", func(t *testing.T) {
		seen := map[string]string{}
		for _, g := range []string{"hello-0", "hello-1", "hello-2", "hello-3"} {
			out := must(t, "guest", "exec", g, "--", "sh", "-c", "cat /etc/machine-id /proc/sys/kernel/random/uuid /sys/class/net/eth0/address; hostname")
			for _, word := range strings.Fields(out) {
				if other := seen[word]; other != "" {
					t.Errorf("%s and %s share %q", other, g, word)
				}
				seen[word] = g
			}
		}
	})
}

// The main promise: a program gives the same answer if one of its guests moves to another site and immediately back,
// with each transport.
func TestSameAnswerWhenAGuestMoves(t *testing.T) {
	newCluster(t, "melt", 2, "--spread", "site")
	// moved runs LAMMPS while a guest moves, and returns the run's output.
	moved := func(t *testing.T, name string, steps int, more ...string) (out string) {
		unmarked := mark(t, "melt-0", "melt-1")
		log := filepath.Join(t.TempDir(), "log")
		done := make(chan struct{})
		go func() {
			defer close(done)
			out = must(t, meltOf("melt", name, strconv.Itoa(steps), append([]string{"--collect", "log.lammps:" + log}, more...)...)...)
		}()
		computing(t, time.Minute, name)
		moveAway(t, "melt-1")
		if state := decoded[run](t, "run", "show", name).State; !strings.HasSuffix(state, "_RUNNING") {
			t.Errorf("the run was %s before the guest had moved", state)
		}
		moveAway(t, "melt-1")
		<-done
		noneRestarted(t, unmarked)
		rightAnswer(t, table(t, log), steps)
		settled(t, "melt", 2)
		return out
	}
	t.Run("over TCP, with a site that only dials out", func(t *testing.T) {
		if !wholeHosts {
			behindNAT(t, "b")
		}
		moved(t, "melt-tcp", 240)
	})
	t.Run("over PM", func(t *testing.T) { carriedByPM(t, moved(t, "melt-pm", 120, overPM...), 2, 5e6) })
}

// moveAway moves a guest to the other site.
func moveAway(t *testing.T, guest string) {
	t.Helper()
	_, to := elsewhere(t, guest)
	m := decoded[migration](t, "migrate", guest, "--to", to)
	if !strings.HasSuffix(m.State, "_DONE") {
		t.Errorf("move to %s: %s: %s", to, m.State, m.Message)
	}
	t.Logf("moved to %s in %d ms, stopped %d ms", to, m.TotalMs, m.DowntimeMs)
}

// table returns the thermodynamic output in a LAMMPS log.
func table(t *testing.T, path string) string {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	lines, whole := meltTable(string(content))
	if !whole {
		t.Fatalf("%s has no whole table:\n%s", path, content)
	}
	return lines
}
