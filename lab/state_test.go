package lab

import (
	"context"
	"errors"
	"path/filepath"
	"testing"
	"time"
)

func TestALockThatAnotherHoldsIsWaitedForAndTheWaitCanBeEnded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lab")
	told := make(chan string, 1)
	unlock, err := lockDirectory(t.Context(), path, func(string) { t.Error("a free lock was waited for") })
	if err != nil {
		t.Fatal(err)
	}
	ctx, interrupt := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := lockDirectory(ctx, path, func(line string) { told <- line })
		ended <- err
	}()
	select {
	case <-told:
	case err := <-ended:
		t.Fatalf("it did not wait: %v", err)
	case <-time.After(10 * time.Second):
		t.Fatal("nobody was told what is waited for")
	}
	interrupt()
	select {
	case err := <-ended:
		if !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("the wait could not be ended")
	}
	unlock()
	if unlock, err = lockDirectory(t.Context(), path, nil); err != nil {
		t.Fatal(err)
	}
	unlock()
}
