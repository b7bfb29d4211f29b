package accel

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "watari/api/watariv1"
)

func TestProbeNamesItsReason(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	with := write("with", "processor : 0\nflags\t\t: fpu vmx sse2\n\nprocessor : 1\nflags\t\t: fpu vmx sse2\n")
	one := write("one", "processor : 0\nflags\t\t: fpu vmx\nvmx flags\t: vnmi\nprocessor : 1\nflags\t\t: fpu\n")
	without := write("without", "processor : 0\nflags\t\t: fpu svme sse2\n")
	device := write("kvm", "")
	works := func(context.Context) error { return nil }
	hangs := func(context.Context) error { return errors.New("it hung for 2s") }
	for _, c := range []struct {
		name   string
		host   host
		kind   v1.AccelerationKind
		reason string
	}{
		{"all well", host{with, device, works}, v1.AccelerationKind_ACCELERATION_KIND_KVM, "a trial guest ran"},
		{"no flag, device", host{without, device, works}, v1.AccelerationKind_ACCELERATION_KIND_TCG, "exists, but the CPU has neither"},
		{"flag on one CPU only", host{one, device, works}, v1.AccelerationKind_ACCELERATION_KIND_TCG, "neither the vmx nor the svm"},
		{"no flag, no device", host{without, "/nonexistent", works}, v1.AccelerationKind_ACCELERATION_KIND_TCG, "neither"},
		{"no device", host{with, "/nonexistent", works}, v1.AccelerationKind_ACCELERATION_KIND_TCG, "there is no /nonexistent"},
		{"hangs", host{with, device, hangs}, v1.AccelerationKind_ACCELERATION_KIND_TCG, "did not run under KVM: it hung"},
		{"no cpuinfo", host{"/nonexistent", device, works}, v1.AccelerationKind_ACCELERATION_KIND_TCG, "read the CPU's flags"},
	} {
		got := probe(context.Background(), c.host)
		if got.Kind != c.kind || !strings.Contains(got.Reason, c.reason) {
			t.Errorf("%s: got %v, want %v and %q", c.name, got, c.kind, c.reason)
		}
	}
}

// The child gives up in time whatever /dev/kvm does here.
func TestTrialEndsInTime(t *testing.T) {
	begun := time.Now()
	err := trial(context.Background())
	if took := time.Since(begun); took > trialTime+3*time.Second {
		t.Errorf("the trial took %v", took)
	}
	t.Logf("trial guest: %v after %v", err, time.Since(begun))
}

func TestProbeOfThisHost(t *testing.T) {
	first, second := Probe(context.Background()), Probe(context.Background())
	if first.Kind == v1.AccelerationKind_ACCELERATION_KIND_UNSPECIFIED || first.Reason == "" || first.Reason != second.Reason {
		t.Errorf("got %v, then %v", first, second)
	}
	t.Log(first)
}
