package test

// sharing_test.go - images and templates travel between hosts: each blob crosses the WAN once.

import (
	"crypto/rand"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// rootBytes is the size of the test images' roots, which are incompressible.
const rootBytes = 128 << 20

// freshImage makes an image with a root that no host has, and returns how many bytes of it site b lacks.
func freshImage(t *testing.T, name string) int64 {
	t.Helper()
	tree := t.TempDir()
	data := make([]byte, rootBytes)
	rand.Read(data)
	if err := os.Mkdir(filepath.Join(tree, "usr"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(tree, "usr", "data"), data, 0o644); err != nil {
		t.Fatal(err)
	}
	must(t, "image", "build", name, "--tree", tree)
	t.Cleanup(func() { must(t, "image", "remove", name) })
	type blob struct{ Digest, Size string }
	image := decoded[struct{ Kernel, Initrd, Root blob }](t, "image", "show", name)
	held := inHost(t, "b1", "ls "+agentState+"/images/.blobs") + inHost(t, "b2", "ls "+agentState+"/images/.blobs")
	var missing int64
	for _, part := range []blob{image.Kernel, image.Initrd, image.Root} {
		size, err := strconv.ParseInt(part.Size, 10, 64)
		if err != nil {
			t.Fatalf("size of a part of the image: %v", err)
		}
		if !strings.Contains(held, strings.TrimPrefix(part.Digest, "sha256:")) {
			missing += size
		}
	}
	return missing
}

// overWAN returns how many bytes site b has received over the WAN. The manager is on site a's side.
func overWAN(t *testing.T) int64 {
	t.Helper()
	out, err := exec.Command("nsenter", "--net=/run/watari/lab/"+labName+"/ns/router-b", "cat", "/proc/net/dev").CombinedOutput()
	if err != nil {
		t.Fatalf("bytes over the WAN: %v: %s", err, out)
	}
	for line := range strings.Lines(string(out)) {
		if name, rest, _ := strings.Cut(line, ":"); strings.TrimSpace(name) == "wan" {
			bytes, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return bytes
		}
	}
	t.Fatalf("site b's router has no WAN:\n%s", out)
	return 0
}

// once checks that the WAN carried about one copy of the missing part of an image, and one packed template.
func once(t *testing.T, carried, missing int64) {
	t.Helper()
	const template = 32 << 20
	t.Logf("the WAN carried %d MiB for %d MiB of an image", carried>>20, missing>>20)
	if carried < missing || carried > missing*5/4+template {
		t.Errorf("the WAN carried %d bytes for %d of an image", carried, missing)
	}
}

func TestTheWANCarriesAnImageOnce(t *testing.T) {
	hostsReady(t)
	missing := freshImage(t, "once")
	before := overWAN(t)
	must(t, "cluster", "create", "once", "--guests", "4", "--memory", "256M", "--image", "once", "--spread", "host", "--wait")
	t.Cleanup(func() { must(t, "cluster", "delete", "once", "--wait") })
	settled(t, "once", 4)
	once(t, overWAN(t)-before, missing)
}

// The agent that fetches for its site is killed in the middle several times. It does not fetch again what it already has.
func TestTheWANCarriesAnImageOnceThoughAnAgentIsKilled(t *testing.T) {
	hostsReady(t)
	missing := freshImage(t, "killed")
	must(t, "lab", "wan", "set", "10ms,100mbit", "--name", labName)
	t.Cleanup(func() { must(t, "lab", "wan", "set", "10ms,400mbit", "--name", labName) })
	before := overWAN(t)
	must(t, "cluster", "create", "killed", "--guests", "4", "--memory", "256M", "--image", "killed", "--spread", "host")
	t.Cleanup(func() { must(t, "cluster", "delete", "killed", "--wait") })
	for i, host := range []string{"b1", "b2", "b1"} {
		enough := int64(i+1) * rootBytes / 4
		until(t, time.Minute, "some of the image has come", func() (bool, string) { return overWAN(t)-before > enough, "" })
		mustKill(t, host, "watari-agent --manager")
		if had := overWAN(t) - before; had >= missing {
			t.Errorf("%d MiB of an image of %d had come when the agent was killed", had>>20, missing>>20)
		}
	}
	until(t, 5*time.Minute, "the cluster is ready", func() (bool, string) {
		out, err := shared.watari(20*time.Second, "cluster", "list")
		return err == nil && strings.Contains(out, " ready "), out
	})
	settled(t, "killed", 4)
	once(t, overWAN(t)-before, missing)
}
