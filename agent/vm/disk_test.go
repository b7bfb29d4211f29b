package vm

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// serveDisk exports a raw file of 64 MiB at a socket, until the returned function is called.
func serveDisk(t *testing.T, socket string) (end func()) {
	t.Helper()
	if _, err := exec.LookPath("qemu-storage-daemon"); err != nil {
		t.Skip("needs qemu-storage-daemon (qemu-system-common)")
	}
	file := filepath.Join(t.TempDir(), "disk")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(file, 64<<20); err != nil {
		t.Fatal(err)
	}
	daemon := exec.Command("qemu-storage-daemon", "--blockdev", "driver=file,node-name=file,filename="+file, "--blockdev", "driver=raw,node-name=disk,file=file",
		"--nbd-server", "addr.type=unix,addr.path="+socket+",max-connections=0", "--export", "type=nbd,id=disk,node-name=disk,name="+VolumeExport+",writable=on")
	daemon.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	daemon.Stderr = os.Stderr
	if err := daemon.Start(); err != nil {
		t.Fatal(err)
	}
	end = func() { _ = daemon.Process.Kill(); _ = daemon.Wait() }
	t.Cleanup(end)
	for range 100 {
		if _, err := os.Stat(socket); err == nil {
			return end
		}
		time.Sleep(20 * time.Millisecond)
	}
	t.Fatal("the disk's socket does not appear")
	return nil
}

func TestAVolumeIsTheSameAfterAMove(t *testing.T) {
	need(t)
	p := &pair{source: startHost(t, "h1"), target: startHost(t, "h2"), spec: newSpec("disk", "")}
	ctx := context.Background()
	p.spec.Volume = "/run/guests/" + p.spec.UID + "/volume.sock"
	p.source.prepare(t, p.spec)
	p.target.prepare(t, p.spec)
	end := serveDisk(t, p.source.path(p.spec.Volume))
	forward(t, p.target.path(p.spec.Volume), p.source.path(p.spec.Volume), copyStream)
	if err := p.source.driver.Boot(ctx, p.spec); err != nil {
		t.Fatal(err)
	}
	p.connect(t, copyStream)
	p.source.counts(t, p.spec, 3)
	end() // QEMU waits until the disk is served again
	os.Remove(p.source.path(p.spec.Volume))
	serveDisk(t, p.source.path(p.spec.Volume))
	if err := p.source.driver.Migrate(ctx, p.spec.UID, p.options); err != nil {
		t.Fatal(err)
	}
	sent := p.source.count(p.spec)
	if err := p.target.driver.Resume(ctx, p.spec.UID); err != nil {
		t.Fatal(err)
	}
	p.target.counts(t, p.spec, sent+5)
}

// A trial restore of a guest with a volume: the guest never runs, so QEMU gets an empty disk.
func TestAGuestWithAVolumeIsRestoredWithAnEmptyDisk(t *testing.T) {
	need(t)
	h := startHost(t, "h1")
	spec := newSpec("tried", "test.check=16 test.period=20ms")
	spec.Volume = "/run/guests/" + spec.UID + "/volume.sock"
	h.prepare(t, spec)
	end := serveDisk(t, h.path(spec.Volume))
	if err := h.driver.Boot(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	h.counts(t, spec, 3)
	s := prepareSnapshot(t, h, spec)
	if err := s.Begin(t.Context()); err != nil {
		t.Fatal(err)
	}
	saved := filepath.Join(h.folder, "tried.save")
	readAll(t, s, saved)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := h.driver.Destroy(t.Context(), spec.UID); err != nil {
		t.Fatal(err)
	}
	end()
	os.Remove(h.path(spec.Volume))
	spec.Volume, spec.EmptyVolume = "", 64<<20
	if err := h.driver.Restore(t.Context(), spec, saved); err != nil {
		t.Fatal(err)
	}
	if d := h.domain(t, spec.UID); d.State != StatePaused {
		t.Errorf("it is %+v", d)
	}
	if err := h.driver.Destroy(t.Context(), spec.UID); err != nil {
		t.Fatal(err)
	}
}
