package api

// status.go - lists problems.

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"watari/core"
	"watari/manager/store"
	"watari/manager/view"
	"watari/migration"
	"watari/policy"

	v1 "watari/api/watariv1"

	"connectrpc.com/connect"
)

// GetStatus counts the objects and lists the problems. A user sees only the user's own clusters.
func (s *Server) GetStatus(ctx context.Context, _ *connect.Request[v1.GetStatusRequest]) (*connect.Response[v1.GetStatusResponse], error) {
	snap, c := s.Store.Snapshot(), callerOf(ctx)
	resp := &v1.GetStatusResponse{Version: s.Version, Leader: snap.Leader, Clusters: uint32(len(own(c, snap.Clusters))),
		PolicyVersion: core.InForce(snap).GetVersion()}
	if c.admin {
		resp.Problems = s.Store.Problems(ctx)
	}
	resp.Problems = append(resp.Problems, s.holdStatus(c, snap)...)
	s.hostStatus(c, snap, resp)
	if c.admin {
		strangers := core.Strangers(snap, s.Sessions)
		for _, uid := range slices.Sorted(maps.Keys(strangers)) {
			resp.Problems = append(resp.Problems, strangers[uid].String())
		}
	}
	for _, g := range view.Guests(snap, s.Sessions, "") {
		if !c.owns(g.Meta) {
			continue
		}
		resp.Guests++
		switch g.State {
		case v1.GuestState_GUEST_STATE_RUNNING, v1.GuestState_GUEST_STATE_MIGRATING:
			resp.GuestsRunning++
		case v1.GuestState_GUEST_STATE_FAILED, v1.GuestState_GUEST_STATE_UNKNOWN, v1.GuestState_GUEST_STATE_PENDING:
			resp.Problems = append(resp.Problems, fmt.Sprintf("guest %s: %s: %s", g.Meta.Name, core.StateName(g.State.String()), g.Message))
		}
	}
	for _, m := range own(c, snap.Migrations) {
		if !migration.Ended(m.State) {
			resp.MigrationsActive++
		}
	}
	for _, r := range own(c, snap.Runs) {
		if !core.RunEnded(r.State) {
			resp.RunsActive++
		}
	}
	for _, site := range listSites(snap) {
		if c.admin && site.TrustedLan && len(site.Hosts) > 1 {
			resp.TrustedLans = append(resp.TrustedLans, site.Meta.Name)
		}
	}
	return connect.NewResponse(resp), nil
}

// holdStatus reports whether the manager holds, and which host's stamp is not genuine. Only administrators see which host
// showed which stamp.
func (s *Server) holdStatus(c caller, snap *store.Snapshot) (problems []string) {
	if snap.Held() {
		problems = append(problems, view.HoldNext)
	}
	if !c.admin {
		return problems
	}
	problems = append(problems, view.HeldBecause(snap)...)
	_, forged := s.Stamps.Shown(snap, s.Sessions)
	return append(problems, forged...)
}

func (s *Server) hostStatus(c caller, snap *store.Snapshot, resp *v1.GetStatusResponse) {
	var signals core.Signals
	if s.Signals != nil {
		signals, _ = s.Signals(time.Now())
	}
	for _, h := range s.viewHosts(c, snap) {
		name := h.Meta.Name
		resp.Hosts++
		switch h.State {
		case v1.HostState_HOST_STATE_READY:
			resp.HostsReady++
		case v1.HostState_HOST_STATE_QUARANTINED:
			if len(h.Guests) > 0 && c.admin {
				resp.Problems = append(resp.Problems, fmt.Sprintf("host %s is cut off, with guests on it that may still be running: %s; when it is off for good, say so with `watari host remove %s --lost`",
					name, strings.Join(h.Guests, ", "), name))
			}
			continue
		case v1.HostState_HOST_STATE_UNREACHABLE:
			since := ""
			if h.LastSeen != nil {
				since = " since " + h.LastSeen.AsTime().UTC().Format("15:04:05 MST")
			}
			resp.Problems = append(resp.Problems, fmt.Sprintf("host %s is not reachable%s; its guests may still be running", name, since))
			continue
		}
		resp.Problems = append(resp.Problems, s.stuck(c, snap, h)...)
		if signal := signals[name]; c.admin && signal != nil && signal.Idle.Error != "" && len(h.Withdrawn) > 0 {
			resp.Problems = append(resp.Problems, fmt.Sprintf("host %s is withdrawn, and the policy cannot tell whether its owner is away: %s", name, signal.Idle.Error))
		}
		for _, p := range h.Problems {
			resp.Problems = append(resp.Problems, fmt.Sprintf("host %s: %s", name, p))
		}
	}
	if resp.Hosts == 0 {
		resp.Problems = append(resp.Problems, "there is no host; add one with `watari up` or `watari lab up`")
	}
}

// stuck lists the guests of a draining host that have no other host to go to, and why.
func (s *Server) stuck(c caller, snap *store.Snapshot, h *v1.Host) (problems []string) {
	draining := h.State == v1.HostState_HOST_STATE_DRAINING
	if !draining && h.State != v1.HostState_HOST_STATE_WITHDRAWN {
		return nil
	}
	// One guest of each cluster is explained: for a large cluster there would be many similar answers.
	explained := map[string]bool{}
	for _, name := range h.Guests {
		g := snap.Guests[name]
		if !c.owns(g.Meta) || explained[g.Cluster] || core.MoveOf(snap, g.Meta.Uid) != nil {
			continue
		}
		if _, _, err := core.PlanMove(snap, s.Sessions, g, "", ""); err != nil {
			explained[g.Cluster] = true
			if draining {
				problems = append(problems, fmt.Sprintf("host %s is being drained, but %v; make room, or take it back with `watari host drain --undo %s`",
					h.Meta.Name, err, h.Meta.Name))
				continue
			}
			problems = append(problems, fmt.Sprintf("guests have to leave host %s (%s), but %v; `watari explain guest %s` says more", h.Meta.Name, policy.Why(h), err, name))
		}
	}
	return problems
}
