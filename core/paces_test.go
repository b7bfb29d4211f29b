package core

import (
	"math"
	"strings"
	"testing"
	"time"
)

// program is an MPI program with equal parts of work, on hosts that compute for it as given.
type program struct {
	speeds map[string]float64
	seen   float64                 // the part of the waiting that guests see
	ranks  func(guest string) bool // guests that it uses; nil: all
	alone  string                  // a guest that computes while all others wait; empty: none
	master string                  // a guest that only waits; empty: none
}

// runs lets a program run on abstract processors for a time.
func (h *household) runs(program program, long time.Duration) {
	for end := h.now.Add(long); h.now.Before(end); {
		h.usage = &Usage{Guests: map[string]GuestUsage{}, Hosts: map[string]HostUsage{}}
		n, slowest := map[string]float64{}, 0.0
		for name, g := range h.objects.Guests {
			if program.ranks == nil || program.ranks(name) {
				n[g.Host]++
				slowest = max(slowest, n[g.Host]/program.speeds[g.Host])
			}
		}
		for name, g := range h.objects.Guests {
			computing := 0.001
			if program.ranks == nil || program.ranks(name) {
				waits := 1 - n[g.Host]/program.speeds[g.Host]/slowest
				if program.alone != "" && program.alone != name || program.master == name {
					waits = 1
				}
				computing = max(computing, 1-program.seen*waits)
			}
			h.usage.Guests[g.Meta.Uid] = GuestUsage{Computing: computing}
		}
		h.pass(5 * time.Second)
		h.arrive()
	}
}

// newMeasured is newAbstract on hosts of two cores.
func newMeasured(t *testing.T) *household {
	h := newAbstract(t)
	for _, host := range h.objects.Hosts {
		host.Info.Cores, host.Info.CoreSpeed = 2, 5*host.Info.CoreSpeed
	}
	h.expectDivided("7:3:6", 5*time.Second)
	return h
}

// Guests are divided by what hosts compute for the program, if that differs from their measured speeds.
func TestAbstractProcessorsFollowTheProgram(t *testing.T) {
	measured, slow := map[string]float64{"a1": 0.7, "a2": 0.3, "b1": 0.6}, map[string]float64{"a1": 0.35, "a2": 0.3, "b1": 0.6}
	for name, c := range map[string]struct {
		program program
		want    string
	}{
		"as measured":            {program{speeds: measured, seen: 1}, "7:3:6"},
		"half as fast on a1":     {program{speeds: slow, seen: 1}, "5:4:7"},
		"some waiting is unseen": {program{speeds: slow, seen: 0.6}, "6:3:7"},
		"all waiting is unseen":  {program{speeds: slow, seen: 0}, "7:3:6"},
		"one rank works alone":   {program{speeds: measured, seen: 0.6, alone: "md-3"}, "7:3:6"},
		"a master only waits":    {program{speeds: measured, seen: 0.6, master: "md-3"}, "7:3:6"},
		"some guests are unused": {program{speeds: measured, seen: 0.6, ranks: func(name string) bool { return name < "md-2" }}, "7:3:6"},
		"one guest is used":      {program{speeds: measured, seen: 0.6, ranks: func(name string) bool { return name == "md-0" }}, "7:3:6"},
	} {
		h := newMeasured(t)
		h.runs(c.program, 40*time.Minute)
		if got := h.divided(); got != c.want {
			t.Errorf("%s: the guests are divided as %s, not %s; paces %v", name, got, c.want, h.objects.Clusters["md"].Paces)
		}
		moves := len(h.objects.Migrations)
		h.runs(c.program, time.Hour)
		if got := h.divided(); got != c.want || len(h.objects.Migrations) != moves {
			t.Errorf("%s: an hour later they are divided as %s, after %d more moves", name, got, len(h.objects.Migrations)-moves)
		}
	}
}

// The next program has other speeds, also if few guests are left where the last one was slow.
func TestPacesAreUnlearnt(t *testing.T) {
	for name, c := range map[string]struct {
		slow float64
		less string
	}{"a bit": {0.35, "5:4:7"}, "very slow": {0.15, "2:5:9"}} {
		h := newMeasured(t)
		h.runs(program{speeds: map[string]float64{"a1": c.slow, "a2": 0.3, "b1": 0.6}, seen: 1}, time.Hour)
		if got := h.divided(); got != c.less {
			t.Errorf("%s: the guests are divided as %s, not %s; paces %v", name, got, c.less, h.objects.Clusters["md"].Paces)
		}
		if lines := (&Explainer{Objects: h.objects, Reports: h.reports(), Usage: h.usage, Now: h.now}).Guest(h.objects.Guests["md-0"]).String(); !strings.Contains(lines, "times as fast as measured") {
			t.Errorf("%s: the explanation is\n%s", name, lines)
		}
		h.runs(program{speeds: map[string]float64{"a1": 0.7, "a2": 0.3, "b1": 0.6}, seen: 1}, 3*time.Hour)
		if got := h.divided(); got != "7:3:6" {
			t.Errorf("%s: afterwards the guests are divided as %s; paces %v", name, got, h.objects.Clusters["md"].Paces)
		}
	}
}

// What guests say of themselves is not trusted: paces stay within their bounds.
func TestGuestsCannotClaimAnyPace(t *testing.T) {
	h := newMeasured(t)
	for range 60 {
		h.usage = &Usage{Guests: map[string]GuestUsage{}, Hosts: map[string]HostUsage{}}
		for _, g := range h.objects.Guests {
			u := GuestUsage{Computing: 1}
			if g.Host == "b1" {
				u.Computing = 0.05
			}
			h.usage.Guests[g.Meta.Uid] = u
		}
		for range 15 {
			h.pass(5 * time.Second)
			h.arrive()
		}
	}
	for host, pace := range h.objects.Clusters["md"].Paces {
		if pace < leastPace || pace > mostPace {
			t.Errorf("the pace of %s is %v", host, pace)
		}
	}
	for _, part := range []float64{0, -1, 2, math.NaN(), math.Inf(1)} {
		h := newMeasured(t)
		for range 40 {
			h.usage = &Usage{Guests: map[string]GuestUsage{}, Hosts: map[string]HostUsage{}}
			for _, g := range h.objects.Guests {
				u := GuestUsage{Computing: 1}
				if g.Host == "b1" {
					u.Computing = part
				}
				h.usage.Guests[g.Meta.Uid] = u
			}
			h.pass(5 * time.Second)
		}
		if p := h.objects.Clusters["md"].Paces; len(p) > 0 {
			t.Errorf("guests that say %v change paces to %v", part, p)
		}
	}
}
