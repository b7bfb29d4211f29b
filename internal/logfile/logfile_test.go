package logfile

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestALogThatIsTooLargeIsPutAside(t *testing.T) {
	path := filepath.Join(t.TempDir(), "agent.log")
	file, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if !appended(file) {
		t.Fatal("the log is not taken for one")
	}
	for n, line := range []string{strings.Repeat("one\n", 30), "two\n", strings.Repeat("three\n", 30), "four\n"} {
		if _, err := file.WriteString(line); err != nil {
			t.Fatal(err)
		}
		if err := rotate(file, path, 100); err != nil {
			t.Fatal(err)
		}
		aside, _ := os.ReadFile(path + ".1")
		now, _ := os.ReadFile(path)
		if want := []string{"one", "one", "two\nthree", "two\nthree"}[n]; !strings.HasPrefix(string(aside), want) {
			t.Errorf("after line %d, %.20q was put aside", n, aside)
		}
		if want := []string{"", "two\n", "", "four\n"}[n]; string(now) != want {
			t.Errorf("after line %d the log has %q", n, now)
		}
	}
	if err := os.Rename(path, path+".moved"); err != nil {
		t.Fatal(err)
	}
	if _, err := file.WriteString(strings.Repeat("five\n", 30)); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("another"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := rotate(file, path, 100); err != nil {
		t.Fatal(err)
	}
	if now, _ := os.ReadFile(path); string(now) != "another" {
		t.Errorf("another's log was taken: %q", now)
	}
}

func TestWhatIsNoLogFileIsLeftAlone(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	plain, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	if appended(w) || appended(plain) {
		t.Error("a pipe, or a file that is not appended to, was taken for a log")
	}
}

func TestADaemonsLogIsPutAsideAbove64MiB(t *testing.T) {
	file, err := os.OpenFile(filepath.Join(t.TempDir(), "agent.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	once, cancel := context.WithCancel(t.Context())
	cancel()
	for size, want := range map[int64]int64{64 << 20: 64 << 20, 64<<20 + 1: 0} {
		if err := file.Truncate(size); err != nil {
			t.Fatal(err)
		}
		Bound(once, file, slog.New(slog.DiscardHandler))
		if info, err := file.Stat(); err != nil || info.Size() != want {
			t.Errorf("a log of %d bytes has %d bytes now, not %d: %v", size, info.Size(), want, err)
		}
	}
}
