package process

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestAFullMemoryDropsOutputAndEndsNoProgram(t *testing.T) {
	directory := t.TempDir()
	if err := unix.Mount("small", directory, "tmpfs", 0, "size=256k"); err != nil {
		t.Skipf("mounting needs root: %v", err)
	}
	t.Cleanup(func() { unix.Unmount(directory, unix.MNT_DETACH) })
	o, err := newOutput(filepath.Join(directory, "stdout"), 0)
	if err != nil {
		t.Fatal(err)
	}
	write := func(text string) {
		t.Helper()
		if n, err := o.Write([]byte(text)); n != len(text) || err != nil {
			t.Fatalf("wrote %d of %d bytes: %v", n, len(text), err)
		}
	}
	for i := range 100 {
		write(fmt.Sprintf("%d ", i) + strings.Repeat("x", 32<<10) + "\n")
	}
	write("last\n")
	read := func() string {
		o.closed = true // makes read return at the end
		defer func() { o.closed = false }()
		return all(t, o.read, 0)
	}
	got := read()
	if !strings.Contains(got, "dropped here") || !strings.HasSuffix(got, "x\nlast\n") || strings.Contains(got, "\x00") {
		t.Errorf("%d bytes, %.80q ... %q", len(got), got, got[max(0, len(got)-10):])
	}
	if err := os.WriteFile(filepath.Join(directory, "identity"), make([]byte, 24<<10), 0o600); err != nil {
		t.Errorf("output leaves no room for others: %v", err)
	}

	// Other files take all the space. Output written meanwhile is lost, but nothing else.
	o.file.Truncate(0)
	other := filepath.Join(directory, "other")
	os.WriteFile(other, bytes.Repeat([]byte("y"), 1<<20), 0o600)
	write(strings.Repeat("z", 100<<10))
	os.Remove(other)
	write("after\n")
	if got := read(); !strings.HasSuffix(got, "]\nafter\n") {
		t.Errorf("%.200q", got)
	}
}
