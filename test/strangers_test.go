package test

// strangers_test.go - attacks by hosts that belong to somebody else. docs/design/threats.md lists them.

import (
	"strings"
	"testing"
	"time"
)

// The root of a guest's source uses the way to the target's libvirt, which is there while the guest moves, for calls of its own.
// libvirt would do what they say as the target's root.
func TestASourceGetsNothingOfItsTargetsLibvirt(t *testing.T) {
	newCluster(t, "lent", 1)
	settled(t, "lent", 1)
	source, target := elsewhere(t, "lent-0")
	beginMove(t, "lent-0", target, "--bandwidth", "8M")
	var way string
	until(t, 30*time.Second, "the source's libvirt reaches the target's", func() (bool, string) {
		out, err := onHost(t, source, "sh", "-c", "ls /run/watari/tunnel/*/libvirt.sock")
		way = strings.TrimSpace(out)
		return err == nil && way != "", out
	})
	for what, call := range map[string]string{
		"list its domains": "list --all",
		"create a domain":  "create /dev/stdin",
		"read its files":   "pool-list --all",
		"end its guests":   "destroy watari-lent-0",
		"see its devices":  "nodedev-list",
	} {
		out, err := onHost(t, source, "sh", "-c", "echo \"<domain type='qemu'><name>evil</name><memory>65536</memory><os><type>hvm</type></os></domain>\" | "+
			"timeout 10 virsh -c 'qemu+unix:///system?socket="+way+"' "+call+" 2>&1 && exit 99; true")
		if err != nil || !strings.Contains(out, "no part of the migration") && !strings.Contains(out, "failed to get domain") {
			t.Errorf("the source can %s: %v\n%s", what, err, out)
		}
	}
	for _, other := range []string{"test:///default", "lxc:///system"} {
		if out, err := onHost(t, source, "sh", "-c", "timeout 10 virsh -c '"+strings.Replace(other, ":///", "+unix:///", 1)+"?socket="+way+"' uri"); err == nil {
			t.Errorf("the source opens %s: %s", other, out)
		}
	}
	if out, err := onHost(t, target, "virsh", "-c", "qemu:///system", "list", "--all", "--name"); err != nil || strings.Contains(out, "evil") {
		t.Errorf("the target has %q, %v", out, err)
	}
	until(t, time.Minute, "the guest arrives all the same", func() (bool, string) {
		g := guestNamed(t, "lent-0")
		return g.Host == target, g.Host + " " + must(t, "migrate", "list", "--all", "lent-0")
	})
	settled(t, "lent", 1)
}
