package blob

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// empty reports whether a directory has nothing in it.
func empty(t *testing.T, dir string) bool {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	return len(entries) == 0
}

func TestASharedDirectoryMustExist(t *testing.T) {
	dir, memory := filepath.Join(t.TempDir(), "nfs", "blobs"), filepath.Join(t.TempDir(), "blobs-folder")
	if _, err := OpenShared(dir, memory); err == nil || !strings.Contains(err.Error(), "mount it, or make it") {
		t.Fatal(err)
	}
	if !missing(filepath.Dir(dir)) || !missing(memory) {
		t.Fatal("something was made")
	}
}

// The mount point stays when its file server is not mounted.
func TestAnEmptyMountPointIsRefused(t *testing.T) {
	point, away := filepath.Join(t.TempDir(), "blobs"), filepath.Join(t.TempDir(), "away")
	memory, other := filepath.Join(t.TempDir(), "blobs-folder"), filepath.Join(t.TempDir(), "state", "blobs-folder")
	if err := os.Mkdir(point, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, state := range []string{memory, other, memory, other} { // two managers, twice each
		if _, err := OpenShared(point, state); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Rename(point, away); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(point, 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenShared(point, memory); err == nil || !strings.Contains(err.Error(), "mount it") || !strings.Contains(err.Error(), memory) {
		t.Fatal(err)
	}
	if !empty(t, point) {
		t.Fatal("the mount point got files")
	}
	if err := os.Remove(point); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(away, point); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenShared(point, memory); err != nil {
		t.Fatal(err)
	}
}

func TestASharedDirectoryCanBeReplaced(t *testing.T) {
	old, fresh, memory := t.TempDir(), t.TempDir(), filepath.Join(t.TempDir(), "blobs-folder")
	for _, dir := range []string{old, fresh, old} { // another path
		if _, err := OpenShared(dir, memory); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.RemoveAll(filepath.Join(old, "managers")); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenShared(old, memory); err == nil {
		t.Fatal("a directory without the manager's file was opened")
	}
	if err := os.Remove(memory); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenShared(old, memory); err != nil {
		t.Fatal(err)
	}
}
