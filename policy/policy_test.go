package policy

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "watari/api/watariv1"
	"watari/locality"
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
		{"distance", "locality:\n  distance: {site: 0}\n", `line 2: site: "0" is not a number from 0.01`},
		{"sites nearer than hosts", "locality:\n  distance:\n    site: 20\n", "distance: hosts of a site are farther from each other (20) than sites (10)"},
		{"gain", "locality:\n  least_gain: 0.5\n", `line 2: least_gain: "0.5" is not a percentage from 1% to 100%`},
		{"horizon", "locality:\n  horizon: 0s\n", "line 2: horizon: 0s is less than 1s"},
		{"day", "maintenance:\n  windows:\n  - days: [someday]\n    from: '10:00'\n    to: '11:00'\n", `line 3: days: "someday"`},
		{"hour", "maintenance:\n  windows:\n  - from: '25:00'\n    to: '11:00'\n", `line 3: "25:00" is not a time of day`},
		{"half a window", "maintenance:\n  windows:\n  - from: '10:00'\n", "line 3: windows: a window has"},
		{"end before begin", "maintenance:\n  windows:\n  - begin: 2026-12-02 08:00\n    end: 2026-12-01 08:00\n", "line 4: end: it is not after begin"},
		{"zone", "time_zone: Mars/Olympus\n", "line 1: time_zone"},
		{"pattern", "exempt:\n  clusters: ['[']\n", "line 2: clusters"},
		{"bandwidth", "harvest:\n  bandwidth: fast\n", "line 2: bandwidth"},
		{"bytes of a link", "balance:\n  cool_down: 1m\n  per_link_per_hour: 20\n", `line 3: per_link_per_hour: "20" is not a size from 1MiB to 1PiB, such as 20GB`},
		{"rate for a size", "harvest:\n  per_link_per_hour: 20GB/s\n", "line 2: per_link_per_hour"},
		{"not a group", "hello", "line 1: a group of keys is wanted"},
		{"value for a list", "owners:\n- busy: 5\n", "line 2: a list is wanted"},
		{"value for a group", "harvest:\n  throttle: 5\n", "line 2: a group of keys is wanted"},
		{"unknown key of an entry", "owners:\n- busy:\n  - wen: 'true'\n", `line 3: unknown field "wen"`},
		{"no when", "owners:\n- busy:\n  - for: 5s\n", "line 3: busy: the condition has no `when`"},
		{"idle without busy", "owners:\n- match: host.lent\n- idle: {when: 'true'}\n", "line 3: owners: the entry has `idle` without `busy`"},
		{"empty window", "maintenance:\n  windows:\n  - {}\n", "line 3: windows: a window has"},
		{"anchor", "owners:\n- &a\n  match: host.lent\n", "line 2: a policy has no anchors"},
		{"alias", "owners:\n- match: host.lent\n- *a\n", "line 3: a policy has no aliases"},
		{"alias for a pattern", "exempt:\n  guests: [*-licence]\n", "line 2: a policy has no aliases"},
		{"merge key", "owners:\n- match: host.lent\n  <<: {}\n", "line 3: a policy has no merge keys"},
		{"tag", "owners:\n- match: !host.lent\n", "line 2: a policy has no tags"},
		{"directive", "%YAML 1.2\n---\nharvest: {}\n", "line 1: a policy has no directives"},
		{"key with ?", "harvest: {}\n? owners\n: []\n", "line 2: a policy has no keys with ?"},
		{"group for a key", "harvest: {}\n{a: 1}: 1\n", "line 2: "},
		{"long key", "harvest: {}\n" + strings.Repeat("k", 65) + ": 1\n", "line 2: the text before the colon is not a key"},
		{"many keys", "owners:\n- a: 1\n" + keys(50), "line 52: the group has more than 50 keys"},
		{"second document", "harvest: {}\n---\nowners: []\n", "line 2: a second document begins here"},
		{"second document at once", "# none\n---\n---\nowners: []\n", "line 3: a second document begins here"},
		{"after the end", "harvest: {}\n...\nowners: []\n", "line 3: the document has ended"},
		{"carriage return", "harvest: {}\n# a\rowners: []\n", "line 2: a carriage return"},
		{"brackets", "owners: []\nharvest: " + strings.Repeat("[", 60_000), "line 2: lists and groups of keys lie in each other more than 20 deep"},
		{"indentation", "owners:\n" + strings.Repeat("- ", 21) + "a\n", "line 2: lists and groups of keys lie in each other more than 20 deep"},
		{"indented keys", staircase(22), "line 21: lists and groups of keys lie in each other more than 20 deep"},
		{"words", "exempt:\n  guests:\n" + strings.Repeat("  - a\n", 9000), "line 8001: the file has more than 16000 words"},
		{"empty lines", "owners: []\na: |" + strings.Repeat("\n", 5000), "line 1003: the file has more than 1000 empty lines"},
		{"lines of spaces", "owners: []\na: |\n" + strings.Repeat("   \n", 5000), "line 1003: the file has more than 1000 empty lines"},
		{"no match", "owners:\n- match:\n  busy: []\n", "line 2: match: it has no value; write one, or remove the key"},
		{"match null", "owners:\n- {busy: [],\n  match: ~}\n", "line 3: match: it has no value"},
		{"empty match", "owners:\n- match: ''\n", "line 2: match: the expression is empty"},
		{"no harvest", "owners: []\nharvest: # off?\nmaintenance: {}\n", "line 2: harvest: it has no value"},
		{"null day", "maintenance:\n  windows:\n  - from: '10:00'\n    to: '11:00'\n    days: [~]\n", "line 5: an entry has no value"},
		{"null owner", "owners:\n- match: host.lent\n-\n- match: 'true'\n", "line 3: an entry has no value"},
		{"null condition", "owners:\n- idle: {when: 'true'}\n  busy:\n  - when: 'true'\n  -\n", "line 5: an entry has no value"},
		{"null policy", "# none\n~\n", "line 2: an entry has no value"},
		{"entries", "exempt:\n  guests:\n" + strings.Repeat("  - a\n", 1001), "line 1003: guests: there are 1001, and may be 1000"},
		{"expressions", "owners:\n" + strings.Repeat("- match: host.lent\n", 201), "line 202: match: this is one more than the 200 expressions"},
		{"expressions of all kinds", "owners:\n" + strings.Repeat("- {match: host.lent, busy: [{when: host.lent}], idle: {when: host.lent}}\n", 66) +
			"maintenance:\n  windows:\n" + strings.Repeat("  - {match: host.lent, from: '10:00', to: '11:00'}\n", 3), "line 72: match: this is one more than the 200"},
		{"expressions' text", "owners:\n" + strings.Repeat("- match: "+long(1000)+"\n", 17), "line 18: match: the expressions of the policy have more than 16384 bytes"},
		{"long expression", "owners:\n- match: " + long(1025) + "\n", "line 2: match: the expression has 1025 bytes, and may have 1024"},
		{"deep expression", "owners:\n- match: " + strings.Repeat("(", 41) + "true" + strings.Repeat(")", 41) + "\n", "line 2: match: the expression is not read: expression recursion limit"},
		{"pattern that is not constant", "owners:\n- match: host.name.matches(host.site)\n", "line 2: match: matches: the pattern has to be a text in quotation marks"},
		{"pattern in a loop", "owners:\n- match: '[host.name].exists(n, {1: [!n.matches(n)]}[1][0])'\n", "line 2: match: matches: the pattern has to be"},
		{"pattern of the function", "owners:\n- match: matches(host.name, 'a' + 'b')\n", "line 2: match: matches: the pattern has to be"},
		{"long pattern", "owners:\n- match: host.name.matches('" + long(201) + "')\n", "line 2: match: matches: the pattern has 201 bytes, and may have 200"},
		{"large pattern", "owners:\n- match: host.name.matches('(a{1000})(a{1000})')\n", "line 2: match: matches: the pattern \"(a{1000})(a{1000})\" takes"},
		{"wrong pattern", "owners:\n- match: host.name.matches('(')\n", "line 2: match: matches: error parsing regexp"},
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

// keys returns lines with n keys.
func keys(n int) (text string) {
	for i := range n {
		text += fmt.Sprintf("  k%d: 1\n", i)
	}
	return text
}

// staircase returns n nested groups of keys.
func staircase(n int) (text string) {
	for i := range n {
		text += strings.Repeat(" ", i) + "a:\n"
	}
	return text
}

// long returns an expression, or a pattern, of n bytes.
func long(n int) string { return strings.Repeat("host.lent||", n/11+1)[:n-n%11] + "true||true"[:n%11] }

// TestWhatIsAllowed reads texts within the bounds.
func TestWhatIsAllowed(t *testing.T) {
	for name, text := range map[string]string{
		"empty": "", "comment": "# none\n", "header": "# none\n---\nharvest: {}\n", "end": "harvest: {}\n...\n", "nothing": "---\n",
		"exempt hosts":     "owners:\n- match: host.lent\n- {}\n",
		"lines of Windows": "owners:\r\n- match: host.lent\r\n",
		"pattern":          `owners: [{match: 'host.name.matches("^k[0-9]{1,3}$") || matches(host.site, "a*")'}]`,
		"folded":           "owners:\n- match: >\n    host.lent &&\n\n    host.cores > 4.0\n",
		"quoted":           "exempt:\n  guests: ['*-licence', '!x', '&y', '~']\n",
		"deep":             "maintenance:\n        windows:\n                -       days:\n                                - sat\n                        from: '10:00'\n                        to: '11:00'\n",
	} {
		if _, err := Parse(text); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, rule := parse(t, "owners:\n- {}\n").Rule(host("a", false)); rule == nil {
		t.Error("an entry without match matches no host")
	}
}

// TestWork bounds the work of Parse for the most costly files. The measure is the memory that Parse takes from the heap.
func TestWork(t *testing.T) {
	fill := func(before, text, after string, n int) string {
		return before + strings.Repeat(text, n/len(text)) + after
	}
	for name, text := range map[string]string{
		"brackets":         fill("", "[", "", MaxText),
		"braces":           fill("", "{a: ", "", MaxText),
		"lists":            fill("", "- ", "", MaxText),
		"empty lines":      fill("a: |\n", "\n", "", MaxText-10),
		"lines of spaces":  fill("a: |\n", " \n", "", MaxText-10),
		"carriage returns": fill("a: |\n", "\r", "", MaxText-10),
		"entries":          fill("exempt:\n  guests:\n", "  - a\n", "", 6000) + fill("  clusters: [", "b,", "]\n", 2000),
		"null entries":     fill("{", "a,", "}", MaxText-10),
		"anchors":          "owners:\n" + fill("- &a {busy: [", "{when: 'true'},", "], idle: {when: 'true'}}\n", 4500) + fill("", "- *a\n", "", 4500),
		"windows":          fill("maintenance:\n  windows:\n", "  - {begin: 2026-12-01 08:00, end: 2026-12-02 08:00}\n", "", MaxText-100),
		"expressions":      fill("owners:\n", "- {match: 'true'}\n", "", MaxText-10),
		"lists in CEL":     fill("owners:\n", fill("- match: 1 in [", "1,", "1]\n", 1000), "", 16_000),
		"loops in CEL":     fill("owners:\n", fill("- match: '", "[1].map(x,x).all(x,x==1)&&", "true'\n", 990), "", 16_000),
		"patterns":         fill("owners:\n", fill("- match: \"", "''.matches('a{140}')||", "true\"\n", 1000), "", 16_000),
		"large pattern":    fill("owners:\n- match: host.name.matches('", "(a{1000})", "')\n", 27_000),
		"signs in CEL":     fill("owners:\n- match: '", "-", "'\n", MaxText-100),
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := Parse(text)
		runtime.ReadMemStats(&after)
		taken := (after.TotalAlloc - before.TotalAlloc) >> 20
		t.Logf("%s: %d KiB take %d MiB: %.80v", name, len(text)>>10, taken, err)
		if taken > 50 {
			t.Errorf("%s: %d KiB take %d MiB", name, len(text)>>10, taken)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(Default)
	f.Add("owners:\n- {}\n")
	f.Add("maintenance:\n  windows:\n  - days: [sat]\n    from: '22:00'\n    to: '06:00'\n")
	f.Add("owners:\n- match: host.name == \"b\"\nmaintenance:\n  windows:\n  - begin: 2026-12-01 08:00\n    end: 2026-12-02 08:00\n    lead: 1h\n")
	f.Add("owners:\n- busy: [{when: '\"a\" in host.users', for: 5s}]\n  idle: {when: 'host.name.matches(\"a*\")'}\nharvest: {quiet_hours: [{from: '1:00', to: '2:00'}]}\n")
	f.Fuzz(func(t *testing.T, text string) {
		p, err := Parse(text)
		if (p == nil) == (err == nil) {
			t.Errorf("got %v and %v", p, err)
		}
		if err != nil {
			return
		}
		// The policy that was read can be used.
		h, now := host("a", true), time.Date(2026, 11, 28, 23, 0, 0, 0, time.UTC)
		p.Rule(h)
		w := NewWatcher()
		w.See(p, h, &v1.HostSample{Seconds: 1, CpuOwner: 2}, now)
		w.Signals("a", now).Owner(false, now)
		w.See(p, h, &v1.HostSample{Owner: &v1.OwnerActivity{InputIdle: number(1), Users: []string{"a"}}}, now.Add(time.Second))
		w.Signals("a", now.Add(time.Second)).Owner(true, now.Add(time.Second))
		if m := p.GetMaintenance(); m != nil {
			for _, window := range m.For(h) {
				window.Around(now, window.Lead)
			}
		}
		for _, name := range []string{HarvestName, MaintenanceName} {
			if bounds, _ := p.BoundsOf(name); bounds != nil {
				for _, window := range bounds.QuietHours {
					window.Has(now)
				}
			}
		}
	})
}

// In some zones, daylight saving time begins at midnight: that day has no 00:00.
func TestWindowsOnADayWithoutMidnight(t *testing.T) {
	zone, err := time.LoadLocation("America/Santiago")
	if err != nil {
		t.Fatal(err)
	}
	at := func(day, hour int) time.Time { return time.Date(2026, time.September, day, hour, 30, 0, 0, zone) }
	saturday := Window{Days: []time.Weekday{time.Saturday}, From: 22 * time.Hour, To: 6 * time.Hour, Zone: zone}
	sunday := Window{Days: []time.Weekday{time.Sunday}, From: 8 * time.Hour, To: 9 * time.Hour, Zone: zone}
	for name, c := range map[string]struct {
		window Window
		at     time.Time
		want   bool
	}{
		"before":                 {saturday, at(5, 21), false},
		"before midnight":        {saturday, at(5, 22), true},
		"after midnight":         {saturday, at(6, 5), true},
		"after":                  {saturday, at(6, 6), false},
		"the day itself":         {sunday, at(6, 8), true},
		"the day before":         {sunday, at(5, 8), false},
		"the day after, a week":  {sunday, at(13, 8), true},
		"the night before it":    {Window{Days: []time.Weekday{time.Friday}, From: 22 * time.Hour, To: 6 * time.Hour, Zone: zone}, at(5, 5), true},
		"the night of the start": {Window{From: 23 * time.Hour, To: 2 * time.Hour, Zone: zone}, at(6, 1), true},
	} {
		if got := c.window.Has(c.at); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
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
	// A program of the owner counts after 5 s.
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
	// A sample without rates does not end conditions that hold.
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
	// After a gap nothing is known, and conditions begin to hold anew.
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
	// A new policy makes the watcher forget the signals of the old one.
	if !w.See(parse(t, Default), h, &v1.HostSample{Seconds: 1}, at(6)) && w.Signals("a", at(6)).Rule != nil {
		t.Error("the host has a rule of another policy")
	}
}

// Rates from before a gap do not describe the present.
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
	// Values that are known count all the same.
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

func TestLocality(t *testing.T) {
	l := parse(t, "locality: {}\n").Locality
	if l.Distance != locality.Default || l.CoolDown != 10*time.Minute || l.Horizon != 10*time.Minute || l.LeastGain != 0.1 || l.MovesPerHour != 0 {
		t.Errorf("the defaults are %+v", l)
	}
	l = parse(t, "locality:\n  cool_down: 0s\n  distance: {wan: 40}\n  horizon: 1h\n  least_gain: 25%\n  moves_per_hour: 6\n").Locality
	if l.Distance != (locality.Distance{Site: 1, WAN: 40}) || l.CoolDown != 0 || l.Horizon != time.Hour || l.LeastGain != 0.25 || l.MovesPerHour != 6 {
		t.Errorf("got %+v", l)
	}
}

func TestLimits(t *testing.T) {
	p := parse(t, "harvest:\n  throttle: {weight: 1, cpu: 20%, stop_after: 10s}\nexempt: {clusters: [md-*], guests: [x-1]}\n")
	h := host("a", true)
	since := time.Date(2026, 11, 24, 12, 0, 0, 0, time.UTC)
	if limits, _ := p.GuestLimits(h, since); limits != nil {
		t.Errorf("a host that takes guests has limits: %v", limits)
	}
	h.Withdrawn = []*v1.Withdrawal{{Policy: HarvestName, Since: stamp(since)}}
	limits, again := p.GuestLimits(h, since.Add(9*time.Second))
	if limits.GetCpuWeight() != 1 || limits.GetCpuPermille() != 200 || !again.Equal(since.Add(10*time.Second)) {
		t.Errorf("got %v, again %v", limits, again)
	}
	if limits, again = p.GuestLimits(h, since.Add(10*time.Second)); limits.GetCpuPermille() != 5 || !again.IsZero() {
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

// The guide's example can be applied.
func TestTheGuidesExample(t *testing.T) {
	guide, err := os.ReadFile("../docs/guide/policies.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(guide), "```yaml\n")
	text, _, closed := strings.Cut(rest, "```")
	if !found || !closed {
		t.Fatal("the guide has no example")
	}
	p := parse(t, text)
	if len(p.Owners) == 0 || p.Harvest == nil || len(p.Maintenance.Windows) == 0 || p.Balance == nil || p.Spread == nil || len(p.Exempt.Clusters) == 0 {
		t.Errorf("the example has no %+v", p)
	}
	for _, v := range Variables {
		if !strings.Contains(string(guide), "`"+v.Name+"`") {
			t.Errorf("the guide does not describe %s", v.Name)
		}
	}
}

func TestPoliciesThatDecideByUse(t *testing.T) {
	p, err := Parse("balance:\n  measure: guests\n  least_gain: 0.8\n  moves_per_hour: 12\n  exempt: {guests: [a-*]}\nspread: {weight: 2, interval: 30s, cool_down: 1m, per_link_per_hour: 20GB}\n")
	if err != nil {
		t.Fatal(err)
	}
	every, is := p.Rebalances()
	if b := p.Balance; !is || every != 10*time.Second || !b.Guests || b.LeastGain != 0.8 || b.CoolDown != 5*time.Minute || b.MovesPerHour != 12 || b.Weight != 1 {
		t.Errorf("%+v, every %v", b, every)
	}
	if s := p.Spread; s.Weight != 2 || s.CoolDown != time.Minute || s.PerLink != 20e9 || p.Balance.PerLink != 0 || p.Pack != nil {
		t.Errorf("%+v", s)
	}
	if p, err = Parse("pack: {max_load: 0.7}\n"); err != nil || p.Pack.MaxLoad != 0.7 {
		t.Errorf("%+v, %v", p, err)
	}
	for text, want := range map[string]string{
		"balance: {}\npack: {max_load: 0.5}\n":      "line 2: pack: it fills hosts, and balance empties the full ones; remove one of the two",
		"balance:\n  measure: speed\n":              `line 2: measure: "speed" is not load or guests`,
		"balance:\n  max_load: 1\n":                 "line 2: ",
		"spread:\n\n  least_gain: lots\n":           `line 3: least_gain: "lots" is not a number from 0.01 to 1000`,
		"spread:\n  weight: nan\n":                  "line 2: ",
		"pack:\n  interval: 10ms\n":                 "line 2: interval: 10ms is less than 1s",
		"pack:\n  max_load: 0\n":                    "line 2: ",
		"balance:\n":                                "line 1: balance: it has no value",
		"balance:\n  cool_down: soon\n":             "line 2: cool_down",
		"pack:\n  weight: 1\nbalance:\n  weight: 1": "line 2: ",
	} {
		if _, err := Parse(text); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
}

// The part of a policy that a host follows by itself sees an owner as the whole policy does, and slows guests down as much.
func TestAHostsPartOfAPolicy(t *testing.T) {
	h := &v1.Host{Meta: &v1.Meta{Name: "k1"}, Info: &v1.HostInfo{Lent: true}}
	for text, alone := range map[string]bool{
		Default: true,
		"owners: [{busy: [{when: 'host.owner_cpu > 0.5', for: 1m30s}], idle: {when: 'true'}}]\nharvest: {throttle: {cpu: 12.5%}}\n":                                          true,
		"owners: [{busy: [{when: 'host.users.exists(u, u.matches(\"^o\\\\\\\\w+\"))'}], idle: {when: '\"ü\\\\n\" == \"ü\\\\n\"'}}]\nharvest: {throttle: {stop_after: 0s}}\n": true,
		"owners: [{busy: [{when: 'true'}], idle: {when: 'true'}}]\nharvest: {}\n":                                                                                            false,
		"owners: [{busy: [{when: 'true'}], idle: {when: 'true'}}]\n":                                                                                                         false,
		"owners: [{match: '!host.lent', busy: [{when: 'true'}], idle: {when: 'true'}}]\nharvest: {throttle: {cpu: 5%}}\n":                                                    false,
		"balance: {}\n": false,
	} {
		whole, err := Parse(text)
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		made := whole.Alone(h)
		if made != "" != alone {
			t.Errorf("%s\nthe host's part is %q", text, made)
		}
		if made == "" {
			continue
		}
		part, err := Parse(made)
		if err != nil {
			t.Errorf("%s\nthe host's part %s is not read: %v", text, made, err)
			continue
		}
		_, want := whole.Rule(h)
		_, got := part.Rule(h)
		same := func(a, b Condition) bool { return a.When.Text == b.When.Text && a.For == b.For }
		if !slices.EqualFunc(want.Busy, got.Busy, same) || !same(want.Idle, got.Idle) || whole.Harvest.Throttle != part.Harvest.Throttle {
			t.Errorf("%s\nthe host's part is\n%s", text, made)
		}
	}
	if made := (*Policy)(nil).Alone(h); made != "" {
		t.Errorf("of no policy, the host's part is %q", made)
	}
}
