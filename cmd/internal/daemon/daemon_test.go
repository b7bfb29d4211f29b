package daemon_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"watari/cmd/internal/daemon"
)

func spec(t *testing.T, script string) daemon.Spec {
	folder := t.TempDir()
	return daemon.Spec{Name: "sleeper", Command: []string{"/bin/sh", "-c", script}, PIDFile: filepath.Join(folder, "run", "a.pid"), Log: filepath.Join(folder, "log", "a.log")}
}

func await(t *testing.T, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !done(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not in time", what)
		}
	}
}

func TestDaemonIsFoundAndEnded(t *testing.T) {
	s := spec(t, "echo begun; exec sleep 60")
	if found, err := daemon.Running(s); found != nil || err != nil {
		t.Fatalf("before the start: %v, %v", found, err)
	}
	started, err := daemon.Start(s)
	if err != nil {
		t.Fatal(err)
	}
	found, err := daemon.Running(s)
	if err != nil || found == nil || found.PID != started.PID || found.Ended() {
		t.Fatalf("found %v, %v", found, err)
	}
	await(t, "log", func() bool { return strings.Contains(daemon.LastLines(s.Log, 2), "begun") })
	if err := found.Stop(5 * time.Second); err != nil {
		t.Fatal(err)
	}
	await(t, "end", started.Ended)
	if found, err := daemon.Running(s); found != nil || err != nil {
		t.Errorf("after the end: %v, %v", found, err)
	}
	if _, err := os.Stat(s.PIDFile); err == nil {
		t.Error("the pid file is still there")
	}
}

func TestDaemonThatIgnoresTheRequestIsKilled(t *testing.T) {
	s := spec(t, "trap '' TERM; echo begun; while :; do sleep 0.1; done")
	started, err := daemon.Start(s)
	if err != nil {
		t.Fatal(err)
	}
	await(t, "log", func() bool { return strings.Contains(daemon.LastLines(s.Log, 2), "begun") })
	if err := started.Stop(100 * time.Millisecond); err != nil {
		t.Fatal(err)
	}
	await(t, "end", started.Ended)
}

func TestAnotherProcessWithTheNumberIsLeftAlone(t *testing.T) {
	s := spec(t, "")
	if err := os.MkdirAll(filepath.Dir(s.PIDFile), 0o755); err != nil {
		t.Fatal(err)
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		t.Fatal(err)
	}
	// This very process, but with an earlier start time, or of an earlier boot.
	for _, rest := range []string{"1 " + string(boot), "1 00000000-0000-0000-0000-000000000000\n"} {
		if err := os.WriteFile(s.PIDFile, fmt.Appendf(nil, "%d\n%s", os.Getpid(), rest), 0o644); err != nil {
			t.Fatal(err)
		}
		if found, err := daemon.Running(s); found != nil || err != nil {
			t.Errorf("%q: %v, %v", rest, found, err)
		}
	}
	for _, damaged := range []string{"junk", "", "x 1 00000000-0000-0000-0000-000000000000"} {
		if err := os.WriteFile(s.PIDFile, []byte(damaged), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := daemon.Running(s); !errors.Is(err, daemon.ErrDamaged) {
			t.Errorf("a damaged pid file, %q: %v", damaged, err)
		}
	}
}

func TestDaemonThatEndsAtOnceShowsItsLog(t *testing.T) {
	s := spec(t, "echo no such thing >&2; exit 1")
	started, err := daemon.Start(s)
	if err != nil {
		if !strings.Contains(err.Error(), "no such thing") && !strings.Contains(err.Error(), "sleeper") {
			t.Fatal(err)
		}
		return // it ended before the check
	}
	await(t, "end", started.Ended)
	if err := started.Died(); !strings.Contains(err.Error(), "no such thing") {
		t.Error(err)
	}
}
