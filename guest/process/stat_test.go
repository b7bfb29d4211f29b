package process

import (
	"os"
	"path/filepath"
	"testing"
)

func TestProcessorTimesOfAMachine(t *testing.T) {
	path := filepath.Join(t.TempDir(), "stat")
	for text, want := range map[string][2]uint64{
		"cpu  100 20 30 400 5 6 7 80 9 0\ncpu0 1 2 3 4 5 6 7 8 9 0\n": {120, 568},
		"cpu  1 2\n": {},
		"":           {},
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		got := CPUTimes(path)
		if got.GetComputing() != want[0] || got.GetAll() != want[1] || (got == nil) != (want[1] == 0) {
			t.Errorf("%q: %v", text, got)
		}
	}
	if got := CPUTimes("/proc/stat"); got.GetAll() == 0 || got.Computing > got.All {
		t.Errorf("this machine: %v", got)
	}
	if got := CPUTimes(filepath.Join(t.TempDir(), "none")); got != nil {
		t.Errorf("of no file: %v", got)
	}
}
