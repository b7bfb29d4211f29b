package api

// recover.go - makes the objects agree with what hosts run, after an older copy of the state was restored.

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"watari/core"
	"watari/manager/store"
	"watari/manager/view"

	v1 "watari/api/watariv1"

	"connectrpc.com/connect"
	"github.com/dustin/go-humanize/english"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// recoveryBatch bounds the objects of one transaction: an outside etcd allows 128 operations.
const recoveryBatch = 100

// Recover returns what a recovery would do, and does it on request. It may be repeated: steps already done are recognized.
func (s *Server) Recover(ctx context.Context, r *connect.Request[v1.RecoverRequest]) (*connect.Response[v1.RecoverResponse], error) {
	if err := s.awaitHosts(ctx, r.Msg.Without); err != nil {
		return nil, err
	}
	s.changing.Lock()
	defer s.changing.Unlock()
	for try := 1; ; try++ {
		resp, err := s.recoverOnce(ctx, r.Msg)
		overtaken := errors.Is(err, store.ErrConflict) || errors.Is(err, store.ErrExists) || errors.Is(err, store.ErrNotFound)
		if overtaken && try < maxTries {
			continue
		}
		if err != nil {
			return nil, storeError(err)
		}
		return connect.NewResponse(resp), nil
	}
}

// awaitHosts waits for hosts that should reconnect within seconds: a hold and a manager's start cut all connections.
func (s *Server) awaitHosts(ctx context.Context, without []string) error {
	awaited := func() bool {
		snap := s.Store.Snapshot()
		for name := range snap.Hosts {
			if _, _, connected := s.Sessions.Observed(name); !connected && core.Expected(s.Sessions, name, time.Now(), s.Began()) && !slices.Contains(without, name) {
				return true
			}
		}
		return false
	}
	poll := time.NewTicker(100 * time.Millisecond)
	defer poll.Stop()
	for awaited() {
		select {
		case <-poll.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

func (s *Server) recoverOnce(ctx context.Context, r *v1.RecoverRequest) (*v1.RecoverResponse, error) {
	snap := s.Store.Snapshot()
	resp := &v1.RecoverResponse{Held: snap.Held(), Evidence: view.HeldBecause(snap)}
	if !snap.Held() {
		return resp, nil // guests are where the objects say
	}
	reports := core.Capture(snap, s.Sessions)
	plan := core.Recovery(snap, reports.Connected(), core.RecoveryChoices{Keep: r.Keep, Without: r.Without, Unknown: s.unknown.list(snap)})
	for _, g := range plan.Guests {
		resp.Guests = append(resp.Guests, g.GuestRecovery)
	}
	for _, c := range plan.Clusters {
		resp.Clusters = append(resp.Clusters, c.ClusterRecovery)
	}
	resp.Hosts, resp.Obstacles = plan.Hosts, plan.Obstacles
	if !r.Apply {
		return resp, nil
	}
	if len(plan.Obstacles) > 0 {
		return nil, fail(connect.CodeFailedPrecondition, "nothing was done: %s", strings.Join(plan.Obstacles, "; "))
	}
	if err := s.carryOut(ctx, snap, reports, plan); err != nil {
		return nil, err
	}
	resp.Done = true
	return resp, nil
}

// carryOut writes the plan. It ends the hold last: until then, nothing acts on the written objects.
func (s *Server) carryOut(ctx context.Context, snap *store.Snapshot, reports core.Captured, plan core.RecoveryPlan) error {
	for _, c := range plan.Clusters {
		ops, err := s.recreateCluster(ctx, snap, c, plan)
		if err == nil {
			err = s.Store.Txn(ctx, ops...)
		}
		if err != nil {
			return fmt.Errorf("make cluster %s again: %w", c.Cluster, err)
		}
	}
	var ops []store.Op
	for _, g := range plan.Guests {
		if stored := snap.Guests[g.Guest]; g.Object != nil && stored.GetMeta().GetUid() == g.Uid && !proto.Equal(stored, g.Object) {
			ops = append(ops, store.Update(g.Object))
		}
	}
	for _, m := range plan.Migrations {
		m.Ended = timestamppb.Now()
		ops = append(ops, store.Update(m))
	}
	for _, c := range plan.Checkpoints {
		c.Ended = timestamppb.Now()
		ops = append(ops, store.Update(c))
	}
	for batch := range slices.Chunk(ops, recoveryBatch) {
		if err := s.Store.Txn(ctx, batch...); err != nil {
			return fmt.Errorf("write down where guests run: %w", err)
		}
	}
	return s.Store.Txn(ctx, store.Update(s.holdAtEnd(snap, reports, plan)),
		audit(ctx, "manager", store.HoldName, "recovered: %s made again, %s taken up where they run",
			english.Plural(len(plan.Clusters), "cluster", ""), english.Plural(adopted(plan), "guest", "")))
}

func adopted(plan core.RecoveryPlan) (n int) {
	for _, g := range plan.Guests {
		if g.Act == v1.RecoveryAct_RECOVERY_ACT_ADOPT {
			n++
		}
	}
	return n
}

// recreateCluster recreates a cluster and its guests, or adds missing guests to a known cluster.
func (s *Server) recreateCluster(ctx context.Context, snap *store.Snapshot, c core.RecoveredCluster, plan core.RecoveryPlan) ([]store.Op, error) {
	written, what := store.Update(c.Object), "corrected after an older copy of the state was restored"
	if !c.Known() {
		what = "recreated after an older copy of the state was restored"
		if err := s.newClusterKeys(c.Object); err != nil {
			return nil, err
		}
		written = store.Create(c.Object)
	}
	ops := []store.Op{written, audit(ctx, "cluster", c.Cluster, "%s", strings.Join(append([]string{what}, c.Notes...), "; "))}
	for _, g := range plan.Guests {
		if g.Object != nil && g.Object.Cluster == c.Cluster && snap.Guests[g.Guest] == nil {
			ops = append(ops, store.Create(g.Object))
		}
	}
	return ops, nil
}

// holdAtEnd returns the hold as it is when it ends: stamps that connected hosts show are answered, and so are those that
// vouched hosts may show.
func (s *Server) holdAtEnd(snap *store.Snapshot, reports core.Captured, plan core.RecoveryPlan) *v1.Hold {
	hold := proto.CloneOf(snap.Hold())
	hold.Evidence = nil
	shown, _ := s.Stamps.Shown(snap, reports)
	for _, e := range core.RolledBack(s.Stamps.Terms(snap), shown...) {
		hold.Answered = slices.DeleteFunc(hold.Answered, func(a *v1.ShownStamp) bool { return a.Host == e.Host })
		hold.Answered = append(hold.Answered, &v1.ShownStamp{Host: e.Host, Stamp: e.Stamp})
	}
	for _, h := range plan.Hosts {
		if h.Vouched {
			hold.Vouched = slices.DeleteFunc(hold.Vouched, func(v *v1.VouchedHost) bool { return v.Host == h.Host })
			hold.Vouched = append(hold.Vouched, &v1.VouchedHost{Host: h.Host, Term: snap.Term})
		}
	}
	return hold
}
