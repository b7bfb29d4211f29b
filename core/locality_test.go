package core

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "watari/api/watariv1"
	"watari/migration"
)

// newPairs is a household of two hosts at two sites, with room for so many guests. Of its cluster of four guests, those that
// talk to each other are at different sites.
func newPairs(t *testing.T, text string, room ...uint64) *household {
	h := newHousehold(t, text, 4)
	delete(h.objects.Hosts, "a2")
	delete(h.idle, "a2")
	for i, name := range []string{"a1", "b1"} {
		h.objects.Hosts[name].Info.Cores, h.objects.Hosts[name].Info.MemoryBytes = 2, room[i]<<30
	}
	for _, name := range []string{"md-1", "md-3"} {
		h.objects.Guests[name].Host, h.objects.Guests[name].BootId = "b1", "boot-b1"
	}
	h.talk(50e6, "md-0 md-1", "md-2 md-3")
	return h
}

// talk makes pairs of guests exchange so many bytes per second in each direction.
func (h *household) talk(rate float64, pairs ...string) {
	rates := map[string]map[string]float64{}
	for _, pair := range pairs {
		a, b, _ := strings.Cut(pair, " ")
		x, y := h.objects.Guests[a].Meta.Uid, h.objects.Guests[b].Meta.Uid
		rates[x], rates[y] = map[string]float64{y: rate}, map[string]float64{x: rate}
	}
	h.usage = &Usage{Traffic: func(uid string) map[string]float64 { return rates[uid] }}
}

// endBegun ends, in a state, the moves that no longer wait.
func (h *household) endBegun(state v1.MigrationState) {
	var c Change
	for _, m := range h.objects.Migrations {
		if migration.Ended(m.State) || m.State == v1.MigrationState_MIGRATION_STATE_PENDING {
			continue
		}
		g := h.objects.Guests[m.Guest]
		c.write(Update, &v1.Migration{Meta: m.Meta, Guest: m.Guest, GuestUid: m.GuestUid, Source: m.Source, Target: m.Target, Policy: m.Policy, Reason: m.Reason,
			State: state, Ended: timestamppb.New(h.now)})
		if state == v1.MigrationState_MIGRATION_STATE_DONE {
			c.write(Update, &v1.Guest{Meta: g.Meta, Cluster: g.Cluster, Index: g.Index, Shape: g.Shape, Address: g.Address, StartedEpoch: 1,
				Host: m.Target, BootId: m.TargetBootId, Epoch: g.LastEpoch + 1, LastEpoch: g.LastEpoch + 1})
		}
	}
	h.objects = h.objects.Apply(c)
}

// states returns the moves that have not ended, with their states, and the number of failed or cancelled moves.
func (h *household) states() string {
	var list []string
	failed := 0
	for _, name := range sortedKeys(h.objects.Migrations) {
		switch m := h.objects.Migrations[name]; {
		case !migration.Ended(m.State):
			list = append(list, fmt.Sprintf("%s %s %s", m.Guest, m.Target, StateName(m.State.String())))
		case m.State != v1.MigrationState_MIGRATION_STATE_DONE:
			failed++
		}
	}
	if failed > 0 {
		list = append(list, fmt.Sprintf("%d did not move", failed))
	}
	return strings.Join(list, ", ")
}

func (h *household) places() (list []string) {
	for _, name := range sortedKeys(h.objects.Guests) {
		list = append(list, name+" "+h.objects.Guests[name].Host)
	}
	return list
}

func (h *household) explain(guest string) string {
	e := Explainer{Objects: h.objects, Reports: h.reports(), Now: h.now, Usage: h.usage}
	return strings.Join(e.Guest(h.objects.Guests[guest]).Lines, "\n")
}

func TestPairsThatTalkAreBroughtTogetherByASwap(t *testing.T) {
	h := newPairs(t, "locality: {}\n", 3, 2) // memory for a third guest only on a1
	if why := h.explain("md-1"); !strings.Contains(why, "it exchanges 95 MiB/s with md-0 on a1, at distance 10") ||
		!strings.Contains(why, "locality is about to move md-3 to a1: it exchanges 95 MiB/s with md-2; 2 moves of cluster md cut its bytes times distance from 1.9 GiB/s to 0 B/s") {
		t.Errorf("explained as\n%s", why)
	}
	h.pass(0)
	if got := h.states(); got != "md-0 b1 pending, md-3 a1 reserving" {
		t.Fatalf("the moves are %q", got)
	}
	if why := h.explain("md-0"); !strings.Contains(why, "locality moves no guest of cluster md: guest md-0 is moving") {
		t.Errorf("explained as\n%s", why)
	}
	if h.pass(time.Minute); h.states() != "md-0 b1 pending, md-3 a1 reserving" {
		t.Errorf("a minute later the moves are %q", h.states())
	}
	h.endBegun(v1.MigrationState_MIGRATION_STATE_DONE)
	if h.pass(time.Second); h.states() != "md-0 b1 reserving" {
		t.Errorf("when the first one is done, the moves are %q", h.states())
	}
	h.endBegun(v1.MigrationState_MIGRATION_STATE_DONE)
	if got := fmt.Sprint(h.places()); got != "[md-0 b1 md-1 b1 md-2 a1 md-3 a1]" {
		t.Errorf("places %s", got)
	}
	for range 20 {
		h.pass(time.Minute)
	}
	if h.states() != "" {
		t.Errorf("later they move again: %s", h.states())
	}
	if why := h.explain("md-1"); !strings.Contains(why, "with md-0 on b1, at distance 0") || !strings.Contains(why, "locality moves no guest of cluster md: its guests send too little") {
		t.Errorf("explained as\n%s", why)
	}
}

func TestASwapEndsWithItsFirstMove(t *testing.T) {
	h := newPairs(t, "locality: {}\n", 3, 2)
	h.pass(0)
	h.endBegun(v1.MigrationState_MIGRATION_STATE_FAILED)
	h.pass(time.Second)
	if h.states() != "2 did not move" {
		t.Errorf("the moves are %q", h.states())
	}
	// Both moves of a swap have room. The second one is cancelled once it does not pay alone.
	h = newPairs(t, "locality: {}\n", 3, 2)
	h.pass(0)
	h.talk(50e6, "md-1 md-3")
	h.endBegun(v1.MigrationState_MIGRATION_STATE_DONE)
	if h.pass(time.Second); !strings.Contains(fmt.Sprint(h.events), "the guests with which it talks are no longer there") && h.states() == "" {
		t.Errorf("the moves are %q, events %q", h.states(), h.events)
	}
}

func TestWithoutMemoryForAThirdGuestNothingIsSwapped(t *testing.T) {
	h := newPairs(t, "locality: {}\n", 2, 2)
	if h.pass(0); h.states() != "" {
		t.Errorf("the moves are %q", h.states())
	}
	if why := h.explain("md-1"); !strings.Contains(why, "no memory for a guest more while guests change places") {
		t.Errorf("explained as\n%s", why)
	}
}

func TestLocalityKeepsItsBounds(t *testing.T) {
	for text, want := range map[string]string{
		"locality: {moves_per_hour: 1}\n":                           "",
		"locality: {exempt: {guests: [md-0]}}\n":                    "md-1 a1 reserving, md-2 b1 reserving",
		"locality: {}\nexempt: {clusters: [md]}\n":                  "",
		"locality: {quiet_hours: [{from: '11:00', to: '13:00'}]}\n": "",
		"locality: {quiet_hours: [{from: '13:00', to: '14:00'}]}\n": "md-0 b1 reserving, md-3 a1 reserving",
		"harvest: {}\n":                          "",
		"locality: {distance: {wan: 1}}\n":       "md-0 b1 reserving, md-3 a1 reserving",
		"locality: {least_gain: 100%}\n":         "",
		"locality: {horizon: 1s}\n":              "",
		"locality: {exempt: {guests: [md-?]}}\n": "",
	} {
		h := newPairs(t, text, 3, 3)
		if h.pass(0); h.states() != want {
			t.Errorf("%s: the moves are %q, want %q", text, h.states(), want)
		}
	}
	h := newPairs(t, "locality: {}\n", 3, 3)
	h.objects.Clusters["md"].Spec.Spread = v1.Spread_SPREAD_SITE
	if h.pass(0); h.states() == "" {
		t.Error("a swap keeps a cluster spread, but nothing moves")
	}
	if why := h.explain("md-0"); !strings.Contains(why, "spread over sites: locality keeps it so") {
		t.Errorf("explained as\n%s", why)
	}
}

func TestLocalityAndBalanceWeighEachOther(t *testing.T) {
	for rate, want := range map[float64]string{20e6: "", 500e6: "md-0 a2 reserving"} {
		h := newHousehold(t, "balance: {}\nlocality: {}\n", 2)
		h.objects.Guests["md-1"].Host, h.objects.Guests["md-1"].BootId = "a2", "boot-a2"
		h.talk(rate, "md-0 md-1")
		h.usage.Guests, h.usage.Hosts = map[string]GuestUsage{}, map[string]HostUsage{}
		for _, host := range h.objects.Hosts {
			host.Info.CpuShare = 1
			h.usage.Hosts[host.Meta.Name] = HostUsage{Known: time.Minute}
		}
		for _, g := range h.objects.Guests {
			h.usage.Guests[g.Meta.Uid] = GuestUsage{CPU: 0.9, Known: time.Minute}
		}
		why := h.explain("md-0")
		if h.pass(0); h.states() != want {
			t.Errorf("at %.0f MB/s the moves are %q, want %q", rate/1e6, h.states(), want)
		}
		if want == "" && !strings.Contains(why, "the best plan gains less than it costs hosts and guests otherwise") {
			t.Errorf("explained as\n%s", why)
		}
		// Guests on one host are not moved apart as long as they talk so much.
		h.objects.Guests["md-1"].Host, h.objects.Guests["md-1"].BootId = "a1", "boot-a1"
		h.core = New(h.core.Config)
		h.objects.Migrations = map[string]*v1.Migration{}
		if h.pass(time.Minute); (h.states() == "") != (want != "") {
			t.Errorf("at %.0f MB/s on one host the moves are %q", rate/1e6, h.states())
		}
	}
}
