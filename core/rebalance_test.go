package core

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "watari/api/watariv1"
)

// use makes new usage: each guest would use so many cores, and others use so many cores of each host.
func (h *household) use(guest float64, others map[string]float64) {
	h.usage = &Usage{Guests: map[string]GuestUsage{}, Hosts: map[string]HostUsage{}}
	for name := range h.objects.Hosts {
		h.usage.Hosts[name] = HostUsage{Others: others[name], Known: UsageWindow}
	}
	for _, g := range h.objects.Guests {
		h.usage.Guests[g.Meta.Uid] = GuestUsage{CPU: guest / 2, Wait: guest / 2, MemoryBytes: 1 << 29, Known: UsageWindow}
	}
}

// small makes a household whose hosts have two processors each, all at one site.
func small(t *testing.T, text string, guests int) *household {
	h := newHousehold(t, text, guests)
	for _, host := range h.objects.Hosts {
		host.Info.CpuShare, host.Info.Site = 2, "a"
	}
	return h
}

// explained returns the explanation of a guest.
func (h *household) explained(guest string) string {
	e := Explainer{Objects: h.objects, Reports: h.reports(), Usage: h.usage, Now: h.now}
	return strings.Join(e.Guest(h.objects.Guests[guest]).Lines, "\n")
}

func TestGuestsThatWaitMoveToIdleHosts(t *testing.T) {
	h := small(t, "balance: {bandwidth: 10MiB/s}\n", 4)
	h.use(1, nil)
	h.pass(0)
	if h.moves() != "md-0 a2, md-1 b1" {
		t.Fatalf("moves %q", h.moves())
	}
	for _, m := range h.objects.Migrations {
		if m.Policy != "balance" || m.BandwidthBytes != 10<<20 || !strings.HasPrefix(m.Reason, "balance: the load of a1 falls from ") {
			t.Errorf("%v", m)
		}
	}
	if got := h.explained("md-0"); !strings.Contains(got, "it is moving to host a2: balance: the load of a1 falls") {
		t.Errorf("it is explained by\n%s", got)
	}
	h.arrive()
	for range 100 { // the load goes up and down, but each host has enough
		h.use(1, nil)
		h.pass(10 * time.Second)
		h.use(0.2, nil)
		h.pass(10 * time.Second)
	}
	if len(h.objects.Migrations) != 2 {
		t.Errorf("more moves: %q", h.events)
	}
	if got := h.explained("md-0"); !strings.Contains(got, "b1: balance would gain -0.0") {
		t.Errorf("it is explained by\n%s", got)
	}
}

// The moves of a plan gain together. If one of them is not begun, neither are those that were planned after it.
func TestAPlanEndsAtAMoveThatIsNotBegun(t *testing.T) {
	h := small(t, "balance: {}\n", 8)
	for i := range 4 {
		g := h.objects.Guests[fmt.Sprintf("md-%d", 4+i)]
		g.Host, g.BootId = "b1", "boot-b1"
	}
	h.pass(0)
	h.use(1, nil)
	reports := h.reports()
	info := proto.CloneOf(reports["a1"].Report.Info)
	info.LanAddress = "192.0.2.1"
	reports["a1"].Report.Info = info
	for _, c := range h.core.Decide(World{Objects: h.objects, Now: h.now, Reports: reports, Usage: h.usage}).Changes {
		if c.Key != "host/a1" {
			t.Errorf("while host a1 changes, %s is begun", c.Key)
		}
	}
	h.use(1, nil)
	h.pass(time.Second)
	if h.moves() != "md-0 a2, md-4 a2" {
		t.Errorf("afterwards the moves are %q", h.moves())
	}
}

func TestOthersOnAHostCountAsLoad(t *testing.T) {
	h := small(t, "balance: {}\n", 1)
	h.use(1, map[string]float64{"a1": 0.5, "a2": 1.5})
	if h.pass(0); h.moves() != "" {
		t.Errorf("while there is room: %q", h.moves())
	}
	h.use(1, map[string]float64{"a1": 1.6, "a2": 1.5})
	if h.pass(10 * time.Second); h.moves() != "md-0 b1" {
		t.Errorf("moves %q", h.moves())
	}
}

func TestWhatKeepsGuestsFromBeingRebalanced(t *testing.T) {
	for _, c := range []struct {
		name, text string
		change     func(h *household)
		why        string // part of the explanation of md-0
	}{
		{"exempt", "balance: {exempt: {guests: [md-*]}}\n", nil, "refused: the policy exempts it"},
		{"quiet hours", "balance: {quiet_hours: [{from: \"11:00\", to: \"13:00\"}]}\n", nil, "refused: these are quiet hours"},
		{"the budget", "balance: {moves_per_hour: 1}\n", func(h *household) {
			h.objects.Migrations["old"] = &v1.Migration{Meta: &v1.Meta{Name: "old", Created: timestamppb.New(h.now.Add(-time.Minute))}, Policy: "balance",
				GuestUid: "another", State: v1.MigrationState_MIGRATION_STATE_FAILED}
		}, "refused: it has begun as many moves as it may"},
		{"the least gain", "balance: {least_gain: 100}\n", nil, "refused: too little is gained"},
		{"a run that begins", "balance: {}\n", func(h *household) {
			h.objects.Runs["r"] = &v1.Run{Meta: &v1.Meta{Name: "r", Uid: "r"}, Spec: &v1.RunSpec{Cluster: "md"}, State: v1.RunState_RUN_STATE_STARTING}
		}, "a run of its cluster is just being started"},
		{"too little is known of guests", "balance: {}\n", func(h *household) {
			for uid, g := range h.usage.Guests {
				g.Known = 5 * time.Second
				h.usage.Guests[uid] = g
			}
		}, "too little is known of what it uses"},
		{"too little is known of hosts", "balance: {}\n", func(h *household) { h.usage.Hosts = nil }, "too little is known of what host a1 uses"},
		{"a move that failed", "balance: {}\n", func(h *household) {
			for i := range 4 {
				h.objects.Migrations[fmt.Sprint(i)] = &v1.Migration{Meta: &v1.Meta{Name: fmt.Sprint(i)}, GuestUid: h.objects.Guests[fmt.Sprintf("md-%d", i)].Meta.Uid,
					State: v1.MigrationState_MIGRATION_STATE_FAILED, Ended: timestamppb.New(h.now.Add(-time.Second))}
			}
		}, "a move of it failed just now"},
		{"a policy's move that failed", "balance: {}\n", func(h *household) {
			for i := range 4 {
				h.objects.Migrations[fmt.Sprint(i)] = &v1.Migration{Meta: &v1.Meta{Name: fmt.Sprint(i)}, GuestUid: h.objects.Guests[fmt.Sprintf("md-%d", i)].Meta.Uid,
					Policy: "balance", Message: "no route", State: v1.MigrationState_MIGRATION_STATE_FAILED, Ended: timestamppb.New(h.now.Add(-time.Minute))}
			}
		}, "refused: its last move by balance failed: no route"},
		{"a cool-down", "balance: {}\n", func(h *household) {
			for i := range 4 {
				h.objects.Migrations[fmt.Sprint(i)] = &v1.Migration{Meta: &v1.Meta{Name: fmt.Sprint(i)}, GuestUid: h.objects.Guests[fmt.Sprintf("md-%d", i)].Meta.Uid,
					Policy: "harvest", State: v1.MigrationState_MIGRATION_STATE_DONE, Ended: timestamppb.New(h.now.Add(-4 * time.Minute))}
			}
		}, "it cools down until 12:01:00"},
		{"its cluster's site", "balance: {}\n", func(h *household) {
			h.objects.Hosts["a2"].Info.Site, h.objects.Hosts["b1"].Info.Site = "b", "b"
		}, "refused: no guest of its cluster is at site b"},
		{"no memory elsewhere", "balance: {}\n", func(h *household) {
			h.objects.Hosts["a2"].Info.MemoryBytes, h.objects.Hosts["b1"].Info.MemoryBytes = 1<<20, 1<<20
		}, "refused: 1.0 GiB of memory wanted"},
	} {
		h := small(t, c.text, 4)
		h.use(1, nil)
		if c.change != nil {
			c.change(h)
		}
		got := h.explained("md-0")
		if h.pass(0); h.moves() != "" || !strings.Contains(got, c.why) {
			t.Errorf("%s: moves %q; it is explained by\n%s", c.name, h.moves(), got)
		}
	}
}

func TestAWaitingMoveThatGainsNothingAnyMoreIsCancelled(t *testing.T) {
	h := small(t, "balance: {}\n", 4)
	h.use(1, nil)
	// Two moves to b1 keep the guests of a1 from moving.
	for i := range 2 {
		name := fmt.Sprintf("other-%d", i)
		h.objects.Migrations[name] = &v1.Migration{Meta: &v1.Meta{Name: name, Uid: name}, Guest: "md-0", GuestUid: h.objects.Guests["md-0"].Meta.Uid, Source: "a1", Target: "b1", Policy: "balance",
			State: v1.MigrationState_MIGRATION_STATE_PENDING}
		if i > 0 {
			h.objects.Migrations[name].Guest, h.objects.Migrations[name].GuestUid = "md-1", h.objects.Guests["md-1"].Meta.Uid
		}
	}
	l := PlacesOf(h.objects, h.reports(), h.usage, h.policy, h.now)
	if got := l.lapsed(ActiveMoves(h.objects)); len(got) != 0 {
		t.Errorf("lapsed while a1 is busy: %v", got)
	}
	h.use(1, map[string]float64{"b1": 1.9})
	l = PlacesOf(h.objects, h.reports(), h.usage, h.policy, h.now)
	if got := l.lapsed(ActiveMoves(h.objects)); len(got) != 2 {
		t.Errorf("lapsed once b1 is busy: %v", got)
	}
}

func TestHostsBecomeFree(t *testing.T) {
	h := small(t, "pack: {max_load: 1}\n", 3)
	h.objects.Guests["md-0"].Host, h.objects.Guests["md-0"].BootId = "b1", "boot-b1"
	h.use(0.5, nil)
	h.pass(0)
	if h.moves() != "md-0 a1" {
		t.Fatalf("moves %q", h.moves())
	}
	h.arrive()
	for range 100 {
		h.use(0.5, nil)
		h.pass(10 * time.Second)
	}
	h.use(0.9, nil) // a1 is too full
	h.pass(10 * time.Second)
	if len(h.objects.Migrations) != 2 || h.moves() == "" {
		t.Errorf("moves %q: %q", h.moves(), h.events)
	}
}

func TestAClusterIsSpread(t *testing.T) {
	h := small(t, "spread: {}\n", 3)
	h.objects.Clusters["md"].Spec.Spread = v1.Spread_SPREAD_HOST
	h.use(0, nil)
	h.pass(0)
	if h.moves() != "md-0 a2, md-1 b1" {
		t.Errorf("moves %q", h.moves())
	}
}

func TestGuestsAreCounted(t *testing.T) {
	h := small(t, "balance: {measure: guests, cool_down: 0s}\n", 6)
	for _, host := range h.objects.Hosts {
		host.Info.CpuShare = 8 // enough for all
	}
	for range 10 {
		h.use(0.5, nil)
		h.pass(10 * time.Second)
		h.arrive()
	}
	count := map[string]int{}
	for _, g := range h.objects.Guests {
		count[g.Host]++
	}
	if count["a1"] != 2 || count["a2"] != 2 || count["b1"] != 2 {
		t.Errorf("guests: %v", count)
	}
}

func TestAGuestThatChangesMemoryTakesLongerToMove(t *testing.T) {
	for _, c := range []struct {
		name  string
		dirty float64 // MiB/s
		moved bool    // the guests have moved before
		moves bool
		why   string // part of the explanation of md-0
	}{
		{"idle memory", 0, false, true, "a move takes about 164 s\n"},
		{"some", 50, false, true, "a move takes about 328 s, 164 s of which for memory that the guest changes meanwhile, 50 MiB/s"},
		{"as fast as a move", 100, false, false, "a move takes about 819 s, 655 s of which for memory that the guest changes meanwhile, 100 MiB/s"},
		{"as fast as a move", 100, false, false, "refused: too little is gained, because a move sends much memory again that the guest changes meanwhile"},
		{"faster", 1000, false, false, "a move takes about 819 s"},
		{"the last move is known", 1000, true, true, "a move takes about 10 s\n"},
	} {
		h := small(t, "balance: {least_gain: 1}\n", 3)
		h.use(1, nil)
		for uid, g := range h.usage.Guests {
			g.MemoryBytes, g.DirtyRate = 16<<30, c.dirty*(1<<20)
			h.usage.Guests[uid] = g
		}
		for name, g := range h.objects.Guests {
			if c.moved {
				h.objects.Migrations[name] = &v1.Migration{Meta: &v1.Meta{Name: name}, Guest: name, GuestUid: g.Meta.Uid, State: v1.MigrationState_MIGRATION_STATE_DONE,
					Ended: timestamppb.New(h.now.Add(-2 * time.Hour)), TotalMs: 10_000, Progress: &v1.MigrationProgress{TransferredBytes: 1 << 30}}
			}
		}
		got := h.explained("md-0")
		if h.pass(0); (h.moves() != "") != c.moves || !strings.Contains(got, c.why) {
			t.Errorf("%s: moves %q; it is explained by\n%s", c.name, h.moves(), got)
		}
	}
}

// A move over a slow link costs more than one within the site: the last move of any guest between these sites tells the rate.
func TestAMoveOverASlowLinkCostsMore(t *testing.T) {
	for _, c := range []struct {
		rate  uint64 // of the last move between the sites, MiB/s; 0: there was none
		moves bool
	}{{0, true}, {100, true}, {1, false}} {
		h := small(t, "balance: {least_gain: 1.4}\n", 4)
		h.objects.Guests["md-3"].Host, h.objects.Guests["md-3"].BootId = "b1", "boot-b1" // so that the cluster is at both sites
		h.objects.Hosts["a2"].Info.Site, h.objects.Hosts["b1"].Info.Site = "b", "b"
		h.use(1, nil)
		if c.rate > 0 {
			h.objects.Migrations["other"] = &v1.Migration{Meta: &v1.Meta{Name: "other"}, Guest: "other", GuestUid: "other", Source: "b1", Target: "a1",
				State: v1.MigrationState_MIGRATION_STATE_DONE, Ended: timestamppb.New(h.now.Add(-2 * time.Hour)), TotalMs: 100_000,
				Progress: &v1.MigrationProgress{TransferredBytes: c.rate * 100 << 20}}
		}
		if h.pass(0); (h.moves() != "") != c.moves {
			t.Errorf("at %d MiB/s, moves %q; md-0 is explained by\n%s", c.rate, h.moves(), h.explained("md-0"))
		}
	}
}
