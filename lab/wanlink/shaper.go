// Package wanlink joins the spokes of a star by a link in user space that delays packets, limits their rate and loses
// some, for kernels without netem. It forwards IPv4 frames between packet sockets in the hub's namespace.
package wanlink

import "time"

// Limits describe the shape of the traffic between two spokes. The zero value only forwards.
type Limits struct {
	OneWay time.Duration // delay from one spoke to another
	Rate   uint64        // bit/s into and out of each spoke; 0: unlimited
	Loss   float64       // probability of losing a packet
}

// A spoke's queue holds the packets that its rate sends in longestQueue, but at least smallestQueue bytes. All queues
// and packets in flight together hold at most mostInFlight bytes.
const (
	longestQueue  = 100 * time.Millisecond
	smallestQueue = 64 << 10
	mostInFlight  = 256 << 20
)

// packet is a frame in flight. The shaper owns data from accept until it calls deliver or drop.
type packet struct {
	data  []byte
	wire  int   // its size on the wire; larger than data if data contains several segments
	to    int   // destination spoke
	at    int64 // ns: time of arrival at the hub, then of departure from it
	order uint64
	left  bool // it has passed the rate limit of its destination spoke
}

// shaper decides when each packet arrives. It has no clock: callers pass times in nanoseconds, which must not decrease.
type shaper struct {
	limits   Limits
	random   func() float64
	deliver  func(to int, data []byte)
	drop     func(data []byte)
	inFree   []int64 // time when the spoke's link into the hub becomes idle
	outFree  []int64
	waiting  packets
	inFlight int
	order    uint64
	lost     uint64 // packets lost at random
	overflow uint64 // packets dropped by a full queue
}

func newShaper(spokes int, random func() float64, deliver func(int, []byte), drop func([]byte)) *shaper {
	return &shaper{
		random: random, deliver: deliver, drop: drop,
		inFree: make([]int64, spokes), outFree: make([]int64, spokes),
	}
}

// set changes the limits for packets accepted from now on.
func (s *shaper) set(l Limits) {
	s.limits = l
	if l.Rate == 0 {
		clear(s.inFree)
		clear(s.outFree)
	}
}

// accept takes a packet from one spoke to another, which has a size of wire bytes on the wire.
func (s *shaper) accept(now int64, from, to int, data []byte, wire int) {
	if s.limits.Loss > 0 && s.random() < s.limits.Loss {
		s.lost++
		s.drop(data)
		return
	}
	// The sender's link: the packet leaves it when its last bit is sent.
	sent, ok := s.transmit(&s.inFree[from], now, now, wire)
	if !ok || s.inFlight+len(data) > mostInFlight {
		s.overflow++
		s.drop(data)
		return
	}
	s.inFlight += len(data)
	s.push(packet{data: data, wire: wire, to: to, at: sent + int64(s.limits.OneWay)})
}

// transmit sends a packet over a link, beginning at start or later, and returns when its last bit has been sent. It
// returns false if the link's queue is full.
func (s *shaper) transmit(free *int64, now, start int64, length int) (sent int64, ok bool) {
	if s.limits.Rate == 0 {
		return now, true
	}
	if *free-now > max(int64(longestQueue), s.duration(smallestQueue)) {
		return 0, false
	}
	sent = max(*free, start) + s.duration(length)
	*free = sent
	return sent, true
}

func (s *shaper) duration(length int) int64 {
	return int64(float64(length) * 8e9 / float64(s.limits.Rate))
}

// advance delivers the packets that are due at now.
func (s *shaper) advance(now int64) {
	for len(s.waiting) > 0 && s.waiting[0].at <= now {
		p := s.waiting.pop()
		if !p.left && s.limits.Rate > 0 {
			// The receiver's link has the same rate as the sender's. It adds a delay only if several senders share it.
			sent, ok := s.transmit(&s.outFree[p.to], p.at, p.at-s.duration(p.wire), p.wire)
			if !ok {
				s.overflow++
				s.inFlight -= len(p.data)
				s.drop(p.data)
				continue
			}
			if p.left = true; sent > now {
				p.at = sent
				s.push(p)
				continue
			}
		}
		s.inFlight -= len(p.data)
		s.deliver(p.to, p.data)
	}
}

// next returns the time of advance's next work; false if there is none.
func (s *shaper) next() (at int64, ok bool) {
	if len(s.waiting) == 0 {
		return 0, false
	}
	return s.waiting[0].at, true
}

func (s *shaper) push(p packet) {
	s.order++
	p.order = s.order
	s.waiting.push(p)
}

// packets is a heap ordered by time, then by order of arrival. (container/heap would make garbage.)
type packets []packet

func (p packets) less(i, j int) bool {
	return p[i].at < p[j].at || p[i].at == p[j].at && p[i].order < p[j].order
}

func (p *packets) push(x packet) {
	*p = append(*p, x)
	h := *p
	for i := len(h) - 1; i > 0; {
		parent := (i - 1) / 2
		if !h.less(i, parent) {
			return
		}
		h[i], h[parent] = h[parent], h[i]
		i = parent
	}
}

func (p *packets) pop() packet {
	h := *p
	first, last := h[0], len(h)-1
	h[0], h[last] = h[last], packet{}
	h = h[:last]
	*p = h
	for i := 0; ; {
		least := i
		for child := 2*i + 1; child <= 2*i+2 && child < len(h); child++ {
			if h.less(child, least) {
				least = child
			}
		}
		if least == i {
			return first
		}
		h[i], h[least] = h[least], h[i]
		i = least
	}
}
