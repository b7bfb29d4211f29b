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
