package core

import (
	"fmt"
	"testing"
	"time"

	v1 "watari/api/watariv1"
)

// fencing returns a household whose manager can switch hosts off. md-1 is on b1.
func fencing(t *testing.T) *household {
	h := newHousehold(t, "", 2)
	h.core.FenceAfter = time.Minute
	g := h.objects.Guests["md-1"]
	g.Host, g.BootId = "b1", "boot-b1"
	return h
}

// fences returns the hosts to switch off when hosts have been out of reach for this long.
func (h *household) fences(out time.Duration, hosts ...string) (names []string) {
	h.away = map[string]bool{}
	reports := h.reports()
	for _, name := range hosts {
		h.away[name] = true
		reports[name] = Seen{Report: reports[name].Report, Since: h.now.Add(-out)}
	}
	for _, f := range h.core.Decide(World{Objects: h.objects, Now: h.now, Reports: reports, Signals: h.watcher.All(h.now)}).Fences {
		names = append(names, f.Host+" "+f.BootID)
	}
	return names
}

func TestWhichHostsAreSwitchedOff(t *testing.T) {
	for name, c := range map[string]struct {
		out    time.Duration
		hosts  []string
		change func(*household)
		want   string
	}{
		"out for long":                         {time.Minute, []string{"b1"}, nil, "[b1 boot-b1]"},
		"not out for long":                     {59 * time.Second, []string{"b1"}, nil, "[]"},
		"it has no guests":                     {time.Hour, []string{"a2"}, nil, "[]"},
		"most are out: it may be this manager": {time.Hour, []string{"a1", "b1"}, nil, "[]"},
		"it is off already": {time.Hour, []string{"b1"}, func(h *household) {
			h.change("b1", func(host *v1.Host) { host.FencedBootId = "boot-b1" })
		}, "[]"},
		"nothing can do that": {time.Hour, []string{"b1"}, func(h *household) { h.core.FenceAfter = 0 }, "[]"},
	} {
		h := fencing(t)
		if c.change != nil {
			c.change(h)
		}
		if got := fmt.Sprint(h.fences(c.out, c.hosts...)); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

func TestAHostThatWasSwitchedOff(t *testing.T) {
	h := fencing(t)
	f := Fence{Host: "b1", BootID: "boot-b1"}
	if change := Fenced(h.objects, h.reports(), f); len(change.Ops) != 0 {
		t.Error("a connected host is taken for off")
	}
	h.away = map[string]bool{"b1": true}
	if change := Fenced(h.objects, h.reports(), Fence{Host: "b1", BootID: "an earlier boot"}); len(change.Ops) != 0 {
		t.Error("a host is taken for off in a boot that is over")
	}
	h.objects = h.objects.Apply(Fenced(h.objects, h.reports(), f))
	h.pass(time.Second)
	if g := h.objects.Guests["md-1"]; g.Host == "b1" || g.Host == "" || g.Epoch != 2 {
		t.Fatalf("its guest is %v", g)
	}
	// The host comes back in the same boot, so the command did not switch it off. It takes no guests.
	h.away = nil
	h.pass(time.Second)
	if h.objects.Hosts["b1"].FencedBootId == "" || whyFenced(h.objects.Hosts["b1"]) == "" {
		t.Error("it takes guests again in the same boot")
	}
	// The host boots.
	rebooted := h.reports()
	rebooted["b1"] = Seen{Report: &v1.HostObserved{Info: &v1.HostInfo{BootId: "boot-b1-2", Site: "b", Cores: 8, MemoryBytes: 8 << 30}}, Since: h.now, Connected: true}
	for _, change := range h.core.Decide(World{Objects: h.objects, Now: h.now.Add(time.Minute), Reports: rebooted, Signals: h.watcher.All(h.now)}).Changes {
		h.objects = h.objects.Apply(change)
	}
	if h.objects.Hosts["b1"].FencedBootId != "" {
		t.Error("it counts as off after it has booted")
	}
}
