package api

// migrations.go - asking for moves, taking them back, listing them.

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"watari/core"
	"watari/manager/store"
	"watari/manager/view"
	"watari/migration"

	v1 "watari/api/watariv1"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
)

// Migrate asks for a guest's move and returns the record of it; the controller carries it out.
func (s *Server) Migrate(ctx context.Context, r *connect.Request[v1.MigrateRequest]) (*connect.Response[v1.MigrateResponse], error) {
	if r.Msg.ToHost != "" && r.Msg.ToSite != "" {
		return nil, fail(connect.CodeInvalidArgument, "give a host or a site to move to, not both")
	}
	resp, name := &v1.MigrateResponse{}, ""
	err := s.change(ctx, func(snap *store.Snapshot) ([]store.Op, error) {
		g, err := s.movable(ctx, snap, r.Msg)
		if err != nil {
			return nil, err
		}
		if m := view.Migrating(snap, g.Meta.Uid); m != nil {
			name = m.Meta.Name
			return nil, sameMove(snap, m, r.Msg)
		}
		m, explanation, err := s.PlanMigration(snap, g, r.Msg.ToHost, r.Msg.ToSite)
		resp.Explanation = explanation
		if err != nil {
			code := connect.CodeFailedPrecondition
			if len(explanation) > 1 {
				code = connect.CodeResourceExhausted // every host was asked
			}
			return nil, connect.NewError(code, err)
		}
		m.Reason = "user " + callerOf(ctx).name + " asked for it"
		m.BandwidthBytes = r.Msg.BandwidthBytes
		name = m.Meta.Name
		return []store.Op{store.Create(m), audit(ctx, "guest", g.Meta.Name, "to move from %s to %s (%s)", m.Source, m.Target, name)}, nil
	})
	if err != nil {
		return nil, err
	}
	resp.Migration = view.Migration(s.Store.Snapshot(), s.Sessions, name)
	return connect.NewResponse(resp), nil
}

// movable finds the guest and checks the target's name.
func (s *Server) movable(ctx context.Context, snap *store.Snapshot, r *v1.MigrateRequest) (*v1.Guest, error) {
	g, err := find(callerOf(ctx), "guest", r.Guest, snap.Guests)
	if err != nil {
		return nil, err
	}
	if r.ToHost != "" && snap.Hosts[r.ToHost] == nil {
		return nil, missing("host", r.ToHost, snap.Hosts)
	}
	if known := sites(snap); r.ToSite != "" && !known[r.ToSite] {
		return nil, missing("site", r.ToSite, known)
	}
	if c := snap.Clusters[g.Cluster]; c == nil || c.Meta.Deleting != nil {
		return nil, fail(connect.CodeFailedPrecondition, "cluster %s is being deleted", g.Cluster)
	}
	if g.Stopped {
		return nil, fail(connect.CodeFailedPrecondition, "guest %s is stopped; start it first", r.Guest)
	}
	return g, nil
}

// sameMove is an error where a move is under way that is not what is asked for.
func sameMove(snap *store.Snapshot, m *v1.Migration, r *v1.MigrateRequest) error {
	site := snap.Hosts[m.Target].GetInfo().GetSite()
	if !m.Cancel && (r.ToHost == "" || r.ToHost == m.Target) && (r.ToSite == "" || r.ToSite == site) {
		return nil
	}
	return fail(connect.CodeFailedPrecondition, "guest %s is moving to %s (%s, %s); wait for its end, or cancel it",
		m.Guest, m.Target, m.Meta.Name, core.StateName(m.State.String()))
}

// CancelMigration asks for a move to be given up. The guest stays where it is, unless the move is past the
// point where that is possible.
func (s *Server) CancelMigration(ctx context.Context, r *connect.Request[v1.CancelMigrationRequest]) (*connect.Response[v1.CancelMigrationResponse], error) {
	name := ""
	err := s.change(ctx, func(snap *store.Snapshot) ([]store.Op, error) {
		m, err := findMove(callerOf(ctx), snap, r.Msg.Name)
		if err != nil {
			return nil, err
		}
		name = m.Meta.Name
		if migration.Ended(m.State) {
			return nil, fail(connect.CodeFailedPrecondition, "migration %s has ended: %s", name, core.StateName(m.State.String()))
		}
		if m.Cancel {
			return nil, nil
		}
		m = proto.CloneOf(m)
		m.Cancel = true
		return []store.Op{store.Update(m), audit(ctx, "guest", m.Guest, "move to %s (%s) to be cancelled", m.Target, name)}, nil
	})
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&v1.CancelMigrationResponse{Migration: view.Migration(s.Store.Snapshot(), s.Sessions, name)}), nil
}

// findMove finds a move by its name or its guest's.
func findMove(c caller, snap *store.Snapshot, name string) (*v1.Migration, error) {
	if m := snap.Migrations[name]; m != nil && c.owns(m.Meta) {
		return m, nil
	}
	g, err := find(c, "guest", name, snap.Guests)
	if err != nil {
		return nil, missing("migration", name, own(c, snap.Migrations))
	}
	if m := view.Migrating(snap, g.Meta.Uid); m != nil {
		return m, nil
	}
	return nil, fail(connect.CodeFailedPrecondition, "guest %s is not moving", name)
}

// ListMigrations lists the moves of the caller's guests, oldest first.
func (s *Server) ListMigrations(ctx context.Context, r *connect.Request[v1.ListMigrationsRequest]) (*connect.Response[v1.ListMigrationsResponse], error) {
	snap := s.Store.Snapshot()
	mine := own(callerOf(ctx), snap.Migrations)
	if r.Msg.Name != "" && mine[r.Msg.Name] == nil {
		return nil, missing("migration", r.Msg.Name, mine)
	}
	resp := &v1.ListMigrationsResponse{}
	for name, m := range mine {
		if (r.Msg.Name == "" || r.Msg.Name == name) && (r.Msg.Guest == "" || r.Msg.Guest == m.Guest) && !(r.Msg.Active && migration.Ended(m.State)) {
			resp.Migrations = append(resp.Migrations, view.Migration(snap, s.Sessions, name))
		}
	}
	slices.SortFunc(resp.Migrations, func(a, b *v1.Migration) int {
		return cmp.Or(a.Meta.Created.AsTime().Compare(b.Meta.Created.AsTime()), strings.Compare(a.Meta.Name, b.Meta.Name))
	})
	return connect.NewResponse(resp), nil
}
