package link

import (
	"io"
	"net"
	"time"
)

// ackEvery is the number of received bytes after which an acknowledgement is sent without delay.
const ackEvery = windowSize / 4

// handle processes a frame of this session. garbled means that bytes before it were lost.
func (c *conn) handle(f frame, garbled bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return
	}
	now := time.Now()
	c.lastHeard, c.awaitedSince = now, time.Time{}
	c.acknowledged(f, now)
	if garbled {
		c.requestResend()
	}
	switch f.kind {
	case kindData:
		c.received(f, now)
	case kindPing:
		c.sendSoon(kindPong)
	case kindFin:
		if f.seq == c.inNext {
			c.eof = true
			c.broadcast()
		} else if f.seq > c.inNext {
			c.requestResend()
		}
	case kindReset:
		c.endLocked(ErrUnknownSession)
	}
}

// acknowledged processes a frame's acknowledgement of the bytes that we sent.
func (c *conn) acknowledged(f frame, now time.Time) {
	if f.ack < c.outBase || f.ack > c.outMax || f.kind == kindHello || f.kind == kindWelcome {
		return
	}
	if f.ack > c.outBase {
		c.out.drop(int(f.ack - c.outBase))
		c.outBase = f.ack
		c.outNext = max(c.outNext, c.outBase)
		c.resendDelay, c.resendAt = c.timing.resend, time.Time{}
		if c.outNext > c.outBase {
			c.resendAt = now.Add(c.resendDelay)
		}
		c.writable.Broadcast()
	}
	c.outLimit = f.ack + uint64(f.window)
	if f.flags&flagResend != 0 && c.outNext > c.outBase && now.Sub(c.lastResend) > c.timing.resend/8 {
		c.outNext, c.lastResend = c.outBase, now
	}
	c.wake()
}

// received processes a frame's payload.
func (c *conn) received(f frame, now time.Time) {
	switch end := f.seq + uint64(len(f.payload)); {
	case f.seq > c.inNext:
		c.requestResend()
		return
	case end <= c.inNext: // received before: the acknowledgement was lost
		c.sendSoon(kindAck)
		return
	}
	b := f.payload[c.inNext-f.seq:]
	if uint64(len(b)) > c.room() {
		return // the peer exceeded the window; it will resend the bytes
	}
	c.in.push(b)
	c.inNext += uint64(len(b))
	if c.inUnacked == 0 {
		c.inFrom = now
	}
	if c.inUnacked += len(b); c.inUnacked >= ackEvery {
		c.sendSoon(kindAck)
	}
	c.readable.Broadcast()
	c.wake()
}

func (c *conn) requestResend() {
	c.wantResend = true
	c.sendSoon(kindAck)
}

// run sends frames until the session ends.
func (c *conn) run() {
	payload := make([]byte, maxPayload)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		c.mu.Lock()
		now := time.Now()
		f, send := c.next(now, payload)
		over := c.err != nil
		wake := c.nextWake(now)
		c.mu.Unlock()
		switch {
		case send:
			// The write blocks if the peer does not read. next would not notice the silence then, so a timer does.
			held := time.AfterFunc(c.timing.peerTimeout, func() { c.end(ErrSilent) })
			err := c.wire.send(&f)
			held.Stop()
			if err != nil {
				c.end(err)
			}
			if f.kind == kindFin {
				c.end(net.ErrClosed)
			}
		case over:
			return
		default:
			timer.Reset(wake)
			select {
			case <-c.kick:
			case <-timer.C:
			}
		}
	}
}

// next returns the frame to send now, if any.
func (c *conn) next(now time.Time, payload []byte) (frame, bool) {
	if c.err != nil {
		return frame{}, false
	}
	if c.timing.peerTimeout > 0 && !c.awaitedSince.IsZero() && now.Sub(c.awaitedSince) >= c.timing.peerTimeout {
		c.endLocked(ErrSilent)
		return frame{}, false
	}
	if c.sendNow == kindWelcome || c.sendNow == kindPong || c.wantResend {
		return c.newFrame(c.sendNow), true
	}
	if c.closing && (c.out.len() == 0 || !now.Before(c.finBy)) {
		return c.newFrame(kindFin), true
	}
	expired := !c.resendAt.IsZero() && !now.Before(c.resendAt)
	if expired {
		c.outNext = c.outBase
		c.resendDelay = min(2*c.resendDelay, c.timing.resendMax)
		c.resendAt = time.Time{}
	}
	unsent := c.outBase + uint64(c.out.len()) - c.outNext
	if unsent > 0 {
		if c.resendAt.IsZero() {
			c.resendAt = now.Add(c.resendDelay)
		}
		c.awaitAnswer(now)
		if n := min(unsent, maxPayload, c.outLimit-min(c.outLimit, c.outNext)); n > 0 {
			f := c.newFrame(kindData)
			f.seq = c.outNext
			f.payload = payload[:c.out.peek(int(c.outNext-c.outBase), payload[:n])]
			c.outNext += n
			c.outMax = max(c.outMax, c.outNext)
			return f, true
		}
		if expired { // the peer's window is full: ask for its current window
			return c.newFrame(kindPing), true
		}
	}
	if c.sendNow == kindAck || c.inUnacked > 0 && now.Sub(c.inFrom) >= c.timing.ackDelay {
		return c.newFrame(kindAck), true
	}
	if p := c.timing.ping; p > 0 && now.Sub(c.lastHeard) >= p && now.Sub(c.lastPing) >= p {
		c.lastPing = now
		c.awaitAnswer(now)
		return c.newFrame(kindPing), true
	}
	return frame{}, false
}

// awaitAnswer starts the time limit for the peer's answer, unless it runs already.
func (c *conn) awaitAnswer(now time.Time) {
	if c.awaitedSince.IsZero() {
		c.awaitedSince = now
	}
}

// newFrame returns a frame without payload, which acknowledges all received bytes.
func (c *conn) newFrame(k kind) frame {
	f := frame{kind: k, session: c.session, seq: c.outNext, ack: c.inNext, window: uint32(c.room())}
	if f.kind == 0 {
		f.kind = kindAck
	}
	if f.kind == kindFin {
		f.seq = c.outBase + uint64(c.out.len())
	}
	if c.wantResend {
		f.flags |= flagResend
	}
	if c.sendNow == k || c.sendNow == kindAck {
		c.sendNow = 0
	}
	c.wantResend = false
	c.inUnacked = 0
	c.inLimit = c.inNext + c.room()
	return f
}

// nextWake returns when next must be called again if nothing else happens.
func (c *conn) nextWake(now time.Time) time.Duration {
	wake := now.Add(time.Hour)
	sooner := func(t time.Time) {
		if t.Before(wake) {
			wake = t
		}
	}
	if !c.resendAt.IsZero() {
		sooner(c.resendAt)
	}
	if c.inUnacked > 0 {
		sooner(c.inFrom.Add(c.timing.ackDelay))
	}
	if c.closing {
		sooner(c.finBy)
	}
	if p := c.timing.ping; p > 0 {
		last := c.lastHeard
		if c.lastPing.After(last) {
			last = c.lastPing
		}
		sooner(last.Add(p))
	}
	if !c.awaitedSince.IsZero() && c.timing.peerTimeout > 0 {
		sooner(c.awaitedSince.Add(c.timing.peerTimeout))
	}
	return max(wake.Sub(now), time.Millisecond)
}

// eofIsUnexpected converts the end of the channel to io.ErrUnexpectedEOF.
func eofIsUnexpected(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}
