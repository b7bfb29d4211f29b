// silence.go finds hosts that do not answer over WireGuard. The result is only reported to people; nothing else depends
// on it.
package overlay

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
)

const (
	// silence is the time after the last handshake when a peer has no session left: WireGuard's REJECT_AFTER_TIME.
	silence = 3 * time.Minute
	// peerCheckInterval is the time between two checks of the peers' counters.
	peerCheckInterval = time.Minute
)

// traffic holds a peer's counters at a check.
type traffic struct {
	sent, received int64 // bytes
	silent         bool
}

// comparePeers compares the peers' counters with those of the check before. A peer becomes silent when packets,
// including handshake attempts, were sent to it and nothing came back. It stays silent until something comes back.
// Without traffic to a peer, nothing is known about it.
func comparePeers(before map[wgtypes.Key]traffic, peers []wgtypes.Peer, now time.Time) map[wgtypes.Key]traffic {
	seen := map[wgtypes.Key]traffic{}
	for _, p := range peers {
		was, known := before[p.PublicKey]
		t := traffic{sent: p.TransmitBytes, received: p.ReceiveBytes}
		t.silent = known && t.received == was.received && now.Sub(p.LastHandshakeTime) > silence && (was.silent || t.sent > was.sent)
		seen[p.PublicKey] = t
	}
	return seen
}

// silentHosts returns a sentence about the silent peers; empty if there are none.
func silentHosts(seen map[wgtypes.Key]traffic, peers map[wgtypes.Key]*peer) string {
	var hosts []string
	for key, t := range seen {
		if p := peers[key]; p != nil && t.silent {
			hosts = append(hosts, fmt.Sprintf("%s (%s)", p.name, p.where()))
		}
	}
	if len(hosts) == 0 {
		return ""
	}
	slices.Sort(hosts)
	return "these hosts do not answer: " + strings.Join(hosts, ", ") +
		"; what is sent to their guests is lost. If they run, let UDP packets pass to and from these addresses, or let both ends reach a third host, which then relays"
}

// where describes for people where a peer is expected.
func (p *peer) where() string {
	switch {
	case p.relay != "":
		return fmt.Sprintf("through host %s, %s", p.relay, p.endpoint)
	case !p.endpoint.IsValid():
		return "it only dials out"
	}
	return p.endpoint.String()
}

// checkPeers compares the peers' counters if that is due, and returns a problem or "". The caller holds o.mu.
func (o *Overlay) checkPeers(now time.Time) string {
	if len(o.peers) > 0 && now.Sub(o.peersChecked) >= peerCheckInterval {
		o.peersChecked = now
		device, err := o.device()
		if err != nil { // Watch calls changed, and Apply makes the device again
			return ""
		}
		o.seen = comparePeers(o.seen, device.Peers, now)
	}
	return silentHosts(o.seen, o.peers)
}
