// silence.go finds out which hosts do not answer WireGuard. It has no say in anything but what people are told.
package overlay

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
)

const (
	// silence is after how long without a handshake a peer has no session left: WireGuard's REJECT_AFTER_TIME.
	silence = 3 * time.Minute
	// lookInterval is how often peers' counters are looked at.
	lookInterval = time.Minute
)

// traffic is what was seen of a peer.
type traffic struct {
	sent, received int64 // bytes
	silent         bool
}

// look compares peers' counters with those of the look before. A peer is silent from when something was sent to it, be
// it tries to begin, and nothing came back, until something comes back. One to which nothing is sent says nothing.
func look(before map[wgtypes.Key]traffic, peers []wgtypes.Peer, now time.Time) map[wgtypes.Key]traffic {
	seen := map[wgtypes.Key]traffic{}
	for _, p := range peers {
		was, known := before[p.PublicKey]
		t := traffic{sent: p.TransmitBytes, received: p.ReceiveBytes}
		t.silent = known && t.received == was.received && now.Sub(p.LastHandshakeTime) > silence && (was.silent || t.sent > was.sent)
		seen[p.PublicKey] = t
	}
	return seen
}

// silentHosts is a sentence about the peers that are silent; empty: none is.
func silentHosts(seen map[wgtypes.Key]traffic, peers map[wgtypes.Key]*peer) string {
	var hosts []string
	for key, t := range seen {
		if p := peers[key]; p != nil && t.silent {
			hosts = append(hosts, fmt.Sprintf("%s (%s)", p.name, p.endpoint))
		}
	}
	if len(hosts) == 0 {
		return ""
	}
	slices.Sort(hosts)
	return "these hosts do not answer: " + strings.Join(hosts, ", ") +
		"; what is sent to their guests is lost. If they run, let UDP packets pass to and from these addresses"
}

// lookAtPeers looks at the peers where that is due, and says what is wrong. o.mu is held.
func (o *Overlay) lookAtPeers(now time.Time) string {
	if len(o.peers) > 0 && now.Sub(o.looked) >= lookInterval {
		o.looked = now
		device, err := o.device()
		if err != nil { // Watch has it made anew
			return ""
		}
		o.seen = look(o.seen, device.Peers, now)
	}
	return silentHosts(o.seen, o.peers)
}
