package process

import (
	"os"
	"path/filepath"
	"testing"

	"google.golang.org/protobuf/proto"

	v1 "watari/api/watariv1"
)

func TestProcessorTimesOfAMachine(t *testing.T) {
	path := filepath.Join(t.TempDir(), "stat")
	for text, want := range map[string]*v1.CpuTimes{
		"cpu  100 20 30 400 5 6 7 80 9 0\ncpu0 1 2 3 4 5 6 7 8 9 0\n": {Computing: 120, Kernel: 43, Idle: 405, Stolen: 80},
		"cpu  1 2\n": nil,
		"":           nil,
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := CPUTimes(path); !proto.Equal(got, want) {
			t.Errorf("%q: %v, not %v", text, got, want)
		}
	}
	if got := CPUTimes("/proc/stat"); got.GetComputing()+got.GetIdle() == 0 {
		t.Errorf("this machine: %v", got)
	}
	if got := CPUTimes(filepath.Join(t.TempDir(), "none")); got != nil {
		t.Errorf("of no file: %v", got)
	}
}
