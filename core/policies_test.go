package core

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "watari/api/watariv1"
	"watari/migration"
	"watari/policy"
)

// household is a world of three hosts, a1 with guests, without delays and faults.
type household struct {
	t       *testing.T
	core    *Core
	objects *Objects
	now     time.Time
	watcher *policy.Watcher
	idle    map[string]float64 // seconds, by host
	events  []string
	policy  *policy.Policy
	usage   *Usage
	away    map[string]bool // hosts that are out of reach
	out     time.Duration   // how long they have been out of reach
	behind  map[string]bool // hosts that have not taken their last orders
	older   bool            // the agents are of an older version
	leases  map[string]LeaseSeen
	sharing bool                                // hosts can fetch files from each other
	volumes map[string][]*v1.VolumeObserved     // by host
	copies  map[string][]*v1.VolumeCopyObserved // of volumes, by host
	files   map[string][]*v1.CheckpointObserved // parts of checkpoints, by host
	// refusing: no host can restore a guest.
	refusing bool
}

func newHousehold(t *testing.T, text string, guests int) *household {
	h := &household{t: t, objects: NoObjects(), now: time.Date(2026, 11, 24, 12, 0, 0, 0, time.UTC), watcher: policy.NewWatcher(), idle: map[string]float64{}}
	for _, name := range []string{"a1", "a2", "b1"} {
		h.objects.Hosts[name] = &v1.Host{Meta: &v1.Meta{Name: name, Uid: "uid-" + name},
			Info: &v1.HostInfo{BootId: "boot-" + name, Site: name[:1], Cores: 8, MemoryBytes: 8 << 30, Lent: true, Increments: true, WireguardPublicKey: "key of " + name}}
		h.idle[name] = 1e6
	}
	h.objects.Clusters["md"] = &v1.Cluster{Meta: &v1.Meta{Name: "md", Uid: "uid-md"}, Spec: &v1.ClusterSpec{Guests: uint32(guests)}, Prefix: "10.0.0.0/24"}
	for i := range guests {
		name := fmt.Sprintf("md-%d", i)
		h.objects.Guests[name] = &v1.Guest{Meta: &v1.Meta{Name: name, Uid: fmt.Sprintf("00000000-0000-4000-8000-%012d", i)}, Cluster: "md", Index: uint32(i),
			Shape: &v1.GuestShape{Vcpus: 1, MemoryBytes: 1 << 30}, Host: "a1", Epoch: 1, LastEpoch: 1, StartedEpoch: 1, BootId: "boot-a1", Address: fmt.Sprintf("10.0.0.%d", i+1)}
	}
	if text != "" {
		h.objects.Policies["v1"] = NewPolicy(1, text, "", "admin")
		h.policy, _ = policy.Parse(text)
	}
	h.core = New(Config{Term: 1, Began: h.now.Add(-time.Hour), Identify: func(_ *v1.Cluster, _ *v1.Guest, _ uint64, generation uint32) (*v1.Identity, time.Time) {
		return &v1.Identity{Certificate: fmt.Append(nil, generation)}, time.Time{}
	}})
	return h
}

// pass makes decisions until nothing changes, and returns the last orders of each host.
func (h *household) pass(after time.Duration) map[string]*v1.HostWanted {
	h.t.Helper()
	h.now = h.now.Add(after)
	for name, idle := range h.idle {
		h.watcher.See(h.policy, h.objects.Hosts[name], &v1.HostSample{Seconds: 1, Owner: &v1.OwnerActivity{InputIdle: &idle}}, h.now)
	}
	for range 10 {
		d := h.core.Decide(World{Objects: h.objects, Now: h.now, Reports: h.reports(), Signals: h.watcher.All(h.now), Usage: h.usage, Leases: h.leases})
		for _, change := range d.Changes {
			for _, op := range change.Ops {
				if op.Kind == Create {
					op.Object.GetMeta().Uid = "uid-" + op.Object.GetMeta().Name
					op.Object.GetMeta().Created = timestamppb.New(h.now)
				}
			}
			h.objects = h.objects.Apply(change)
			for _, e := range change.Events {
				h.events = append(h.events, e.Name+" "+e.Message)
			}
		}
		if len(d.Changes) == 0 {
			orders := map[string]*v1.HostWanted{}
			for name, sent := range h.core.orders.sent {
				orders[name] = sent.wanted
			}
			return orders
		}
	}
	h.t.Fatalf("it goes round in circles: %q", h.events)
	return nil
}

func (h *household) reports() Captured {
	reports := Captured{}
	for name, host := range h.objects.Hosts {
		report := &v1.HostObserved{Info: host.Info, Sharing: h.sharing}
		if h.volumes != nil {
			report.Volumes, report.KeepsVolumes, report.Load = h.volumes[name], true, &v1.HostLoad{DiskAvailableBytes: 10 << 30}
			report.VolumeCopies, report.MovesVolumes, report.TriesVolumes = h.copies[name], true, !h.older
			report.Term, report.Generation = h.core.Term, 1<<40
			if h.behind[name] {
				report.Generation = 0
			}
		}
		for _, g := range h.objects.Guests {
			if g.Host == name {
				seen := &v1.GuestObserved{Uid: g.Meta.Uid, Name: g.Meta.Name, Epoch: g.Epoch, BootId: g.BootId,
					Condition: v1.GuestCondition_GUEST_CONDITION_RUNNING, Ready: true, Process: true}
				if restoring(h.objects.Clusters[g.Cluster]) {
					seen.Condition, seen.Ready = v1.GuestCondition_GUEST_CONDITION_STARTING, false
					if h.refusing {
						seen.Condition, seen.Process, seen.Refused, seen.Message = v1.GuestCondition_GUEST_CONDITION_FAILED, false, true, "no room"
						report.Term, report.Generation = h.core.Term, 1<<40
					}
				}
				report.Guests = append(report.Guests, seen)
			}
		}
		report.Checkpoints = h.files[name]
		seen := Seen{Report: report, Since: h.now, Connected: !h.away[name]}
		if !seen.Connected {
			seen.Since = h.now.Add(-h.out)
		}
		reports[name] = seen
	}
	return reports
}

// moves returns the moves under way: "md-0 a2".
func (h *household) moves() string {
	var list []string
	for _, name := range sortedKeys(h.objects.Migrations) {
		if m := h.objects.Migrations[name]; !migration.Ended(m.State) {
			list = append(list, m.Guest+" "+m.Target)
		}
	}
	return strings.Join(list, ", ")
}

// arrive ends all moves under way as done.
func (h *household) arrive() {
	var c Change
	for _, m := range h.objects.Migrations {
		if migration.Ended(m.State) {
			continue
		}
		g := h.objects.Guests[m.Guest]
		c.write(Update, &v1.Migration{Meta: m.Meta, Guest: m.Guest, GuestUid: m.GuestUid, Source: m.Source, Target: m.Target, Policy: m.Policy, Reason: m.Reason,
			State: v1.MigrationState_MIGRATION_STATE_DONE, Ended: timestamppb.New(h.now)})
		c.write(Update, &v1.Guest{Meta: g.Meta, Cluster: g.Cluster, Index: g.Index, Shape: g.Shape, Address: g.Address, StartedEpoch: 1,
			Host: m.Target, BootId: m.TargetBootId, Epoch: g.LastEpoch + 1, LastEpoch: g.LastEpoch + 1})
	}
	h.objects = h.objects.Apply(c)
}

const ownersOfAll = "owners:\n- busy:\n  - when: host.input_idle < duration(\"2s\")\n  idle: {when: 'host.input_idle > duration(\"10s\")', for: 30s}\n"

func limitsIn(orders map[string]*v1.HostWanted, host, guest string) *v1.GuestLimits {
	for _, g := range orders[host].GetGuests() {
		if g.Name == guest {
			return g.Limits
		}
	}
	return nil
}

func TestGuestsLeaveAHostWhoseOwnerIsBack(t *testing.T) {
	h := newHousehold(t, ownersOfAll+"harvest:\n  bandwidth: 10MiB/s\n  throttle: {weight: 2, cpu: 30%, stop_after: 10s}\n", 2)
	if orders := h.pass(0); h.moves() != "" || limitsIn(orders, "a1", "md-0") != nil {
		t.Fatalf("while the owner is away: moves %q, limits %v", h.moves(), limitsIn(orders, "a1", "md-0"))
	}
	h.idle["a1"] = 0.1
	orders := h.pass(time.Second)
	if h.moves() != "md-0 a2, md-1 b1" {
		t.Errorf("moves %q", h.moves())
	}
	m := h.objects.Migrations["md-0-m2"]
	if m.GetPolicy() != "harvest" || m.GetBandwidthBytes() != 10<<20 || !strings.Contains(m.GetReason(), "the owner of host a1 is back") {
		t.Errorf("the move is %v", m)
	}
	if l := limitsIn(orders, "a1", "md-0"); l.GetCpuWeight() != 2 || l.GetCpuPermille() != 300 {
		t.Errorf("limits %v", l)
	}
	h.idle["a1"] = 5 // neither busy nor idle
	if orders = h.pass(9 * time.Second); limitsIn(orders, "a1", "md-0").GetCpuPermille() != 300 {
		t.Errorf("limits after 9 s: %v", limitsIn(orders, "a1", "md-0"))
	}
	if orders = h.pass(time.Second); limitsIn(orders, "a1", "md-0").GetCpuPermille() != 5 {
		t.Errorf("limits after 10 s: %v", limitsIn(orders, "a1", "md-0"))
	}
	h.arrive()
	if orders = h.pass(time.Second); limitsIn(orders, "a2", "md-0") != nil {
		t.Errorf("limits where it has arrived: %v", limitsIn(orders, "a2", "md-0"))
	}
	h.idle["a1"] = 11
	for range 30 {
		if h.pass(time.Second); len(h.objects.Hosts["a1"].Withdrawn) != 1 {
			t.Fatal("the host takes guests again too soon")
		}
	}
	if h.pass(time.Second); len(h.objects.Hosts["a1"].Withdrawn) != 0 {
		t.Errorf("the host is withdrawn still: %v", h.objects.Hosts["a1"].Withdrawn)
	}
}

func TestAMoveToAHostWhoseOwnerComesBackIsCancelled(t *testing.T) {
	h := newHousehold(t, ownersOfAll+"harvest: {}\n", 1)
	h.idle["a1"] = 0.1
	h.pass(time.Second)
	if h.moves() != "md-0 a2" {
		t.Fatalf("moves %q", h.moves())
	}
	h.idle["a2"] = 0.1
	h.pass(time.Second)
	if m := h.objects.Migrations["md-0-m2"]; !m.Cancel || !strings.Contains(strings.Join(h.events, "\n"), "a2 takes no guests any more") {
		t.Errorf("the move is %v; %q", m, h.events)
	}
}

// A target that cannot take a guest is tried again only if there is no other.
func TestAnotherTargetIsTriedAfterAFailure(t *testing.T) {
	h := newHousehold(t, ownersOfAll+"harvest: {}\n", 1)
	h.idle["a1"] = 0.1
	h.pass(time.Second)
	fail := func() {
		t.Helper()
		var c Change
		for _, m := range h.objects.Migrations {
			if !migration.Ended(m.State) {
				update := proto.CloneOf(m)
				update.State, update.Ended = v1.MigrationState_MIGRATION_STATE_FAILED, timestamppb.New(h.now)
				c.write(Update, update)
			}
		}
		h.objects = h.objects.Apply(c)
	}
	for _, step := range []struct {
		pause time.Duration
		moves string
	}{{0, "md-0 a2"}, {10 * time.Second, "md-0 b1"}, {20 * time.Second, "md-0 a2"}, {40 * time.Second, "md-0 a2"}, {time.Minute, "md-0 a2"}} {
		if step.pause > 0 {
			fail()
			if h.pass(step.pause - time.Second); h.moves() != "" {
				t.Errorf("%v after the failure: moves %q", step.pause-time.Second, h.moves())
			}
			h.pass(time.Second)
		}
		if h.moves() != step.moves {
			t.Errorf("after %v: moves %q, not %q", step.pause, h.moves(), step.moves)
		}
	}
}

func TestWhatKeepsAPolicyFromMovingAGuest(t *testing.T) {
	for _, c := range []struct{ name, text, why string }{
		{"exempt cluster", "harvest: {}\nexempt: {clusters: [m*]}\n", "exempts it"},
		{"exempt guest of one policy", "harvest: {exempt: {guests: [md-0]}}\n", "exempts it"},
		{"quiet hours", "harvest: {quiet_hours: [{from: '11:00', to: '13:00'}]}\n", "quiet hours"},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := newHousehold(t, ownersOfAll+c.text, 1)
			h.idle["a1"] = 0.1
			if h.pass(time.Second); h.moves() != "" || len(h.objects.Hosts["a1"].Withdrawn) != 1 {
				t.Errorf("moves %q; withdrawn: %v", h.moves(), h.objects.Hosts["a1"].Withdrawn)
			}
			e := Explainer{Objects: h.objects, Reports: h.reports(), Signals: h.watcher.All(h.now), Now: h.now}
			explained := e.Guest(h.objects.Guests["md-0"])
			if text := strings.Join(explained.Lines, "\n"); !strings.Contains(text, c.why) || !strings.Contains(text, "takes no guests since") {
				t.Errorf("it is explained so:\n%s", text)
			}
			if len(explained.Conditions) != 2 || !explained.Conditions[0].Holds || explained.Conditions[1].Holds {
				t.Errorf("conditions: %v", explained.Conditions)
			}
		})
	}
}

func TestCoolDownAndBudget(t *testing.T) {
	h := newHousehold(t, ownersOfAll+"harvest: {cool_down: 60s, moves_per_hour: 3}\n", 2)
	h.idle["a1"] = 0.1
	h.pass(time.Second)
	h.arrive() // at a2 and b1
	h.idle["a1"], h.idle["a2"] = 100, 0.1
	if h.pass(time.Second); h.moves() != "" {
		t.Errorf("a guest that cools down moves: %q", h.moves())
	}
	h.pass(58 * time.Second)
	if h.pass(2 * time.Second); h.moves() == "" {
		t.Error("a guest that has cooled down does not move")
	}
	h.arrive() // the third move within the hour
	for name := range h.idle {
		h.idle[name] = 0.1
	}
	h.idle["a1"] = 100
	for range 40 {
		h.pass(3 * time.Second)
	}
	if h.moves() != "" || len(h.objects.Hosts["a1"].Withdrawn) != 0 {
		t.Errorf("more guests move than may in an hour: %q; a1 is withdrawn: %v", h.moves(), h.objects.Hosts["a1"].Withdrawn)
	}
	h.pass(time.Hour)
	if h.moves() == "" {
		t.Error("an hour later no guest moves")
	}
}

func TestMaintenanceWindow(t *testing.T) {
	h := newHousehold(t, "maintenance:\n  windows:\n  - {match: 'host.name == \"a1\"', begin: 2026-11-24 13:00, end: 2026-11-24 14:00, lead: 10m}\n", 1)
	h.pass(49 * time.Minute)
	if len(h.objects.Hosts["a1"].Withdrawn) != 0 {
		t.Error("the host is withdrawn too early")
	}
	h.pass(time.Minute)
	if h.moves() != "md-0 a2" || h.objects.Migrations["md-0-m2"].Policy != "maintenance" {
		t.Errorf("moves %q", h.moves())
	}
	h.arrive()
	if h.pass(time.Hour); len(h.objects.Hosts["a1"].Withdrawn) != 1 {
		t.Error("the host takes guests again too soon")
	}
	if h.pass(10 * time.Minute); len(h.objects.Hosts["a1"].Withdrawn) != 0 {
		t.Error("the host is withdrawn after the window")
	}
}

func TestApplyPolicy(t *testing.T) {
	a := &Admission{Objects: NoObjects(), Caller: Caller{Name: "admin", UID: "u", Admin: true}}
	apply := func(r *v1.ApplyPolicyRequest) (RefusalKind, string, bool) {
		change, err := a.ApplyPolicy(r)
		if err != nil {
			return KindOf(err), err.Error(), false
		}
		a.Objects = a.Objects.Apply(change)
		return 0, "", len(change.Ops) > 0
	}
	if _, _, changed := apply(&v1.ApplyPolicyRequest{UseDefault: true}); !changed || InForce(a.Objects).Version != 1 {
		t.Error("the default is not in force")
	}
	if kind, _, changed := apply(&v1.ApplyPolicyRequest{Text: policy.Default}); kind != 0 || changed {
		t.Error("the same text makes a new version")
	}
	if kind, message, _ := apply(&v1.ApplyPolicyRequest{Text: "harvest: {}\nwrong: 1\n"}); kind != Invalid || !strings.HasPrefix(message, "line 2: ") {
		t.Errorf("an error is refused with %q", message)
	}
	if kind, _, _ := apply(&v1.ApplyPolicyRequest{Text: "harvest: {}", ExpectVersion: 7}); kind != Precondition {
		t.Error("another version was expected")
	}
	if kind, _, _ := apply(&v1.ApplyPolicyRequest{Text: "harvest: {}", Note: "two\nlines"}); kind != Invalid {
		t.Error("a note of two lines is taken")
	}
	if kind, _, _ := apply(&v1.ApplyPolicyRequest{Version: 9}); kind != NotFound {
		t.Error("a version that does not exist is applied")
	}
	if kind, _, _ := apply(&v1.ApplyPolicyRequest{}); kind != Invalid {
		t.Error("a request without a policy is granted")
	}
	for i := range keepPolicies + 5 {
		apply(&v1.ApplyPolicyRequest{Text: fmt.Sprintf("harvest: {moves_per_hour: %d}", i+1)})
	}
	if n := len(a.Policies); n != keepPolicies || InForce(a.Objects).Version != keepPolicies+6 {
		t.Errorf("%d versions are kept, and %d is in force", n, InForce(a.Objects).Version)
	}
	if _, _, changed := apply(&v1.ApplyPolicyRequest{Version: InForce(a.Objects).Version - 1}); !changed || InForce(a.Objects).Text != "harvest: {moves_per_hour: 104}" {
		t.Errorf("rolled back to %q", InForce(a.Objects).Text)
	}
}

// An unreadable policy, as of a newer version, withdraws nothing.
func TestAPolicyThatCannotBeRead(t *testing.T) {
	h := newHousehold(t, "newer: {}\n", 1)
	h.objects.Hosts["a1"].Withdrawn = []*v1.Withdrawal{{Policy: "harvest", Since: timestamppb.New(h.now)}}
	if h.pass(time.Second); len(h.objects.Hosts["a1"].Withdrawn) != 0 {
		t.Error("the host stays withdrawn")
	}
}

// A rule without conditions exempts its hosts from later rules, including withdrawn hosts.
func TestARuleWithoutConditionsExemptsItsHosts(t *testing.T) {
	h := newHousehold(t, ownersOfAll+"harvest: {}\n", 1)
	h.idle["a1"] = 0.1
	h.pass(time.Second)
	if len(h.objects.Hosts["a1"].Withdrawn) != 1 {
		t.Fatal("the host is not withdrawn")
	}
	h.apply("owners:\n- match: host.name == \"a1\"\n- match: 'true'\n  busy:\n  - when: host.input_idle < duration(\"2s\")\n  idle: {when: 'host.input_idle > duration(\"10s\")'}\nharvest: {}\n")
	if h.pass(time.Second); len(h.objects.Hosts["a1"].Withdrawn) != 0 {
		t.Error("the exempt host stays withdrawn")
	}
}

// apply puts another policy in force.
func (h *household) apply(text string) {
	h.t.Helper()
	version := InForce(h.objects).GetVersion() + 1
	var err error
	if h.policy, err = policy.Parse(text); err != nil {
		h.t.Fatal(err)
	}
	var c Change
	c.write(Create, NewPolicy(version, text, "", "admin"))
	h.objects = h.objects.Apply(c)
}

// end ends all moves under way in a state, at a time.
func (h *household) end(state v1.MigrationState, at time.Time) {
	var c Change
	for _, m := range h.objects.Migrations {
		if !migration.Ended(m.State) {
			c.write(Update, &v1.Migration{Meta: m.Meta, Guest: m.Guest, GuestUid: m.GuestUid, Source: m.Source, Target: m.Target, Policy: m.Policy, State: state, Ended: timestamppb.New(at)})
		}
	}
	h.objects = h.objects.Apply(c)
}

// Only a move that was made starts the cool-down, and a clock that was ahead keeps no guest.
func TestMovesThatWereNotMadeKeepNoGuest(t *testing.T) {
	for _, c := range []struct {
		state v1.MigrationState
		ahead time.Duration
	}{
		{v1.MigrationState_MIGRATION_STATE_CANCELLED, 0},
		{v1.MigrationState_MIGRATION_STATE_FAILED, 24 * time.Hour},
		{v1.MigrationState_MIGRATION_STATE_DONE, 24 * time.Hour},
	} {
		h := newHousehold(t, ownersOfAll+"harvest: {cool_down: 30m}\n", 1)
		h.idle["a1"] = 0.1
		h.pass(time.Second)
		h.end(c.state, h.now.Add(c.ahead))
		for range 4 {
			h.pass(3 * time.Second)
		}
		if h.moves() == "" {
			t.Errorf("after a move that ended %v, %v ahead, the guest does not move", c.state, c.ahead)
		}
	}
}

// A waiting move of a policy does not begin once its reason has ended.
func TestMovesThatWaitEndWithTheirReason(t *testing.T) {
	h := newHousehold(t, ownersOfAll+"harvest: {}\n", 4)
	h.idle["a1"] = 0.1
	h.pass(time.Second)
	waiting := 0
	for _, m := range h.objects.Migrations {
		if m.State == v1.MigrationState_MIGRATION_STATE_PENDING {
			waiting++
		}
	}
	if waiting != 2 {
		t.Fatalf("%d moves wait", waiting)
	}
	h.apply("harvest: {}\n") // hosts no longer have owners
	h.pass(time.Second)
	for _, m := range h.objects.Migrations { // the moves under way make room
		if m.State == v1.MigrationState_MIGRATION_STATE_RESERVING {
			var c Change
			done := &v1.Migration{Meta: m.Meta, Guest: m.Guest, GuestUid: m.GuestUid, Source: m.Source, Target: m.Target, State: v1.MigrationState_MIGRATION_STATE_DONE, Ended: timestamppb.New(h.now)}
			c.write(Update, done)
			h.objects = h.objects.Apply(c)
		}
	}
	h.pass(time.Second)
	for name, m := range h.objects.Migrations {
		if m.State == v1.MigrationState_MIGRATION_STATE_PENDING || m.State == v1.MigrationState_MIGRATION_STATE_RESERVING {
			t.Errorf("move %s is %s", name, StateName(m.State.String()))
		}
	}
}
