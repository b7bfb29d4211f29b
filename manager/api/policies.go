package api

// policies.go - requests about policies: apply, list, explain, test.

import (
	"context"
	"errors"
	"time"

	"connectrpc.com/connect"

	v1 "watari/api/watariv1"
	"watari/core"
	"watari/policy"
	"watari/sim"
)

// ApplyPolicy puts a policy in force.
func (s *Server) ApplyPolicy(ctx context.Context, r *connect.Request[v1.ApplyPolicyRequest]) (*connect.Response[v1.ApplyPolicyResponse], error) {
	unchanged := false
	err := s.admit(ctx, func(a *core.Admission) (core.Change, error) {
		change, err := a.ApplyPolicy(r.Msg)
		unchanged = len(change.Ops) == 0
		return change, err
	})
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&v1.ApplyPolicyResponse{Policy: core.InForce(s.Store.Snapshot()), Unchanged: unchanged}), nil
}

// ListPolicies returns the kept versions, the one in force first.
func (s *Server) ListPolicies(_ context.Context, r *connect.Request[v1.ListPoliciesRequest]) (*connect.Response[v1.ListPoliciesResponse], error) {
	if r.Msg.UseDefault {
		return connect.NewResponse(&v1.ListPoliciesResponse{Policies: []*v1.Policy{{Text: policy.Default, Note: "the default of new installations"}}}), nil
	}
	if r.Msg.Version == 0 {
		return connect.NewResponse(&v1.ListPoliciesResponse{Policies: core.Policies(s.Store.Snapshot())}), nil
	}
	stored, err := core.PolicyVersion(s.Store.Snapshot(), r.Msg.Version)
	if err != nil {
		return nil, withCode(err)
	}
	return connect.NewResponse(&v1.ListPoliciesResponse{Policies: []*v1.Policy{stored}}), nil
}

// Explain returns why a guest is where it is, or how policies see a host.
func (s *Server) Explain(ctx context.Context, r *connect.Request[v1.ExplainRequest]) (*connect.Response[v1.ExplainResponse], error) {
	snap, c := s.Store.Snapshot(), callerOf(ctx)
	e := core.Explainer{Objects: snap, Reports: s.Sessions, Now: time.Now(), Admin: c.admin}
	if s.Signals != nil {
		e.Signals, e.Policy = s.Signals(e.Now)
	}
	if s.Lately != nil {
		e.Usage = s.Lately()
	}
	var resp *v1.ExplainResponse
	switch r.Msg.Kind {
	case "guest":
		g, err := find(c, "guest", r.Msg.Name, snap.Guests)
		if err != nil {
			return nil, err
		}
		resp = e.Guest(g)
	case "host":
		h := snap.Hosts[r.Msg.Name]
		if h == nil {
			return nil, missing("host", r.Msg.Name, snap.Hosts)
		}
		resp = e.Host(h)
	default:
		return nil, connect.NewError(connect.CodeInvalidArgument, errors.New("explained are guests and hosts"))
	}
	if !c.admin {
		resp.Conditions = nil // they reveal what the owner does
	}
	return connect.NewResponse(resp), nil
}

// A replay uses one processor of the manager's machine for up to maxReplay, and half a KiB of its memory for each step, of which it takes up
// to maxReplayed.
const (
	maxReplay   = 30 * time.Second
	maxReplayed = 2_000_000
)

// TestPolicy replays hosts' measurements.
func (s *Server) TestPolicy(ctx context.Context, r *connect.Request[v1.TestPolicyRequest]) (*connect.Response[v1.TestPolicyResponse], error) {
	snap, now := s.Store.Snapshot(), time.Now()
	text := r.Msg.Text
	if text == "" {
		stored := core.InForce(snap)
		if stored == nil {
			return nil, fail(connect.CodeFailedPrecondition, "no policy is in force; name a file to test")
		}
		text = stored.Text
	}
	parsed, err := policy.Parse(text)
	if err != nil {
		return nil, connect.NewError(connect.CodeInvalidArgument, err)
	}
	since, until := r.Msg.Since.AsTime(), now
	if r.Msg.Until != nil {
		until = r.Msg.Until.AsTime()
	}
	if r.Msg.Since == nil || !since.Before(until) || until.After(now.Add(time.Minute)) {
		return nil, fail(connect.CodeInvalidArgument, "what is tested is a time in the past: from %s to %s is none", since.UTC().Format(time.RFC3339), until.UTC().Format(time.RFC3339))
	}
	// The history of many hosts is large, so only one test at a time may hold a copy.
	if !s.replaying.TryLock() {
		return nil, fail(connect.CodeResourceExhausted, "another policy is being tested; try again in a moment")
	}
	defer s.replaying.Unlock()
	steps := 0
	tooMany := func(more int) error {
		if steps += more; steps > maxReplayed {
			return fail(connect.CodeResourceExhausted, "more than %d steps of hosts and guests were measured since %s; test a shorter time", maxReplayed, since.UTC().Format(time.RFC3339))
		}
		return ctx.Err()
	}
	samples := map[string][]*v1.HostSample{}
	for name := range snap.Hosts {
		for _, sample := range s.History.Host(name, since) {
			if sample.At.AsTime().Before(until) {
				samples[name] = append(samples[name], sample)
			}
		}
		if err := tooMany(len(samples[name])); err != nil {
			return nil, err
		}
	}
	guests := map[string][]*v1.GuestStep{}
	if _, is := core.UsageEvery(snap, parsed); is {
		for _, g := range snap.Guests {
			for _, step := range s.History.Guest(g.Meta.Uid, since) {
				if step.At.AsTime().Before(until) {
					guests[g.Meta.Uid] = append(guests[g.Meta.Uid], step)
				}
			}
			if err := tooMany(len(guests[g.Meta.Uid])); err != nil {
				return nil, err
			}
		}
	}
	past := sim.Past{Objects: snap, Policy: parsed, Samples: samples, Guests: guests, Since: since, Until: until}
	if s.Traffic != nil {
		past.Traffic = s.Traffic(now)
	}
	past.Go = func() bool { return ctx.Err() == nil && time.Since(now) < maxReplay }
	done, notes := sim.Foresee(past)
	return connect.NewResponse(&v1.TestPolicyResponse{Steps: done, Notes: notes}), nil
}
