// Package durable writes files that are complete or unchanged after a crash or power failure.
package durable

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// WriteFile replaces a file and sets its mode. The directory must exist. When WriteFile returns, the new content and
// name are on disk. If root replaces a file, the file keeps its owner. Several writers may replace the same file at
// once.
func WriteFile(path string, data []byte, mode fs.FileMode) error {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".new-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // fails harmlessly after a successful rename
	_, err = f.Write(data)
	err = errors.Join(err, f.Chmod(mode), keepOwner(f, path))
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	return SyncDir(filepath.Dir(path))
}

// keepOwner gives f the owner of the file at path.
func keepOwner(f *os.File, path string) error {
	if os.Geteuid() != 0 {
		return nil
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil // there is no old file
	}
	owner := info.Sys().(*syscall.Stat_t)
	if owner.Uid == 0 && owner.Gid == uint32(os.Getegid()) {
		return nil // nothing to change, and a daemon may not be allowed to call Chown
	}
	return f.Chown(int(owner.Uid), int(owner.Gid))
}

// SyncDir makes renames in a directory durable.
func SyncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
