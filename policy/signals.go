package policy

// signals.go - how long the conditions of hosts have held.

import (
	"fmt"
	"maps"
	"time"

	v1 "watari/api/watariv1"
)

// staleAfter is the usual Watcher.Stale. After such a gap, conditions begin to hold anew.
const staleAfter = 5 * time.Second

// Signal is the time since which a condition holds.
type Signal struct {
	Since time.Time // zero: it does not hold
	Error string    // why it could not be evaluated; empty: it was
}

// Signals are the results of a host's conditions. They never change: a sample with other results makes new Signals.
type Signals struct {
	Text string     // of the policy whose conditions these are
	Rule *OwnerRule // of the host; nil: none matches it
	Busy []Signal   // by Rule.Busy
	Idle Signal
}

// Watcher keeps the signals of all hosts. It is not safe for concurrent use.
type Watcher struct {
	// Stale is the time without a sample after which nothing is known of a host.
	Stale  time.Duration
	policy *Policy
	hosts  map[string]*watched
}

// watched is what a Watcher knows of a host.
type watched struct {
	signals *Signals
	sample  *v1.HostSample // the last one with rates
	host    *v1.Host       // the host for which rule was found
	at      time.Time      // of the last sample
}

// NewWatcher returns a Watcher that has seen nothing.
func NewWatcher() *Watcher { return &Watcher{Stale: staleAfter, hosts: map[string]*watched{}} }

// See takes a sample of a host, and reports whether the host's signals have changed. A sample without rates keeps those of
// the sample before it.
func (w *Watcher) See(p *Policy, h *v1.Host, sample *v1.HostSample, now time.Time) bool {
	if p != w.policy {
		w.policy, w.hosts = p, map[string]*watched{}
	}
	if p == nil {
		return false
	}
	name := h.Meta.Name
	seen := w.hosts[name]
	if seen == nil {
		seen = &watched{signals: &Signals{Text: p.Text}}
		w.hosts[name] = seen
	}
	before := seen.signals
	if seen.host != h {
		_, rule := p.Rule(h)
		if rule != before.Rule {
			before = &Signals{Text: p.Text, Rule: rule}
		}
		seen.host = h
	}
	if age := now.Sub(seen.at); age < 0 || age > w.Stale {
		seen.sample = nil // its rates are out of date
		before = &Signals{Text: p.Text, Rule: before.Rule}
	}
	seen.at = now
	next := before
	if before.Rule.HasOwner() {
		next = before.after(variables(h, seen.rates(sample)), now)
	}
	changed := next != seen.signals
	seen.signals = next
	return changed
}

// rates returns the sample, with the rates of an earlier sample if it has none. If no sample has rates, the result has none.
func (w *watched) rates(sample *v1.HostSample) *v1.HostSample {
	if sample.Seconds > 0 {
		w.sample = sample
	}
	if sample.Seconds > 0 || w.sample == nil {
		return sample
	}
	return &v1.HostSample{
		Seconds: w.sample.Seconds, CpuGuests: w.sample.CpuGuests, CpuOwner: w.sample.CpuOwner, CpuSystem: w.sample.CpuSystem,
		MemoryAvailableBytes: sample.MemoryAvailableBytes, Owner: sample.Owner,
		CpuPressure: w.sample.CpuPressure, MemoryPressure: w.sample.MemoryPressure, IoPressure: w.sample.IoPressure,
	}
}

// after returns the signals after a sample: s itself if nothing has changed.
func (s *Signals) after(variables map[string]any, now time.Time) *Signals {
	next := &Signals{Text: s.Text, Rule: s.Rule, Busy: make([]Signal, len(s.Rule.Busy))}
	same := len(s.Busy) == len(next.Busy)
	for i, c := range s.Rule.Busy {
		var before Signal
		if same {
			before = s.Busy[i]
		}
		next.Busy[i] = before.after(c.When, variables, now)
		same = same && next.Busy[i] == before
	}
	next.Idle = s.Idle.after(s.Rule.Idle.When, variables, now)
	if same && next.Idle == s.Idle {
		return s
	}
	return next
}

func (s Signal) after(e *Expression, variables map[string]any, now time.Time) Signal {
	holds, err := e.True(variables)
	switch {
	case err != nil:
		return Signal{Error: err.Error()}
	case !holds:
		return Signal{}
	case s.Since.IsZero() || s.Since.After(now):
		return Signal{Since: now}
	}
	return s
}

// Signals returns the signals of a host; nil: nothing is known of it now.
func (w *Watcher) Signals(host string, now time.Time) *Signals {
	seen := w.hosts[host]
	if seen == nil || now.Sub(seen.at) > w.Stale {
		return nil
	}
	return seen.signals
}

// All returns the signals of all hosts of which something is known now.
func (w *Watcher) All(now time.Time) map[string]*Signals {
	all := make(map[string]*Signals, len(w.hosts))
	for name, seen := range w.hosts {
		if now.Sub(seen.at) <= w.Stale {
			all[name] = seen.signals
		}
	}
	return all
}

// Forget forgets hosts that do not exist any more.
func (w *Watcher) Forget(there map[string]*v1.Host) {
	if len(w.hosts) <= len(there) {
		return // forgotten hosts may stay in memory until later
	}
	maps.DeleteFunc(w.hosts, func(name string, _ *watched) bool { return there[name] == nil })
}

// Owner decides from a host's signals whether its owner is back. back is the decision before. again is when the answer may
// change without a new signal; zero: it may not.
func (s *Signals) Owner(back bool, now time.Time) (isBack bool, reason string, again time.Time) {
	if s == nil || s.Rule == nil || len(s.Busy) == 0 {
		return back, "", time.Time{}
	}
	for i, c := range s.Rule.Busy {
		if held, at := s.Busy[i].held(c.For, now); held {
			return true, c.When.Text + c.hold(), time.Time{}
		} else if !at.IsZero() && (again.IsZero() || at.Before(again)) {
			again = at
		}
	}
	if !back {
		return false, "", again
	}
	held, at := s.Idle.held(s.Rule.Idle.For, now)
	if held {
		return false, s.Rule.Idle.When.Text + s.Rule.Idle.hold(), time.Time{}
	}
	return true, "", at
}

// hold says for how long a condition has held: " for 5s"; empty if it counts at once.
func (c Condition) hold() string {
	if c.For == 0 {
		return ""
	}
	return fmt.Sprintf(" for %v", c.For)
}

// held reports whether a condition has held for a time, and if not, when it will have done so.
func (s Signal) held(wait time.Duration, now time.Time) (bool, time.Time) {
	if s.Since.IsZero() {
		return false, time.Time{}
	}
	if until := s.Since.Add(wait); now.Before(until) {
		return false, until
	}
	return true, time.Time{}
}
