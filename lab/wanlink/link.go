// A WAN in user space: it limits packets by bandwidth, delay and loss.

package wanlink

import (
	"errors"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"net"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

// Spoke is one link at the hub.
type Spoke struct {
	Name     string         // link name at the hub's end
	Near     [6]byte        // hardware address of the hub's end
	Far      [6]byte        // hardware address of the other end
	Prefixes []netip.Prefix // prefixes routed into it
}

// Link forwards packets between spokes. While Run runs, only Update and Close may be called.
type Link struct {
	spokes  []Spoke
	sockets []*socket
	shaper  *shaper
	wake    int // eventfd
	updates chan Limits
	pool    pool
	start   time.Time
}

// Open makes the link in the calling thread's network namespace. Run must be called on a thread in the same namespace.
func Open(spokes []Spoke) (*Link, error) {
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("make an event: %w", err)
	}
	l := &Link{spokes: spokes, wake: wake, updates: make(chan Limits, 16), start: time.Now()}
	l.shaper = newShaper(len(spokes), rand.Float64, l.send, l.pool.put)
	for _, s := range spokes {
		socket, err := openSocket(s.Name)
		if err != nil {
			l.Close()
			return nil, err
		}
		l.sockets = append(l.sockets, socket)
	}
	return l, nil
}

// Close closes the link's sockets. Run must have returned.
func (l *Link) Close() {
	for _, s := range l.sockets {
		s.close()
	}
	unix.Close(l.wake)
}

// Update changes the limits. Packets in flight keep theirs.
func (l *Link) Update(limits Limits) {
	l.updates <- limits
	_, _ = unix.Write(l.wake, []byte{1, 0, 0, 0, 0, 0, 0, 0})
}

func (l *Link) now() int64 { return int64(time.Since(l.start)) }

// Run forwards packets until done is closed and Update is called. It must run on a locked thread.
func (l *Link) Run(done <-chan struct{}) error {
	polled := []unix.PollFd{{Fd: int32(l.wake), Events: unix.POLLIN}}
	for _, s := range l.sockets {
		polled = append(polled, unix.PollFd{Fd: int32(s.fd), Events: unix.POLLIN})
	}
	var pace pacer
	for {
		if pause := pace.pause(l.now()); pause > 0 {
			t := unix.NsecToTimespec(pause)
			_ = unix.Nanosleep(&t, nil) // a signal may cut the pause short, which does no harm
		}
		if _, err := unix.Ppoll(polled, l.timeout(), nil); err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("wait for packets: %w", err)
		}
		if polled[0].Revents != 0 {
			var count [8]byte
			_, _ = unix.Read(l.wake, count[:])
		}
		select {
		case <-done:
			return nil
		case limits := <-l.updates:
			l.shaper.set(limits)
		default:
		}
		for i := range l.sockets {
			if polled[i+1].Revents != 0 {
				if err := l.receive(i); err != nil {
					return err
				}
			}
		}
		l.shaper.advance(l.now())
		for _, s := range l.sockets {
			s.flush(l.pool.put)
		}
	}
}

// timeout returns the time until a packet is due; nil means forever.
func (l *Link) timeout() *unix.Timespec {
	at, ok := l.shaper.next()
	if !ok {
		return nil
	}
	t := unix.NsecToTimespec(max(at-l.now(), 0))
	return &t
}

// pacer makes a busy link wake less often and handle more packets each time. A wake costs far more than a packet.
type pacer struct {
	since int64 // ns: start of the period
	wakes int   // wakes in this period
	busy  bool  // whether the last period was busy
	last  int64 // ns: the last wake
}

// If a period has more than busyWakes wakes, the next wakes are at least minInterval apart.
const (
	pacePeriod  = int64(10 * time.Millisecond)
	busyWakes   = 40
	minInterval = int64(200 * time.Microsecond)
)

// pause returns the time to wait before the next wake.
func (p *pacer) pause(now int64) int64 {
	if p.wakes++; now-p.since >= pacePeriod {
		p.busy = p.wakes > busyWakes && now-p.since < 2*pacePeriod
		p.since, p.wakes = now, 0
	}
	pause := int64(0)
	if p.busy || p.wakes > busyWakes {
		pause = max(p.last+minInterval-now, 0)
	}
	p.last = now + pause
	return pause
}

// receive reads one batch of a spoke's packets. If packets remain, the next poll returns at once.
func (l *Link) receive(from int) error {
	return l.sockets[from].receive(func(received []byte) {
		to, ok := l.route(from, received[vnetHeader:])
		if !ok {
			return
		}
		packet := l.pool.get(len(received))
		copy(packet, received)
		l.shaper.accept(l.now(), from, to, packet, wireLength(packet))
	})
}

const (
	etherHeader = 14
	ipv4Header  = 20
)

// route finds the spoke for a frame, and changes the frame as a router does: time to live, checksum and hardware
// addresses. It ignores frames for the hub itself, which the kernel handles.
func (l *Link) route(from int, frame []byte) (to int, ok bool) {
	if len(frame) < etherHeader+ipv4Header {
		return 0, false
	}
	ip := frame[etherHeader:]
	address := netip.AddrFrom4([4]byte(ip[16:20]))
	if ip[0]>>4 != 4 || ip[8] <= 1 || [6]byte(frame[:6]) != l.spokes[from].Near {
		return 0, false
	}
	to = l.behind(address)
	if to < 0 || to == from {
		return 0, false
	}
	ip[8]-- // time to live; the checksum is updated as in RFC 1624
	sum := uint32(ip[10])<<8 + uint32(ip[11]) + 0x100
	sum += sum >> 16
	ip[10], ip[11] = byte(sum>>8), byte(sum)
	copy(frame[0:6], l.spokes[to].Far[:])
	copy(frame[6:12], l.spokes[to].Near[:])
	return to, true
}

func (l *Link) behind(address netip.Addr) int {
	for i, s := range l.spokes {
		for _, p := range s.Prefixes {
			if p.Contains(address) {
				return i
			}
		}
	}
	return -1
}

func (l *Link) send(to int, packet []byte) { l.sockets[to].queue(packet, l.pool.put) }

// pool reuses the memory of packets, by size. It avoids garbage, and so delays by collections.
type pool [sizes][][]byte

// Sizes are frameSize, twice that, and so on, up to a size that holds packetSize.
const (
	sizes   = 7
	keepAll = 16 << 20 // bytes kept for each size
)

func sizeClass(length int) int { return bits.Len(uint(max(length-1, 0) / frameSize)) }

func (p *pool) get(length int) []byte {
	class := sizeClass(length)
	free := p[class]
	if n := len(free); n > 0 {
		p[class] = free[:n-1]
		return free[n-1][:length]
	}
	return make([]byte, length, frameSize<<class)
}

func (p *pool) put(packet []byte) {
	if class := sizeClass(cap(packet)); len(p[class]) < keepAll/(frameSize<<class) {
		p[class] = append(p[class], packet)
	}
}

// HardwareAddress converts a net.HardwareAddr of six bytes for a Spoke.
func HardwareAddress(a net.HardwareAddr) [6]byte { return [6]byte(a) }
