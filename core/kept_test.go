package core

import (
	"strings"
	"testing"
	"time"

	v1 "watari/api/watariv1"
)

// kept returns the events that tell of guests that stay.
func (h *household) kept() (list []string) {
	for _, e := range h.events {
		if strings.Contains(e, " stays on host ") {
			list = append(list, e)
		}
	}
	return list
}

func TestEventsTellWhyGuestsStayOnAHostWhoseOwnerIsBack(t *testing.T) {
	for policy, why := range map[string]string{
		"harvest: {}\n":                         "no other host can take it; `watari explain guest md-0` tells why",
		"harvest: {exempt: {clusters: [md]}}\n": "the policy exempts it",
		"harvest: {quiet_hours: [{from: \"00:00\", to: \"23:59\"}]}\n": "these are quiet hours: every day 00:00 to 23:59 UTC",
	} {
		h := newHousehold(t, ownersOfAll+policy, 1)
		h.pass(0)
		for host := range h.idle {
			h.idle[host] = 0.1
		}
		h.pass(time.Second)
		h.pass(28 * time.Second)
		if got := h.kept(); len(got) != 0 {
			t.Errorf("%s: at once, the events are %q", policy, got)
		}
		for range 5 * 120 {
			h.pass(30 * time.Second)
		}
		want := "md-0 stays on host a1 although its owner is back: " + why
		if got := h.kept(); len(got) != 1 || got[0] != want {
			t.Errorf("%s: the events are %q, want %q", policy, got, want)
		}
		for range 2 * 120 {
			h.pass(30 * time.Second)
		}
		if got := h.kept(); len(got) != 2 {
			t.Errorf("%s: after seven hours, the events are %q", policy, got)
		}
	}
}

// balances passes a minute with new usage each ten seconds.
func (h *household) balances(use float64) {
	for range 6 {
		h.use(use, nil)
		h.pass(10 * time.Second)
	}
}

func TestEventsTellWhichMovesThatGainAreNotMade(t *testing.T) {
	h := small(t, "balance: {exempt: {clusters: [md]}}\n", 4)
	h.balances(1)
	got := h.kept()
	if len(got) != 1 || !strings.HasPrefix(got[0], "md-0 stays on host a1, although policy balance would move it to host a2 and gain 2.") || !strings.HasSuffix(got[0], ": the policy exempts it") {
		t.Errorf("the events are %q", got)
	}
	h = small(t, "balance: {moves_per_hour: 1}\n", 4)
	h.balances(1)
	if got := h.kept(); h.moves() != "md-0 a2" || len(got) != 1 || !strings.HasPrefix(got[0], "md-1 stays on host a1, although") || !strings.HasSuffix(got[0], ": it has begun as many moves as it may") {
		t.Errorf("moves %q, events %q", h.moves(), got)
	}
	h = small(t, "balance: {}\n", 4)
	h.balances(0.2)
	if got := h.kept(); len(got) != 0 {
		t.Errorf("where nothing gains, the events are %q", got)
	}
}

// Moves that gain only together are told as one.
func TestEventsTellWhichMovesOfManyAreNotMade(t *testing.T) {
	h := small(t, "pack: {max_load: 1, exempt: {clusters: [md]}}\n", 4)
	for _, name := range []string{"md-0", "md-1"} {
		h.objects.Guests[name].Host, h.objects.Guests[name].BootId = "b1", "boot-b1"
	}
	h.balances(0.4)
	got := h.kept()
	if len(got) != 1 || !strings.Contains(got[0], ", although policy pack would move it to host ") || !strings.Contains(got[0], " together with md-") || !strings.HasSuffix(got[0], ": the policy exempts it") {
		t.Errorf("the events are %q", got)
	}
}

// Of a policy that looks only now and then, people are told, too.
func TestEventsOfAPolicyThatSeldomLooks(t *testing.T) {
	h := small(t, "balance: {interval: 5m, exempt: {clusters: [md]}}\n", 4)
	for range 3 {
		h.use(1, nil)
		h.pass(5 * time.Minute)
	}
	if got := h.kept(); len(got) != 1 {
		t.Errorf("the events are %q", got)
	}
}

// A host whose guests stay only until other hosts are back is no news.
func TestAGuestThatStaysForAMomentIsNotTold(t *testing.T) {
	h := newHousehold(t, ownersOfAll+"harvest: {}\n", 1)
	h.pass(0)
	h.idle["a1"] = 0.1
	h.away = map[string]bool{"a2": true, "b1": true}
	h.pass(time.Second)
	h.pass(20 * time.Second)
	h.away = nil
	h.pass(5 * time.Second)
	h.pass(time.Minute)
	if got := h.kept(); h.moves() != "md-0 a2" || len(got) != 0 {
		t.Errorf("moves %q, events %q", h.moves(), got)
	}
}

// A policy that keeps many guests does not fill the history.
func TestEventsOfKeptGuestsAreBounded(t *testing.T) {
	h := newHousehold(t, ownersOfAll+"harvest: {exempt: {clusters: [md]}}\n", 100)
	h.pass(0)
	h.idle["a1"] = 0.1
	h.pass(time.Second)
	h.pass(keptFor)
	if got := h.kept(); len(got) != keptEvents {
		t.Errorf("%d events", len(got))
	}
	for range 20 {
		h.pass(30 * time.Second)
	}
	if got := h.kept(); len(got) != keptEvents+10 {
		t.Errorf("%d events after 10 minutes", len(got))
	}
	h.objects.Guests = map[string]*v1.Guest{"md-0": h.objects.Guests["md-0"]}
	h.pass(keptAgain + time.Minute)
	if n := len(h.core.policies.kept.times); n != 1 {
		t.Errorf("%d guests are remembered, want 1", n)
	}
}
