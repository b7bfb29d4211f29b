package rsh

import (
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestASignalEndsWhatHasNotBegun(t *testing.T) {
	socket := t.TempDir() + "/s"
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	ended := make(chan int, 1)
	go func() { ended <- Run([]string{"md-1", "true"}, socket, strings.NewReader(""), io.Discard, io.Discard) }()
	conn, err := listener.Accept() // and answers nothing
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := unix.Kill(os.Getpid(), unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	select {
	case code := <-ended:
		if code != 128+int(unix.SIGTERM) {
			t.Errorf("exit status %d", code)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("it goes on")
	}
}
