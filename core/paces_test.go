package core

import (
	"math"
	"strings"
	"testing"
	"time"
)

// program is an MPI program with equal parts of work, on hosts that compute for it as given. seen is the part of the waiting that
// guests see.
type program struct {
	speeds map[string]float64
	seen   float64
	alone  string // a guest that computes while the others wait; empty: none
}

// runs lets a program run on abstract processors for a time.
func (h *household) runs(program program, long time.Duration) {
	for end := h.now.Add(long); h.now.Before(end); {
		h.usage = &Usage{Guests: map[string]GuestUsage{}, Hosts: map[string]HostUsage{}}
		n, slowest := map[string]float64{}, 0.0
		for _, g := range h.objects.Guests {
			n[g.Host]++
			slowest = max(slowest, n[g.Host]/program.speeds[g.Host])
		}
		for name, g := range h.objects.Guests {
			waits := 1 - n[g.Host]/program.speeds[g.Host]/slowest
			if program.alone != "" {
				waits = 1
				if name == program.alone {
					waits = 0
				}
			}
			h.usage.Guests[g.Meta.Uid] = GuestUsage{Computing: 1 - program.seen*waits}
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
	for name, c := range map[string]struct {
		program program
		want    string
	}{
		"as measured":         {program{map[string]float64{"a1": 0.7, "a2": 0.3, "b1": 0.6}, 1, ""}, "7:3:6"},
		"half as fast on a1":  {program{map[string]float64{"a1": 0.35, "a2": 0.3, "b1": 0.6}, 1, ""}, "4:4:8"},
		"some waiting unseen": {program{map[string]float64{"a1": 0.35, "a2": 0.3, "b1": 0.6}, 0.6, ""}, "6:3:7"},
		"all waiting unseen":  {program{map[string]float64{"a1": 0.35, "a2": 0.3, "b1": 0.6}, 0, ""}, "7:3:6"},
		"one rank alone":      {program{map[string]float64{"a1": 0.7, "a2": 0.3, "b1": 0.6}, 0.6, "md-3"}, "7:3:6"},
	} {
		h := newMeasured(t)
		h.runs(c.program, 20*time.Minute)
		if got := h.divided(); got != c.want {
			t.Errorf("%s: the guests are divided as %s, not %s; paces %v", name, got, c.want, h.objects.Clusters["md"].Paces)
		}
		moves := len(h.objects.Migrations)
		h.runs(c.program, 20*time.Minute)
		if got := h.divided(); got != c.want || len(h.objects.Migrations) != moves {
			t.Errorf("%s: 20 minutes later they are divided as %s, after %d more moves", name, got, len(h.objects.Migrations)-moves)
		}
	}
}

// The next program has other speeds.
func TestPacesAreUnlearnt(t *testing.T) {
	h := newMeasured(t)
	h.runs(program{map[string]float64{"a1": 0.35, "a2": 0.3, "b1": 0.6}, 1, ""}, 20*time.Minute)
	if lines := (&Explainer{Objects: h.objects, Reports: h.reports(), Usage: h.usage, Now: h.now}).Guest(h.objects.Guests["md-0"]).String(); !strings.Contains(lines, "times as fast as measured") {
		t.Errorf("the explanation is\n%s", lines)
	}
	h.runs(program{map[string]float64{"a1": 0.7, "a2": 0.3, "b1": 0.6}, 1, ""}, 20*time.Minute)
	if got := h.divided(); got != "7:3:6" {
		t.Errorf("the guests are divided as %s; paces %v", got, h.objects.Clusters["md"].Paces)
	}
}

// What guests say of themselves is not trusted: paces stay within their bounds.
func TestGuestsCannotClaimAnyPace(t *testing.T) {
	h := newMeasured(t)
	for range 20 {
		h.usage = &Usage{Guests: map[string]GuestUsage{}, Hosts: map[string]HostUsage{}}
		for _, g := range h.objects.Guests {
			u := GuestUsage{Computing: 1}
			if g.Host == "b1" {
				u.Computing = 1e-9
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
