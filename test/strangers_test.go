package test

// strangers_test.go - attacks by hosts that belong to others. docs/design/threats.md lists them.

import (
	"encoding/hex"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"watari/overlay"
)

// Root of a guest's source host sends its own calls over the connection to the target's libvirt, which exists while the
// guest moves. libvirt would carry them out with the rights of the target's root.
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

// Root of a quarantined host keeps its guest running. The guest tries to send messages to the cluster's other guests.
func TestAQuarantinedHostReachesNobody(t *testing.T) {
	newCluster(t, "out", 2, "--spread", "site")
	settled(t, "out", 2)
	before := guestNamed(t, "out-0")
	for from, to := range map[string]string{"out-0": "out-1", "out-1": "out-0"} {
		must(t, "guest", "exec", from, "--", "sh", "-c", "setsid bash -c 'while sleep 0.2; do echo > /dev/udp/"+guestNamed(t, to).Address+"/9; done' >/dev/null 2>&1 &")
	}
	arriving := func() int { // UDP packets of hosts and guests, plain or encrypted, that the host receives within 3 s
		out := inHost(t, before.Host, "lan=$(ip -o -4 addr | awk '/ 198\\.18\\./ {print $2; exit}'); perl -e 'socket(my $s, 17, 2, 0x0008) or die $!; "+
			"bind($s, pack(\"S n i S C C a8\", 17, 0x0800, $ARGV[0], 0, 0, 0, \"\")) or die $!; my ($n, $end) = (0, time + 3); "+
			"while (time < $end) { my $r = \"\"; vec($r, fileno($s), 1) = 1; next unless select($r, undef, undef, 1); recv($s, my $p, 2048, 0); "+
			"$n++ if ord(substr($p, 9, 1)) == 17 && (ord(substr($p, 12, 1)) == 198 || ord(substr($p, 12, 1)) == 10) } print $n' $(cat /sys/class/net/$lan/ifindex)")
		n, err := strconv.Atoi(strings.TrimSpace(out))
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	received := func() int { // datagrams to a port without a listener
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
	if arriving() == 0 {
		t.Error("nothing is seen of what the other guest sends, so the check below proves nothing")
	}
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
	if n := arriving(); n > 0 {
		t.Errorf("other machines send it %d packets within 3 s", n)
	}
	if out, err := shared.watari(time.Minute, "guest", "exec", "out-0", "--", "true"); err == nil {
		t.Errorf("its guest is still used: %s", out)
	}
	if g := guestNamed(t, "out-0"); g.Host != before.Host || g.Epoch != before.Epoch {
		t.Errorf("the guest was started elsewhere, though its copy may run: %+v", g)
	}
	// The host stays drained, so its guest leaves, and continues its work.
	must(t, "host", "quarantine", before.Host, "--undo")
	must(t, "host", "drain", before.Host, "--wait")
	settled(t, "out", 2)
	first = received()
	until(t, 30*time.Second, "its messages arrive again", func() (bool, string) {
		n := received() - first
		return n > 0, fmt.Sprint(n)
	})
	must(t, "host", "drain", before.Host, "--undo")
	// An obedient host is cut off when its guests have left.
	second := guestNamed(t, "out-0").Host
	quarantine(second)
	until(t, time.Minute, "the guest has left, and the host is cut off", func() (bool, string) {
		out := must(t, "host", "show", second)
		return strings.Contains(out, "quarantined") && guestNamed(t, "out-0").Host != second, out
	})
	settled(t, "out", 2)
}

// A machine on a site's LAN sends packets as a guest. A LAN that is not trusted carries only WireGuard's packets.
func TestALANIsTrustedOnlyWhereAnAdministratorSaysSo(t *testing.T) {
	if out := must(t, "status"); !strings.Contains(out, "traffic between hosts there is not encrypted") {
		t.Errorf("the lab's LANs are trusted, and nobody is told:\n%s", out)
	}
	newCluster(t, "lan", 2, "--site", "a", "--spread", "host")
	settled(t, "lan", 2)
	to, from := guestNamed(t, "lan-0"), guestNamed(t, "lan-1")
	forged := strings.TrimSpace(inHost(t, to.Host, "cat /sys/class/net/$(ip -o -4 addr | awk '/ 198\\.18\\./ {print $2; exit}')/address"))
	frame := udpFrame(t, forged, from.Address, to.Address)
	forge := func() { // by root of another machine on the LAN, which no packet filter stops
		inHost(t, from.Host, "lan=$(ip -o -4 addr | awk '/ 198\\.18\\./ {print $2; exit}'); perl -e 'socket(my $s, 17, 3, 0) or die $!; "+
			"my $to = pack(\"S n i S C C a8\", 17, 0x0800, $ARGV[0], 0, 0, 6, \"\"); for (1..5) { send($s, pack(\"H*\", $ARGV[1]), 0, $to) or die $! }' "+
			"$(cat /sys/class/net/$lan/ifindex) "+frame)
	}
	received := func() int { // datagrams to a port without a listener
		n, err := strconv.Atoi(strings.TrimSpace(must(t, "guest", "exec", "lan-0", "--", "sh", "-c", "awk '/^Udp: [0-9]/ {print $3}' /proc/net/snmp")))
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	send := func() { must(t, "guest", "exec", "lan-1", "--", "bash", "-c", "echo > /dev/udp/"+to.Address+"/9") }
	arrive := func(does func()) int {
		before := received()
		does()
		time.Sleep(time.Second)
		return received() - before
	}
	// plain runs does, and returns how many packets from the one guest to the other root of the host sees on the LAN.
	plain := func(does func()) int {
		seen := make(chan string, 1)
		go func() {
			out, err := onHost(t, from.Host, "sh", "-ec", "lan=$(ip -o -4 addr | awk '/ 198\\.18\\./ {print $2; exit}'); perl -e '$| = 1; socket(my $s, 17, 3, 0x0300) or die $!; "+
				"bind($s, pack(\"S n i S C C a8\", 17, 3, $ARGV[0], 0, 0, 0, \"\")) or die $!; my ($n, $end) = (0, time + 8); "+
				"while (time < $end) { my $r = \"\"; vec($r, fileno($s), 1) = 1; next unless select($r, undef, undef, 1); recv($s, my $p, 2048, 0); "+
				"$n++ if substr($p, 26, 8) eq pack(\"C8\", split(/[. ]/, $ARGV[1])) } print $n' "+
				"$(cat /sys/class/net/$lan/ifindex) '"+from.Address+" "+to.Address+"'")
			if err != nil {
				out = fmt.Sprint(out, err)
			}
			seen <- out
		}()
		time.Sleep(3 * time.Second) // until it listens
		does()
		n, err := strconv.Atoi(strings.TrimSpace(<-seen))
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	if n := plain(send); n != 1 {
		t.Fatalf("%d of 1 messages are seen on the trusted LAN", n)
	}
	if n := arrive(forge); n != 5 {
		t.Fatalf("%d of 5 forged messages arrive where the LAN is trusted: the attack is not one", n)
	}
	ended := make(chan string, 1)
	go func() {
		out, _ := shared.watari(5*time.Minute, "run", "lan", "-n", "2", "--", "NPopenmpi", "-i", "-n", "3", "-l", "1000", "-u", "50000")
		ended <- out
	}()
	t.Cleanup(func() { must(t, "site", "set", "a", "--trusted-lan") })
	time.Sleep(3 * time.Second)
	must(t, "site", "set", "a", "--trusted-lan=false")
	wholeUpTo(t, 32768, <-ended)
	if n := arrive(send); n != 1 {
		t.Errorf("%d of 1 messages arrive through WireGuard", n)
	}
	if n := arrive(forge); n > 0 {
		t.Errorf("%d forged messages arrive", n)
	}
	if n := plain(func() {
		if n := arrive(send); n != 1 {
			t.Errorf("%d of 1 messages arrive", n)
		}
	}); n > 0 {
		t.Errorf("%d messages can be read on the LAN", n)
	}
	if out := inHost(t, from.Host, "ip route get "+to.Address); !strings.Contains(out, overlay.Device) {
		t.Errorf("messages go by %s", out)
	}
	// A guest can still move within the site.
	must(t, "migrate", "lan-0", "--to", from.Host)
	must(t, "migrate", "lan-0", "--to", to.Host)
	if n := arrive(send); n != 1 {
		t.Errorf("%d of 1 messages arrive after a move", n)
	}
}

// udpFrame returns an Ethernet frame with an empty UDP datagram, in hex digits.
func udpFrame(t *testing.T, mac, from, to string) string {
	t.Helper()
	hardware, err := net.ParseMAC(mac)
	if err != nil {
		t.Fatal(err)
	}
	packet := []byte{0x45, 0, 0, 28, 0, 1, 0, 0, 64, 17, 0, 0}
	packet = append(append(packet, netip.MustParseAddr(from).AsSlice()...), netip.MustParseAddr(to).AsSlice()...)
	sum := uint32(0)
	for i := 0; i < len(packet); i += 2 {
		sum += uint32(packet[i])<<8 | uint32(packet[i+1])
	}
	sum = sum&0xffff + sum>>16
	sum = ^(sum&0xffff + sum>>16)
	packet[10], packet[11] = byte(sum>>8), byte(sum)
	packet = append(packet, 0x30, 0x39, 0, 9, 0, 8, 0, 0) // no checksum
	return hex.EncodeToString(slices.Concat(hardware, []byte{2, 0, 0, 0, 0, 1, 8, 0}, packet))
}
