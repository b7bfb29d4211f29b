package volume

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestADiskIsMadeServedAndDeleted(t *testing.T) {
	for _, program := range []string{"mkfs.ext4", "qemu-img", "qemu-storage-daemon", "qemu-nbd"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("needs %s", program)
		}
	}
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
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
	if found, err := List(folder); err != nil || len(found) != 1 || found[uid] != facts {
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
	for range 2 { // it is not started twice, and is started again when it was killed
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
