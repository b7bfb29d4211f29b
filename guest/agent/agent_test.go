package agent

import (
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// shortOf is a listener for which there is no descriptor at first.
type shortOf struct {
	net.Listener
	failed bool
}

func (l *shortOf) Accept() (net.Conn, error) {
	if !l.failed {
		l.failed = true
		return nil, unix.EMFILE
	}
	return l.Listener.Accept()
}

func TestProgramsAreServedAfterAShortageOfDescriptors(t *testing.T) {
	listener, err := net.Listen("unix", t.TempDir()+"/s")
	if err != nil {
		t.Fatal(err)
	}
	served, ended := make(chan struct{}), make(chan struct{})
	go func() {
		accept(&shortOf{Listener: listener}, func(conn net.Conn) { conn.Close(); close(served) })
		close(ended)
	}()
	conn, err := net.Dial("unix", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for _, wait := range []chan struct{}{served, ended} {
		select {
		case <-wait:
		case <-time.After(5 * time.Second):
			t.Fatal("not served, or not ended")
		}
		listener.Close()
	}
}
