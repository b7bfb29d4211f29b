package agent

import (
	"net"
	"testing"
	"time"

	v1 "watari/api/watariv1"

	"golang.org/x/sys/unix"
)

// shortOf is a listener that at first fails for lack of descriptors.
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

func TestOnlyRootAndTheUserMayLaunch(t *testing.T) {
	a := &Agent{}
	for _, c := range []struct {
		identity *v1.Identity
		uid      uint32
		may      bool
	}{{nil, 0, true}, {nil, 1000, false}, {&v1.Identity{User: "watari", Uid: 1000}, 1000, true},
		{&v1.Identity{User: "watari", Uid: 1000}, 0, true}, {&v1.Identity{User: "watari", Uid: 1000}, 33, false}} {
		a.identity = c.identity
		if err := a.mayLaunch(c.uid); (err == nil) != c.may {
			t.Errorf("user %d, identity %v: %v", c.uid, c.identity, err)
		}
	}
}
