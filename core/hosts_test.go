package core

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	v1 "watari/api/watariv1"
)

func TestAHostThatDescribesItselfAnewAllTheTimeIsSeldomWritten(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	c := New(Config{Term: 1, Began: now.Add(-time.Hour)})
	o := NoObjects()
	o.Hosts["a1"] = &v1.Host{Meta: &v1.Meta{Name: "a1", Uid: "a1-uid"}}
	// decide makes a decision after a time in which the host has described itself, and tells whether the description is
	// written.
	decide := func(after time.Duration, boot, kernel string) (written bool, again time.Time) {
		now = now.Add(after)
		info := &v1.HostInfo{BootId: boot, KernelVersion: kernel, Site: "a", Cores: 2, MemoryBytes: 1 << 30}
		d := c.Decide(World{Objects: o, Now: now, Reports: Captured{"a1": {Report: &v1.HostObserved{Info: info}, Since: now, Connected: true}}})
		for _, change := range d.Changes {
			written = written || change.Key == "host/a1"
			o = o.Apply(change)
		}
		return written, d.Again
	}
	for i, step := range []struct {
		after   time.Duration
		boot    string
		kernel  string
		written bool
	}{
		{0, "b1", "0", true},                       // the host joins
		{100 * time.Millisecond, "b1", "1", true},  // libvirt has answered
		{100 * time.Millisecond, "b1", "2", false}, // two seconds have not passed since the last write
		{100 * time.Millisecond, "b1", "3", false},
		{1700 * time.Millisecond, "b1", "4", false},
		{100 * time.Millisecond, "b1", "4", true},
		{time.Minute, "b1", "5", true},
		{100 * time.Millisecond, "b2", "5", true}, // the host rebooted
		{100 * time.Millisecond, "b3", "5", false},
		{100 * time.Millisecond, "b3", "6", false},
		{1800 * time.Millisecond, "b3", "6", true},
	} {
		if written, again := decide(step.after, step.boot, step.kernel); written != step.written || !written && again.Sub(now) > describePause {
			t.Errorf("step %d: written: %v, decided again after %v", i, written, again.Sub(now))
		}
	}
	// The last description is written even if the host reports nothing new.
	decide(time.Minute, "b3", "7")
	info := &v1.HostInfo{BootId: "b3", KernelVersion: "8", Site: "a", Cores: 2, MemoryBytes: 1 << 30}
	reports := Captured{"a1": {Report: &v1.HostObserved{Info: info}, Since: now, Connected: true}}
	var written []string
	for range 6 {
		now = now.Add(500 * time.Millisecond)
		for _, change := range c.Decide(World{Objects: o, Now: now, Reports: reports}).Changes {
			o, written = o.Apply(change), append(written, now.Format("05.0"))
		}
	}
	if len(written) != 1 || o.Hosts["a1"].Info.KernelVersion != "8" {
		t.Error(fmt.Sprint(written), o.Hosts["a1"].Info)
	}
}

// A host that changes its boot id all the time does not replace the history.
func TestAHostThatRebootsAllTheTimeCausesFewEvents(t *testing.T) {
	if hostEvents != 20 || hostEventEvery != 10*time.Minute { // the page on threats gives these numbers
		t.Errorf("%d events, and then one in %v", hostEvents, hostEventEvery)
	}
	now := time.Unix(1_000_000, 0)
	c := New(Config{Term: 1, Began: now.Add(-time.Hour)})
	o := NoObjects()
	o.Hosts["a1"] = &v1.Host{Meta: &v1.Meta{Name: "a1", Uid: "a1-uid"}}
	var texts []string
	reboot := func(times int, every time.Duration) (events int) {
		texts = nil
		for range times {
			now = now.Add(every)
			info := &v1.HostInfo{BootId: now.String(), Site: "a", Cores: 2, MemoryBytes: 1 << 30}
			for _, change := range c.Decide(World{Objects: o, Now: now, Reports: Captured{"a1": {Report: &v1.HostObserved{Info: info}, Since: now, Connected: true}}}).Changes {
				o = o.Apply(change)
				for _, e := range change.Events {
					texts = append(texts, e.Message)
				}
			}
		}
		if o.Hosts["a1"].Info.BootId != now.String() {
			t.Errorf("after %d reboots the host's stored boot id is %s", times, o.Hosts["a1"].Info.BootId)
		}
		return len(texts)
	}
	reboot(1, 0) // it joins
	if n := reboot(1800, 2*time.Second); n != hostEvents+5 || !strings.Contains(texts[hostEvents-1], "not recorded for a while") {
		t.Errorf("1800 reboots within an hour cause %d events: %q", n, texts)
	}
	if n := reboot(24, time.Hour); n != 24 {
		t.Errorf("24 reboots within a day cause %d events", n)
	}
}

func TestAHostThatReportsManyKeysCausesFewEvents(t *testing.T) {
	r := newRelayTest(t, "a1", "b1", "b2", "z1")
	const changes, every = 600, 2 * time.Second
	for i := range changes {
		report := proto.CloneOf(r.world.Reports["z1"].Report)
		report.Info.WireguardPublicKey = []string{"key of b1", fmt.Sprint("own key ", i), "key of b2"}[i%3]
		r.world.Reports = maps.Clone(r.world.Reports)
		r.world.Reports["z1"] = Seen{Report: report, Connected: true, Since: r.world.Reports["z1"].Since}
		r.pass(every)
	}
	if n := len(r.events); n < hostEvents || n > hostEvents+1+int(changes*every/hostEventEvery) {
		t.Errorf("%d changes in %v cause %d events: %q", changes, changes*every, n, r.events)
	}
}

// An address that is not one host's does not reach the other hosts' orders.
func TestAHostKeepsItsAddressIfItReportsNone(t *testing.T) {
	r := newRelayTest(t, "a1", "b1", "b2", "z1")
	report := func(host string, info *v1.HostInfo) {
		r.world.Reports = maps.Clone(r.world.Reports)
		r.world.Reports[host] = Seen{Report: &v1.HostObserved{Info: info}, Connected: true, Since: time.Unix(1000, 0)}
		r.pass(3 * time.Second)
	}
	for i, address := range []string{"192.0.2.7", "2001:db8::1", "::ffff:192.0.2.7", "224.0.0.1", "255.255.255.255", "127.0.0.1", "0.0.0.0", "0.1.2.3", "x\x1b", ""} {
		info := proto.CloneOf(r.world.Hosts["z1"].Info)
		info.LanAddress, info.Cores = address, uint32(20+i)
		r.events = nil
		report("z1", info)
		if got := r.world.Hosts["z1"].Info; got.LanAddress != "192.0.2.7" || got.Cores != info.Cores {
			t.Errorf("a host that reports address %q has %q and %d cores", address, got.LanAddress, got.Cores)
		}
		if told := slices.ContainsFunc(r.events, func(e string) bool { return strings.Contains(e, "is not the IPv4 address of one host") }); told != (i > 0 && address != "") {
			t.Errorf("address %q: events %q", address, r.events)
		}
	}
	for _, want := range []string{"", "127.0.0.1"} { // a single host may have no network
		r.world.Hosts["n1"] = &v1.Host{Meta: &v1.Meta{Name: "n1", Uid: "n1"}}
		report("n1", &v1.HostInfo{BootId: "n1", Site: "b", LanAddress: cmp.Or(want, "224.0.0.1")})
		if got := r.world.Hosts["n1"].Info; got == nil || got.LanAddress != want {
			t.Errorf("a new host has %v", got)
		}
	}
}

// A host's key is public. Whoever reports another's draws nothing to itself.
func TestAHostDoesNotTakeAnothersKey(t *testing.T) {
	r := newRelayTest(t, "a1", "b1", "b2", "z1")
	claim := func(host, key string) {
		report := proto.CloneOf(r.world.Reports[host].Report)
		report.Info.WireguardPublicKey = key
		reports := Captured{}
		for name, seen := range r.world.Reports {
			reports[name] = seen
		}
		reports[host] = Seen{Report: report, Connected: true, Since: reports[host].Since}
		r.world.Reports = reports
	}
	key := func(host string) string { return r.world.Hosts[host].Info.WireguardPublicKey }
	for range 50 { // reboots do not hide what follows
		report := proto.CloneOf(r.world.Reports["z1"].Report)
		report.Info.BootId += "+"
		r.world.Reports = maps.Clone(r.world.Reports)
		r.world.Reports["z1"] = Seen{Report: report, Connected: true, Since: r.world.Reports["z1"].Since}
		r.pass(3 * time.Second)
	}
	r.events = nil
	claim("z1", "key of b1")
	r.pass(time.Minute)
	r.world.Hosts["n1"] = &v1.Host{Meta: &v1.Meta{Name: "n1", Uid: "n1"}}
	r.world.Reports["n1"] = Seen{Report: &v1.HostObserved{Info: &v1.HostInfo{BootId: "n1", Site: "b", LanAddress: "192.0.2.9"}}, Connected: true, Since: time.Unix(1000, 0)}
	claim("n1", "key of b1")
	r.pass(time.Minute)
	if key("z1") != "" || key("n1") != "" || key("b1") != "key of b1" {
		t.Errorf("z1 has the key %q, n1 %q, and b1 %q", key("z1"), key("n1"), key("b1"))
	}
	for _, peer := range r.orders["a1"].Network.Peers {
		if peer.WireguardPublicKey == "key of b1" && peer.Name != "b1" {
			t.Errorf("a1 sends to %s with b1's key", peer.Name)
		}
	}
	r.pass(time.Minute)
	want := []string{"z1 reports the WireGuard key of host b1,", "n1 joined", "n1 reports the WireGuard key of host b1,"}
	if !slices.EqualFunc(r.events, want, strings.HasPrefix) {
		t.Errorf("events: %q", r.events)
	}
	claim("z1", "new")
	claim("n1", "new")
	r.pass(time.Minute)
	if key("n1") != "new" || key("z1") != "" {
		t.Errorf("of two new owners of one key, n1 has %q and z1 %q", key("n1"), key("z1"))
	}
}
