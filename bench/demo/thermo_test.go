package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const lammpsLog = `LAMMPS (23 Jun 2022)
run 20
   Step          Temp          E_pair
         0   3             -6.7733681
        10   2.5           -6.1
        20   2.4           -6.0
Loop time of 1.2 on 4 procs for 20 steps with 2048 atoms
`

func writeLog(t *testing.T, content string) string {
	path := filepath.Join(t.TempDir(), "log.lammps")
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestThermoIsTheTableAlone(t *testing.T) {
	lines, err := thermo(writeLog(t, lammpsLog))
	if err != nil || len(lines) != 3 || !strings.HasPrefix(lines[2], "20 ") {
		t.Fatalf("thermo = %q, %v", lines, err)
	}
	if step, err := stepOf(lines[1]); err != nil || step != 10 {
		t.Errorf("stepOf = %d, %v", step, err)
	}
}

func TestThermoOfACutLogIsAnError(t *testing.T) {
	cut, _, _ := strings.Cut(lammpsLog, "Loop")
	if lines, err := thermo(writeLog(t, cut)); err == nil {
		t.Errorf("thermo of a cut log = %q, want an error", lines)
	}
}

func TestDifferenceNamesTheLine(t *testing.T) {
	if d := difference([]string{"1", "2"}, []string{"1", "3"}); d != `line 2: "2" and "3"` {
		t.Errorf("difference = %s", d)
	}
	if d := difference([]string{"1"}, []string{"1"}); d != "" {
		t.Errorf("difference of equals = %s", d)
	}
	if d := difference([]string{"1"}, []string{"1", "2"}); d == "" {
		t.Error("a missing line is no difference")
	}
}
