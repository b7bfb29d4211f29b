package vm

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// prepareSnapshot prepares a snapshot, and closes it at the end of the test.
func prepareSnapshot(t *testing.T, h *testHost, spec Spec) *Snapshot {
	t.Helper()
	s, err := h.driver.PrepareSnapshot(t.Context(), spec.UID, filepath.Join(h.folder, spec.Name+".pipe"))
	if errors.Is(err, ErrNoSnapshots) {
		t.Skipf("needs userfaultfd: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// beginSnapshot begins a snapshot of a running guest, and reads it so slowly that the test can act in the middle.
func beginSnapshot(t *testing.T, h *testHost, spec Spec) *Snapshot {
	t.Helper()
	s := prepareSnapshot(t, h, spec)
	if err := s.Begin(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := io.CopyN(io.Discard, s, 4<<20); err != nil {
		t.Fatal(err)
	}
	return s
}

// bootCounting boots a guest that counts and writes to its memory.
func bootCounting(t *testing.T, h *testHost, name string) Spec {
	t.Helper()
	spec := newSpec(name, "test.check=16 test.period=20ms")
	spec.MemoryBytes = 128 << 20
	h.prepare(t, spec)
	if err := h.driver.Boot(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	h.counts(t, spec, 10)
	return spec
}

func readAll(t *testing.T, s *Snapshot, path string) {
	t.Helper()
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if _, err := io.Copy(file, s); err != nil {
		t.Fatal(err)
	}
}

// The guest is forked from a template, as guests of clusters are.
func TestAGuestGoesOnFromTheMomentOfItsSnapshot(t *testing.T) {
	need(t)
	h := startHost(t, "h1")
	ctx := t.Context()
	_, template := makeTemplate(t, h, func(s *Spec) {
		s.VCPUs, s.KernelArgs = 2, "quiet test.dirty=64 test.check=16 test.period=20ms"
	})
	spec := newSpec("snap", "test.dirty=64 test.check=16 test.period=20ms")
	spec.VCPUs = 2
	h.prepare(t, spec)
	if err := h.driver.Fork(ctx, spec, template); err != nil {
		t.Fatal(err)
	}
	h.counts(t, spec, 10)
	s := prepareSnapshot(t, h, spec)
	begun := time.Now()
	if err := h.driver.Stop(ctx, spec.UID); err != nil {
		t.Fatal(err)
	}
	if d := h.domain(t, spec.UID); d.State != StatePaused {
		t.Errorf("stopped: %+v", d)
	}
	time.Sleep(100 * time.Millisecond) // QEMU has written out what the guest wrote to the console
	stood := h.count(spec)
	if err := s.Begin(ctx); err != nil {
		t.Fatal(err)
	}
	t.Logf("stopped for %v, of which 100 ms are the test's", time.Since(begun))
	saved := filepath.Join(h.folder, "snap.save")
	readAll(t, s, saved)
	t.Logf("saved after %v", time.Since(begun))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if d := h.domain(t, spec.UID); d.State != StateRunning {
		t.Errorf("afterwards: %+v", d)
	}
	h.counts(t, spec, stood+5)
	if err := h.driver.Destroy(ctx, spec.UID); err != nil {
		t.Fatal(err)
	}
	copied, err := os.ReadFile(saved)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // a checkpoint may be needed more than once
		h.restore(t, spec, copied, stood)
	}
}

// restore restores the guest, checks that it goes on after the given count, and ends it.
func (h *testHost) restore(t *testing.T, spec Spec, saved []byte, stood int) {
	t.Helper()
	ctx := t.Context()
	if err := os.Remove(h.path(spec.Console)); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(h.folder, "restored.save")
	if err := os.WriteFile(path, saved, 0o600); err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	if err := h.driver.Restore(ctx, spec, path); err != nil {
		t.Fatal(err)
	}
	t.Logf("restored after %v", time.Since(begun))
	if d := h.domain(t, spec.UID); d.State != StatePaused || h.count(spec) > 0 {
		t.Errorf("restored: %+v, it counted to %d", d, h.count(spec))
	}
	if err := h.driver.Resume(ctx, spec.UID); err != nil {
		t.Fatal(err)
	}
	h.counts(t, spec, stood+20)
	text, _ := os.ReadFile(h.path(spec.Console))
	first := firstCount(h, spec)
	if first <= stood || first > stood+2 || strings.Contains(string(text), "lost") {
		t.Errorf("it stood at %d, and went on at %d:\n%s", stood, first, tail(text, 500))
	}
	if err := h.driver.Destroy(ctx, spec.UID); err != nil {
		t.Fatal(err)
	}
}

func TestASnapshotThatIsGivenUpLeavesTheGuestAsItWas(t *testing.T) {
	need(t)
	h := startHost(t, "h1")
	spec := bootCounting(t, h, "given-up")
	for name, give := range map[string]func(*Snapshot){
		"before it begins": nil,
		"closed":           func(s *Snapshot) { _ = s.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			if give == nil {
				_ = prepareSnapshot(t, h, spec).Close()
			} else {
				give(beginSnapshot(t, h, spec))
			}
			h.goesOn(t, spec)
			if on, err := h.driver.snapshots(t.Context(), spec.UID); on || err != nil {
				t.Errorf("QEMU's next migration is a snapshot: %v, %v", on, err)
			}
		})
	}
	readAll(t, func() *Snapshot {
		s := prepareSnapshot(t, h, spec)
		if err := s.Begin(t.Context()); err != nil {
			t.Fatal(err)
		}
		return s
	}(), filepath.Join(h.folder, "save"))
}

// goesOn checks that the guest runs.
func (h *testHost) goesOn(t *testing.T, spec Spec) {
	t.Helper()
	h.counts(t, spec, h.count(spec)+5)
	if d := h.domain(t, spec.UID); d.State != StateRunning {
		t.Errorf("%+v", d)
	}
}

func TestADaemonThatDiesDoesNotDisturbASnapshot(t *testing.T) {
	need(t)
	h := startHost(t, "h1")
	spec := bootCounting(t, h, "daemon")
	s := beginSnapshot(t, h, spec)
	h.killDaemon(t)
	waitEvent(t, h.driver, "")
	if n, err := io.Copy(io.Discard, s); err != nil {
		t.Errorf("after %d bytes: %v", n, err)
	}
	h.goesOn(t, spec)
	if busy, err := h.driver.Busy(t.Context(), spec.UID); busy || err != nil {
		t.Errorf("libvirt has a job: %v, %v", busy, err)
	}
}

func TestTheSnapshotOfAGuestThatDiesIsNotWhole(t *testing.T) {
	need(t)
	h := startHost(t, "h1")
	spec := bootCounting(t, h, "dies")
	s := beginSnapshot(t, h, spec)
	h.killGuest(t, "dies")
	if _, err := io.Copy(io.Discard, s); err == nil {
		t.Error("it was read to its end")
	} else {
		t.Log(err)
	}
}

// lazy reads all of a snapshot, slowly, and returns the result.
func lazy(s *Snapshot) <-chan error {
	read := make(chan error, 1)
	go func() {
		for {
			if _, err := io.CopyN(io.Discard, s, 4<<20); err != nil {
				if err == io.EOF {
					err = nil
				}
				read <- err
				return
			}
			time.Sleep(100 * time.Millisecond)
		}
	}()
	return read
}

func TestAMoveAndASnapshotExcludeEachOther(t *testing.T) {
	p := newPair(t, "both", "test.check=16 test.period=20ms")
	ctx := context.Background()
	s := beginSnapshot(t, p.source, p.spec)
	read := lazy(s)
	p.connect(t, copyStream)
	if err := p.source.driver.Migrate(ctx, p.spec.UID, p.options); err == nil {
		t.Fatal("it moved while a snapshot was under way")
	} else {
		t.Log(err)
	}
	p.source.goesOn(t, p.spec)
	if err := <-read; err != nil {
		t.Errorf("the refused move ended the snapshot: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	p.connect(t, copyStream)
	p.options.BandwidthBytes = 32 << 20
	ended := make(chan error, 1)
	go func() { ended <- p.source.driver.Migrate(ctx, p.spec.UID, p.options) }()
	eventually(t, 30*time.Second, "memory is sent", func() bool {
		progress, err := p.source.driver.Progress(ctx, p.spec.UID)
		return err == nil && progress.ProcessedBytes > 4<<20
	})
	if _, err := p.source.driver.PrepareSnapshot(ctx, p.spec.UID, filepath.Join(p.source.folder, "c.pipe")); err == nil {
		t.Error("a snapshot was prepared during a move")
	}
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if err := p.target.driver.Resume(ctx, p.spec.UID); err != nil {
		t.Fatal(err)
	}
	p.target.counts(t, p.spec, 5)
}

// A killed agent leaves the pipe. The next agent reads the rest.
func TestAnotherProcessEndsASnapshot(t *testing.T) {
	need(t)
	h := startHost(t, "h1")
	spec := bootCounting(t, h, "orphan")
	fifo := filepath.Join(h.folder, "orphan.pipe")
	orphan, err := h.driver.PrepareSnapshot(t.Context(), spec.UID, fifo)
	if errors.Is(err, ErrNoSnapshots) {
		t.Skipf("needs userfaultfd: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	end, err := hostUserfaults.allow()
	if err != nil {
		t.Fatal(err)
	}
	if err := h.driver.monitor(t.Context(), spec.UID, "migrate", map[string]any{"uri": "fd:" + snapshotFD}, nil); err != nil {
		t.Fatal(err)
	}
	time.Sleep(500 * time.Millisecond) // the pipe is full
	if err := errors.Join(end(), orphan.pipe.Close()); err != nil {
		t.Fatal(err)
	}
	if err := h.driver.EndSnapshot(t.Context(), spec.UID, fifo); err != nil {
		t.Error(err)
	}
	h.goesOn(t, spec)
	s := prepareSnapshot(t, h, spec)
	if err := s.Begin(t.Context()); err != nil {
		t.Fatal(err)
	}
	readAll(t, s, filepath.Join(h.folder, "save"))
}
