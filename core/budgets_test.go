package core

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "watari/api/watariv1"
	"watari/policy"
)

// record adds a stored move from a1 to b1, which policy balance began at a time. The guest is md-0.
func (h *household) record(name string, began time.Time, state v1.MigrationState, sent uint64) *v1.Migration {
	m := &v1.Migration{Meta: &v1.Meta{Name: name, Uid: name, Created: timestamppb.New(began)}, Guest: "md-0", GuestUid: h.objects.Guests["md-0"].Meta.Uid,
		Source: "a1", Target: "b1", Policy: "balance", State: state, Progress: &v1.MigrationProgress{TransferredBytes: sent}}
	h.objects.Migrations[name] = m
	return m
}

// ended adds such a move that has ended as failed.
func (h *household) ended(name string, ago time.Duration, sent uint64) *v1.Migration {
	m := h.record(name, h.now.Add(-ago-time.Minute), v1.MigrationState_MIGRATION_STATE_FAILED, sent)
	m.GuestUid, m.Ended = "another", timestamppb.New(h.now.Add(-ago))
	return m
}

func TestBytesBetweenSitesAreCounted(t *testing.T) {
	balance := link{"balance", "a", "b"}
	for _, c := range []struct {
		name   string
		change func(h *household)
		want   uint64
	}{
		{"nothing", func(*household) {}, 0},
		{"ended moves", func(h *household) {
			h.ended("1", time.Minute, 100)
			h.ended("2", 59*time.Minute, 30)
			back := h.ended("3", 59*time.Minute, 5)
			back.Source, back.Target = "b1", "a1"
		}, 135},
		{"an hour ago", func(h *household) { h.ended("1", time.Hour, 100) }, 0},
		{"the clock was set back", func(h *household) { h.ended("1", -time.Hour, 100) }, 0},
		{"within a site", func(h *household) { h.ended("1", time.Minute, 100).Target = "a2" }, 0},
		{"another policy", func(h *household) { h.ended("1", time.Minute, 100).Policy = "harvest" }, 0},
		{"a host that is gone", func(h *household) { h.ended("1", time.Minute, 100).Target = "z9" }, 0},
		{"a waiting move", func(h *household) {
			h.record("1", h.now.Add(-2*time.Hour), v1.MigrationState_MIGRATION_STATE_PENDING, 0)
		}, 1 << 30},
		{"what is resident", func(h *household) {
			h.record("1", h.now, v1.MigrationState_MIGRATION_STATE_TRANSFERRING, 0)
			h.usage = &Usage{Guests: map[string]GuestUsage{h.objects.Guests["md-0"].Meta.Uid: {MemoryBytes: 1 << 20}}}
		}, 1 << 20},
		{"memory that changes", func(h *household) {
			h.record("1", h.now, v1.MigrationState_MIGRATION_STATE_TRANSFERRING, 0)
			h.usage = &Usage{Guests: map[string]GuestUsage{h.objects.Guests["md-0"].Meta.Uid: {MemoryBytes: 1 << 20, DirtyRate: usualRate / 2}}}
		}, 2 << 20},
		{"more than the memory", func(h *household) {
			h.record("1", h.now, v1.MigrationState_MIGRATION_STATE_TRANSFERRING, 3<<30)
		}, 3 << 30},
		{"the guest's last move", func(h *household) {
			h.record("1", h.now, v1.MigrationState_MIGRATION_STATE_TRANSFERRING, 0)
			last := h.record("0", h.now.Add(-3*time.Hour), v1.MigrationState_MIGRATION_STATE_DONE, 70)
			last.Ended, last.TotalMs = timestamppb.New(h.now.Add(-2*time.Hour)), 1000
		}, 70},
	} {
		h := newHousehold(t, "balance: {}\n", 1)
		c.change(h)
		used := lookAt(h.objects, h.reports(), h.usage, h.policy, h.now).lately
		if got := used.sent[balance]; got != c.want {
			t.Errorf("%s: %d bytes, want %d", c.name, got, c.want)
		}
	}
}

func TestTheProgressOfARunningMoveCounts(t *testing.T) {
	h := newHousehold(t, "balance: {}\n", 1)
	m := h.record("1", h.now, v1.MigrationState_MIGRATION_STATE_TRANSFERRING, 0)
	reports := h.reports()
	g := reports["a1"].Report.Guests[0]
	g.MigrationId, g.Progress = m.Meta.Uid, &v1.MigrationProgress{TransferredBytes: 5 << 30}
	if got := lookAt(h.objects, reports, nil, h.policy, h.now).lately.sent[link{"balance", "a", "b"}]; got != 5<<30 {
		t.Errorf("%d bytes", got)
	}
}

func TestHarvestSendsNoMoreBytesThanALinkMayCarry(t *testing.T) {
	h := newHousehold(t, ownersOfAll+"harvest: {per_link_per_hour: 1500MB, suspend_after: 1s}\n", 4)
	h.objects.Clusters["md"].CheckpointRecipient = "somebody"
	h.objects.Hosts["a2"].Info.MemoryBytes = 2 << 30
	h.idle["a1"] = 0.1
	h.pass(time.Second)
	h.pass(5 * time.Second)
	to := map[string]int{}
	for _, m := range h.objects.Migrations {
		to[m.Target]++
	}
	if fmt.Sprint(to) != "map[a2:2 b1:1]" {
		t.Fatalf("moves %v", h.moves())
	}
	if len(h.objects.Checkpoints) != 0 || h.objects.Clusters["md"].Restore != nil {
		t.Errorf("the cluster is suspended, though a host has room: %v", h.objects.Checkpoints)
	}
	stays := ""
	for _, name := range sortedKeys(h.objects.Guests) {
		if MoveOf(h.objects, h.objects.Guests[name].Meta.Uid) == nil {
			stays = name
		}
	}
	if got := h.explained(stays); !strings.Contains(got, "harvest does not move it to site b: the moves of policy harvest have sent 1.1 GB between a and b within the last hour, and may send 1.5 GB; the guest's move would send about 1.1 GB") {
		t.Errorf("%s is explained by\n%s", stays, got)
	}
	h.arrive()
	for _, m := range h.objects.Migrations {
		m.Progress = &v1.MigrationProgress{TransferredBytes: 1 << 30}
	}
	if h.pass(59 * time.Minute); h.moves() != "" {
		t.Errorf("within the hour the moves are %q", h.moves())
	}
	if h.pass(2 * time.Minute); h.moves() != stays+" b1" {
		t.Errorf("after an hour the moves are %q", h.moves())
	}
}

// A drain is an administrator's wish, which no policy bounds.
func TestADrainMaySendAnyNumberOfBytes(t *testing.T) {
	h := newHousehold(t, ownersOfAll+"harvest: {per_link_per_hour: 1MiB}\n", 2)
	h.objects.Hosts["a2"].Info.MemoryBytes = 1
	h.objects.Hosts["a1"].Draining = true
	if h.pass(time.Second); h.moves() != "md-0 b1, md-1 b1" {
		t.Errorf("moves %q", h.moves())
	}
}

func TestBalanceSendsNoMoreBytesThanALinkMayCarry(t *testing.T) {
	for _, c := range []struct {
		text   string
		change func(h *household)
		why    string // it stays; empty: a guest moves
	}{
		{"balance: {per_link_per_hour: 500MB}\n", nil, "refused: the moves of policy balance have sent 0 B between a and b within the last hour, and may send 500 MB; the guest's move would send about 537 MB"},
		{"balance: {per_link_per_hour: 600MB}\n", nil, ""},
		{"balance: {per_link_per_hour: 1GB}\n", func(h *household) { h.ended("old", 30*time.Minute, 600e6) }, "refused: the moves of policy balance have sent 600 MB between a and b"},
		{"balance: {per_link_per_hour: 1GB}\n", func(h *household) { h.ended("old", 61*time.Minute, 600e6) }, ""},
	} {
		h := small(t, c.text, 4)
		h.objects.Hosts["b1"].Info.Site, h.objects.Hosts["a2"].Info.MemoryBytes = "b", 1
		h.objects.Guests["md-3"].Host, h.objects.Guests["md-3"].BootId = "b1", "boot-b1"
		h.use(1, nil)
		if c.change != nil {
			c.change(h)
		}
		got := h.explained("md-0")
		if h.pass(0); (h.moves() == "") != (c.why != "") || !strings.Contains(got, c.why) {
			t.Errorf("%s: moves %q; it is explained by\n%s", c.text, h.moves(), got)
		}
	}
}

func TestLocalitySendsNoMoreBytesThanALinkMayCarry(t *testing.T) {
	for _, c := range []struct {
		bytes string
		moves int
		why   string
	}{
		{"1GB", 0, "locality moves no guest of cluster md: the moves of policy locality have sent 0 B between a and b within the last hour, and may send 1.0 GB; the guest's move would send about 1.1 GB"},
		{"2GB", 1, "locality is about to move"},
		{"3GB", 2, "locality is about to move"},
	} {
		h := newPairs(t, "locality: {per_link_per_hour: "+c.bytes+"}\n", 3, 3)
		for _, host := range h.objects.Hosts {
			host.Info.Cores = 4
		}
		got := h.explain("md-0") + h.explain("md-1")
		if h.pass(0); len(h.objects.Migrations) != c.moves || !strings.Contains(got, c.why) {
			t.Errorf("%s: the moves are %q; explained as\n%s", c.bytes, h.states(), got)
		}
		if c.moves == 1 {
			h.endBegun(v1.MigrationState_MIGRATION_STATE_DONE)
			for _, m := range h.objects.Migrations {
				m.Progress = &v1.MigrationProgress{TransferredBytes: 1 << 30}
			}
			if h.pass(30 * time.Minute); h.states() != "" {
				t.Errorf("%s: within the hour the moves are %q", c.bytes, h.states())
			}
			if h.pass(31 * time.Minute); h.states() == "" {
				t.Errorf("%s: after an hour nothing moves", c.bytes)
			}
		}
	}
}

func TestTwoPoliciesDoNotShareALink(t *testing.T) {
	used := &lately{map[string]int{}, map[link]uint64{}}
	used.begin("balance", "b", "a", 900)
	bounds := &policy.Bounds{PerLink: 1000}
	for _, c := range []struct {
		policy, from, to string
		bytes            uint64
		may              bool
	}{
		{"balance", "a", "b", 100, true},
		{"balance", "a", "b", 101, false},
		{"balance", "b", "a", 101, false},
		{"balance", "a", "c", 1000, true},
		{"balance", "a", "a", 5000, true},
		{"spread", "a", "b", 1000, true},
	} {
		if why := used.exceeds(c.policy, bounds, c.from, c.to, c.bytes); (why == "") != c.may {
			t.Errorf("%+v: %q", c, why)
		}
	}
}
