package test

import (
	"os"
	"path/filepath"
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
		// 3 MB through a pipe of the launcher and the overlay; a wrong MTU passes small messages only.
		out := must(t, "run", "hello", "-n", "4", "--", "sh", "-c", "head -c 750000 /dev/zero | tr '\\0' x; echo")
		if n := strings.Count(out, "x"); n < 3000000 {
			t.Errorf("%d bytes arrived, want 3000000", n)
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

// The main promise: a program under which a guest moves to another site, and back at once, gives the same answer.
func TestSameAnswerWhenAGuestMoves(t *testing.T) {
	newCluster(t, "melt", 2, "--spread", "site")
	dir := t.TempDir()
	melt := func(log string) {
		must(t, "run", "melt", "--stage", "../examples/melt/in.melt", "--collect", "log.lammps:"+filepath.Join(dir, log),
			"--", "lmp", "-in", "in.melt", "-var", "steps", "120")
	}
	melt("alone")
	unmarked := mark(t, "melt-0", "melt-1")
	done := make(chan struct{})
	go func() { defer close(done); melt("moved") }()
	until(t, time.Minute, "the program writes its table", func() (bool, string) {
		list := decoded[[]run](t, "run", "list")
		if len(list) == 0 {
			return false, "no run"
		}
		out, _ := shared.watari(20*time.Second, "run", "logs", list[len(list)-1].Meta.Name)
		return strings.Contains(out, "Step"), out
	})
	for range 2 {
		_, to := elsewhere(t, "melt-1")
		m := decoded[migration](t, "migrate", "melt-1", "--to", to)
		if !strings.HasSuffix(m.State, "_DONE") {
			t.Errorf("move to %s: %s: %s", to, m.State, m.Message)
		}
		t.Logf("moved to %s in %d ms, stopped %d ms", to, m.TotalMs, m.DowntimeMs)
	}
	<-done
	if lost := unmarked(); lost != nil {
		t.Errorf("guests were started anew: %v", lost)
	}
	if a, b := table(t, filepath.Join(dir, "alone")), table(t, filepath.Join(dir, "moved")); a != b {
		t.Errorf("the answers differ:\n%s\n---\n%s", a, b)
	}
	settled(t, "melt", 2)
}

// table is the thermodynamic output in a LAMMPS log.
func table(t *testing.T, path string) string {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(content), "Step ")
	lines, _, ended := strings.Cut(rest, "Loop time")
	if !found || !ended {
		t.Fatalf("%s has no whole table:\n%s", path, content)
	}
	return lines
}
