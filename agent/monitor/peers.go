package monitor

// peers.go - measures which guests talk to each other.

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"time"

	v1 "watari/api/watariv1"
)

const (
	// peersEvery is about how often the traffic between guests is measured. It costs more than the rest of a sample.
	peersEvery = 4500 * time.Millisecond
	// maxPeers bounds the peers of a guest in a sample. The peers to which the guest sends most are kept.
	maxPeers = 64
)

// peers has the traffic between guests up to the last measurement.
type peers struct {
	at   time.Time // zero: none
	sent map[string]map[netip.Addr]uint64
}

// measurePeers fills in what each guest has sent to others since the last measurement, if the next one is due.
func (m *Monitor) measurePeers(guests map[string]*v1.GuestSample, now time.Time) {
	if since := now.Sub(m.peers.at); m.config.Sent == nil || since >= 0 && since < peersEvery {
		return
	}
	sent, err := m.config.Sent()
	if err != nil {
		return // the next sample tries again
	}
	first, before := m.peers.at.IsZero(), m.peers.sent
	m.peers = peers{now, sent}
	if first {
		return // it is not known when the counts began
	}
	for uid, g := range guests {
		tap := m.config.Tap(uid)
		g.Peers = traffic(before[tap], sent[tap])
	}
}

// traffic returns the growth of each count, the largest first.
func traffic(before, now map[netip.Addr]uint64) (list []*v1.GuestTraffic) {
	for _, to := range slices.SortedFunc(maps.Keys(now), netip.Addr.Compare) {
		grown := now[to]
		if then := before[to]; then <= grown { // otherwise the count began anew
			grown -= then
		}
		if grown > 0 {
			list = append(list, &v1.GuestTraffic{Address: to.String(), Sent: grown})
		}
	}
	slices.SortStableFunc(list, func(a, b *v1.GuestTraffic) int { return cmp.Compare(b.Sent, a.Sent) })
	return list[:min(len(list), maxPeers)]
}
