package manager

// lock.go - one manager for each state folder.

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/cenkalti/backoff/v5"

	"watari/manager/store"
)

// PIDFile is the name of the file in the state folder that holds the manager's process number. The manager holds a lock
// on it while it runs. The kernel releases the lock when the process ends.
const PIDFile = "manager.pid"

// SetAside moves an object that cannot be read to another key of etcd, and returns that key. The manager must not run.
func SetAside(ctx context.Context, cfg Config, key string) (kept string, err error) {
	if err := cfg.complete(); err != nil {
		return "", err
	}
	unlock, err := lock(cfg.State)
	if err != nil {
		return "", err
	}
	defer unlock()
	return store.SetAside(ctx, cfg.storeConfig(), key)
}

// dying is how long the kernel of a busy machine may take to release a killed manager's lock.
const dying = 3 * time.Second

// lock makes the state folder and locks it; unlock removes the process number.
func lock(state string) (unlock func(), err error) {
	if err := os.MkdirAll(state, 0o700); err != nil {
		return nil, fmt.Errorf("make the manager's state folder: %w", err)
	}
	path := filepath.Join(state, PIDFile)
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("lock the manager's state: %w", err)
	}
	_, err = backoff.Retry(context.Background(), func() (struct{}, error) {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err != nil && !errors.Is(err, syscall.EWOULDBLOCK) {
			err = backoff.Permanent(err)
		}
		return struct{}{}, err
	}, backoff.WithBackOff(backoff.NewConstantBackOff(50*time.Millisecond)), backoff.WithMaxElapsedTime(dying))
	if err != nil {
		defer f.Close()
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("lock the manager's state %s: %w", path, err)
		}
		text, err := os.ReadFile(path)
		if err != nil {
			text = nil
		}
		return nil, fmt.Errorf("another manager (process %s) works on %s; end it first, or choose another --state",
			strings.TrimSpace(string(text)), state)
	}
	// A full disk must not prevent the start, so ignore errors: only people read the number.
	if f.Truncate(0) == nil {
		f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	}
	return func() {
		f.Truncate(0)
		f.Close()
	}, nil
}
