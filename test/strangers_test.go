package test

// strangers_test.go - attacks by hosts that belong to somebody else. docs/design/threats.md lists them.

import (
	"fmt"
	"strconv"
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

// The root of a host that was cut off keeps its guest running, with which it would talk to the cluster's others.
func TestAQuarantinedHostReachesNobody(t *testing.T) {
	newCluster(t, "out", 2, "--spread", "site")
	settled(t, "out", 2)
	before := guestNamed(t, "out-0")
	must(t, "guest", "exec", "out-0", "--", "sh", "-c", "setsid bash -c 'while sleep 0.2; do echo > /dev/udp/"+guestNamed(t, "out-1").Address+"/9; done' >/dev/null 2>&1 &")
	received := func() int { // datagrams to a port that nobody has
		n, err := strconv.Atoi(strings.TrimSpace(must(t, "guest", "exec", "out-1", "--", "sh", "-c", "awk '/^Udp: [0-9]/ {print $3}' /proc/net/snmp")))
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	until(t, 30*time.Second, "its messages arrive", func() (bool, string) {
		first := received()
		time.Sleep(time.Second)
		n := received() - first
		return n > 0, fmt.Sprint(n)
	})
	quarantine := func(host string, more ...string) {
		t.Cleanup(func() {
			must(t, "host", "quarantine", host, "--undo")
			must(t, "host", "drain", host, "--undo")
		})
		must(t, append([]string{"host", "quarantine", host}, more...)...)
	}
	quarantine(before.Host, "--grace", "0")
	time.Sleep(2 * time.Second)
	first := received()
	time.Sleep(3 * time.Second)
	if n := received() - first; n > 0 {
		t.Errorf("%d of its messages arrive within 3 s", n)
	}
	if out, err := shared.watari(time.Minute, "guest", "exec", "out-0", "--", "true"); err == nil {
		t.Errorf("its guest is still used: %s", out)
	}
	if g := guestNamed(t, "out-0"); g.Host != before.Host || g.Epoch != before.Epoch {
		t.Errorf("the guest was started elsewhere, though its copy may run: %+v", g)
	}
	// It stays drained, so its guest leaves, and goes on with what it did.
	must(t, "host", "quarantine", before.Host, "--undo")
	must(t, "host", "drain", before.Host, "--wait")
	settled(t, "out", 2)
	first = received()
	until(t, 30*time.Second, "its messages arrive again", func() (bool, string) {
		n := received() - first
		return n > 0, fmt.Sprint(n)
	})
	must(t, "host", "drain", before.Host, "--undo")
	// A host that obeys is cut off when its guests have left.
	second := guestNamed(t, "out-0").Host
	quarantine(second)
	until(t, time.Minute, "the guest has left, and the host is cut off", func() (bool, string) {
		out := must(t, "host", "show", second)
		return strings.Contains(out, "quarantined") && guestNamed(t, "out-0").Host != second, out
	})
	settled(t, "out", 2)
}
