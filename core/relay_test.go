package core

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "watari/api/watariv1"
)

// relayTest has hosts whose reports a test writes. Each named host has a guest of one cluster.
type relayTest struct {
	t      *testing.T
	core   *Core
	world  World
	events []string
	orders map[string]*v1.HostWanted
}

// newRelayTest makes connected hosts. A host's name begins with the name of its site. The first two hosts have a guest each.
func newRelayTest(t *testing.T, names ...string) *relayTest {
	r := &relayTest{t: t, core: New(Config{Term: 1, Began: time.Unix(1000, 0), NoSharing: true, Identify: func(*v1.Cluster, *v1.Guest, uint64, uint32) (*v1.Identity, time.Time) { return nil, time.Time{} }}),
		world: World{Objects: NoObjects(), Reports: Captured{}, Now: time.Unix(2000, 0)}, orders: map[string]*v1.HostWanted{}}
	r.world.Clusters["c"] = &v1.Cluster{Meta: &v1.Meta{Name: "c", Uid: "c-uid"}, Prefix: "10.77.0.0/24", Spec: &v1.ClusterSpec{Guests: 2}}
	for i, name := range names {
		info := &v1.HostInfo{BootId: name, Site: name[:1], LanAddress: fmt.Sprintf("192.0.2.%d", i+1), WireguardPublicKey: "key of " + name, RelayPort: 7073, MemoryBytes: 8 << 30}
		r.world.Hosts[name] = &v1.Host{Meta: &v1.Meta{Name: name, Uid: name}, Info: info}
		r.world.Reports[name] = Seen{Report: &v1.HostObserved{Info: info}, Connected: true, Since: time.Unix(1000, 0)}
		if i < 2 {
			guest := fmt.Sprintf("c-%d", i)
			r.world.Guests[guest] = &v1.Guest{Meta: &v1.Meta{Name: guest, Uid: guest + "-uid"}, Cluster: "c", Index: uint32(i),
				Address: fmt.Sprintf("10.77.0.%d", 10+i), Host: name, Epoch: 1, LastEpoch: 1, BootId: name, Shape: &v1.GuestShape{Vcpus: 1}}
		}
	}
	return r
}

// host changes the stored object of a host.
func (r *relayTest) host(name string, change func(h *v1.Host)) {
	h := proto.CloneOf(r.world.Hosts[name])
	change(h)
	o := *r.world.Objects
	o.Hosts = map[string]*v1.Host{}
	for other, was := range r.world.Hosts {
		o.Hosts[other] = was
	}
	o.Hosts[name] = h
	r.world.Objects = &o
}

// report makes a host report paths: "b1" is silent, "b1 by c1" is silent by a relay, "+c1" answers probes, "++b1" does so
// steadily.
func (r *relayTest) report(host string, paths ...string) {
	report := &v1.HostObserved{Info: r.world.Hosts[host].Info}
	for _, text := range paths {
		p := &v1.PathObserved{Host: strings.TrimLeft(text, "+"), Answers: strings.HasPrefix(text, "+"), Steady: strings.HasPrefix(text, "++")}
		if !p.Answers {
			p.Host, p.Relay, _ = strings.Cut(text, " by ")
			p.State = v1.PathState_PATH_STATE_SILENT
		}
		report.Paths = append(report.Paths, p)
	}
	reports := Captured{}
	for name, seen := range r.world.Reports {
		reports[name] = seen
	}
	reports[host] = Seen{Report: report, Connected: true, Since: reports[host].Since}
	r.world.Reports = reports
}

// leave ends a host's connection now.
func (r *relayTest) leave(host string) {
	reports := Captured{}
	for name, seen := range r.world.Reports {
		reports[name] = seen
	}
	reports[host] = Seen{Report: reports[host].Report, Since: r.world.Now}
	r.world.Reports = reports
}

// pass makes a decision after a time, and makes its changes.
func (r *relayTest) pass(after time.Duration) {
	r.t.Helper()
	r.world.Now = r.world.Now.Add(after)
	for range 2 { // orders follow from what was written
		d := r.core.Decide(r.world)
		for host, w := range d.Orders {
			r.orders[host] = w
		}
		for _, c := range d.Changes {
			r.world.Objects = r.world.Objects.Apply(c)
			for _, e := range c.Events {
				r.events = append(r.events, e.Name+" "+e.Message)
			}
		}
	}
}

// relays checks the relays: "a1 b1 c1" is host c1 between a1 and b1.
func (r *relayTest) relays(want ...string) {
	r.t.Helper()
	var have []string
	for _, name := range sortedKeys(r.world.Hosts) {
		for _, p := range r.world.Hosts[name].Relayed {
			have = append(have, name+" "+p.Peer+" "+p.Relay)
		}
	}
	if !slices.Equal(have, want) {
		r.t.Fatalf("relays %q, want %q; events: %q", have, want, r.events)
	}
}

func TestHostsThatDoNotHearEachOtherGetARelay(t *testing.T) {
	r := newRelayTest(t, "a1", "b1", "a2", "c1", "c2")
	r.report("a1", "b1")
	r.pass(0)
	r.relays() // b1's agent may just be restarting
	r.report("b1", "a1")
	r.pass(time.Second)
	r.relays() // no host is known to answer
	var probed []string
	for _, p := range r.orders["a1"].Network.Probes {
		probed = append(probed, p.Host+" "+p.Address)
	}
	if want := []string{"a2 192.0.2.3:7073", "b1 192.0.2.2:7073", "c1 192.0.2.4:7073", "c2 192.0.2.5:7073"}; !slices.Equal(probed, want) {
		t.Errorf("a1 probes %q, want %q", probed, want)
	}
	r.report("a1", "b1", "+c1", "+a2", "+c2")
	r.report("b1", "a1", "+c2")
	r.pass(time.Second)
	r.relays("a1 b1 c2") // the only host that both reach
	if at := r.orders["a1"].Network.Peers[0]; at.Relay != "c2" || at.RelayAddress != "192.0.2.5:7074" {
		t.Errorf("a1 is told %v", at)
	}
	if at := r.orders["b1"].Network.Peers[0]; at.Relay != "c2" || at.RelayAddress != "192.0.2.5:7074" {
		t.Errorf("b1 is told %v", at)
	}
	if list := r.orders["c2"].Network.Relayed; len(list) != 1 || list[0].Port != 7074 || list[0].APublicKey != "key of a1" || list[0].BPublicKey != "key of b1" {
		t.Errorf("c2 is told %v", list)
	}
	r.report("a1", "+c1", "+a2", "+c2")
	r.report("b1", "+a2", "+c1", "+c2")
	r.pass(time.Hour)
	r.relays("a1 b1 c2") // a2 would be better, but this one works
	if len(r.events) != 1 || !strings.Contains(r.events[0], "host c2 relays between them (both reach it)") {
		t.Errorf("events %q", r.events)
	}
}

// After an outage of a site, the first reports of its hosts tell of silence that has just ended.
func TestHostsThatAreJustBackGetNoRelayYet(t *testing.T) {
	for _, over := range []bool{true, false} {
		r := newRelayTest(t, "a1", "b1", "c1")
		r.report("a1", "b1", "+c1")
		r.report("b1", "a1", "+c1")
		reports := maps.Clone(r.world.Reports)
		back := reports["b1"]
		back.Since = r.world.Now
		reports["b1"] = back
		r.world.Reports = reports
		r.pass(time.Second)
		r.pass(relaySettle - 2*time.Second)
		r.relays()
		if over {
			r.report("b1", "+c1")
		}
		if r.pass(2 * time.Second); over {
			r.relays()
		} else {
			r.relays("a1 b1 c1")
		}
	}
}

func TestTheRelayIsOfASiteOfTheTwoAndNotDrained(t *testing.T) {
	r := newRelayTest(t, "b1", "c1", "a1", "b2", "b3")
	for _, host := range []string{"b1", "c1"} {
		r.host(host, func(h *v1.Host) {
			h.Info.DialOnly = true
		})
	}
	r.report("b1", "+a1", "+b2", "+b3")
	r.report("c1", "+a1", "+b2", "+b3")
	r.pass(0)
	r.pass(time.Second)
	r.relays("b1 c1 b2") // both only dial out, so no host needs to report silence
	r.host("b2", func(h *v1.Host) { h.Draining = true })
	r.pass(time.Second)
	r.relays("b1 c1 b3")
	if last := r.events[len(r.events)-1]; !strings.Contains(last, "through host b3 instead of host b2, which is drained (both reach it, and it is of site b)") {
		t.Errorf("event %q", last)
	}
}

func TestARelayThatIsGoneIsReplaced(t *testing.T) {
	r := newRelayTest(t, "a1", "b1", "c1", "d1")
	r.report("a1", "b1", "+c1", "+d1")
	r.report("b1", "a1", "+c1", "+d1")
	r.pass(0)
	r.pass(time.Second)
	r.relays("a1 b1 c1")
	r.leave("c1")
	r.pass(relayGone - time.Second)
	r.relays("a1 b1 c1") // c1's agent may be restarting
	r.pass(2 * time.Second)
	r.relays("a1 b1 d1")
	r.report("c1")
	r.leave("d1")
	r.leave("b1")
	r.pass(time.Minute)
	r.relays("a1 b1 d1") // b1 would not learn of it
}

// Neither of the hosts sends anything more to a relay that was cut off, whether or not there is another.
func TestAHostThatWasCutOffRelaysNothing(t *testing.T) {
	for _, other := range []string{"", "d1"} {
		r := newRelayTest(t, "a1", "b1", "c1", "d1")
		r.report("a1", "b1", "+c1")
		r.report("b1", "a1", "+c1")
		r.pass(0)
		r.pass(time.Second)
		r.relays("a1 b1 c1")
		if other != "" {
			r.report("a1", "b1", "+c1", "+d1")
			r.report("b1", "a1", "+c1", "+d1")
			r.pass(time.Second)
		}
		r.host("c1", func(h *v1.Host) {
			h.Draining = true
			h.Quarantine = &v1.Quarantine{CutOff: timestamppb.New(r.world.Now)}
		})
		r.leave("c1")
		r.pass(0)
		if other != "" {
			r.relays("a1 b1 d1")
		} else {
			r.relays()
		}
		for _, name := range []string{"a1", "b1"} {
			for _, peer := range r.orders[name].Network.Peers {
				if peer.Relay == "c1" || peer.Name == "c1" {
					t.Errorf("with %q beside, %s still has %v", other, name, peer)
				}
			}
		}
	}
}

func TestARelayThatPassesNothingIsReplacedAfterAPause(t *testing.T) {
	r := newRelayTest(t, "a1", "b1", "c1", "d1")
	r.report("a1", "b1", "+c1", "+d1")
	r.report("b1", "a1", "+c1", "+d1")
	r.pass(0)
	r.pass(time.Second)
	r.relays("a1 b1 c1")
	r.report("a1", "b1 by c1", "+c1", "+d1")
	r.pass(2 * relayPause)
	r.relays("a1 b1 c1") // only one of them reports silence
	r.report("b1", "a1 by c1", "+c1", "+d1")
	r.pass(time.Second)
	r.relays("a1 b1 d1")
	r.report("a1", "b1 by d1", "+c1", "+d1")
	r.report("b1", "a1 by d1", "+c1", "+d1")
	r.pass(relayPause / 2)
	r.relays("a1 b1 d1")
}

func TestHostsDoWithoutARelayAgain(t *testing.T) {
	r := newRelayTest(t, "a1", "b1", "c1")
	r.report("a1", "b1", "+c1")
	r.report("b1", "a1", "+c1")
	r.pass(0)
	r.pass(time.Second)
	r.relays("a1 b1 c1")
	r.report("a1", "++b1", "+c1")
	r.pass(directAgain / 2)
	r.relays("a1 b1 c1")
	r.pass(directAgain / 2)
	r.relays()
	if at := r.orders["a1"].Network.Peers[0]; at.Relay != "" || !at.Keepalive {
		t.Errorf("a1 is told %v", at)
	}
}

func TestARelayEndsWithWhatTheHostsShare(t *testing.T) {
	r := newRelayTest(t, "a1", "b1", "c1")
	r.report("a1", "b1", "+c1")
	r.report("b1", "a1", "+c1")
	r.pass(0)
	r.pass(time.Second)
	r.relays("a1 b1 c1")
	o := *r.world.Objects
	o.Guests = map[string]*v1.Guest{"c-0": o.Guests["c-0"]}
	r.world.Objects = &o
	r.pass(time.Second)
	r.relays()
	if n := len(r.orders["c1"].GetNetwork().GetRelayed()); n != 0 {
		t.Errorf("c1 still relays between %d pairs", n)
	}
}

func TestHostsWithAgentsOfBeforeRelaysGetNone(t *testing.T) {
	r := newRelayTest(t, "a1", "b1", "c1")
	for _, host := range []string{"a1", "b1", "c1"} {
		r.host(host, func(h *v1.Host) {
			h.Info.RelayPort = 0
		})
		r.report(host)
	}
	r.pass(0)
	r.pass(time.Second)
	r.relays()
	for host, w := range r.orders {
		if len(w.Network.Probes) > 0 || len(w.Network.Peers) > 0 && w.Network.Peers[0].Keepalive {
			t.Errorf("%s is told %v", host, w.Network)
		}
	}
}
