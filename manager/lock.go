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

// PIDFile is the name of the file, in the state folder, that holds the manager's process number. It is locked
// while the manager runs; the lock ends with the process, however that ends.
const PIDFile = "manager.pid"

// SetAside moves an object that cannot be read out of the way of a manager that does not run, and returns the key at which
// it is kept in etcd.
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

// dying is how long a manager that was killed may take, on a busy machine, until its lock is gone.
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
	// A full disk must not keep a manager from being started: the number is for people.
	if f.Truncate(0) == nil {
		f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	}
	return func() {
		f.Truncate(0)
		f.Close()
	}, nil
}
