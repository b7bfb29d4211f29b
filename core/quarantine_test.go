package core

import (
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	v1 "watari/api/watariv1"
	"watari/migration"
)

// quarantine asks for a host's quarantine, and returns the orders that follow.
func (h *household) quarantine(host string, grace time.Duration, undo bool) map[string]*v1.HostWanted {
	h.t.Helper()
	h.ask(func(a *Admission) (Change, error) { return a.QuarantineHost(host, grace, undo) })
	return h.pass(0)
}

func TestAQuarantinedHostIsCutOffWhenItsGuestsHaveLeft(t *testing.T) {
	h := newHousehold(t, "", 2)
	h.change("a1", func(a1 *v1.Host) { a1.Info.WireguardPublicKey = "key of a1" })
	h.objects.Guests["md-1"].Host, h.objects.Guests["md-1"].BootId = "b1", "boot-b1"
	orders := h.pass(time.Second)
	if peers := orders["b1"].Network.Peers; len(peers) != 1 || peers[0].Name != "a1" {
		t.Fatalf("b1 has the peers %v", peers)
	}
	h.quarantine("a1", time.Minute, false)
	if moves := h.moves(); !strings.HasPrefix(moves, "md-0 ") || cutOff(h.objects.Hosts["a1"]) != nil {
		t.Fatalf("moves %q, %v", moves, h.objects.Hosts["a1"].Quarantine)
	}
	h.arrive()
	orders = h.pass(time.Second)
	if cutOff(h.objects.Hosts["a1"]) == nil {
		t.Fatalf("it is not cut off: %q", h.events)
	}
	for _, host := range []string{"a2", "b1"} {
		w := orders[host].Network
		if !slices.Equal(w.Expelled, []string{"key of a1"}) || slices.ContainsFunc(w.Peers, func(p *v1.PeerHost) bool { return p.Name == "a1" }) {
			t.Errorf("%s: expelled %v, peers %v", host, w.Expelled, w.Peers)
		}
	}
	a := h.admission()
	_, err := a.DrainHost("a1", false)
	if KindOf(err) != Precondition {
		t.Errorf("a quarantined host takes guests: %v", err)
	}
	orders = h.quarantine("a1", 0, true)
	if len(orders["b1"].Network.Expelled) > 0 || !h.objects.Hosts["a1"].Draining {
		t.Errorf("after the undo: expelled %v, %v", orders["b1"].Network.Expelled, h.objects.Hosts["a1"])
	}
}

// All hosts learn which certificates of a host were revoked.
func TestHostsLearnWhichCertificatesAreRevoked(t *testing.T) {
	h := newHousehold(t, "", 1)
	if w := h.pass(time.Second)["b1"]; len(w.Revoked) > 0 {
		t.Errorf("b1 refuses certificates of %v", w.Revoked)
	}
	h.change("a1", func(a1 *v1.Host) { a1.Generation = 7 })
	for host, w := range h.pass(time.Second) {
		if len(w.Revoked) != 1 || w.Revoked[0].Uid != "uid-a1" || w.Revoked[0].Generation != 7 {
			t.Errorf("%s refuses certificates of %v", host, w.Revoked)
		}
	}
}

// A host that is cut off may know the certificates of all guests. The undo of a quarantine keeps them revoked.
func TestGuestsGetNewCertificatesWhenAHostIsCutOff(t *testing.T) {
	h := newHousehold(t, "", 1)
	h.objects.Guests["md-0"].Host, h.objects.Guests["md-0"].BootId = "b1", "boot-b1"
	last := "0"
	expect := func(what string, changed bool, orders map[string]*v1.HostWanted) {
		t.Helper()
		got := string(orders["b1"].Guests[0].Identity.Certificate)
		if (got != last) != changed || len(got) < len(last) || got < last && len(got) == len(last) {
			t.Errorf("%s: certificate %q after %q", what, got, last)
		}
		last = got
	}
	expect("before", false, h.pass(time.Second))
	expect("cut off at once", true, h.quarantine("a1", 0, false))
	expect("trusted again", false, h.quarantine("a1", 0, true))
	for _, host := range []string{"a1", "a2"} {
		h.ask(func(a *Admission) (Change, error) { return a.QuarantineHost(host, time.Minute, false) })
	}
	if cutOff(h.objects.Hosts["a1"]) != nil {
		t.Error("it was cut off before a decision")
	}
	orders := h.pass(time.Second)
	if cutOff(h.objects.Hosts["a1"]) == nil || cutOff(h.objects.Hosts["a2"]) == nil {
		t.Error("two hosts without guests were not cut off")
	}
	expect("two cut off by one decision", true, orders)
	h.now = h.now.Add(-24 * time.Hour) // the clock is put back
	h.quarantine("a1", 0, true)
	expect("another, with the clock put back", true, h.quarantine("a1", 0, false))
	h.objects.Revocations = map[string]*v1.Revocations{} // an older state was put back
	h.now = h.now.Add(48 * time.Hour)
	h.quarantine("a1", 0, true)
	expect("with an older state", true, h.quarantine("a1", 0, false))
}

// Guests of other clusters than those whose guests the host had get new certificates, too: it may have had theirs earlier.
func TestGuestsOfAllClustersGetNewCertificatesWhenAHostIsCutOff(t *testing.T) {
	h := newHousehold(t, "", 1)
	h.objects.Guests["md-0"].Host, h.objects.Guests["md-0"].BootId = "b1", "boot-b1"
	h.objects.Clusters["solo"] = proto.CloneOf(h.objects.Clusters["md"])
	h.objects.Clusters["solo"].Meta = &v1.Meta{Name: "solo", Uid: "uid-solo"}
	solo := proto.CloneOf(h.objects.Guests["md-0"])
	solo.Meta, solo.Cluster, solo.Host, solo.BootId = &v1.Meta{Name: "solo-0", Uid: "00000000-0000-4000-8000-000000000009"}, "solo", "a2", "boot-a2"
	h.objects.Guests["solo-0"] = solo
	certificate := func(orders map[string]*v1.HostWanted, host string) string {
		return string(orders[host].Guests[0].Identity.Certificate)
	}
	before := h.pass(time.Second)
	after := h.quarantine("a1", 0, false)
	for _, host := range []string{"a2", "b1"} {
		if certificate(before, host) == certificate(after, host) {
			t.Errorf("the guest on %s keeps certificate %q", host, certificate(after, host))
		}
	}
}

func TestAQuarantinedHostThatDoesNotObeyIsCutOffAfterItsTime(t *testing.T) {
	h := newHousehold(t, "", 2)
	h.objects.Guests["md-1"].Host, h.objects.Guests["md-1"].BootId = "b1", "boot-b1"
	h.pass(time.Second)
	h.quarantine("a1", 2*time.Minute, false)
	h.quarantine("a1", time.Minute, false)
	h.quarantine("a1", 2*time.Minute, false) // a later call cannot make the time longer
	h.pass(59 * time.Second)
	if cutOff(h.objects.Hosts["a1"]) != nil {
		t.Fatal("it is cut off before its time")
	}
	orders := h.pass(time.Second)
	if cutOff(h.objects.Hosts["a1"]) == nil || h.objects.Guests["md-0"].Host != "a1" {
		t.Fatalf("%v; events %q", h.objects.Hosts["a1"].Quarantine, h.events)
	}
	// No messages are sent to a guest there, and its end is not known.
	for _, r := range orders["b1"].Network.Routes {
		if r.Host == "a1" {
			t.Errorf("a route to it: %v", r)
		}
	}
}

func TestTheGuestsOfAHostThatWasCutOffFollowTheirLeases(t *testing.T) {
	h := newHousehold(t, "", 2)
	h.leased(v1.OnHostLoss_ON_HOST_LOSS_UNSPECIFIED)
	md0 := h.objects.Guests["md-0"]
	md0.Host, md0.BootId, md0.LeaseMs = "b1", "boot-b1", 0
	h.pass(time.Second)
	h.quarantine("b1", 0, false)
	h.lose(60 * time.Second)
	h.pass(time.Second)
	if g := h.objects.Guests["md-1"]; g.Host != "b1" {
		t.Fatalf("within its lease, md-1 is %v", g)
	}
	h.renewed(h.objects.Guests["md-1"], 61*time.Second)
	h.pass(time.Second)
	if g := h.objects.Guests["md-1"]; g.Host == "b1" || g.Host == "" || g.Epoch < 2 {
		t.Errorf("after its lease, md-1 is %v; events %q", g, h.events)
	}
	if g := h.objects.Guests["md-0"]; g.Host != "b1" || g.Epoch != 1 {
		t.Errorf("md-0, which has no lease, is %v", g)
	}
}

func TestAClusterThatStopsAtALossStopsWhenAHostIsCutOff(t *testing.T) {
	h := newHousehold(t, "", 2)
	h.leased(v1.OnHostLoss_ON_HOST_LOSS_STOP)
	h.pass(time.Second)
	h.quarantine("b1", 0, false)
	h.lose(61 * time.Second)
	h.pass(time.Second)
	for _, g := range h.objects.Guests {
		if !g.Stopped {
			t.Errorf("%s is %v; events %q", g.Meta.Name, g, h.events)
		}
	}
}

func TestAClusterThatIsRestoredAtALossIsRestoredWhenAHostIsCutOff(t *testing.T) {
	h := newHousehold(t, "", 2)
	h.leased(v1.OnHostLoss_ON_HOST_LOSS_RESTORE)
	h.saved("md-c1", time.Hour)
	h.pass(time.Second)
	h.quarantine("b1", 0, false)
	h.lose(61 * time.Second)
	h.pass(time.Second)
	if r := h.objects.Clusters["md"].Restore; r.GetCheckpoint() != "md-c1" || h.objects.Guests["md-1"].Host == "b1" {
		t.Errorf("the restore is %v, md-1 is %v; events %q", r, h.objects.Guests["md-1"], h.events)
	}
}

// A host that puts a volume back fetches files. When it was cut off, it is named to no holder of such a file.
func TestAHostThatWasCutOffFetchesNoFilesOfCheckpoints(t *testing.T) {
	h := inUse(t)
	h.withVolume()
	h.ask(func(a *Admission) (Change, error) { c, _, err := a.RestoreCheckpoint("md"); return c, err })
	h.pass(time.Second)
	h.releaseAll()
	for _, cut := range []bool{false, true} {
		if cut {
			h.quarantine("a2", 0, false)
		}
		reads := false
		for _, w := range h.pass(time.Second)["a1"].Checkpoints {
			reads = reads || strings.HasPrefix(w.Verify, "fetched by a2 ") // the holder reads a file anew that it is to send
		}
		if reads == cut {
			t.Errorf("a2 was cut off: %t; it may read a file: %t", cut, reads)
		}
	}
}

// The memory of a guest is not sent to a host that was cut off. If the host has all of it, the move goes on.
func TestAMoveToAHostThatIsCutOffIsCancelled(t *testing.T) {
	for state, cancelled := range map[v1.MigrationState]bool{
		v1.MigrationState_MIGRATION_STATE_PENDING:      true,
		v1.MigrationState_MIGRATION_STATE_RESERVING:    true,
		v1.MigrationState_MIGRATION_STATE_TRANSFERRING: true,
		v1.MigrationState_MIGRATION_STATE_SWITCHING:    false,
	} {
		h := newHousehold(t, "", 1)
		g := h.objects.Guests["md-0"]
		m := &v1.Migration{Meta: &v1.Meta{Name: "md-0-m1", Uid: "uid-m"}, Guest: "md-0", GuestUid: g.Meta.Uid, Source: "a1", Target: "b1", State: state,
			SourceEpoch: 1, TargetEpoch: 2, SourceBootId: "boot-a1", TargetBootId: "boot-b1"}
		h.objects.Migrations[m.Meta.Name] = m
		h.away = map[string]bool{"b1": true} // so that the move does not get on
		h.pass(time.Second)
		if m := h.objects.Migrations["md-0-m1"]; m.GetState() != state || m.Cancel {
			t.Fatalf("%s: before the quarantine, the move is %v", state, m)
		}
		h.quarantine("b1", 0, false)
		h.pass(time.Second)
		switch m := h.objects.Migrations["md-0-m1"]; {
		case !cancelled && (m.GetState() != state || m.Cancel):
			t.Errorf("%s: the move does not go on: %v; events %q", state, m, h.events)
		case cancelled && m != nil && !m.Cancel && !migration.Ended(m.State) && m.State != v1.MigrationState_MIGRATION_STATE_ROLLING_BACK:
			t.Errorf("%s: the move goes on: %v; events %q", state, m, h.events)
		}
	}
}

func TestAQuarantineAtOnce(t *testing.T) {
	h := newHousehold(t, "", 1)
	h.quarantine("a1", 0, false)
	if cutOff(h.objects.Hosts["a1"]) == nil || h.objects.Guests["md-0"].Host != "a1" {
		t.Fatalf("%v; events %q", h.objects.Hosts["a1"].Quarantine, h.events)
	}
	a := h.admission()
	if _, err := a.QuarantineHost("c1", 0, false); KindOf(err) != NotFound {
		t.Error(err)
	}
	if _, err := a.QuarantineHost("b1", -1, false); KindOf(err) != Invalid {
		t.Error(err)
	}
}

func TestAHostThatWasCutOffReadsNoVolume(t *testing.T) {
	h := newHousehold(t, "", 1)
	h.objects.Volumes["home"] = &v1.Volume{Meta: &v1.Meta{Name: "home", Uid: "volume"}, Host: "b1", Cluster: "md", ClusterUid: h.objects.Clusters["md"].Meta.Uid, State: v1.VolumeState_VOLUME_STATE_READY, Generation: 1}
	h.objects.Clusters["md"].Spec.Volume = "home"
	readers := func() (names []string) {
		for _, v := range h.pass(time.Second)["b1"].Volumes {
			for _, r := range v.Readers {
				names = append(names, r.Name)
			}
		}
		return names
	}
	if !slices.Equal(readers(), []string{"a1"}) {
		t.Fatalf("before: %v", readers())
	}
	h.quarantine("a1", 0, false)
	if now := readers(); slices.Contains(now, "a1") {
		t.Errorf("the volume is served to %v", now)
	}
}
