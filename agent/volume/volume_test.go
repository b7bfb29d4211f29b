package volume

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func needs(t *testing.T) {
	for _, program := range []string{"mkfs.ext4", "qemu-img", "qemu-storage-daemon", "qemu-nbd", "qemu-io"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("needs %s", program)
		}
	}
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
}

func TestADiskIsMadeServedAndDeleted(t *testing.T) {
	needs(t)
	ctx, folder, run, user := context.Background(), t.TempDir(), t.TempDir(), User{}
	const uid = "5f3a"
	facts := Facts{Name: "data", Owner: "ann", SizeBytes: 2 << 30}
	if err := os.Mkdir(filepath.Join(folder, "torn.new"), 0o700); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := Create(ctx, folder, uid, facts, user); err != nil {
			t.Fatal(err)
		}
	}
	if err := Sweep(folder); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(folder); err != nil || len(left) != 1 {
		t.Errorf("left are %v, %v", left, err)
	}
	if found, err := List(folder); err != nil || len(found) != 1 || !reflect.DeepEqual(found[uid], facts) {
		t.Fatalf("there are %v, %v", found, err)
	}
	if err := Open(folder, run, "another").Serve(ctx, user); err == nil || !strings.Contains(err.Error(), "its disk is missing") {
		t.Errorf("a missing disk is served: %v", err)
	}
	d := Open(folder, run, uid)
	t.Cleanup(func() { _ = d.Delete() })
	if used := d.UsedBytes(); used == 0 || used > 64<<20 {
		t.Errorf("an empty disk takes %d bytes", used)
	}
	for range 2 { // the second Serve starts no daemon; after a kill, Serve starts it again
		for range 2 {
			if err := d.Serve(ctx, user); err != nil {
				t.Fatal(err)
			}
		}
		out, err := exec.Command("qemu-nbd", "--list", "-k", d.Socket()).CombinedOutput()
		if err != nil || !strings.Contains(string(out), "export: 'volume'") || !strings.Contains(string(out), "2147483648") {
			t.Errorf("it serves: %v: %s", err, out)
		}
		d.kill()
		if d.Served() {
			t.Error("the daemon answers though it was killed")
		}
	}
	if err := d.Serve(ctx, user); err != nil {
		t.Fatal(err)
	}
	if err := d.Delete(); err != nil {
		t.Fatal(err)
	}
	if found, err := List(folder); err != nil || len(found) != 0 || d.Served() {
		t.Errorf("afterwards there are %v, %v", found, err)
	}
}

// kill kills the daemon, as a lack of memory does.
func (d *Disk) kill() {
	if handle, is := d.process(); is {
		defer unix.Close(handle)
		_ = unix.PidfdSendSignal(handle, unix.SIGKILL, nil, 0)
		_, _ = unix.Poll([]unix.PollFd{{Fd: int32(handle), Events: unix.POLLIN}}, 10_000)
	}
}

// QEMU does not repeat a write that was acknowledged, and a later flush succeeds.
func TestAnAcknowledgedWriteOutlivesTheDaemon(t *testing.T) {
	needs(t)
	ctx, folder, run := context.Background(), t.TempDir(), t.TempDir()
	if err := Create(ctx, folder, "5f3a", Facts{Name: "data", SizeBytes: 64 << 20}, User{}); err != nil {
		t.Fatal(err)
	}
	d := Open(folder, run, "5f3a")
	t.Cleanup(func() { _ = d.Delete() })
	serve := func() {
		t.Helper()
		if err := d.Serve(ctx, User{}); err != nil {
			t.Fatal(err)
		}
	}
	serve()
	at := "nbd+unix:///" + export + "?socket=" + d.Socket()
	// It kills itself: it would flush the disk at its end.
	out, _ := exec.Command("qemu-io", "-t", "writeback", "-f", "raw", "-c", "write -P 7 32M 64k", "-c", "sigraise 9", at).CombinedOutput()
	if !strings.Contains(string(out), "wrote 65536/65536") {
		t.Fatalf("%s", out)
	}
	d.kill()
	serve()
	if out, err := exec.Command("qemu-io", "-f", "raw", "-c", "flush", "-c", "read -P 7 32M 64k", at).CombinedOutput(); err != nil || strings.Contains(string(out), "failed") {
		t.Errorf("%v: %s", err, out)
	}
}

// A disk is put back to the state that it had when a copy began, whatever was written since. A copy that was left behind is
// no obstacle.
func TestADiskIsPutBackToItsState(t *testing.T) {
	needs(t)
	ctx, folder, run, user := context.Background(), t.TempDir(), t.TempDir(), User{}
	const uid = "5f3a"
	facts := Facts{Name: "data", Owner: "ann", SizeBytes: 128 << 20}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(Create(ctx, folder, uid, facts, user))
	d := Open(folder, run, uid)
	t.Cleanup(func() { _ = d.Delete() })
	must(d.Serve(ctx, user))
	io := func(do string) {
		t.Helper()
		if out, err := exec.Command("qemu-io", "-f", "raw", "-c", do, "nbd+unix:///"+export+"?socket="+d.Socket()).CombinedOutput(); err != nil || strings.Contains(string(out), "failed") {
			t.Fatalf("%s: %v: %s", do, err, out)
		}
	}
	io("write -P 1 64M 32M")
	for range 2 { // the first is left behind
		must(d.EndCopy())
		c, err := d.PrepareCopy(ctx, user)
		must(err)
		must(c.Begin())
	}
	io("write -P 2 80M 32M")
	path, err := (&Copy{d, filepath.Join(folder, uid, copyFile)}).Wait(ctx)
	must(err)
	kept := filepath.Join(t.TempDir(), "kept")
	must(os.Rename(path, kept))
	read, wanted := func(to string) error { return exec.Command("cp", kept, to).Run() }, func() error { return nil }
	withdrawn := errors.New("withdrawn")
	if _, err := Restore(folder, run, uid, "none", facts, user, read, func() error { return withdrawn }); !errors.Is(err, withdrawn) {
		t.Errorf("a restore that is not wanted any more: %v", err)
	}
	must(d.Serve(ctx, user))
	io("read -P 2 80M 32M")
	for _, restore := range []struct {
		id   string
		want []string
	}{
		{"first", []string{"read -P 1 64M 32M", "read -P 0 96M 16M", "write -P 3 64M 1M"}},
		{"first", []string{"read -P 3 64M 1M"}}, // Restore does nothing for an id it already has
		{"second", []string{"read -P 1 64M 32M"}},
	} {
		_, err := Restore(folder, run, uid, restore.id, facts, user, read, wanted)
		must(err)
		must(d.Serve(ctx, user))
		for _, do := range restore.want {
			io(do)
		}
	}
	facts.Generation = 2
	must(d.Delete())
	_, err = Restore(folder, run, uid, "third", facts, user, read, wanted)
	must(err)
	must(d.Serve(ctx, user))
	io("read -P 1 64M 32M")
	if found, err := List(folder); err != nil || found[uid].Generation != 2 || !reflect.DeepEqual(found[uid].Restored, []string{"third"}) {
		t.Errorf("there are %v, %v", found, err)
	}
}

// A host chooses the bytes of the disks that it saves. A disk that names another file would give a guest this file.
func TestADiskFromAnotherHostNamesNoOtherFile(t *testing.T) {
	needs(t)
	ctx, folder, run, user := context.Background(), t.TempDir(), t.TempDir(), User{}
	const uid, size = "5f3a", 1 << 30
	facts := Facts{Name: "data", Owner: "ann", SizeBytes: size}
	if err := Create(ctx, folder, uid, facts, user); err != nil {
		t.Fatal(err)
	}
	others := filepath.Join(t.TempDir(), "others")
	if err := os.WriteFile(others, make([]byte, size), 0o600); err != nil {
		t.Fatal(err)
	}
	for what, args := range map[string][]string{
		"names a backing file": {"-f", "qcow2", "-b", others, "-F", "raw"},
		"another file":         {"-f", "qcow2", "-o", "data_file=" + others},
		"no qcow2":             {"-f", "raw"},
		"of version 3":         {"-f", "qcow2", "-o", "compat=0.10"},
		"is encrypted":         {"-f", "qcow2", "--object", "secret,id=key,data=x", "-o", "encrypt.format=luks,encrypt.key-secret=key"},
		"one of 2147483648":    {"-f", "qcow2", "-o", "size=2G"},
	} {
		read := func(to string) error {
			args := append(append([]string{"create", "-q"}, args...), to)
			if what != "one of 2147483648" {
				args = append(args, "1G")
			}
			return command(ctx, "qemu-img", args...)
		}
		if _, err := Restore(folder, run, uid, what, facts, user, read, func() error { return nil }); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("a disk that must be refused because of %q: %v", what, err)
		}
	}
	if found, err := List(folder); err != nil || !reflect.DeepEqual(found[uid], facts) {
		t.Errorf("the volume is now %v, %v", found, err)
	}
}

// BenchmarkWrites compares writing through with writing into the daemon's and the host's caches, as copies do. Four writes are under
// way at a time, each to a part of the disk that has no data yet.
func BenchmarkWrites(b *testing.B) {
	for _, size := range []int{4 << 10, 64 << 10, 1 << 20} {
		for way, open := range map[string]func(folder, run, uid string) *Disk{"through": Open, "cached": OpenCopy} {
			b.Run(fmt.Sprintf("%dKiB-%s", size>>10, way), func(b *testing.B) {
				folder, run := b.TempDir(), b.TempDir()
				d := open(folder, run, "5f3a")
				facts := Facts{Name: "data", SizeBytes: 8 << 30}
				err := Create(b.Context(), folder, filepath.Base(d.dir), facts, User{})
				if err == nil {
					err = d.Serve(b.Context(), User{})
				}
				if err != nil {
					b.Fatal(err)
				}
				defer d.Stop()
				b.SetBytes(int64(size))
				b.ResetTimer()
				out, err := exec.Command("qemu-img", "bench", "-w", "-t", "writeback", "-f", "raw", "-c", strconv.Itoa(b.N), "-s", strconv.Itoa(size), "-d", "4",
					"nbd+unix:///"+export+"?socket="+d.Socket()).CombinedOutput()
				if err != nil {
					b.Fatalf("%v: %s", err, out)
				}
			})
		}
	}
}

// A daemon that does not answer for a while, as while it writes much to a slow disk, goes on to serve its guests.
func TestABusyDaemonIsNotEnded(t *testing.T) {
	needs(t)
	folder := t.TempDir()
	const uid = "b05e"
	if err := Create(t.Context(), folder, uid, Facts{Name: "data", SizeBytes: 64 << 20}, User{}); err != nil {
		t.Fatal(err)
	}
	d := Open(folder, t.TempDir(), uid)
	t.Cleanup(func() { _ = d.Delete() })
	if err := d.Serve(t.Context(), User{}); err != nil {
		t.Fatal(err)
	}
	handle, is := d.process()
	if !is {
		t.Fatal("there is no daemon")
	}
	defer unix.Close(handle)
	if err := unix.PidfdSendSignal(handle, unix.SIGSTOP, nil, 0); err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(askTime+time.Second, func() { _ = unix.PidfdSendSignal(handle, unix.SIGCONT, nil, 0) })
	if err := d.Serve(t.Context(), User{}); err != nil {
		t.Error(err)
	}
	if err := unix.PidfdSendSignal(handle, 0, nil, 0); err != nil {
		t.Errorf("the daemon was ended: %v", err)
	}
	d.kill() // Serve does not wait for a daemon that has ended
	began := time.Now()
	if err := d.Serve(t.Context(), User{}); err != nil || time.Since(began) > busyTime {
		t.Errorf("after the daemon's end: %v, after %v", err, time.Since(began))
	}
}
