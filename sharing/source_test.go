package sharing

import (
	"testing"
	"time"
)

func TestNextSource(t *testing.T) {
	told := Plan{Told: true, Sources: []string{"a1", "a2"}}
	hostsOnly := Plan{Told: true, Sources: []string{"a1", "a2"}, HostsOnly: true}
	damaged := Source{Damaged: true}
	for _, c := range []struct {
		name  string
		plan  Plan
		seen  map[string]Source
		quiet time.Duration
		want  SourceKind
		host  string
		wait  time.Duration
	}{
		{"an older manager", Plan{}, nil, 0, FromManager, "", 0},
		{"chosen for the site", Plan{Told: true, Manager: true}, nil, 0, FromManager, "", 0},
		{"the nearest host first", told, nil, 0, FromHost, "a1", 0},
		{"the nearest has not begun", told, map[string]Source{"a1": {Absent: true, Wait: AbsentPause}}, time.Second, Pause, "", AbsentPause},
		{"the nearest does not begin", told, map[string]Source{"a1": {Absent: true, Wait: AbsentPause}}, AbsentPatience, FromHost, "a2", 0},
		{"the nearest cannot be reached", told, map[string]Source{"a1": {Wait: time.Second}}, 0, FromHost, "a2", 0},
		{"none can be reached", told, map[string]Source{"a1": {Wait: 2 * time.Second}, "a2": {Wait: time.Second}}, 0, Pause, "", time.Second},
		{"the nearest sent damaged content", told, map[string]Source{"a1": damaged}, 0, FromHost, "a2", 0},
		{"all sent damaged content", told, map[string]Source{"a1": damaged, "a2": damaged}, 0, FromManager, "", 0},
		{"nothing came for long", told, nil, Patience, FromManager, "", 0},
		{"no source yet", Plan{Told: true}, nil, 0, Pause, "", Patience},
		{"no source for long", Plan{Told: true}, nil, Patience, FromManager, "", 0},
		{"hosts alone have it", hostsOnly, nil, 0, FromHost, "a1", 0},
		{"hosts alone have it, and all sent damaged content", hostsOnly, map[string]Source{"a1": damaged, "a2": damaged}, 0, GiveUp, "", 0},
		{"hosts alone have it, and nothing came for long", hostsOnly, nil, Patience, GiveUp, "", 0},
		{"hosts alone have it, and the manager says nothing any more", Plan{HostsOnly: true}, nil, time.Second, Pause, "", OrderPatience - time.Second},
		{"hosts alone have it, and the manager still says nothing", Plan{HostsOnly: true}, nil, OrderPatience, GiveUp, "", 0},
	} {
		got := NextSource(c.plan, c.seen, c.quiet)
		if got.Kind != c.want || got.Host != c.host || got.Kind == Pause && got.Wait != c.wait {
			t.Errorf("%s: %+v", c.name, got)
		}
		if (got.Kind == FromManager && c.plan.Told && !c.plan.Manager || got.Kind == GiveUp) && got.Reason == "" {
			t.Errorf("%s: no reason", c.name)
		}
	}
}

func TestNextStep(t *testing.T) {
	for _, c := range []struct {
		name string
		told TemplateTold
		want TemplateOrder
	}{
		{"sharing is off", TemplateTold{}, Make},
		{"no word yet", TemplateTold{Sharing: true}, Wait},
		{"no word for long", TemplateTold{Sharing: true, Waited: OrderPatience}, Make},
		{"told to make it", TemplateTold{Sharing: true, Order: Make}, Make},
		{"told to wait", TemplateTold{Sharing: true, Order: Wait, Waited: time.Minute}, Wait},
		{"waited for too long", TemplateTold{Sharing: true, Order: Wait, Waited: WaitPatience}, Make},
		{"told to fetch it", TemplateTold{Sharing: true, Order: Fetch}, Fetch},
		{"fetching it failed", TemplateTold{Sharing: true, Order: Fetch, FetchFailed: true}, Make},
	} {
		if got := NextStep(c.told); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}
