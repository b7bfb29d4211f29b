package link

import (
	"io"
	"net"
	"time"
)

// ackEvery is how many bytes are taken before an acknowledgement is sent without delay.
const ackEvery = windowSize / 4

// handle takes in a frame of this session. garbled says that bytes before it were lost.
func (c *conn) handle(f frame, garbled bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return
	}
	now := time.Now()
	c.heard, c.waiting = now, time.Time{}
	c.acknowledged(f, now)
	if garbled {
		c.askAgain()
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
			c.askAgain()
		}
	case kindReset:
		c.endLocked(ErrUnknownSession)
	}
}

// acknowledged takes in what a frame says of the bytes we sent.
func (c *conn) acknowledged(f frame, now time.Time) {
	if f.ack < c.outBase || f.ack > c.outMax || f.kind == kindHello || f.kind == kindWelcome {
		return
	}
	if f.ack > c.outBase {
		c.out.drop(int(f.ack - c.outBase))
		c.outBase = f.ack
		c.outNext = max(c.outNext, c.outBase)
		c.againWait, c.againAt = c.timing.again, time.Time{}
		if c.outNext > c.outBase {
			c.againAt = now.Add(c.againWait)
		}
		c.writable.Broadcast()
	}
	c.outLimit = f.ack + uint64(f.window)
	if f.flags&flagAgain != 0 && c.outNext > c.outBase && now.Sub(c.wentBack) > c.timing.again/8 {
		c.outNext, c.wentBack = c.outBase, now
	}
	c.wake()
}

// received takes in a frame's bytes.
func (c *conn) received(f frame, now time.Time) {
	switch end := f.seq + uint64(len(f.payload)); {
	case f.seq > c.inNext:
		c.askAgain()
		return
	case end <= c.inNext: // had before: its acknowledgement was lost
		c.sendSoon(kindAck)
		return
	}
	b := f.payload[c.inNext-f.seq:]
	if uint64(len(b)) > c.room() {
		return // the peer broke the window; it will send them again
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

func (c *conn) askAgain() {
	c.sendAgain = true
	c.sendSoon(kindAck)
}

// run sends until the session is over.
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
			// A peer that does not read holds the write up, and next would not notice its silence.
			held := time.AfterFunc(c.timing.dead, func() { c.end(ErrSilent) })
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

// next decides what is to be sent now.
func (c *conn) next(now time.Time, payload []byte) (frame, bool) {
	if c.err != nil {
		return frame{}, false
	}
	if c.timing.dead > 0 && !c.waiting.IsZero() && now.Sub(c.waiting) >= c.timing.dead {
		c.endLocked(ErrSilent)
		return frame{}, false
	}
	if c.sendNow == kindWelcome || c.sendNow == kindPong || c.sendAgain {
		return c.bare(c.sendNow), true
	}
	if c.closing && (c.out.len() == 0 || !now.Before(c.finBy)) {
		return c.bare(kindFin), true
	}
	expired := !c.againAt.IsZero() && !now.Before(c.againAt)
	if expired {
		c.outNext = c.outBase
		c.againWait = min(2*c.againWait, c.timing.againMax)
		c.againAt = time.Time{}
	}
	unsent := c.outBase + uint64(c.out.len()) - c.outNext
	if unsent > 0 {
		if c.againAt.IsZero() {
			c.againAt = now.Add(c.againWait)
		}
		c.await(now)
		if n := min(unsent, maxPayload, c.outLimit-min(c.outLimit, c.outNext)); n > 0 {
			f := c.bare(kindData)
			f.seq = c.outNext
			f.payload = payload[:c.out.peek(int(c.outNext-c.outBase), payload[:n])]
			c.outNext += n
			c.outMax = max(c.outMax, c.outNext)
			return f, true
		}
		if expired { // the peer takes none: ask whether that still holds
			return c.bare(kindPing), true
		}
	}
	if c.sendNow == kindAck || c.inUnacked > 0 && now.Sub(c.inFrom) >= c.timing.ackDelay {
		return c.bare(kindAck), true
	}
	if p := c.timing.ping; p > 0 && now.Sub(c.heard) >= p && now.Sub(c.pinged) >= p {
		c.pinged = now
		c.await(now)
		return c.bare(kindPing), true
	}
	return frame{}, false
}

// await notes that an answer is awaited from now on, unless one is already.
func (c *conn) await(now time.Time) {
	if c.waiting.IsZero() {
		c.waiting = now
	}
}

// bare makes a frame of no bytes, which acknowledges what was had.
func (c *conn) bare(k kind) frame {
	f := frame{kind: k, session: c.session, seq: c.outNext, ack: c.inNext, window: uint32(c.room())}
	if f.kind == 0 {
		f.kind = kindAck
	}
	if f.kind == kindFin {
		f.seq = c.outBase + uint64(c.out.len())
	}
	if c.sendAgain {
		f.flags |= flagAgain
	}
	if c.sendNow == k || c.sendNow == kindAck {
		c.sendNow = 0
	}
	c.sendAgain = false
	c.inUnacked = 0
	c.inLimit = c.inNext + c.room()
	return f
}

// nextWake says when next is to be asked again though nothing happened.
func (c *conn) nextWake(now time.Time) time.Duration {
	wake := now.Add(time.Hour)
	sooner := func(t time.Time) {
		if t.Before(wake) {
			wake = t
		}
	}
	if !c.againAt.IsZero() {
		sooner(c.againAt)
	}
	if c.inUnacked > 0 {
		sooner(c.inFrom.Add(c.timing.ackDelay))
	}
	if c.closing {
		sooner(c.finBy)
	}
	if p := c.timing.ping; p > 0 {
		last := c.heard
		if c.pinged.After(last) {
			last = c.pinged
		}
		sooner(last.Add(p))
	}
	if !c.waiting.IsZero() && c.timing.dead > 0 {
		sooner(c.waiting.Add(c.timing.dead))
	}
	return max(wake.Sub(now), time.Millisecond)
}

// eofIsUnexpected turns the end of the channel into an error that says so.
func eofIsUnexpected(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}
