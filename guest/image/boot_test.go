package image_test

// boot_test.go - an image built from Debian packages boots in a real guest.

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"watari/guest/guesttest"
	"watari/guest/image"
)

func TestImageFromPackagesBoots(t *testing.T) {
	if testing.Short() {
		t.Skip("not in a short run: it downloads packages and boots a guest")
	}
	if os.Geteuid() != 0 {
		t.Skip("root is missing: building from packages needs it")
	}
	for _, program := range []string{"mmdebstrap", "mksquashfs", "qemu-system-x86_64", "go"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("%s is missing", program)
		}
	}
	added := filepath.Join(t.TempDir(), "added")
	if err := os.WriteFile(added, []byte("from outside\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	out := t.TempDir()
	began := time.Now()
	built, err := image.Build(t.Context(), image.Recipe{
		Packages: []string{"bash"}, GuestAgent: guesttest.Agent(t), Cache: guesttest.Cache,
		Additions: []image.Addition{{Source: added, Destination: "/opt/an odd\nname"}},
	}, out, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("built in %.1f s: kernel %d, initrd %d, root %d bytes; %s", time.Since(began).Seconds(),
		built.Kernel.Size, built.Initrd.Size, built.Root.Size, built.Source)

	began = time.Now()
	guest := guesttest.Boot(t, out, guesttest.Identities(t, 1)[0], 0, filepath.Join(t.TempDir(), "net"))
	guest.Ready(2 * time.Minute)
	t.Logf("ready after %.1f s", time.Since(began).Seconds())
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for script, want := range map[string]string{
		"cat '/opt/an odd\nname'":                            "from outside\n",
		"stat -c '%u %g %a' /opt/*":                          "0 0 600\n",
		"find /usr/share/man /usr/share/doc -type f | wc -l": "0\n",
		"ls /etc/apt /var/log /var/cache/apt | wc -w":        "3\n", // only the three names: all are empty
		"ls /sys/bus/acpi/drivers | grep vmgenid":            "vmgenid\n",
		"touch /usr/writable && echo yes":                    "yes\n",
		"ls /usr/bin/ip /usr/bin/ps":                         "/usr/bin/ip\n/usr/bin/ps\n",
	} {
		if got := guest.MustRun(ctx, "", script); got != want {
			t.Errorf("%s: %q, want %q", script, got, want)
		}
	}
	if built.Digest != image.Digest(built) {
		t.Error("the digest is not the image's")
	}
}
