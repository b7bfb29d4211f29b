package test

// storage_test.go - full disks and damaged images on hosts.

import (
	"strings"
	"testing"
	"time"
)

const agentState = "/var/lib/watari/agent"

// inHost runs a shell command in a lab host. The command must succeed.
func inHost(t *testing.T, host, script string) string {
	t.Helper()
	out, err := onHost(t, host, "sh", "-ec", script)
	if err != nil {
		t.Fatalf("%s: %s: %v\n%s", host, script, err, out)
	}
	return out
}

// If an image is damaged on a host, the host fetches it again; no guest boots from it.
func TestDamagedImageOnAHost(t *testing.T) {
	_, digest, _ := strings.Cut(decoded[struct{ Digest string }](t, "image", "show", imageName).Digest, ":")
	for _, damage := range []struct{ name, script string }{
		{"truncated", "truncate -s -1M $root"},
		{"altered", "printf damage | dd of=$root bs=1 seek=1000000 conv=notrunc status=none"},
		{"removed", "rm $root"},
	} {
		t.Run(damage.name, func(t *testing.T) {
			if damage.name != "altered" {
				full(t)
			}
			must(t, "cluster", "create", "first", "--guests", "1", "--memory", "256M", "--image", imageName, "--wait")
			host := guestNamed(t, "first-0").Host
			must(t, "cluster", "delete", "first", "--wait")
			find := "root=" + agentState + "/images/" + digest + "/root; "
			before := inHost(t, host, find+"sha256sum < $root")
			inHost(t, host, find+damage.script)
			newCluster(t, "first", 1)
			settled(t, "first", 1)
			if now := guestNamed(t, "first-0").Host; now != host {
				t.Errorf("the guest was started on %s, not on %s, where the image was damaged", now, host)
			}
			if after := inHost(t, host, find+"sha256sum < $root"); after != before {
				t.Errorf("the image is still damaged: %s, was %s", after, before)
			}
		})
	}
}

// fillDisk mounts a full file system over one of the agent's directories.
func fillDisk(t *testing.T, host, directory string) (free func()) {
	t.Helper()
	path := agentState + "/" + directory
	inHost(t, host, "mount -t tmpfs -o size=8m full "+path+"; mkdir "+path+"/.blobs; dd if=/dev/zero of="+path+"/fill bs=64k status=none || true")
	freed := false
	free = func() {
		if !freed {
			freed = true
			inHost(t, host, "umount -l "+path)
		}
	}
	t.Cleanup(free)
	return free
}

// A host whose disk is full starts nothing and reports that. Its running guests continue.
func TestFullDiskOnAHost(t *testing.T) {
	for _, directory := range []string{"images", "guests", "templates"} {
		t.Run(directory, func(t *testing.T) {
			full(t)
			hostsReady(t)
			newCluster(t, "disk", 1, "--site", "a")
			unmarked := mark(t, "disk-0")
			free := fillDisk(t, "b1", directory)
			if directory != "templates" { // templates only save time
				out, err := shared.watari(time.Minute, "migrate", "disk-0", "--to", "b1")
				if err == nil || !strings.Contains(out, "no space left") {
					t.Errorf("a move to the host: %v: %s", err, out)
				}
				settled(t, "disk", 1)
			}
			must(t, "cluster", "create", "more", "--guests", "2", "--memory", "256M", "--image", imageName, "--site", "b", "--spread", "host", "--wait")
			settled(t, "more", 2)
			for _, g := range guestsOf(t, "more") {
				if directory != "templates" && g.Host != "b2" {
					t.Errorf("%s is on %s, whose disk is full", g.Meta.Name, g.Host)
				}
			}
			if directory != "templates" {
				if out := must(t, "events"); !strings.Contains(out, "no space left") {
					t.Errorf("the history does not tell of the full disk:\n%s", out)
				}
			}
			free()
			must(t, "cluster", "delete", "more", "--wait")
			newCluster(t, "after", 2, "--site", "b", "--spread", "host")
			settled(t, "after", 2)
			noneRestarted(t, unmarked)
		})
	}
}
