package monitor

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	v1 "watari/api/watariv1"
)

func peersOf(s *v1.HostSample, uid string) (list []string) {
	for _, g := range s.Guests {
		if g.Uid == uid {
			for _, p := range g.Peers {
				list = append(list, fmt.Sprintf("%s %d", p.Address, p.Sent))
			}
		}
	}
	return list
}

func TestWhatGuestsSendToEachOtherIsMeasuredEveryFiveSeconds(t *testing.T) {
	f := newFake(t)
	counts := map[string]map[netip.Addr]uint64{}
	asked := 0
	f.monitor.config.Sent = func() (map[string]map[netip.Addr]uint64, error) {
		asked++
		now := map[string]map[netip.Addr]uint64{}
		for tap, peers := range counts {
			now[tap] = map[netip.Addr]uint64{}
			for to, sent := range peers {
				now[tap][to] = sent
			}
		}
		return now, nil
	}
	two, three := netip.MustParseAddr("10.77.0.2"), netip.MustParseAddr("10.77.0.3")
	f.run(qemu(10, uidA, "md-0", 0))
	tap := f.monitor.config.Tap(uidA)
	counts[tap] = map[netip.Addr]uint64{two: 5000}
	expect := func(want ...string) {
		t.Helper()
		s := f.sample(time.Second)
		if got := peersOf(s, uidA); !slices.Equal(got, want) {
			t.Errorf("peers %q, expected %q", got, want)
		}
	}
	expect() // it is not known since when the 5000 were counted
	counts[tap][two], counts[tap][three] = 5100, 700
	for range 4 {
		expect()
	}
	expect("10.77.0.3 700", "10.77.0.2 100")
	counts[tap][two], counts[tap][three] = 40, 700 // one count began anew, the other has not changed
	for range 4 {
		expect()
	}
	expect("10.77.0.2 40")
	if asked != 3 {
		t.Errorf("the counts were read %d times in 11 samples", asked)
	}
}

func TestTheLargestPeersAreKept(t *testing.T) {
	counts := map[netip.Addr]uint64{}
	for i := range 2 * maxPeers {
		counts[netip.AddrFrom4([4]byte{10, 0, 0, byte(i)})] = uint64(i + 1)
	}
	list := traffic(nil, counts)
	if len(list) != maxPeers || list[0].Sent != 2*maxPeers || list[maxPeers-1].Sent != maxPeers+1 {
		t.Errorf("%d peers are kept, from %d bytes to %d", len(list), list[0].Sent, list[len(list)-1].Sent)
	}
}
