package blob

// shared.go - a directory of blobs outside the manager's state, which may be on a file server.

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/uuid"

	"watari/internal/durable"
)

// note is the content of a manager's file in a shared directory.
const note = "A manager of Watari keeps images here. It refuses to start while this file is missing.\n"

// OpenShared opens a directory outside the manager's state. The directory has to exist. At its first start with the directory, the
// manager puts a file of its own into managers/ there, and notes the file in memory, a file of its state. Later the directory
// has to have that file. Without it, the directory is probably an empty mount point, whose file server is not mounted.
func OpenShared(dir, memory string) (*Store, error) {
	info, err := os.Stat(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("the directory for blobs, %s, does not exist; mount it, or make it", dir)
	}
	if err != nil {
		return nil, fmt.Errorf("the directory for blobs: %w", err)
	}
	if !info.IsDir() {
		return nil, fmt.Errorf("%s, which should be the directory for blobs, is not a directory", dir)
	}
	text, err := os.ReadFile(memory)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("which directory for blobs was used: %w", err)
	}
	name, of, _ := strings.Cut(strings.TrimSuffix(string(text), "\n"), " ")
	if of != dir {
		return first(dir, memory)
	}
	own := filepath.Join(dir, "managers", name)
	if _, err := os.Stat(own); errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("the directory for blobs, %s, is not the one that this manager has used, because %s is missing; mount it; "+
			"or if it was replaced, remove %s", dir, own, memory)
	} else if err != nil {
		return nil, fmt.Errorf("the directory for blobs: %w", err)
	}
	return Open(dir)
}

// first opens a shared directory that the manager has not used before.
func first(dir, memory string) (*Store, error) {
	name := uuid.NewString()
	own := filepath.Join(dir, "managers", name)
	if err := os.MkdirAll(filepath.Dir(own), 0o700); err != nil {
		return nil, fmt.Errorf("the directory for blobs: %w", err)
	}
	for _, step := range []func() error{
		func() error { return durable.WriteFile(own, []byte(note), 0o600) },
		func() error { return durable.SyncDir(dir) },
		func() error { return os.MkdirAll(filepath.Dir(memory), 0o700) },
		func() error { return durable.WriteFile(memory, []byte(name+" "+dir+"\n"), 0o600) },
	} {
		if err := step(); err != nil {
			return nil, fmt.Errorf("the directory for blobs: %w", full(err))
		}
	}
	return Open(dir)
}
