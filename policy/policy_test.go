package policy

import (
	"google.golang.org/protobuf/types/known/timestamppb"
	"strings"
	"testing"
	"time"

	v1 "watari/api/watariv1"
)

func parse(t *testing.T, text string) *Policy {
	t.Helper()
	p, err := Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func host(name string, lent bool) *v1.Host {
	return &v1.Host{Meta: &v1.Meta{Name: name}, Info: &v1.HostInfo{Site: "s", Cores: 4, MemoryBytes: 8 << 30, Lent: lent}}
}

func number(v float64) *float64 { return &v }

func TestErrorsNameTheirLine(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"unknown key", "owners: []\nharvst: {}\n", `line 2: unknown field "harvst"`},
		{"unknown variable", "owners:\n- busy:\n  - when: host.nothing > 1\n  idle: {when: 'true'}\n", "line 3: busy: column 1 of the expression: undeclared reference"},
		{"syntax of an expression", "owners:\n- busy:\n  - for: 5s\n    when: host.owner_cpu >\n  idle: {when: 'true'}\n", "line 4: busy: column"},
		{"not true or false", "owners:\n- busy:\n  - when: host.owner_cpu\n  idle: {when: 'true'}\n", "line 3: busy: the expression is a double"},
		{"types", "owners:\n- busy:\n  - when: host.input_idle < 5\n  idle: {when: 'true'}\n", "line 3: busy: column"},
		{"measured in match", "owners:\n- match: host.owner_cpu > 1.0\n  busy: [{when: 'true'}]\n  idle: {when: 'true'}\n", "line 2: match: it uses what is measured"},
		{"never idle", "owners:\n- busy: [{when: 'true'}]\n", "`busy` without `idle`"},
		{"duration", "owners:\n- busy:\n  - when: 'true'\n    for: 5 minutes\n  idle: {when: 'true'}\n", `line 4: for: "5 minutes" is not a time`},
		{"negative", "harvest:\n  cool_down: -5s\n", "line 2: cool_down: -5s is not between"},
		{"percentage", "harvest:\n  throttle:\n    cpu: 20\n", `line 3: cpu: "20" is not a percentage`},
		{"weight", "harvest:\n  throttle:\n    weight: 0\n", `line 3: weight: "0" is not a number`},
		{"list for a value", "harvest:\n  throttle:\n    weight: [1]\n", "line 3: a single value is wanted"},
		{"YAML", "owners: [\n", "line "},
		{"duplicate", "harvest: {}\nharvest: {}\n", "line 2: "},
		{"day", "maintenance:\n  windows:\n  - days: [someday]\n    from: '10:00'\n    to: '11:00'\n", `line 3: days: "someday"`},
		{"hour", "maintenance:\n  windows:\n  - from: '25:00'\n    to: '11:00'\n", `line 3: "25:00" is not a time of day`},
		{"half a window", "maintenance:\n  windows:\n  - from: '10:00'\n", "line 3: windows: a window has"},
		{"end before begin", "maintenance:\n  windows:\n  - begin: 2026-12-02 08:00\n    end: 2026-12-01 08:00\n", "line 4: end: it is not after begin"},
		{"zone", "time_zone: Mars/Olympus\n", "line 1: time_zone"},
		{"pattern", "exempt:\n  clusters: ['[']\n", "line 2: clusters"},
		{"bandwidth", "harvest:\n  bandwidth: fast\n", "line 2: bandwidth"},
		{"not a group", "hello", "line 1: "},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := Parse(c.text)
			if err == nil || !strings.HasPrefix(err.Error(), c.want) && !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %s", err, c.want)
			}
		})
	}
	if _, err := Parse(strings.Repeat("#", MaxText+1)); err == nil {
		t.Error("a policy that is too large was read")
	}
}

func FuzzParse(f *testing.F) {
	f.Add(Default)
	f.Add("maintenance:\n  windows:\n  - days: [sat]\n    from: '22:00'\n    to: '06:00'\n")
	f.Fuzz(func(t *testing.T, text string) {
		if p, err := Parse(text); (p == nil) == (err == nil) {
			t.Errorf("got %v and %v", p, err)
		}
	})
}

// TestTheDefault plays an owner who comes back, under the default policy.
func TestTheDefault(t *testing.T) {
	p := parse(t, Default)
	if _, rule := p.Rule(host("a", false)); rule != nil {
		t.Error("a host that was not lent has an owner")
	}
	start := time.Date(2026, 11, 24, 12, 0, 0, 0, time.UTC)
	lent := host("a", true)
	w := NewWatcher()
	back := false
	at := func(seconds int, sample *v1.HostSample, want bool) {
		t.Helper()
		now := start.Add(time.Duration(seconds) * time.Second)
		sample.Seconds = 1
		w.See(p, lent, sample, now)
		back, _, _ = w.Signals("a", now).Owner(back, now)
		if back != want {
			t.Errorf("after %d s: the owner is back: %v, want %v", seconds, back, want)
		}
	}
	input := func(idle float64) *v1.HostSample {
		return &v1.HostSample{Owner: &v1.OwnerActivity{InputIdle: number(idle)}}
	}
	at(0, &v1.HostSample{}, false)
	at(1, input(400), false)
	at(2, input(0.2), true)
	at(3, input(100), true)
	for i := range 5 {
		at(10+i, &v1.HostSample{CpuOwner: 2}, true)
	}
	for i := range 180 {
		at(100+i, input(301), true)
	}
	at(280, input(301), false)
	// A program of the owner's counts after 5 s.
	for i := range 5 {
		at(300+i, &v1.HostSample{CpuOwner: 2}, false)
	}
	at(305, &v1.HostSample{CpuOwner: 2}, true)
}

func TestSignals(t *testing.T) {
	p := parse(t, "owners:\n- busy:\n  - when: host.owner_cpu > 1.0\n    for: 3s\n  idle: {when: host.owner_cpu < 0.5, for: 3s}\n")
	start := time.Date(2026, 11, 24, 12, 0, 0, 0, time.UTC)
	h, w := host("a", false), NewWatcher()
	at := func(seconds float64) time.Time { return start.Add(time.Duration(seconds * float64(time.Second))) }
	if w.Signals("a", start) != nil {
		t.Error("signals of a host that was never seen")
	}
	if !w.See(p, h, &v1.HostSample{Seconds: 1, CpuOwner: 2}, at(0)) {
		t.Error("the first sample changes nothing")
	}
	if w.See(p, h, &v1.HostSample{Seconds: 1, CpuOwner: 3}, at(1)) {
		t.Error("a sample that says the same changes something")
	}
	// A sample without rates does not end what holds.
	if w.See(p, h, &v1.HostSample{}, at(2)) {
		t.Error("a sample without rates changes something")
	}
	back, reason, again := w.Signals("a", at(2)).Owner(false, at(2))
	if back || !again.Equal(at(3)) {
		t.Errorf("after 2 s: %v %q %v", back, reason, again)
	}
	if back, reason, _ = w.Signals("a", at(3)).Owner(false, at(3)); !back || reason != "host.owner_cpu > 1.0 for 3s" {
		t.Errorf("after 3 s: %v %q", back, reason)
	}
	// Nothing is known after a gap, and what holds begins anew.
	if w.Signals("a", at(20)) != nil {
		t.Error("signals of a host that has been silent")
	}
	if back, _, _ := (*Signals)(nil).Owner(true, at(20)); !back {
		t.Error("an owner is away because the host is silent")
	}
	w.See(p, h, &v1.HostSample{Seconds: 1, CpuOwner: 2}, at(20))
	if back, _, _ = w.Signals("a", at(20)).Owner(false, at(20)); back {
		t.Error("a condition has held through a gap")
	}
	// A clock that is set back does not make conditions hold for ever.
	w.See(p, h, &v1.HostSample{Seconds: 1, CpuOwner: 2}, at(5))
	if back, _, again = w.Signals("a", at(5)).Owner(false, at(5)); back || !again.Equal(at(8)) {
		t.Errorf("after the clock was set back: %v, again %v", back, again)
	}
	// Another policy forgets.
	if !w.See(parse(t, Default), h, &v1.HostSample{Seconds: 1}, at(6)) && w.Signals("a", at(6)).Rule != nil {
		t.Error("the host has a rule of another policy")
	}
}

// Rates from before a gap say nothing of now.
func TestRatesBeforeAGap(t *testing.T) {
	p := parse(t, "owners:\n- busy:\n  - when: host.owner_cpu > 1.0\n  - when: host.input_idle < duration(\"1s\")\n  idle: {when: host.owner_cpu < 0.5}\n")
	start := time.Date(2026, 11, 24, 12, 0, 0, 0, time.UTC)
	h, w := host("a", false), NewWatcher()
	w.See(p, h, &v1.HostSample{Seconds: 1, CpuOwner: 2}, start)
	later := start.Add(time.Hour)
	w.See(p, h, &v1.HostSample{}, later)
	s := w.Signals("a", later)
	if back, _, _ := s.Owner(false, later); back {
		t.Error("the owner is back, by rates of an hour ago")
	}
	if back, _, _ := s.Owner(true, later); !back {
		t.Error("the owner is away, though nothing is known of the rates")
	}
	// What is known counts all the same.
	w.See(p, h, &v1.HostSample{Owner: &v1.OwnerActivity{InputIdle: number(0)}}, later.Add(time.Second))
	if back, _, _ := w.Signals("a", later.Add(time.Second)).Owner(false, later.Add(time.Second)); !back {
		t.Error("a key is not noticed without rates")
	}
	w.Forget(map[string]*v1.Host{})
	if len(w.hosts) != 0 {
		t.Error("a host that is gone is not forgotten")
	}
}

func TestWindows(t *testing.T) {
	tokyo, err := time.LoadLocation("Asia/Tokyo")
	if err != nil {
		t.Fatal(err)
	}
	p := parse(t, `
time_zone: Asia/Tokyo
maintenance:
  windows:
  - {days: [sat], from: "22:00", to: "06:00", lead: 30m}
  - {begin: 2026-12-01 08:00, end: 2026-12-01T12:00+09:00, match: 'host.name == "b"'}
`)
	weekly, once := p.Maintenance.Windows[0], p.Maintenance.Windows[1]
	for _, c := range []struct {
		window MaintenanceWindow
		at     time.Time
		want   bool
	}{
		{weekly, time.Date(2026, 11, 28, 21, 29, 0, 0, tokyo), false}, // a Saturday
		{weekly, time.Date(2026, 11, 28, 21, 30, 0, 0, tokyo), true},
		{weekly, time.Date(2026, 11, 28, 14, 0, 0, 0, time.UTC), true}, // 23:00 there
		{weekly, time.Date(2026, 11, 29, 5, 59, 0, 0, tokyo), true},
		{weekly, time.Date(2026, 11, 29, 6, 0, 0, 0, tokyo), false},
		{weekly, time.Date(2026, 11, 27, 23, 0, 0, 0, tokyo), false},
		{once, time.Date(2026, 12, 1, 7, 59, 0, 0, tokyo), false},
		{once, time.Date(2026, 12, 1, 8, 0, 0, 0, tokyo), true},
		{once, time.Date(2026, 12, 1, 12, 0, 0, 0, tokyo), false},
	} {
		if _, _, got := c.window.Around(c.at, c.window.Lead); got != c.want {
			t.Errorf("%v at %v: %v", c.window.Window, c.at, got)
		}
	}
}

func TestLimits(t *testing.T) {
	p := parse(t, "harvest:\n  throttle: {weight: 1, cpu: 20%, stop_after: 10s}\nexempt: {clusters: [md-*], guests: [x-1]}\n")
	h := host("a", true)
	since := time.Date(2026, 11, 24, 12, 0, 0, 0, time.UTC)
	if limits, _ := p.Limits(h, since); limits != nil {
		t.Errorf("a host that takes guests has limits: %v", limits)
	}
	h.Withdrawn = []*v1.Withdrawal{{Policy: HarvestName, Since: stamp(since)}}
	limits, again := p.Limits(h, since.Add(9*time.Second))
	if limits.GetCpuWeight() != 1 || limits.GetCpuPermille() != 200 || !again.Equal(since.Add(10*time.Second)) {
		t.Errorf("got %v, again %v", limits, again)
	}
	if limits, again = p.Limits(h, since.Add(10*time.Second)); limits.GetCpuPermille() != 5 || !again.IsZero() {
		t.Errorf("got %v, again %v", limits, again)
	}
	for name, want := range map[string]bool{"md-x/md-x-0": true, "md/md-0": false, "x/x-1": true, "x/x-2": false} {
		cluster, guest, _ := strings.Cut(name, "/")
		if got := p.Exempt.Has(&v1.Guest{Meta: &v1.Meta{Name: guest}, Cluster: cluster}); got != want {
			t.Errorf("%s is exempt: %v", name, got)
		}
	}
}

func BenchmarkSee(b *testing.B) {
	p, err := Parse(Default)
	if err != nil {
		b.Fatal(err)
	}
	h, w, now := host("a", true), NewWatcher(), time.Now()
	for b.Loop() {
		w.See(p, h, &v1.HostSample{Seconds: 1, CpuOwner: 0.1, Owner: &v1.OwnerActivity{InputIdle: number(400)}}, now)
	}
}
func stamp(t time.Time) *timestamppb.Timestamp { return timestamppb.New(t) }
