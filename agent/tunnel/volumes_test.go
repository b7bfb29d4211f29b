package tunnel

import (
	"context"
	"io"
	"net"
	"path/filepath"
	"testing"
	"time"

	"watari/ca"
)

// The host that may read a volume is cut off while it reads.
func TestAVolumeIsServedOnlyAsLongAsItsReaderMayReadIt(t *testing.T) {
	reader, server := twoHosts(t)
	socket := filepath.Join(server.run, "volume.sock")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go io.Copy(conn, conn)
		}
	}()
	allowed, withdraw := context.WithCancel(t.Context())
	defer withdraw()
	server.config.Volume = func(ca.Identity, string) (string, context.Context, error) { return socket, allowed, nil }
	local, far := connected(t, filepath.Join(reader.run, "reader.sock"))
	ended := make(chan error, 1)
	go func() {
		ended <- reader.Volume(t.Context(), local, Peer{Name: "b1", UID: "uid-of-b1", Address: server.address}, "volume")
	}()
	far.SetDeadline(time.Now().Add(10 * time.Second))
	text := []byte("blocks")
	if _, err := far.Write(text); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(far, make([]byte, len(text))); err != nil {
		t.Fatalf("it is not served: %v", err)
	}
	withdraw()
	if n, err := far.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("it is still served: %d bytes, %v", n, err)
	}
	far.Close()
	select {
	case <-ended:
	case <-time.After(10 * time.Second):
		t.Error("the connection stays")
	}
}

// connected returns both ends of a connection over a Unix socket.
func connected(t *testing.T, path string) (accepted, dialled net.Conn) {
	t.Helper()
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	if dialled, err = net.Dial("unix", path); err == nil {
		accepted, err = listener.Accept()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dialled.Close(); accepted.Close() })
	return accepted, dialled
}
