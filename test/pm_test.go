package test

// pm_test.go - runs over PM: how to start them, the proof that PM has carried their messages, and HPCC.

import (
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"
	"time"
)

// overPM are the arguments of a run over PM. The provider logs at the end of each rank what it has sent.
var overPM = []string{"--transport", "pm", "-e", "FI_LOG_LEVEL=info", "-e", "FI_LOG_PROV=pm", "-e", "FI_LOG_SUBSYS=ep_ctrl"}

var account = regexp.MustCompile(`log_statistics.* messages sent (\d+) received (\d+), bytes sent (\d+) received \d+ read (\d+) written (\d+) .*dropped (\d+)`)

// carriedByPM checks in a run's output that this many ranks have sent and received messages over PM, together at least
// least bytes, and that PM has dropped nothing.
func carriedByPM(t *testing.T, out string, ranks, least int) {
	t.Helper()
	carried, bytes := 0, 0
	for _, words := range account.FindAllStringSubmatch(out, -1) {
		var n [6]int // the groups of the pattern
		for i := range n {
			n[i], _ = strconv.Atoi(words[i+1])
		}
		if n[0] > 0 && n[1] > 0 {
			carried++
		}
		bytes += n[2] + n[3] + n[4]
		if n[5] > 0 {
			t.Errorf("PM has dropped %d things that came", n[5])
		}
	}
	if carried != ranks || bytes < least {
		t.Errorf("%d ranks have sent and received messages over PM, %d bytes in all; want %d ranks, %d bytes or more:\n%s", carried, bytes, ranks, least, out)
	}
}

// keyHidden is the first shell command of a rank. It prints whether the run's key is set, and whether a command line
// reveals it.
const keyHidden = `echo "a key of ${#PM_JOB_KEY} digits"; case $(cat /proc/[0-9]*/cmdline | tr '\0' ' ') in *"$PM_JOB_KEY"*) echo "which is told" ;; esac; `

// HPCC (Debian: hpcc) writes into its output file whether the result of each of its tests is right.
func TestHPCCOverPM(t *testing.T) {
	full(t)
	newCluster(t, "hpcc", 2, "--site", "a", "--spread", "host")
	result := filepath.Join(t.TempDir(), "hpccoutf.txt")
	run := append(append([]string{"run", "hpcc"}, overPM...), "--stage", "testdata/hpccinf.txt", "--collect", "hpccoutf.txt:"+result, "--", "hpcc")
	out, err := shared.watari(20*time.Minute, run...)
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	carriedByPM(t, out, 2, 100e6)
	content, err := os.ReadFile(result)
	if err != nil {
		t.Fatal(err)
	}
	for _, verdict := range []string{`(?m)^Success=1`, `1 tests completed and passed residual`, `5 tests completed and passed residual`,
		`Solution Validates`, `Found 0 errors in .*\(passed\)`, `(?m)^MPIRandomAccess_Errors=0`, `(?m)^MPIFFT_maxErr=[0-9.]*e-1`} {
		if !regexp.MustCompile(verdict).Match(content) {
			t.Errorf("hpccoutf.txt has no %q:\n%s", verdict, content)
		}
	}
	if wrong := regexp.MustCompile(`FAILED|\(failed\)|Node\(s\) with error [1-9]|RandomAccess.*Errors=[1-9]`).FindAll(content, -1); wrong != nil {
		t.Errorf("hpccoutf.txt has %q:\n%s", wrong, content)
	}
}
