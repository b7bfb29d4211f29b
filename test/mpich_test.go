package test

// mpich_test.go - MPICH instead of Open MPI.

import (
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

// The MPI program is NetPIPE (Debian: netpipe-mpich2): two ranks send each other messages of growing size and verify them
// (-i). -n sets the number of messages; otherwise each rank chooses it, and the numbers may differ. MPICH is Debian 13's,
// because Debian 12's (4.0) may hang in MPI_Finalize if a rank was paused (https://github.com/pmodels/mpich/pull/6596).
func TestMPICHOverTwoSites(t *testing.T) {
	full(t)
	must(t, "image", "build", "mpich", "--suite", "trixie", "--packages", "mpich,netpipe-mpich2")
	newCluster(t, "pich", 2, "--image", "mpich", "--vcpus", "1", "--spread", "site")
	settled(t, "pich", 2)
	t.Run("ranks are on all guests, with the environment asked for", func(t *testing.T) {
		out := must(t, "run", "pich", "-e", "WORD=a b", "--", "sh", "-c", `echo "rank $PMI_RANK of $PMI_SIZE on $(hostname): $WORD"`)
		for _, line := range []string{"rank 0 of 2 on pich-0: a b", "rank 1 of 2 on pich-1: a b"} {
			if !strings.Contains(out, line) {
				t.Errorf("no %q in:\n%s", line, out)
			}
		}
	})
	t.Run("messages arrive whole", func(t *testing.T) {
		wholeUpTo(t, 65536, must(t, "run", "pich", "--", "NPmpich2", "-i", "-n", "3", "-u", "100000"))
	})
	t.Run("messages arrive whole when a guest moves there and back", func(t *testing.T) {
		name := strings.TrimSpace(must(t, "run", "pich", "--detach", "--", "NPmpich2", "-i", "-n", "600", "-l", "1000", "-u", "50000"))
		until(t, time.Minute, "the program runs", func() (bool, string) {
			out, _ := shared.watari(20*time.Second, "run", "logs", name)
			return strings.Contains(out, "passed"), out
		})
		for range 2 {
			_, to := elsewhere(t, "pich-1")
			must(t, "migrate", "pich-1", "--to", to)
		}
		if state := decoded[run](t, "run", "show", name).State; !strings.HasSuffix(state, "_RUNNING") {
			t.Errorf("the run was %s before the guest was back", state)
		}
		wholeUpTo(t, 32768, must(t, "run", "attach", name))
	})
	t.Run("guests have boot ids of their own", func(t *testing.T) {
		seen := map[string]string{}
		for _, g := range []string{"pich-0", "pich-1"} {
			id := must(t, "guest", "exec", g, "--", "cat", "/proc/sys/kernel/random/boot_id")
			if other := seen[id]; other != "" {
				t.Errorf("%s and %s have the boot id %s", other, g, id)
			}
			seen[id] = g
		}
	})
	t.Run("exit status is the program's", func(t *testing.T) {
		_, err := shared.watari(time.Minute, "run", "pich", "-n", "1", "--", "sh", "-c", "exit 7")
		if code := exitCode(err); code != 7 {
			t.Errorf("status %d, want 7", code)
		}
	})
	t.Run("a run can be cancelled", func(t *testing.T) {
		name := strings.TrimSpace(must(t, "run", "pich", "--detach", "--", "sleep", "1000"))
		started := func() (bool, string) {
			out, err := shared.watari(20*time.Second, "guest", "exec", "pich-1", "--", "pgrep", "-x", "sleep")
			return err == nil, out
		}
		until(t, time.Minute, "the ranks have started", started)
		must(t, "run", "cancel", name)
		until(t, time.Minute, "the ranks have ended", func() (bool, string) {
			there, out := started()
			return !there, out
		})
	})
}

// wholeUpTo checks in NetPIPE's output that a message of at least size bytes was sent and arrived intact.
func wholeUpTo(t *testing.T, size int, out string) {
	t.Helper()
	largest := 0
	for _, line := range regexp.MustCompile(`(\d+) bytes +\d+ times --> +Integrity check passed`).FindAllStringSubmatch(out, -1) {
		n, _ := strconv.Atoi(line[1])
		largest = max(largest, n)
	}
	if largest < size {
		t.Errorf("the largest message that arrived whole had %d bytes, want %d or more:\n%s", largest, size, out)
	}
}
