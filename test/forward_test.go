package test

// forward_test.go - connections into guests.

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"
)

// serveBytes is a program in a guest that sends 48 MiB of known bytes to each client.
const serveBytes = `use IO::Socket::INET; my $s = IO::Socket::INET->new(LocalAddr => "127.0.0.1", LocalPort => 8888, Listen => 5, ReuseAddr => 1) or die;
print "listens\n"; $| = 1; while (my $c = $s->accept) { for my $i (1..768) { print $c chr($i % 251) x 65536; } close $c; }`

// A download through `watari guest forward` continues while the guest moves, and is complete.
func TestForwardAndShell(t *testing.T) {
	newCluster(t, "way", 1)
	if out := must(t, "ssh", "way-0", "--", "sh", "-c", "hostname; id -un"); strings.TrimSpace(out) != "way-0\nwatari" {
		t.Errorf("watari ssh tells %q", out)
	}
	must(t, "guest", "exec", "way-0", "--", "sh", "-c", "setsid perl -e '"+serveBytes+"' > /tmp/server.log 2>&1 < /dev/null & for i in $(seq 50); do grep -q listens /tmp/server.log && exit; sleep 0.1; done; cat /tmp/server.log; exit 1")
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := free.Addr().(*net.TCPAddr).Port
	free.Close()
	forward := shared.command(t.Context(), "guest", "forward", "way-0", fmt.Sprintf("%d:8888", port))
	if err := forward.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = forward.Process.Signal(os.Interrupt)
		_ = forward.Wait()
	})
	var conn net.Conn
	until(t, 20*time.Second, "the port is open", func() (bool, string) {
		conn, err = net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		return err == nil, fmt.Sprint(err)
	})
	first := make([]byte, 1<<20)
	if _, err := io.ReadFull(conn, first); err != nil {
		t.Fatal(err)
	}
	from, to := elsewhere(t, "way-0")
	begun := time.Now()
	must(t, "migrate", "way-0", "--to", to)
	t.Logf("moved from %s to %s", from, to)
	sum := sha256.New()
	sum.Write(first)
	n, err := io.Copy(sum, conn)
	if err != nil {
		t.Fatalf("after %d bytes: %v", n, err)
	}
	t.Logf("the rest of the download took %.1f s", time.Since(begun).Seconds())
	want := sha256.New()
	for i := 1; i <= 768; i++ {
		piece := make([]byte, 65536)
		for k := range piece {
			piece[k] = byte(i % 251)
		}
		want.Write(piece)
	}
	if hex.EncodeToString(sum.Sum(nil)) != hex.EncodeToString(want.Sum(nil)) {
		t.Errorf("%d bytes came, and others than were sent", n+1<<20)
	}
}
