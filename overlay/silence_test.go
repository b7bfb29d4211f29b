package overlay

import (
	"net/netip"
	"testing"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
)

func TestSilentHostsAreNamed(t *testing.T) {
	b1 := key("b1")
	peers := map[wgtypes.Key]*peer{b1: {name: "b1", endpoint: netip.MustParseAddrPort("198.18.2.1:7072")}}
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	long, short := now.Add(-4*time.Minute), now.Add(-time.Minute)
	for _, c := range []struct {
		name      string
		before    map[wgtypes.Key]traffic
		sent, got int64
		handshake time.Time
		silent    bool
	}{
		{"at the first look", nil, 148, 0, time.Time{}, false},
		{"tries to begin are not answered", map[wgtypes.Key]traffic{b1: {sent: 148}}, 296, 0, time.Time{}, true},
		{"nothing is sent", map[wgtypes.Key]traffic{b1: {sent: 148}}, 148, 0, time.Time{}, false},
		{"still, though nothing is sent any more", map[wgtypes.Key]traffic{b1: {sent: 296, silent: true}}, 296, 0, time.Time{}, true},
		{"it answers", map[wgtypes.Key]traffic{b1: {sent: 296, silent: true}}, 444, 92, now, false},
		{"a session is left: nothing needs an answer", map[wgtypes.Key]traffic{b1: {sent: 296, received: 92}}, 444, 92, short, false},
		{"it answered long ago", map[wgtypes.Key]traffic{b1: {sent: 296, received: 92}}, 444, 92, long, true},
	} {
		seen := comparePeers(c.before, []wgtypes.Peer{{PublicKey: b1, TransmitBytes: c.sent, ReceiveBytes: c.got, LastHandshakeTime: c.handshake}}, now)
		want := ""
		if c.silent {
			want = "these hosts do not answer: b1 (198.18.2.1:7072); what is sent to their guests is lost. " +
				"If they run, let UDP packets pass to and from these addresses, or let both ends reach a third host, which then relays"
		}
		if got := silentHosts(seen, peers); got != want {
			t.Errorf("%s: %q", c.name, got)
		}
	}
}
