package dialer

import (
	"errors"
	"net"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A listener whose queue is full answers nobody.
func TestAnAttemptEndsSoon(t *testing.T) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := errors.Join(unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}), unix.Listen(fd, 0)); err != nil {
		t.Fatal(err)
	}
	bound, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	address := (&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: bound.(*unix.SockaddrInet4).Port}).String()
	for range 5 {
		begun := time.Now()
		conn, err := New().DialContext(t.Context(), "tcp4", address)
		if err == nil {
			defer conn.Close()
			continue
		}
		if took := time.Since(begun); !errors.Is(err, syscall.ETIMEDOUT) || took > 15*time.Second {
			t.Errorf("after %v: %v", took, err)
		}
		return
	}
	t.Error("the queue took all connections")
}
