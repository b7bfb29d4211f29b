package durable

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
)

func TestAFileIsReplacedWhole(t *testing.T) {
	path := filepath.Join(t.TempDir(), "key")
	var group sync.WaitGroup
	for i := range 8 {
		group.Go(func() {
			if err := WriteFile(path, fmt.Appendf(nil, "%d%d%d", i, i, i), 0o600); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	got, err := os.ReadFile(path)
	if err != nil || len(got) != 3 || got[0] != got[1] || got[1] != got[2] {
		t.Errorf("%q, %v", got, err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Error(info.Mode(), err)
	}
	if left, err := os.ReadDir(filepath.Dir(path)); err != nil || len(left) != 1 {
		t.Error(left, err)
	}
}

func TestAFileKeepsItsOwner(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, who alone can give a file away")
	}
	path := filepath.Join(t.TempDir(), "config")
	if err := WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(path, 65534, 65534); err != nil {
		t.Fatal(err)
	}
	if err := WriteFile(path, []byte("new"), 0o644); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if owner := info.Sys().(*syscall.Stat_t); owner.Uid != 65534 || owner.Gid != 65534 || info.Mode().Perm() != 0o644 {
		t.Error(owner.Uid, owner.Gid, info.Mode())
	}
}

func TestWhatFailsLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "taken"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := WriteFile(filepath.Join(dir, "taken"), nil, 0o600); err == nil {
		t.Error("a folder was replaced")
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
		t.Error(left, err)
	}
}
