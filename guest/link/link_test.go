package link

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// quick is a timing for tests.
var quick = timing{5 * time.Millisecond, 40 * time.Millisecond, time.Millisecond, 50 * time.Millisecond, 5 * time.Second, time.Second}

// badPipe is a channel that damages the first chunks that pass through it.
type badPipe struct {
	io.Reader
	io.Writer
	close func()
}

func (p *badPipe) Close() error { p.close(); return nil }

// harm is what happens to one chunk.
type harm struct {
	kind string // "", drop, garble, cut, repeat
	at   float64
}

// badPipes returns the two ends of a channel.
func badPipes(toGuest, toHost []harm) (host, guest *badPipe) {
	hr, hw := io.Pipe()
	gr, gw := io.Pipe()
	lr, lw := io.Pipe() // read by the guest
	mr, mw := io.Pipe() // read by the host
	go pump(hr, lw, toGuest)
	go pump(gr, mw, toHost)
	all := func() {
		for _, c := range []io.Closer{hr, hw, gr, gw, lr, lw, mr, mw} {
			c.Close()
		}
	}
	return &badPipe{mr, hw, all}, &badPipe{lr, gw, all}
}

func pump(r io.Reader, w *io.PipeWriter, harms []harm) {
	buf := make([]byte, 4096)
	for i := 0; ; i++ {
		n, err := r.Read(buf)
		b := buf[:n]
		if i < len(harms) && n > 0 {
			at := int(harms[i].at * float64(n))
			switch harms[i].kind {
			case "drop":
				b = nil
			case "garble":
				b[at] ^= 0x55
			case "cut":
				b = b[:at]
			case "repeat":
				b = append(bytes.Clone(b), b[at:]...)
			}
		}
		if _, werr := w.Write(b); err != nil || werr != nil {
			w.CloseWithError(io.EOF)
			return
		}
	}
}

func harms(t *rapid.T, name string) []harm {
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) harm {
		return harm{
			rapid.SampledFrom([]string{"", "", "drop", "garble", "cut", "repeat"}).Draw(t, "kind"),
			rapid.Float64Range(0, 0.999).Draw(t, "at"),
		}
	}), 0, 60).Draw(t, name)
}

func accept(t interface{ Fatal(...any) }, l *listener) *conn {
	select {
	case c := <-l.sessions:
		return c
	case <-time.After(10 * time.Second):
		t.Fatal("no session within 10 s")
		return nil
	}
}

// connect opens a session over a channel.
func connect(t interface {
	Fatal(...any)
	Cleanup(func())
}, host, guest io.ReadWriteCloser) (net.Conn, *conn, *listener) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	t.Cleanup(cancel)
	l := newListener(guest, quick)
	go l.run(ctx)
	accepted := make(chan *conn, 1)
	go func() { accepted <- <-l.sessions }()
	c, err := dial(ctx, host, quick)
	if err != nil {
		t.Fatal("dial:", err)
	}
	t.Cleanup(func() { c.Close() })
	return c, <-accepted, l
}

func TestBytesArriveInOrderOverABadChannel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		toGuest, toHost := harms(t, "toGuest"), harms(t, "toHost")
		size := rapid.IntRange(0, 200_000).Draw(t, "size")
		host, guest := badPipes(toGuest, toHost)
		h, g, _ := connect(t, host, guest)
		want := make([]byte, size)
		rand.NewChaCha8([32]byte{1}).Read(want)
		var group sync.WaitGroup
		for _, ends := range [][2]net.Conn{{h, g}, {g, h}} {
			group.Go(func() {
				if _, err := ends[0].Write(want); err != nil {
					t.Errorf("write: %v", err)
				}
			})
			group.Go(func() {
				got := make([]byte, size)
				ends[1].SetReadDeadline(time.Now().Add(30 * time.Second))
				if n, err := io.ReadFull(ends[1], got); err != nil {
					t.Errorf("read: %d of %d bytes: %v", n, size, err)
				} else if !bytes.Equal(got, want) {
					t.Errorf("bytes differ")
				}
			})
		}
		group.Wait()
	})
}

func TestDecoderFindsFramesInNoise(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var wire []byte
		noise := rapid.SliceOfN(rapid.SampledFrom([]byte("WtL1x")), 0, 100)
		count := rapid.IntRange(1, 5).Draw(t, "frames")
		for i := range count {
			wire = append(wire, noise.Draw(t, "noise")...)
			wire = (&frame{kind: kindData, session: 7, seq: uint64(i), payload: noise.Draw(t, "payload")}).encode(wire)
		}
		d := newDecoder(bytes.NewReader(wire))
		for i := range count {
			if f, _, err := d.next(); err != nil || f.seq != uint64(i) {
				t.Fatalf("frame %d: seq %d, %v", i, f.seq, err)
			}
		}
	})
}

func TestNewSessionTakesOver(t *testing.T) {
	guestEnd, hostEnd := net.Pipe()
	first, old, l := connect(t, hostEnd, guestEnd)
	// The first host disappears without a message; a second one greets over the same channel.
	_ = first
	go func() {
		for {
			if err := l.wire.send(&frame{kind: kindPing, session: 1}); err != nil {
				return
			}
		}
	}()
	second := newConn(&wire{w: hostEnd}, 99, quick)
	go greet(second, make(chan struct{}))
	taken := accept(t, l)
	if _, err := old.Read(make([]byte, 1)); !errors.Is(err, ErrTakenOver) {
		t.Errorf("old session's read: %v", err)
	}
	if taken.session != 99 {
		t.Errorf("session %d", taken.session)
	}
}

func TestUnknownSessionEndsAtTheHost(t *testing.T) {
	guestEnd, hostEnd := net.Pipe()
	h, g, _ := connect(t, hostEnd, guestEnd)
	g.end(errors.New("restored elsewhere"))
	h.SetReadDeadline(time.Now().Add(5 * time.Second))
	if _, err := h.Read(make([]byte, 1)); !errors.Is(err, ErrUnknownSession) {
		t.Errorf("read: %v", err)
	}
}

func TestSilentPeerEndsTheSession(t *testing.T) {
	guestEnd, hostEnd := net.Pipe()
	quick := quick
	quick.peerTimeout = 200 * time.Millisecond
	l := newListener(guestEnd, quick)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go l.run(ctx)
	go func() { <-l.sessions }()
	r, w := io.Pipe()
	var lost sync.Map
	go func() {
		buf := make([]byte, 4096)
		for {
			n, err := hostEnd.Read(buf)
			if err != nil {
				return
			}
			if _, ok := lost.Load("now"); !ok {
				w.Write(buf[:n])
			}
		}
	}()
	h, err := dial(ctx, &badPipe{r, hostEnd, func() { hostEnd.Close(); w.Close() }}, quick)
	if err != nil {
		t.Fatal(err)
	}
	lost.Store("now", true)
	h.SetReadDeadline(time.Now().Add(5 * time.Second))
	if _, err := h.Read(make([]byte, 1)); !errors.Is(err, ErrSilent) {
		t.Errorf("read: %v", err)
	}
}

func TestDeadlines(t *testing.T) {
	guestEnd, hostEnd := net.Pipe()
	h, g, _ := connect(t, hostEnd, guestEnd)
	h.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
	if _, err := h.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("read: %v", err)
	}
	h.SetWriteDeadline(time.Now().Add(50 * time.Millisecond))
	if n, err := h.Write(make([]byte, 4*windowSize)); !errors.Is(err, os.ErrDeadlineExceeded) || n < windowSize {
		t.Errorf("write to a peer that does not read: %d bytes, %v", n, err)
	}
	h.SetDeadline(time.Time{})
	go io.Copy(io.Discard, g)
	if _, err := h.Write(make([]byte, 4*windowSize)); err != nil {
		t.Errorf("write once the peer reads: %v", err)
	}
}

func TestCloseDeliversWhatWasWritten(t *testing.T) {
	guestEnd, hostEnd := net.Pipe()
	h, g, _ := connect(t, hostEnd, guestEnd)
	h.Write(make([]byte, 100_000))
	h.Close()
	g.SetReadDeadline(time.Now().Add(5 * time.Second))
	if b, err := io.ReadAll(g); err != nil || len(b) != 100_000 {
		t.Errorf("%d bytes, %v", len(b), err)
	}
}

func TestClientOpensANewSessionWhenOneEnds(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	channels := make(chan io.ReadWriteCloser)
	open := func() (io.ReadWriteCloser, error) {
		select {
		case c := <-channels:
			return c, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.URL.Path) })
	go serve(ctx, open, handler, quick)
	var last net.Conn
	client := NewClient(func(ctx context.Context) (net.Conn, error) {
		guestEnd, hostEnd := net.Pipe()
		channels <- guestEnd
		c, err := dial(ctx, hostEnd, quick)
		last = c
		return c, err
	})
	defer client.Close()
	get := func() error {
		r, err := (&http.Client{Transport: client}).Get("http://any/hello")
		if err != nil {
			return err
		}
		defer r.Body.Close()
		if b, err := io.ReadAll(r.Body); err != nil || string(b) != "/hello" {
			return fmt.Errorf("%q, %v", b, err)
		}
		return nil
	}
	for range 3 {
		err := get()
		for err != nil && ctx.Err() == nil { // a request in progress fails when the session ends
			err = get()
		}
		if err != nil {
			t.Fatal(err)
		}
		before := last
		if err := get(); err != nil || last != before {
			t.Fatalf("second request on the session: %v", err)
		}
		last.(*conn).end(errors.New("cut off"))
	}
}

func BenchmarkThroughput(b *testing.B) {
	dir := b.TempDir()
	listener, err := net.Listen("unix", dir+"/s")
	if err != nil {
		b.Fatal(err)
	}
	defer listener.Close()
	channels := make(chan net.Conn)
	go func() { c, _ := listener.Accept(); channels <- c }()
	hostEnd, err := net.Dial("unix", dir+"/s")
	if err != nil {
		b.Fatal(err)
	}
	l := newListener(<-channels, guestTiming)
	ctx := b.Context()
	go l.run(ctx)
	guest := make(chan *conn, 1)
	go func() { guest <- <-l.sessions }()
	h, err := Dial(ctx, hostEnd)
	if err != nil {
		b.Fatal(err)
	}
	defer h.Close()
	go io.Copy(io.Discard, <-guest)
	chunk := make([]byte, 64<<10)
	b.SetBytes(int64(len(chunk)))
	for b.Loop() {
		if _, err := h.Write(chunk); err != nil {
			b.Fatal(err)
		}
	}
}
