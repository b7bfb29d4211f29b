// Package durable writes files that are there whole after a crash or power cut, or as they were before.
package durable

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// WriteFile replaces a file, whose folder must exist, with one of this mode. It returns when the new content and name
// are on disk. A file that was there keeps its owner, where root writes. Several writers may replace it at once.
func WriteFile(path string, data []byte, mode fs.FileMode) error {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".new-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // gone already where all went well
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
		return nil // there is none
	}
	owner := info.Sys().(*syscall.Stat_t)
	if owner.Uid == 0 && owner.Gid == uint32(os.Getegid()) {
		return nil // as it is already, and a daemon may lack the right to say so
	}
	return f.Chown(int(owner.Uid), int(owner.Gid))
}

// SyncDir makes renames in a folder durable.
func SyncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
