package relay

// probe.go - probes other hosts' relays, and answers their probes. A probe and its answer have the same size, and an answer
// repeats the probe's number. So neither a forged address nor a forged answer gains anything.

import (
	"bytes"
	"crypto/rand"
	"errors"
	"net"
	"net/netip"
	"time"
)

const (
	probeAgain  = 5 * time.Second // from an answer to the next probe
	probeFirst  = 2 * time.Second // from a probe without an answer to the next
	probeForget = 12 * time.Second
	// probeSteady is how long a host must have answered without a gap to be steady.
	probeSteady = 30 * time.Second
)

var probeMagic = []byte("wtrprobe")

const (
	kindAsk, kindAnswer = 1, 2
	numberSize          = 8
	probeSize           = 8 + 1 + numberSize + 16
)

// Target is a host to probe.
type Target struct {
	Host    string
	Address netip.AddrPort
	Key     Key
}

// Answer is what is known of a host that was probed.
type Answer struct{ Answers, Steady bool }

// target is a Target and its results.
type target struct {
	Target
	number   [numberSize]byte // of the last probe
	asked    time.Time
	answered time.Time // time of the last answer
	begun    time.Time // since when there has been no gap
	told     Answer
}

func (t *target) at(now time.Time) (a Answer) {
	a.Answers = !t.answered.IsZero() && now.Sub(t.answered) < probeForget
	a.Steady = a.Answers && now.Sub(t.begun) >= probeSteady
	return a
}

// Probe replaces the targets. It keeps the results of targets that remain.
func (r *Relay) Probe(targets []Target) {
	r.mu.Lock()
	before := r.targets
	r.targets = map[string]*target{}
	for _, t := range targets {
		if was := before[t.Host]; was != nil && was.Target == t {
			r.targets[t.Host] = was
		} else {
			r.targets[t.Host] = &target{Target: t}
		}
	}
	r.mu.Unlock()
	r.ask(time.Now())
}

// Answers returns the result for each target.
func (r *Relay) Answers() map[string]Answer {
	r.mu.Lock()
	defer r.mu.Unlock()
	answers := map[string]Answer{}
	for host, t := range r.targets {
		answers[host] = t.told
	}
	return answers
}

// ask sends the probes that are due.
func (r *Relay) ask(now time.Time) {
	r.mu.Lock()
	changed := false
	for _, t := range r.targets {
		changed = t.tell(now) || changed
		wait := probeFirst
		if t.answered.After(t.asked) || t.answered.Equal(t.asked) {
			wait = probeAgain
		}
		if now.Sub(t.asked) < wait {
			continue
		}
		t.asked = now
		rand.Read(t.number[:])
		r.conn.WriteToUDPAddrPort(probePacket(kindAsk, t.number, tagOf(t.Key)), t.Address)
	}
	r.mu.Unlock()
	if changed && r.config.Changed != nil {
		r.config.Changed()
	}
}

// tell updates the result, and reports whether it has changed.
func (t *target) tell(now time.Time) bool {
	a := t.at(now)
	changed := a != t.told
	t.told = a
	return changed
}

func probePacket(kind byte, number [numberSize]byte, to tag) []byte {
	packet := append([]byte{}, probeMagic...)
	packet = append(packet, kind)
	packet = append(packet, number[:]...)
	return append(packet, to[:]...)
}

// answer answers probes, and handles answers, until the port is closed.
func (r *Relay) answer() {
	buffer := make([]byte, 2048)
	for {
		n, from, err := r.conn.ReadFromUDPAddrPort(buffer)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		packet := buffer[:n]
		if err != nil || n != probeSize || !bytes.HasPrefix(packet, probeMagic) {
			continue
		}
		kind := packet[len(probeMagic)]
		number := [numberSize]byte(packet[len(probeMagic)+1:])
		to := tag(packet[len(probeMagic)+1+numberSize:])
		switch {
		case kind == kindAsk && to == r.own:
			r.conn.WriteToUDPAddrPort(probePacket(kindAnswer, number, to), from)
		case kind == kindAnswer:
			r.answered(number, to, time.Now())
		}
	}
}

func (r *Relay) answered(number [numberSize]byte, from tag, now time.Time) {
	r.mu.Lock()
	changed := false
	for _, t := range r.targets {
		if t.number != number || tagOf(t.Key) != from || t.asked.IsZero() {
			continue
		}
		if !t.at(now).Answers {
			t.begun = now
		}
		t.answered = now
		changed = t.tell(now) || changed
	}
	r.mu.Unlock()
	if changed && r.config.Changed != nil {
		r.config.Changed()
	}
}
