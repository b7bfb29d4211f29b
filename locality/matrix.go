// Package locality finds moves and swaps that bring guests which talk to each other closer together. It is pure: measured
// traffic and the room on hosts go in, moves come out.
package locality

import (
	"math"
	"time"
)

const (
	// smoothing is the time over which traffic is averaged. Older traffic counts exponentially less.
	smoothing = time.Minute
	// maxPeers bounds the peers that are kept for a guest.
	maxPeers = 64
	// silent is a rate that counts as none, bytes per second.
	silent = 1
)

// Matrix is the smoothed traffic between guests, by uid. The zero Matrix is empty. It is not safe for concurrent use.
type Matrix struct {
	sent map[string]map[string]average // by sender and receiver
}

// average is a rate that falls exponentially.
type average struct {
	rate float64 // bytes per second
	at   time.Time
}

func (a average) now(now time.Time) float64 {
	age := max(0, now.Sub(a.at)) // negative: the clock was set back
	return a.rate * math.Exp(-age.Seconds()/smoothing.Seconds())
}

// Add adds what a guest has sent to another.
func (m *Matrix) Add(from, to string, bytes uint64, now time.Time) {
	if m.sent == nil {
		m.sent = map[string]map[string]average{}
	}
	peers := m.sent[from]
	if peers == nil {
		peers = map[string]average{}
		m.sent[from] = peers
	}
	if _, known := peers[to]; !known && len(peers) >= maxPeers {
		forgetLeast(peers, now)
	}
	peers[to] = average{peers[to].now(now) + float64(bytes)/smoothing.Seconds(), now}
}

// forgetLeast forgets the peer with the least traffic.
func forgetLeast(peers map[string]average, now time.Time) {
	least, rate := "", math.Inf(1)
	for to, a := range peers {
		if r := a.now(now); r < rate || r == rate && to < least {
			least, rate = to, r
		}
	}
	delete(peers, least)
}

// Sent returns what a guest sends to each of its peers now, bytes per second.
func (m *Matrix) Sent(from string, now time.Time) map[string]float64 {
	rates := map[string]float64{}
	for to, a := range m.sent[from] {
		if rate := a.now(now); rate >= silent {
			rates[to] = rate
		}
	}
	return rates
}

// Forget forgets silent pairs, and pairs of guests that do not exist.
func (m *Matrix) Forget(exists func(uid string) bool, now time.Time) {
	for from, peers := range m.sent {
		for to, a := range peers {
			if !exists(to) || a.now(now) < silent {
				delete(peers, to)
			}
		}
		if len(peers) == 0 || !exists(from) {
			delete(m.sent, from)
		}
	}
}
