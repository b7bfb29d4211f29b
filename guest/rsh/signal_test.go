package rsh

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"watari/api/watariv1/watariv1connect"
)

// deaf is a peer that never answers.
type deaf struct{}

func (deaf) RoundTrip(r *http.Request) (*http.Response, error) {
	<-r.Context().Done()
	return nil, r.Context().Err()
}

// connected returns both ends of a socket of watari-guest-rsh.
func connected(t *testing.T) (launcher, agent *net.UnixConn) {
	address := &net.UnixAddr{Name: filepath.Join(t.TempDir(), "s"), Net: "unixpacket"}
	listener, err := net.ListenUnix(address.Net, address)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	if launcher, err = net.DialUnix(address.Net, nil, address); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { launcher.Close() })
	if agent, err = listener.AcceptUnix(); err != nil {
		t.Fatal(err)
	}
	return launcher, agent
}

func TestASignalEndsWhatHasNotBegun(t *testing.T) {
	launcher, agent := connected(t)
	peers := Peers{
		Client: watariv1connect.NewProcessServiceClient(&http.Client{Transport: deaf{}}, "http://guest"),
		Call:   func(ctx context.Context, host string) (context.Context, error) { return ctx, nil },
		May:    func(uint32) error { return nil },
	}
	go peers.Serve(t.Context(), agent)
	for _, packet := range []string{"Amd-1\x00tr", "Aue\x00", "R", "S" + string(rune(unix.SIGTERM))} {
		if _, err := launcher.Write([]byte(packet)); err != nil {
			t.Fatal(err)
		}
	}
	launcher.SetReadDeadline(time.Now().Add(20 * time.Second))
	packet := make([]byte, packetSize)
	n, err := launcher.Read(packet)
	if err != nil || string(packet[:n]) != "X\x8f" {
		t.Errorf("%q, %v", packet[:n], err)
	}
}

func TestStrangersOfAGuestStartNothingInOthers(t *testing.T) {
	launcher, agent := connected(t)
	asked := make(chan uint32, 1)
	peers := Peers{
		Call: func(context.Context, string) (context.Context, error) {
			t.Error("a guest is called")
			return nil, io.EOF
		},
		May: func(uid uint32) error { asked <- uid; return errors.New("you may not") },
	}
	go peers.Serve(t.Context(), agent)
	for _, packet := range []string{"Amd-1\x00true\x00", "R"} {
		if _, err := launcher.Write([]byte(packet)); err != nil {
			t.Fatal(err)
		}
	}
	launcher.SetReadDeadline(time.Now().Add(20 * time.Second))
	packet := make([]byte, packetSize)
	n, err := launcher.Read(packet)
	if err != nil || !strings.Contains(string(packet[:n]), "you may not") {
		t.Errorf("%q, %v", packet[:n], err)
	}
	if uid := <-asked; int(uid) != os.Getuid() {
		t.Errorf("the kernel says that user %d calls", uid)
	}
}

func TestNoSignalIsLostWhenTheCommandBegins(t *testing.T) {
	for range 200 {
		var s signals
		passed := make(chan syscall.Signal, 3)
		pass := func(signal syscall.Signal) { passed <- signal }
		s.passTo(pass)
		go s.take(unix.SIGUSR1)
		s.passTo(nil)
		before := len(passed)
		time.Sleep(time.Microsecond)
		if len(passed) != before {
			t.Fatal("a signal was passed that had to wait")
		}
		s.passTo(pass)
		select {
		case <-passed:
		case <-time.After(10 * time.Second):
			t.Fatal("the signal is lost")
		}
	}
}

func TestInputThatWasNotAskedForIsDropped(t *testing.T) {
	asked := 0
	i := newInput(func() { asked++ })
	i.take([]byte("early"))
	i.want()
	i.want()
	i.take([]byte("one"))
	i.take([]byte("two"))
	if m := i.next(0); string(m.GetStdin()) != "one" || asked != 1 {
		t.Errorf("%v, asked %d times", m, asked)
	}
}

func TestInputIsBounded(t *testing.T) {
	asked := 0
	i := newInput(func() { asked++ })
	for last := -1; last < asked; {
		last = asked
		if i.want(); asked > last {
			i.take(make([]byte, packetSize-1))
		}
	}
	if len(i.kept) > inputLimit || len(i.kept) < inputLimit-2*packetSize {
		t.Errorf("%d bytes are kept", len(i.kept))
	}
	i.had(uint64(len(i.kept)))
	if i.want(); i.kept != nil || !i.asked {
		t.Errorf("%d bytes are kept of what the peer had", len(i.kept))
	}
	i.take(nil)
	if m := i.next(i.sent); !m.GetStdinClosed() {
		t.Errorf("at the end: %v", m)
	}
}
