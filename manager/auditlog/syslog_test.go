package auditlog

import (
	"io"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "watari/api/watariv1"
)

func TestEntriesGoToASyslogServerToo(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "log")
	server, err := ParseServer("unix://" + socket)
	if err != nil {
		t.Fatal(err)
	}
	l := open(t, t.TempDir())
	l.Forward(t.Context(), server)
	// The server does not exist yet, but the call is recorded.
	l.Record(&v1.AuditEntry{At: timestamppb.Now(), Caller: "user aiko", Call: "CreateCluster", Object: "md"})
	if entries := last(t, l, 0); len(entries) != 1 {
		t.Fatalf("%d entries", len(entries))
	}
	listener, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	if err := listener.SetReadDeadline(time.Now().Add(3 * retryPause)); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 4096)
	n, err := listener.Read(got)
	if err != nil || !strings.Contains(string(got[:n]), "CreateCluster") || !strings.Contains(string(got[:n]), "watari-audit") {
		t.Errorf("the server has %q, %v", got[:n], err)
	}
}

func TestEntriesGoToASyslogServerOverUDPAndTCP(t *testing.T) {
	packets, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer packets.Close()
	connections, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer connections.Close()
	for url, receive := range map[string]func() (io.Reader, error){
		"udp://" + packets.LocalAddr().String(): func() (io.Reader, error) { return packets.(*net.UDPConn), nil },
		"tcp://" + connections.Addr().String():  func() (io.Reader, error) { return connections.Accept() },
	} {
		server, err := ParseServer(url)
		if err != nil {
			t.Fatal(err)
		}
		l := open(t, t.TempDir())
		l.Forward(t.Context(), server)
		l.Record(&v1.AuditEntry{At: timestamppb.Now(), Caller: "user aiko", Call: "CreateCluster", Object: "md"})
		from, err := receive()
		if err != nil {
			t.Fatal(err)
		}
		got := make([]byte, 4096)
		if n, err := from.Read(got); err != nil || !strings.Contains(string(got[:n]), "CreateCluster") {
			t.Errorf("%s: the server has %q, %v", url, got[:n], err)
		}
	}
}

func TestSyslogServers(t *testing.T) {
	for text, good := range map[string]bool{"local": true, "udp://logs:514": true, "tcp://10.0.0.1:601": true, "unix:///dev/log": true,
		"": false, "logs": false, "udp://logs": false, "udp://logs:514/x": false, "http://logs:80": false, "unix://dev/log": false} {
		if _, err := ParseServer(text); (err == nil) != good {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestASyslogServerThatStaysAwayDelaysNoCall(t *testing.T) {
	l := open(t, t.TempDir())
	l.Forward(t.Context(), Server{"unixgram", filepath.Join(t.TempDir(), "nobody")})
	for n := range queued + 20 { // from many callers, each with its own rate limit
		l.Record(&v1.AuditEntry{At: timestamppb.Now(), Caller: string(rune('a' + n/burst)), Call: "CreateCluster"})
	}
	if entries := last(t, l, 0); len(entries) < queued {
		t.Errorf("%d entries are in the file", len(entries))
	}
}
