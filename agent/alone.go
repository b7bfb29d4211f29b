package agent

// alone.go - slows guests down for the host's owner while the host hears from no manager. Moving them away is a manager's work.

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"watari/agent/machine"
	v1 "watari/api/watariv1"
	"watari/internal/durable"
	"watari/policy"
)

const (
	// aloneAfter is how long a host hears from no manager until it decides by itself: a manager that restarts is back before.
	aloneAfter = 10 * time.Second
	// aloneGrace is how long a host goes on deciding when a manager is back, at least: the manager has to see a few samples first.
	aloneGrace = 5 * time.Second
	// aloneStale is the time without a sample after which a host does not decide beside a manager.
	aloneStale = 10 * time.Second
	// alonePolicyFile keeps the policy over a restart of the agent.
	alonePolicyFile = "alone-policy.yaml"
)

// aloneKeeper decides whether the host's owner is back, in place of a manager that is out of reach.
type aloneKeeper struct {
	host    *v1.Host // as the policy's conditions see it
	path    string
	samples func() (*v1.HostSample, <-chan struct{})
	changed func() // called when the limits may have changed
	log     *slog.Logger

	mu       sync.Mutex
	text     string          // of the policy that the latest orders name
	unsaved  bool            // the file has another text
	ordered  bool            // the agent has taken orders
	limits   *v1.GuestLimits // that the latest orders set; nil: none
	policy   *policy.Policy  // the same; nil: there is nothing to do
	sessions int             // with a manager, in which it has sent orders
	since    time.Time       // since when there are sessions, or none; a short session does not count
	lost     time.Time       // since when there had been none, before the present sessions
	sampled  time.Time       // when the last sample came
	watcher  *policy.Watcher // nil: the host does not decide
	known    bool            // it is known whether the owner is back
	back     time.Time       // when the owner came back; zero: the owner is away
}

// own is what a host has decided by itself.
type own struct {
	decides bool            // otherwise only the orders count
	alone   bool            // no manager is there: only this decision counts
	limits  *v1.GuestLimits // of all guests; nil: none
}

func (o own) equal(other own) bool {
	return o.decides == other.decides && o.alone == other.alone && proto.Equal(o.limits, other.limits)
}

func newAloneKeeper(a *Agent) *aloneKeeper {
	return &aloneKeeper{host: &v1.Host{Meta: &v1.Meta{Name: a.config.Name}, Info: a.config.Info}, path: filepath.Join(a.config.StateDir, alonePolicyFile),
		samples: a.config.Samples, changed: func() { poke(a.limits.wake) }, log: a.log, since: time.Now()}
}

// load reads the policy that an earlier agent has kept.
func (k *aloneKeeper) load() {
	text, err := os.ReadFile(k.path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		k.log.Warn("without a manager, nothing slows guests down for the host's owner", "error", err)
	}
	k.follow(string(text))
	k.unsaved = false
}

// want takes the orders: the policy, and limits that they set.
func (k *aloneKeeper) want(w *v1.HostWanted) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.ordered, k.limits = true, nil
	for _, g := range w.Guests {
		if limited(g.Limits) {
			k.limits = g.Limits
		}
	}
	k.follow(w.AlonePolicy)
}

// follow takes the text of a policy. k.mu is held, or nobody else knows k yet.
func (k *aloneKeeper) follow(text string) {
	if text == k.text {
		return
	}
	k.text, k.unsaved, k.policy = text, true, nil
	if text == "" {
		k.rest()
		return
	}
	read, err := policy.Parse(text)
	if err != nil { // of a later version
		k.log.Warn("without a manager, nothing slows guests down for the host's owner", "error", err)
		k.rest()
		return
	}
	k.policy = read // a decision of the host goes on
}

// rest ends the host's own decision. k.mu is held.
func (k *aloneKeeper) rest() { k.watcher, k.known, k.back = nil, false, time.Time{} }

// session counts a session with a manager that begins (1) or ends (-1).
func (k *aloneKeeper) session(by int, now time.Time) {
	k.mu.Lock()
	before := k.sessions > 0
	k.sessions += by
	switch after := k.sessions > 0; {
	case !before && after:
		k.since, k.lost = now, k.since
	case before && !after && now.Sub(k.since) < aloneGrace:
		k.since = k.lost
	case before && !after:
		k.since = now
	}
	k.mu.Unlock()
	k.changed()
}

// run decides at each sample until ctx ends.
func (k *aloneKeeper) run(ctx context.Context) {
	if k.samples == nil {
		return
	}
	for {
		sample, next := k.samples()
		if sample != nil {
			k.see(sample, time.Now())
		}
		select {
		case <-ctx.Done():
			return
		case <-next:
		}
	}
}

// see decides by a sample, and keeps a new policy in the file.
func (k *aloneKeeper) see(sample *v1.HostSample, now time.Time) {
	before, gap := k.decision(k.sampled), now.Sub(k.sampled) > aloneStale
	k.mu.Lock()
	text, unsaved := k.text, k.unsaved
	k.unsaved, k.sampled = false, now
	k.decide(sample, now)
	k.mu.Unlock()
	if after := k.decision(now); gap && after.decides || !before.equal(after) {
		k.log.Info("the host's own decision about its owner", "no manager", after.alone, "counts", after.decides, "guests' limits", after.limits)
		k.changed()
	}
	if !unsaved {
		return
	}
	if err := durable.WriteFile(k.path, []byte(text), 0o600); err != nil {
		k.log.Warn("after a restart of this agent without a manager, nothing slows guests down for the host's owner", "error", err)
		k.mu.Lock()
		k.unsaved = true
		k.mu.Unlock()
	}
}

// decide decides whether the owner is back. The host begins to decide when it has heard from no manager for a while, with what
// the last orders say. It goes on until a manager is there and the owner is away. k.mu is held.
func (k *aloneKeeper) decide(sample *v1.HostSample, now time.Time) {
	state := now.Sub(k.since)
	switch {
	case k.policy == nil || k.watcher == nil && (k.sessions > 0 || state < aloneAfter):
		return
	case k.watcher == nil:
		k.watcher, k.known = policy.NewWatcher(), k.ordered
		switch stop := k.policy.Harvest.Throttle.StopAfter; {
		case k.limits == nil:
		case stop >= 0 && proto.Equal(k.limits, k.limitsAfter(stop)): // the guests are stopped, and stay so
			k.back = now.Add(-stop)
		default:
			k.back = now
		}
	}
	k.watcher.See(k.policy, k.host, sample, now)
	signals := k.watcher.Signals(k.host.Meta.Name, now)
	back, _, _ := signals.Owner(!k.back.IsZero(), now)
	if still, _, _ := signals.Owner(true, now); !k.known && (back || !still) {
		k.known = true // an agent that has just started without orders waits until one of the conditions holds
	}
	switch {
	case !back:
		k.back = time.Time{}
	case k.back.IsZero():
		k.back = now
	}
	if !back && k.sessions > 0 && state >= aloneGrace {
		k.rest()
	}
}

// decision returns what the host has decided by itself.
func (k *aloneKeeper) decision(now time.Time) own {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.known || k.sessions > 0 && now.Sub(k.sampled) > aloneStale {
		return own{}
	}
	made := own{decides: true, alone: k.sessions == 0}
	switch {
	case k.back.IsZero():
	case made.alone:
		made.limits = k.limitsAfter(now.Sub(k.back))
	default: // only the manager stops guests: it can tell people, and move the guests away
		made.limits = k.limitsAfter(0)
	}
	return made
}

// limitsAfter returns the limits of guests so long after the owner's return. The time of day, which may jump, does not count.
func (k *aloneKeeper) limitsAfter(since time.Duration) *v1.GuestLimits {
	back := time.Unix(0, 0)
	limits, _ := k.policy.GuestLimits(&v1.Host{Withdrawn: []*v1.Withdrawal{{Policy: policy.HarvestName, Since: timestamppb.New(back)}}}, back.Add(since))
	return limits
}

// problems tells of limits that a manager does not know.
func (k *aloneKeeper) problems() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.sessions == 0 || !k.known || k.back.IsZero() {
		return nil
	}
	return []string{"guests are slowed down until the host's owner is away: the owner came back while the host heard from no manager"}
}

// limitsOf returns the limits of a guest, and whether this agent may change them: those of its orders, and the host's own decision.
// touched has the guests without orders that the host has limited by itself.
func (o own) limitsOf(g machine.View, touched map[string]bool) (limits *v1.GuestLimits, mine bool) {
	role := g.Wanted.GetRole()
	switch {
	case role == v1.GuestRole_GUEST_ROLE_RUN || role == v1.GuestRole_GUEST_ROLE_OUTGOING:
	case g.Wanted == nil && g.Record != nil && (g.Record.Phase == machine.PhaseStarted || g.Record.Phase == machine.PhaseSending) && (o.decides || touched[g.UID]):
		touched[g.UID] = true // an agent that has just started has no orders, and a later manager may not know the guest
	default:
		return nil, false
	}
	if limited(g.Wanted.GetLimits()) && !o.alone {
		limits = g.Wanted.Limits
	}
	return stricter(limits, o.limits), true
}

func limited(l *v1.GuestLimits) bool { return l.GetCpuWeight() != 0 || l.GetCpuPermille() != 0 }

// stricter returns limits that are as strict as each of two; nil: none.
func stricter(a, b *v1.GuestLimits) *v1.GuestLimits {
	switch {
	case a == nil:
		return b
	case b == nil:
		return a
	}
	least := func(a, b uint32) uint32 { // 0: no limit
		if a == 0 || b != 0 && b < a {
			return b
		}
		return a
	}
	return &v1.GuestLimits{CpuWeight: least(a.CpuWeight, b.CpuWeight), CpuPermille: least(a.CpuPermille, b.CpuPermille)}
}
