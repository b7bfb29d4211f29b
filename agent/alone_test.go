package agent

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

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
  throttle: {weight: 1, cpu: 25%, stop_after: 20s}
`

// seen is a host that takes samples, one a second.
type seen struct {
	t    *testing.T
	k    *aloneKeeper
	now  time.Time
	told int // how often the decision has changed
}

func newSeen(t *testing.T) *seen {
	parsed, err := policy.Parse(ownersPolicy)
	if err != nil {
		t.Fatal(err)
	}
	s := &seen{t: t, now: time.Now()}
	s.k = &aloneKeeper{host: &v1.Host{Meta: &v1.Meta{Name: "k1"}, Info: &v1.HostInfo{Lent: true}}, path: filepath.Join(t.TempDir(), alonePolicyFile),
		decided: func() { s.told++ }, log: slog.New(slog.DiscardHandler), since: s.now}
	s.k.want(parsed.Alone(s.k.host))
	return s
}

// pass passes seconds in which somebody typed so long ago, and returns the limits.
func (s *seen) pass(seconds int, idle float64) *v1.GuestLimits {
	s.t.Helper()
	for range seconds {
		s.now = s.now.Add(time.Second)
		s.k.see(&v1.HostSample{Seconds: 1, Owner: &v1.OwnerActivity{TerminalIdle: &idle}}, s.now)
	}
	limits, _ := s.k.limits(s.now)
	return limits
}

func (s *seen) session(by int) {
	s.k.session(by)
	s.k.since = s.now
}

func TestWithoutAManagerAHostSlowsGuestsDownForItsOwner(t *testing.T) {
	s := newSeen(t)
	if l := s.pass(9, 0.1); l != nil {
		t.Errorf("before a manager that restarts would be back: %v", l)
	}
	if l := s.pass(1, 0.1); l.GetCpuWeight() != 1 || l.GetCpuPermille() != 250 || s.told != 1 {
		t.Errorf("after 10 s: %v, told %d times", l, s.told)
	}
	if l := s.pass(20, 30); l.GetCpuPermille() != 5 || s.told != 1 {
		t.Errorf("after 20 s more, neither busy nor idle: %v, told %d times", l, s.told)
	}
	if l := s.pass(3, 61); l == nil {
		t.Error("the owner has been away for less than 3 s")
	}
	if l := s.pass(1, 62); l != nil || s.told != 2 {
		t.Errorf("the owner is away: %v, told %d times", l, s.told)
	}
	s.pass(1, 0.1)
	s.session(1)
	if l := s.pass(4, 0.1); l.GetCpuWeight() != 1 {
		t.Errorf("while the manager sees its first samples: %v", l)
	}
	if l := s.pass(1, 0.1); l != nil {
		t.Errorf("with a manager: %v", l)
	}
	s.session(1) // a session begins before the last one has ended
	s.session(-1)
	if l := s.pass(30, 0.1); l != nil {
		t.Errorf("with a manager: %v", l)
	}
	s.session(-1)
	if l := s.pass(10, 0.1); l == nil {
		t.Error("without a manager again, there are no limits")
	}
	s.k.want("")
	if l := s.pass(1, 0.1); l != nil {
		t.Errorf("without a policy: %v", l)
	}
}

// An agent that starts while no manager is there has the policy of the agent before.
func TestThePolicyForHostsWithoutAManagerIsKept(t *testing.T) {
	s := newSeen(t)
	s.pass(1, 0.1)
	next := newSeen(t)
	next.k.path, next.k.text, next.k.policy = s.k.path, "", nil
	next.k.load()
	if l := next.pass(10, 0.1); l.GetCpuPermille() != 250 {
		t.Errorf("the limits are %v", l)
	}
	if err := os.WriteFile(s.k.path, []byte("of: a later version"), 0o600); err != nil {
		t.Fatal(err)
	}
	next.k.load()
	if l := next.pass(10, 0.1); l != nil {
		t.Errorf("by a policy that cannot be read, the limits are %v", l)
	}
}
