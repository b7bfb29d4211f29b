package wanlink

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

type arrival struct {
	to   int
	id   byte
	when int64
}

// play sends packets through a shaper and returns the arrival time of each.
func play(limits Limits, spokes int, random func() float64, sent []struct {
	at       int64
	from, to int
	size     int
}) (arrived []arrival, s *shaper) {
	now := int64(0)
	s = newShaper(spokes, random, func(to int, data []byte) { arrived = append(arrived, arrival{to, data[0], now}) }, func([]byte) {})
	s.set(limits)
	advance := func(until int64) {
		for {
			at, ok := s.next()
			if !ok || at > until {
				break
			}
			now = at
			s.advance(now)
		}
		now = until
	}
	for i, p := range sent {
		advance(p.at)
		data := make([]byte, p.size)
		data[0] = byte(i)
		s.accept(p.at, p.from, p.to, data, p.size)
		s.advance(p.at)
	}
	advance(1 << 62)
	return arrived, s
}

type sending = []struct {
	at       int64
	from, to int
	size     int
}

func never() float64 { return 1 }

func TestDelayIsAddedOnce(t *testing.T) {
	arrived, _ := play(Limits{OneWay: 10 * time.Millisecond}, 2, never, sending{{5, 0, 1, 100}, {7, 1, 0, 100}})
	want := []arrival{{1, 0, 5 + 10e6}, {0, 1, 7 + 10e6}}
	if len(arrived) != 2 || arrived[0] != want[0] || arrived[1] != want[1] {
		t.Errorf("arrived %v, want %v", arrived, want)
	}
}

func TestRateSpacesPackets(t *testing.T) {
	// At 8 Mbit/s, 1000 bytes take 1 ms. They take it once, although they pass two links of that rate.
	arrived, _ := play(Limits{Rate: 8e6}, 2, never, sending{{0, 0, 1, 1000}, {0, 0, 1, 1000}, {0, 0, 1, 1000}})
	for i, a := range arrived {
		if want := int64(i+1) * 1e6; a.when != want {
			t.Errorf("packet %d arrived at %d ns, want %d", i, a.when, want)
		}
	}
}

func TestTwoSendersShareTheReceiversRate(t *testing.T) {
	arrived, _ := play(Limits{Rate: 8e6}, 3, never, sending{{0, 0, 2, 1000}, {0, 1, 2, 1000}})
	if len(arrived) != 2 || arrived[0].when != 1e6 || arrived[1].when != 2e6 {
		t.Errorf("arrived %v, want at 1 and 2 ms", arrived)
	}
}

func TestFullQueueDrops(t *testing.T) {
	var sent sending
	for range 2000 { // 1.5 MB at once into a queue of 1 MB (100 ms at 80 Mbit/s)
		sent = append(sent, sending{{0, 0, 1, 750}}...)
	}
	arrived, s := play(Limits{Rate: 80e6}, 2, never, sent)
	if n := len(arrived); n < 1330 || n > 1340 || uint64(n)+s.overflow != 2000 {
		t.Errorf("%d arrived, %d overflowed, want about 1334 of 2000", n, s.overflow)
	}
	if s.inFlight != 0 {
		t.Errorf("%d bytes still counted in flight", s.inFlight)
	}
}

func TestLossIsAsLikelyAsAsked(t *testing.T) {
	chances := []float64{0.001, 0.5, 0.009, 0.99}
	next := 0
	arrived, s := play(Limits{Loss: 0.01}, 2, func() float64 { next++; return chances[next-1] },
		sending{{0, 0, 1, 9}, {1, 0, 1, 9}, {2, 0, 1, 9}, {3, 0, 1, 9}})
	if len(arrived) != 2 || arrived[0].id != 1 || arrived[1].id != 3 || s.lost != 2 {
		t.Errorf("arrived %v, lost %d", arrived, s.lost)
	}
}

// TestNothingIsReorderedOrEarly uses random traffic. Packets between one sender and one receiver must stay in order. None
// may arrive earlier than delay and rate allow. Each must arrive or be counted as dropped.
func TestNothingIsReorderedOrEarly(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limits := Limits{
			OneWay: time.Duration(rapid.IntRange(0, 50e6).Draw(t, "delay")),
			Rate:   rapid.SampledFrom([]uint64{0, 1e6, 100e6}).Draw(t, "rate"),
		}
		var sent sending
		at := int64(0)
		for range rapid.IntRange(1, 200).Draw(t, "packets") {
			at += rapid.Int64Range(0, 1e6).Draw(t, "pause")
			from := rapid.IntRange(0, 2).Draw(t, "from")
			to := (from + rapid.IntRange(1, 2).Draw(t, "to")) % 3
			sent = append(sent, sending{{at, from, to, rapid.IntRange(1, 1514).Draw(t, "size")}}...)
		}
		arrived, s := play(limits, 3, never, sent)
		if uint64(len(arrived))+s.overflow != uint64(len(sent)) || s.inFlight != 0 {
			t.Fatalf("%d sent, %d arrived, %d overflowed, %d bytes in flight", len(sent), len(arrived), s.overflow, s.inFlight)
		}
		last := map[[2]int]byte{}
		for _, a := range arrived {
			p := sent[a.id]
			pair := [2]int{p.from, p.to}
			if before, ok := last[pair]; ok && before > a.id {
				t.Fatalf("packet %d overtook %d from %d to %d", before, a.id, p.from, p.to)
			}
			last[pair] = a.id
			earliest := p.at + int64(limits.OneWay)
			if limits.Rate > 0 {
				earliest += int64(float64(p.size) * 8e9 / float64(limits.Rate))
			}
			if a.when < earliest {
				t.Fatalf("packet %d of %d bytes sent at %d arrived at %d, before %d", a.id, p.size, p.at, a.when, earliest)
			}
		}
	})
}

func TestPoolGivesBackWhatFits(t *testing.T) {
	var p pool
	for _, length := range []int{1, frameSize, frameSize + 1, 5000, 65536, packetSize} {
		b := p.get(length)
		if len(b) != length || cap(b) < length {
			t.Fatalf("get(%d) gives %d of %d", length, len(b), cap(b))
		}
		p.put(b)
		if again := p.get(length); &again[0] != &b[0] {
			t.Errorf("get(%d) makes new memory", length)
		}
	}
}

func TestBusyLinkWakesLessOften(t *testing.T) {
	var p pacer
	now, wakes := int64(0), 0
	for now < int64(time.Second) { // a packet every 20 us
		wakes++
		now += p.pause(now) + 20e3
	}
	if wakes > 6000 {
		t.Errorf("%d wakes in a busy second", wakes)
	}
	p, now, wakes = pacer{}, 0, 0
	for now < int64(time.Second) { // a packet every 5 ms
		if pause := p.pause(now); pause > 0 {
			t.Fatalf("an idle link pauses for %d ns", pause)
		}
		now += 5e6
	}
}
