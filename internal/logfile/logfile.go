// Package logfile bounds the log of a daemon whose standard error is a file. Without systemd's journal, nothing else bounds
// it.
package logfile

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// Most is the size, in bytes, above which a log is moved to PATH.1. One earlier log is kept, so a daemon has at most
	// twice as much.
	Most = 64 << 20
	// every is the time between two checks.
	every = time.Minute
)

// Bound moves the log to PATH.1 whenever it has grown too large, until ctx ends. It does nothing if the file is not a file
// to which lines are appended. Lines that are written while it copies the log are lost.
func Bound(ctx context.Context, file *os.File, log *slog.Logger) {
	path, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", file.Fd()))
	if err != nil || !appended(file) {
		return
	}
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		if err := rotate(file, path, Most); err != nil {
			log.Error("the log could not be put aside", "path", path, "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// appended reports whether a file is regular, and writes go to its end.
func appended(file *os.File) bool {
	info, err := file.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return false
	}
	flags, err := unix.FcntlInt(file.Fd(), unix.F_GETFL, 0)
	return err == nil && flags&unix.O_APPEND != 0
}

// rotate moves the content of a log to path.1 if it is larger than most.
func rotate(file *os.File, path string, most int64) error {
	info, err := file.Stat()
	if err != nil || info.Size() <= most || strings.HasSuffix(path, " (deleted)") {
		return err
	}
	from, err := os.Open(path)
	if err != nil {
		return err
	}
	defer from.Close()
	if named, err := from.Stat(); err != nil || !os.SameFile(info, named) {
		return err // somebody else has moved the log
	}
	part := path + ".part"
	to, err := os.OpenFile(part, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err == nil {
		_, err = io.Copy(to, io.LimitReader(from, info.Size()))
		if closed := to.Close(); err == nil {
			err = closed
		}
	}
	if err == nil {
		err = os.Rename(part, path+".1")
	}
	if err != nil {
		os.Remove(part) // on a full disk the log is emptied without a copy
	}
	if truncated := file.Truncate(0); truncated != nil {
		return truncated
	}
	return err
}
