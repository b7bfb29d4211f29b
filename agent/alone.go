package agent

// alone.go - slows guests down for the host's owner while the host hears from no manager. Moving them away is a manager's work.

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "watari/api/watariv1"
	"watari/internal/durable"
	"watari/policy"
)

const (
	// aloneAfter is how long a host hears from no manager until it decides by itself: a manager that restarts is back before.
	aloneAfter = 10 * time.Second
	// aloneGrace is how long the host's decision then still counts: the manager has to see a few samples first.
	aloneGrace = 5 * time.Second
	// alonePolicyFile keeps the policy over a restart of the agent.
	alonePolicyFile = "alone-policy.yaml"
)

// aloneKeeper decides whether the host's owner is back, in place of a manager that is out of reach.
type aloneKeeper struct {
	host    *v1.Host // as the policy's conditions see it
	path    string
	samples func() (*v1.HostSample, <-chan struct{})
	decided func() // called when the decision changes
	log     *slog.Logger

	mu        sync.Mutex
	text      string         // of the policy that the latest orders name
	unsaved   bool           // the file has another text
	policy    *policy.Policy // the same; nil: there is nothing to do
	sessions  int            // with a manager, in which it has sent orders
	since     time.Time      // since when there are sessions, or none
	watcher   *policy.Watcher
	withdrawn *v1.Withdrawal // as if by a manager; nil: the owner is away
}

func newAloneKeeper(a *Agent) *aloneKeeper {
	return &aloneKeeper{host: &v1.Host{Meta: &v1.Meta{Name: a.config.Name}, Info: a.config.Info}, path: a.config.StateDir + "/" + alonePolicyFile,
		samples: a.config.Samples, decided: func() { poke(a.limits.wake) }, log: a.log, since: time.Now()}
}

// load reads the policy that an earlier agent has kept.
func (k *aloneKeeper) load() {
	text, err := os.ReadFile(k.path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		k.log.Warn("without a manager, nothing slows guests down for the host's owner", "error", err)
	}
	k.want(string(text))
	k.unsaved = false
}

// want takes the policy that orders name.
func (k *aloneKeeper) want(text string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if text == k.text {
		return
	}
	k.text, k.unsaved, k.policy, k.watcher = text, true, nil, nil
	if text == "" {
		return
	}
	read, err := policy.Parse(text)
	if err != nil { // of a later version
		k.log.Warn("without a manager, nothing slows guests down for the host's owner", "error", err)
		return
	}
	k.policy = read
}

// session counts a session with a manager that begins (1) or ends (-1).
func (k *aloneKeeper) session(by int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	before := k.sessions > 0
	k.sessions += by
	if before != (k.sessions > 0) {
		k.since = time.Now()
	}
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
	k.mu.Lock()
	text, unsaved, before := k.text, k.unsaved, k.withdrawn
	k.unsaved = false
	k.decide(sample, now)
	after := k.withdrawn
	k.mu.Unlock()
	if before != after {
		k.log.Info("this host hears from no manager, or only just again", "slows guests down for its owner", after != nil, "because", after.GetReason())
		k.decided()
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

// decide sets withdrawn. k.mu is held.
func (k *aloneKeeper) decide(sample *v1.HostSample, now time.Time) {
	switch state := now.Sub(k.since); {
	case k.policy == nil || k.sessions > 0 && state >= aloneGrace:
		k.watcher, k.withdrawn = nil, nil
	case k.sessions == 0 && state >= aloneAfter:
		if k.watcher == nil {
			k.watcher = policy.NewWatcher()
		}
		k.watcher.See(k.policy, k.host, sample, now)
		back, reason, _ := k.watcher.Signals(k.host.Meta.Name, now).Owner(k.withdrawn != nil, now)
		switch {
		case !back:
			k.withdrawn = nil
		case k.withdrawn == nil:
			k.withdrawn = &v1.Withdrawal{Policy: policy.HarvestName, Since: timestamppb.New(now), Reason: reason}
		}
	}
}

// limits returns the limits of all guests by the host's own decision; nil: it sets none. decides: the host decides by itself now.
func (k *aloneKeeper) limits(now time.Time) (limits *v1.GuestLimits, decides bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.withdrawn == nil {
		return nil, k.watcher != nil
	}
	limits, _ = k.policy.GuestLimits(&v1.Host{Withdrawn: []*v1.Withdrawal{k.withdrawn}}, now)
	return limits, true
}
