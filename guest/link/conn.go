package link

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"time"
)

// Errors that end a session.
var (
	// ErrTakenOver means that the host opened a newer session.
	ErrTakenOver = errors.New("link: session taken over by a newer one")
	// ErrNoHost means that the host's end of the channel is closed. Read on the channel returns it once for each
	// disconnection; the next Read waits for a new host.
	ErrNoHost = errors.New("link: no host at the other end of the channel")
	// ErrSilent means that the peer did not answer in time.
	ErrSilent = errors.New("link: peer is silent")
	// ErrUnknownSession means that the guest does not know this session: the guest was restored, or its agent was
	// restarted.
	ErrUnknownSession = errors.New("link: session is unknown to the peer")
)

// windowSize is the number of bytes in one direction that may be in flight, unread or unacknowledged.
const windowSize = 256 << 10

// timing holds the protocol's time limits.
type timing struct {
	resend      time.Duration // until unacknowledged bytes are sent again; doubled up to resendMax
	resendMax   time.Duration
	ackDelay    time.Duration // how long acknowledgements are delayed, to combine them
	ping        time.Duration // between pings of an idle session; 0: no pings
	peerTimeout time.Duration // how long the peer may not answer until it is considered dead
	linger      time.Duration // how long Close goes on sending written bytes
}

var (
	hostTiming = timing{400 * time.Millisecond, 3200 * time.Millisecond, 5 * time.Millisecond, 4 * time.Second, 10 * time.Second, time.Second}
	// The guest does not ping, so that an idle guest stays idle.
	guestTiming = timing{400 * time.Millisecond, 3200 * time.Millisecond, 5 * time.Millisecond, 0, 30 * time.Second, time.Second}
)

// wire sends frames. Senders take turns.
type wire struct {
	mu  sync.Mutex
	w   io.Writer
	buf []byte
}

func (w *wire) send(f *frame) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.buf = f.encode(w.buf[:0])
	_, err := w.w.Write(w.buf)
	return err
}

// conn is one end of a session. The goroutine run sends. The reader of the channel calls handle.
type conn struct {
	wire    *wire
	session uint64
	timing  timing
	onEnd   func() // called once, with mu held, when the session ends
	kick    chan struct{}

	mu                 sync.Mutex
	readable, writable *sync.Cond
	err                error // why the session ended; nil while it is open
	closing            bool  // Close was called
	finBy              time.Time
	eof                bool // the peer's FIN was reached

	out         queue  // bytes from outBase on: first those sent but not acknowledged, then those not sent
	outBase     uint64 // offset of the first unacknowledged byte
	outNext     uint64 // offset of the next byte to send
	outMax      uint64 // offset after the highest byte ever sent
	outLimit    uint64 // offset up to which the peer accepts bytes
	resendAt    time.Time
	resendDelay time.Duration
	lastResend  time.Time

	in        queue
	inNext    uint64
	inFrom    time.Time // arrival of the oldest bytes that are not acknowledged
	inUnacked int
	inLimit   uint64 // offset up to which we announced to accept bytes

	sendNow    kind // frame without payload to send at once (kindWelcome, kindPong, kindAck), or 0
	wantResend bool // with flagResend

	lastHeard    time.Time // arrival of the last frame
	lastPing     time.Time // time of the last ping
	awaitedSince time.Time // since when we wait for an answer; zero: not waiting

	readBy, writeBy deadline
}

func newConn(w *wire, session uint64, t timing) *conn {
	c := &conn{
		wire: w, session: session, timing: t, kick: make(chan struct{}, 1),
		outLimit: windowSize, inLimit: windowSize, resendDelay: t.resend, lastHeard: time.Now(), onEnd: func() {},
	}
	c.readable, c.writable = sync.NewCond(&c.mu), sync.NewCond(&c.mu)
	return c
}

// Read waits for bytes from the peer. It returns io.EOF when the peer has closed the session and all bytes are read.
func (c *conn) Read(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		switch {
		case c.closing:
			return 0, net.ErrClosed
		case c.readBy.passed():
			return 0, os.ErrDeadlineExceeded
		case len(b) == 0:
			return 0, nil
		case c.in.len() > 0:
			n := c.in.peek(0, b)
			c.in.drop(n)
			// Tell the peer about free space when it is worth a frame.
			if free := c.inNext + c.room(); free-c.inLimit >= windowSize/4 {
				c.sendSoon(kindAck)
			}
			return n, nil
		case c.eof:
			return 0, io.EOF
		case c.err != nil:
			return 0, c.err
		}
		c.readable.Wait()
	}
}

// Write queues bytes. It waits while a full window of bytes is unacknowledged.
func (c *conn) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	done := 0
	for {
		switch {
		case c.closing:
			return done, net.ErrClosed
		case c.err != nil:
			return done, c.err
		case c.writeBy.passed():
			return done, os.ErrDeadlineExceeded
		case done == len(b):
			return done, nil
		}
		if free := windowSize - c.out.len(); free > 0 {
			n := min(free, len(b)-done)
			c.out.push(b[done : done+n])
			done += n
			c.wake()
			continue
		}
		c.writable.Wait()
	}
}

// Close ends the session. Written bytes are still sent, for timing.linger at most.
func (c *conn) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closing {
		c.closing = true
		c.finBy = time.Now().Add(c.timing.linger)
		time.AfterFunc(2*c.timing.linger, func() { c.end(net.ErrClosed) }) // run may be blocked by a peer that does not read
		c.broadcast()
		c.wake()
	}
	return nil
}

// end ends the session immediately.
func (c *conn) end(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.endLocked(err)
}

func (c *conn) endLocked(err error) {
	if c.err == nil {
		c.err = err
		c.broadcast()
		c.wake()
		c.onEnd()
	}
}

func (c *conn) broadcast() {
	c.readable.Broadcast()
	c.writable.Broadcast()
}

func (c *conn) wake() {
	select {
	case c.kick <- struct{}{}:
	default:
	}
}

// sendSoon makes run send a frame without payload. A pending welcome or pong is not replaced.
func (c *conn) sendSoon(k kind) {
	if c.sendNow == 0 || c.sendNow == kindAck {
		c.sendNow = k
	}
	c.wake()
}

// room returns how many more bytes can be accepted from the peer.
func (c *conn) room() uint64 { return uint64(windowSize - c.in.len()) }

// address is the net.Addr of both ends.
type address struct{}

func (address) Network() string { return "watari" }
func (address) String() string  { return "watari-link" }

func (c *conn) LocalAddr() net.Addr  { return address{} }
func (c *conn) RemoteAddr() net.Addr { return address{} }

func (c *conn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

func (c *conn) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.readBy.set(t, &c.mu, c.readable)
	return nil
}

func (c *conn) SetWriteDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.writeBy.set(t, &c.mu, c.writable)
	return nil
}

// deadline wakes the waiters of a condition variable when its time comes.
type deadline struct {
	at    time.Time
	timer *time.Timer
}

func (d *deadline) passed() bool { return !d.at.IsZero() && !time.Now().Before(d.at) }

// set sets the deadline. The caller holds mu.
func (d *deadline) set(t time.Time, mu *sync.Mutex, cond *sync.Cond) {
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
	d.at = t
	if !t.IsZero() {
		d.timer = time.AfterFunc(time.Until(t), func() {
			mu.Lock()
			defer mu.Unlock()
			cond.Broadcast()
		})
	}
	cond.Broadcast()
}
