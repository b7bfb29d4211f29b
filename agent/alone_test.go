package agent

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"watari/agent/machine"
	v1 "watari/api/watariv1"
	"watari/policy"
)

const ownersPolicy = `owners:
- match: host.lent
  busy:
  - when: host.terminal_idle < duration("10s")
  - {when: host.owner_cpu > 0.5, for: 5s}
  idle: {when: 'host.terminal_idle > duration("1m")', for: 3s}
harvest:
  throttle: `

// lentHost is a host that takes samples, one a second.
type lentHost struct {
	t       *testing.T
	k       *aloneKeeper
	now     time.Time
	told    int // how often the limits may have changed
	ordered bool
	limits  *v1.GuestLimits
}

func newLentHost(t *testing.T, throttle string) *lentHost {
	parsed, err := policy.Parse(ownersPolicy + throttle)
	if err != nil {
		t.Fatal(err)
	}
	h := &lentHost{t: t, now: time.Now()}
	h.k = &aloneKeeper{host: &v1.Host{Meta: &v1.Meta{Name: "k1"}, Info: &v1.HostInfo{Lent: true}}, path: filepath.Join(t.TempDir(), alonePolicyFile),
		changed: func() { h.told++ }, log: slog.New(slog.DiscardHandler), since: h.now}
	h.k.want(&v1.HostWanted{AlonePolicy: parsed.Alone(h.k.host)})
	return h
}

// pass passes seconds in which somebody typed so long ago, and returns the host's decision.
func (h *lentHost) pass(seconds int, idle float64) own {
	for range seconds {
		h.now = h.now.Add(time.Second)
		h.k.see(&v1.HostSample{Seconds: 1, Owner: &v1.OwnerActivity{TerminalIdle: &idle}}, h.now)
	}
	return h.k.decision(h.now)
}

// session begins or ends a session with a manager.
func (h *lentHost) session(by int) { h.k.session(by, h.now) }

// limited has orders limit a guest.
func (h *lentHost) limited(permille uint32) {
	h.k.want(&v1.HostWanted{AlonePolicy: h.k.text, Guests: []*v1.GuestWanted{{}, {Limits: &v1.GuestLimits{CpuWeight: 1, CpuPermille: permille}}}})
}

const throttled = "{weight: 1, cpu: 25%, stop_after: 20s}"

func (h *lentHost) expect(what string, got own, decides bool, permille uint32) {
	h.t.Helper()
	if got.decides != decides || got.limits.GetCpuPermille() != permille {
		h.t.Errorf("%s: %+v, want %v and %d", what, got, decides, permille)
	}
}

func TestWithoutAManagerAHostSlowsGuestsDownForItsOwner(t *testing.T) {
	h := newLentHost(t, throttled)
	h.expect("before a manager that restarts would be back", h.pass(9, 0.1), false, 0)
	h.expect("after 10 s", h.pass(1, 0.1), true, 250)
	h.expect("neither busy nor idle", h.pass(19, 30), true, 250)
	h.expect("after 20 s", h.pass(1, 30), true, 5)
	h.expect("the owner has been away for less than 3 s", h.pass(3, 61), true, 5)
	h.expect("the owner is away", h.pass(1, 64), true, 0)
	if h.told != 3 {
		t.Errorf("told %d times of changes, want 3", h.told)
	}
	h.expect("back again", h.pass(1, 0.1), true, 250)

	h.session(1)
	h.expect("a manager is there, which does not know", h.pass(10, 30), true, 250)
	h.expect("still, as the owner is not away", h.pass(300, 30), true, 250)
	if len(h.k.problems()) != 1 {
		t.Errorf("the problems are %q", h.k.problems())
	}
	h.expect("the owner is away", h.pass(4, 61), false, 0)
	h.expect("the manager decides", h.pass(30, 0.1), false, 0)
	h.session(1) // a session begins before the last one has ended
	h.session(-1)
	h.expect("the manager decides", h.pass(30, 0.1), false, 0)

	h.session(-1)
	h.expect("without a manager", h.pass(10, 0.1), true, 250)
	for range 5 { // a manager that comes and goes
		h.session(1)
		h.pass(2, 61)
		h.session(-1)
		h.pass(5, 61)
	}
	h.expect("the owner is away", h.pass(1, 61), true, 0)
	h.expect("the owner is back", h.pass(1, 0.1), true, 250)
	h.k.want(&v1.HostWanted{AlonePolicy: h.k.text + "# another text\n"})
	h.expect("with another text", h.pass(1, 30), true, 250)
	h.k.want(&v1.HostWanted{})
	h.expect("without a policy", h.pass(1, 0.1), false, 0)
}

func TestAHostAloneBeginsWithWhatTheOrdersSay(t *testing.T) {
	h := newLentHost(t, throttled)
	h.limited(250)
	h.expect("limited by the orders", h.pass(10, 30), true, 250)
	h.expect("the owner is away", h.pass(4, 61), true, 0)
	h = newLentHost(t, throttled)
	h.limited(5)
	h.expect("stopped by the orders", h.pass(10, 30), true, 5)

	h = newLentHost(t, throttled)
	h.k.ordered = false // the agent has just started
	h.expect("neither busy nor idle", h.pass(60, 30), false, 0)
	h.expect("the owner is away", h.pass(4, 61), true, 0)
	h.expect("the owner is back", h.pass(1, 0.1), true, 250)
}

// A manager that crashes again and again is no manager.
func TestAHostBesideAManagerThatComesAndGoes(t *testing.T) {
	h := newLentHost(t, throttled)
	for range 2 {
		h.pass(4, 0.1)
		h.session(1)
		h.pass(1, 0.1)
		h.session(-1)
	}
	h.expect("eleven seconds with two short sessions", h.pass(1, 0.1), true, 250)
}

func TestAHostAloneThatOnlyStopsGuests(t *testing.T) {
	h := newLentHost(t, "{stop_after: 20s}")
	h.expect("the owner is back", h.pass(29, 0.1), true, 0)
	before := h.told
	if h.expect("20 s later", h.pass(1, 0.1), true, 5); h.told != before+1 {
		t.Error("nobody was told")
	}
}

func TestAHostWithoutSamplesDoesNotDecideBesideAManager(t *testing.T) {
	h := newLentHost(t, throttled)
	h.pass(10, 0.1)
	h.expect("without a manager", h.k.decision(h.now.Add(time.Minute)), true, 5)
	h.session(1)
	h.expect("with one", h.k.decision(h.now.Add(time.Minute)), false, 0)
	h.now = h.now.Add(time.Minute)
	before := h.told
	if h.expect("samples again", h.pass(1, 0.1), true, 250); h.told == before {
		t.Error("nobody was told")
	}
}

// An agent that starts while no manager is there has the policy of the agent before.
func TestThePolicyForHostsWithoutAManagerIsKept(t *testing.T) {
	h := newLentHost(t, throttled)
	h.pass(1, 0.1)
	next := newLentHost(t, throttled)
	next.k.path, next.k.text, next.k.policy = h.k.path, "", nil
	next.k.load()
	next.expect("the next agent", next.pass(10, 0.1), true, 250)
	if err := os.WriteFile(h.k.path, []byte("of: a later version"), 0o600); err != nil {
		t.Fatal(err)
	}
	next.k.load()
	next.expect("a policy that cannot be read", next.pass(10, 0.1), false, 0)
}

func TestLimitsOfOrdersAndOfTheHost(t *testing.T) {
	limits := func(weight, permille uint32) *v1.GuestLimits {
		return &v1.GuestLimits{CpuWeight: weight, CpuPermille: permille}
	}
	running := func(l *v1.GuestLimits) machine.View {
		return machine.View{UID: "u", Wanted: &v1.GuestWanted{Role: v1.GuestRole_GUEST_ROLE_RUN, Limits: l}}
	}
	unordered := machine.View{UID: "u", Record: &machine.Record{Phase: machine.PhaseStarted}}
	for _, c := range []struct {
		name    string
		own     own
		guest   machine.View
		touched bool
		want    *v1.GuestLimits
		mine    bool
	}{
		{"orders alone", own{}, running(limits(1, 250)), false, limits(1, 250), true},
		{"orders without limits", own{}, running(&v1.GuestLimits{}), false, nil, true},
		{"the host's own", own{true, true, limits(1, 5)}, running(limits(2, 250)), false, limits(1, 5), true},
		{"the host lifts limits of the last orders", own{true, true, nil}, running(limits(2, 250)), false, nil, true},
		{"the stricter of both", own{true, false, limits(3, 5)}, running(limits(2, 0)), false, limits(2, 5), true},
		{"a manager's only", own{true, false, nil}, running(limits(2, 250)), false, limits(2, 250), true},
		{"no orders", own{true, true, limits(1, 5)}, unordered, false, limits(1, 5), true},
		{"no orders, nothing decided", own{}, unordered, false, nil, false},
		{"no orders, limited before", own{}, unordered, true, nil, true},
		{"to be removed", own{true, true, limits(1, 5)}, machine.View{UID: "u", Wanted: &v1.GuestWanted{Role: v1.GuestRole_GUEST_ROLE_ABSENT}}, true, nil, false},
	} {
		touched := map[string]bool{"u": c.touched}
		if got, mine := c.own.limitsOf(c.guest, touched); !proto.Equal(got, c.want) || mine != c.mine {
			t.Errorf("%s: %v, %v; want %v, %v", c.name, got, mine, c.want, c.mine)
		}
	}
}
