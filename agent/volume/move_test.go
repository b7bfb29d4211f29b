package volume

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// block is what writer writes at a time.
const block = 64 << 10

// writer is a program that uses a disk like a guest: it keeps its requests while the disk is not served, and connects again.
type writer struct {
	t     *testing.T
	acked atomic.Int64 // blocks that are on the disk
	stop  chan struct{}
	ended chan struct{}
}

// pattern is the content of the block that is written n-th.
func pattern(n int64) int64 { return n%250 + 1 }

// blocks is the number of blocks that the writer writes to, one after the other, again and again.
const blocks = 64 << 20 / block

func write(t *testing.T, socket string) *writer {
	t.Helper()
	w := &writer{t: t, stop: make(chan struct{}), ended: make(chan struct{})}
	program := exec.Command("qemu-io", "--image-opts", "driver=nbd,export="+export+",server.type=unix,server.path="+socket+",reconnect-delay=600")
	in, err := program.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	read, out := io.Pipe()
	program.Stdout, program.Stderr = out, out
	if err := program.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = program.Process.Kill(); _ = program.Wait() })
	go func() {
		defer close(w.ended)
		lines := bufio.NewScanner(read)
		for n := int64(0); ; n++ {
			select {
			case <-w.stop:
				return
			default:
			}
			fmt.Fprintf(in, "write -P %d %d %d\n", pattern(n), n%blocks*block, block)
			for lines.Scan() && !strings.Contains(lines.Text(), "wrote ") {
				if strings.Contains(lines.Text(), "failed") {
					t.Errorf("write %d: %s", n, lines.Text())
					return
				}
			}
			w.acked.Store(n + 1)
		}
	}()
	return w
}

// await waits until so many more blocks were written.
func (w *writer) await(more int64) {
	w.t.Helper()
	last, at := w.acked.Load(), time.Now()
	for goal := last + more; w.acked.Load() < goal; time.Sleep(5 * time.Millisecond) {
		if now := w.acked.Load(); now > last {
			last, at = now, time.Now()
		} else if time.Since(at) > 30*time.Second {
			w.t.Fatalf("%d blocks were written, and then no more", w.acked.Load())
		}
	}
}

// check checks that a disk has all that was written to it.
func (w *writer) check(d *Disk) {
	w.t.Helper()
	close(w.stop)
	<-w.ended
	args := []string{"-f", "raw", "-r"}
	last := w.acked.Load()
	for n := max(0, last-blocks); n < last; n++ {
		args = append(args, "-c", fmt.Sprintf("read -P %d %d %d", pattern(n), n%blocks*block, block))
	}
	out, err := exec.Command("qemu-io", append(args, "nbd+unix:///"+export+"?socket="+d.Socket())...).CombinedOutput()
	if err != nil || strings.Contains(string(out), "failed") || strings.Count(string(out), "read ") < int(min(last, blocks)) {
		w.t.Errorf("after %d writes: %v: %.2000s", last, err, out)
	}
}

// until calls have until it returns true.
func until(t *testing.T, what string, have func() bool) {
	t.Helper()
	for begun := time.Now(); !have(); time.Sleep(20 * time.Millisecond) {
		if time.Since(begun) > 30*time.Second {
			t.Fatalf("not so after 30 s: %s", what)
		}
	}
}

// A disk moves while a program writes to it. Both daemons are killed meanwhile, and a copy for a checkpoint is made. The
// program waits, and finds all that it has written.
func TestADiskMovesWhileItIsWritten(t *testing.T) {
	needs(t)
	ctx, user := context.Background(), User{}
	const uid = "5f3a"
	here, hereRun, there, thereRun := t.TempDir(), t.TempDir(), t.TempDir(), t.TempDir()
	facts := Facts{Name: "data", Owner: "ann", SizeBytes: 256 << 20, Restored: []string{"r"}}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(Create(ctx, here, uid, facts, user))
	source, received, target := Open(here, hereRun, uid), OpenCopy(there, thereRun, uid), Open(there, thereRun, uid)
	t.Cleanup(func() { source.Stop(); received.Stop(); target.Stop() })
	must(source.Serve(ctx, user))
	guest := filepath.Join(t.TempDir(), "guest.sock")
	must(os.Symlink(source.Socket(), guest))
	w := write(t, guest)
	w.await(50)

	copied := facts
	copied.Move, copied.Copy = "m", "c"
	must(Receive(ctx, there, uid, copied, user))
	if disks, err := List(there); err != nil || len(disks) != 0 {
		t.Errorf("a copy counts as a disk: %v, %v", disks, err)
	}
	must(received.Serve(ctx, user))
	failed := func() bool { s, err := source.Sending(); return err == nil && s.Error != nil }
	ready := func() bool { s, err := source.Sending(); return err == nil && s.Error == nil && s.Ready }
	must(source.Send(received.Socket()))
	w.await(20)
	received.kill()
	until(t, "the copy fails with the target's daemon", failed)
	must(source.EndSending())
	must(received.Serve(ctx, user))
	must(source.Send(received.Socket()))
	source.kill()
	must(source.Serve(ctx, user))
	until(t, "the copy ends with the source's daemon", failed)
	w.await(20)
	must(source.Send(received.Socket()))
	saved, err := source.PrepareCopy(ctx, user)
	must(err)
	must(saved.Begin())
	_, err = saved.Wait(ctx)
	must(err)
	must(saved.Close())
	until(t, "the copy is ready", ready)
	w.await(blocks)

	// The first hand-over fails, because it has no time.
	none, cancel := context.WithCancel(ctx)
	cancel()
	if err := source.HandOver(none); err == nil {
		t.Fatal("a hand-over without time has succeeded")
	}
	source.Stop()
	must(source.Serve(ctx, user))
	w.await(20)
	must(source.Send(received.Socket()))
	until(t, "the copy is ready again", ready)
	must(source.HandOver(ctx))
	if is, _ := source.open(); is {
		t.Error("guests can use a disk that is handed over")
	}
	source.Stop()
	given := facts
	given.GivenUp = &GivenUp{Move: "m", Copy: "c", Target: "b1", TargetUID: "uid-b1"}
	must(Describe(here, uid, given))
	if disks, err := List(here); err != nil || disks[uid].GivenUp == nil || disks[uid].GivenUp.Target != "b1" {
		t.Errorf("there are %v, %v", disks, err)
	}
	received.kill() // what the copy has is on disk
	acked := w.acked.Load()
	wrong := facts
	wrong.Copy, wrong.Generation = "another", 1
	if err := Adopt(there, thereRun, uid, wrong); err == nil || !strings.Contains(err.Error(), "is missing") {
		t.Errorf("another copy is taken over: %v", err)
	}
	taken := facts
	taken.Copy, taken.Generation = "c", 1
	must(Adopt(there, thereRun, uid, taken))
	must(target.Serve(ctx, user))
	must(os.Remove(guest))
	must(os.Symlink(target.Socket(), guest))
	w.await(50)
	if copies, err := Copies(there); err != nil || len(copies) != 0 {
		t.Errorf("left are %v, %v", copies, err)
	}
	if disks, err := List(there); err != nil || disks[uid].Generation != 1 || disks[uid].Move != "" || !slices.Equal(disks[uid].Restored, []string{"r"}) {
		t.Errorf("there are %v, %v", disks, err)
	}
	t.Logf("%d writes before the hand-over, %d after it", acked, w.acked.Load()-acked)
	w.check(target)
}

// A daemon of an older version does not write through.
func TestADaemonOfAnOlderVersionIsStartedAgain(t *testing.T) {
	needs(t)
	ctx, folder, run := context.Background(), t.TempDir(), t.TempDir()
	if err := Create(ctx, folder, "5f3a", Facts{SizeBytes: 64 << 20}, User{}); err != nil {
		t.Fatal(err)
	}
	d := Open(folder, run, "5f3a")
	t.Cleanup(d.Stop)
	if err := os.MkdirAll(d.run, 0o700); err != nil {
		t.Fatal(err)
	}
	old := exec.Command("qemu-storage-daemon", "--pidfile", d.pidFile(), "--blockdev", "driver=file,node-name=file,filename="+filepath.Join(d.dir, imageName),
		"--blockdev", "driver=qcow2,node-name=disk,file=file", "--chardev", "socket,id=monitor,server=on,wait=off,path="+d.monitor(), "--monitor", "chardev=monitor",
		"--nbd-server", "addr.type=unix,addr.path="+d.Socket(), "--export", "type=nbd,id=disk,node-name=disk,name=volume,writable=true")
	if err := old.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { _ = old.Wait() }()
	until(t, "it serves", d.Served)
	if is, _ := d.open(); is {
		t.Error("it passes for a daemon of this version")
	}
	if err := d.Serve(ctx, User{}); err != nil {
		t.Fatal(err)
	}
	if is, _ := d.open(); !is {
		t.Error("no daemon of this version serves the disk")
	}
}
