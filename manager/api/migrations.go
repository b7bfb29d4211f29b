package api

// migrations.go - requesting, cancelling and listing moves.

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"watari/core"
	"watari/manager/view"
	"watari/migration"

	v1 "watari/api/watariv1"

	"connectrpc.com/connect"
)

// Migrate requests a guest's move and returns its record; the controller carries it out.
func (s *Server) Migrate(ctx context.Context, r *connect.Request[v1.MigrateRequest]) (*connect.Response[v1.MigrateResponse], error) {
	var move core.AdmittedMove
	err := s.admit(ctx, func(a *core.Admission) (_ core.Change, err error) {
		move, err = a.MoveGuest(r.Msg)
		return move.Change, err
	})
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&v1.MigrateResponse{Migration: view.Migration(s.Store.Snapshot(), s.Sessions, move.Name), Explanation: move.Explanation}), nil
}

// CancelMigration requests the cancellation of a move. The guest stays where it is, unless the move is past the point where
// that is possible.
func (s *Server) CancelMigration(ctx context.Context, r *connect.Request[v1.CancelMigrationRequest]) (*connect.Response[v1.CancelMigrationResponse], error) {
	name := ""
	err := s.admit(ctx, func(a *core.Admission) (change core.Change, err error) {
		change, name, err = a.CancelMove(r.Msg.Name)
		return change, err
	})
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&v1.CancelMigrationResponse{Migration: view.Migration(s.Store.Snapshot(), s.Sessions, name)}), nil
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
