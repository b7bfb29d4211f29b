package core

import (
	"testing"
	"time"

	v1 "watari/api/watariv1"
)

func TestALANThatIsNotTrustedIsNotUsedPlain(t *testing.T) {
	h := newHousehold(t, "", 2)
	h.change("a2", func(a2 *v1.Host) { a2.Info.DialOnly, a2.Info.RelayPort = true, 7073 })
	h.objects.Guests["md-1"].Host, h.objects.Guests["md-1"].BootId = "a2", "boot-a2"
	toA2 := func(orders map[string]*v1.HostWanted) (peer *v1.PeerHost, guarded bool) {
		t.Helper()
		w := orders["a1"].Network
		if len(w.Peers) != 1 || w.Peers[0].Name != "a2" {
			t.Fatalf("a1 has the peers %v", w.Peers)
		}
		return w.Peers[0], w.GuardedLan
	}
	// An installation that is older than site objects.
	if peer, guarded := toA2(h.pass(time.Second)); !peer.SameSite || guarded {
		t.Errorf("before: %v, guarded %v", peer, guarded)
	}
	first := FirstSites(h.objects)
	h.objects = h.objects.Apply(first)
	if again := FirstSites(h.objects); len(first.Ops) != 3 || len(again.Ops) != 0 || h.objects.TrustedLAN("c") || !h.objects.TrustedLAN("b") {
		t.Errorf("the first objects: %v, and again %v", first.Ops, again.Ops)
	}
	if peer, guarded := toA2(h.pass(time.Second)); !peer.SameSite || guarded {
		t.Errorf("an existing site: %v, guarded %v", peer, guarded)
	}
	set := func(trusted bool) map[string]*v1.HostWanted {
		h.ask(func(a *Admission) (Change, error) { return a.SetSite("a", trusted) })
		return h.pass(time.Second)
	}
	// Within the site, a host that only dials out is dialled.
	if peer, guarded := toA2(set(false)); peer.SameSite || peer.DialOnly || peer.Keepalive || !guarded {
		t.Errorf("not trusted: %v, guarded %v", peer, guarded)
	}
	if peer, guarded := toA2(set(true)); !peer.SameSite || guarded {
		t.Errorf("trusted again: %v, guarded %v", peer, guarded)
	}
	if _, err := h.admission().SetSite("*", true); KindOf(err) != Invalid {
		t.Error(err)
	}
}
