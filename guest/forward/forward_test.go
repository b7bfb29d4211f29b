package forward

import (
	"bytes"
	"context"
	"crypto/rand"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"
)

// both returns a client whose stream leads to Serve.
func both(t *testing.T) *Client {
	t.Helper()
	near, far := net.Pipe()
	ended := make(chan error, 1)
	go func() { ended <- Serve(far) }()
	c, err := NewClient(near)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Close()
		if err := <-ended; err != nil {
			t.Errorf("the guest's end: %v", err)
		}
	})
	return c
}

// listen serves connections, and returns the port.
func listen(t *testing.T, serve func(net.Conn)) uint16 {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go serve(conn)
		}
	}()
	return uint16(l.Addr().(*net.TCPAddr).Port)
}

// The program reads to the end before it answers. So the end of one direction must be passed on alone.
func TestConnections(t *testing.T) {
	port := listen(t, func(conn net.Conn) {
		all, _ := io.ReadAll(conn)
		_, _ = conn.Write(all)
		conn.Close()
	})
	c := both(t)
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			sent := make([]byte, 3<<20)
			_, _ = rand.Read(sent)
			conn, err := c.Open(t.Context(), port)
			if err != nil {
				t.Error(err)
				return
			}
			go func() {
				_, _ = conn.Write(sent)
				conn.Close() // only this direction
			}()
			if got, err := io.ReadAll(conn); err != nil || !bytes.Equal(got, sent) {
				t.Errorf("%d of %d bytes came back, or others: %v", len(got), len(sent), err)
			}
		})
	}
	all.Wait()
}

func TestAPortThatNobodyListensOn(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := uint16(l.Addr().(*net.TCPAddr).Port)
	l.Close()
	if _, err := both(t).Open(t.Context(), port); err == nil || !strings.Contains(err.Error(), "connection refused") {
		t.Errorf("the error is %v", err)
	}
}

// A reader that does not read stops only the writer of its own connection.
func TestASlowReader(t *testing.T) {
	sent := make(chan int, 1000)
	port := listen(t, func(conn net.Conn) {
		for {
			n, err := conn.Write(make([]byte, 64<<10))
			if err != nil {
				close(sent)
				return
			}
			sent <- n
		}
	})
	echo := listen(t, func(conn net.Conn) { _, _ = io.Copy(conn, conn); conn.Close() })
	c := both(t)
	slow, err := c.Open(t.Context(), port)
	if err != nil {
		t.Fatal(err)
	}
	for before, end := -1, time.Now().Add(20*time.Second); len(sent) != before || before == 0; time.Sleep(300 * time.Millisecond) {
		if before = len(sent); before > 100 || time.Now().After(end) { // the kernel's buffers hold some bytes
			t.Fatalf("%d pieces were sent though nobody reads", before)
		}
	}
	other, err := c.Open(t.Context(), echo)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := other.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	if got := make([]byte, 5); true {
		if _, err := io.ReadFull(other, got); err != nil || string(got) != "hello" {
			t.Errorf("the other connection carries %q, %v", got, err)
		}
	}
	slow.Close()
	other.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if _, err := c.Open(ctx, echo); err != nil {
		t.Error(err)
	}
}
