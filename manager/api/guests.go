package api

// guests.go - listing, starting and stopping guests.

import (
	"context"

	"watari/core"
	"watari/manager/view"

	v1 "watari/api/watariv1"

	"connectrpc.com/connect"
)

// ListGuests lists the caller's guests, of one cluster or of all clusters.
func (s *Server) ListGuests(ctx context.Context, r *connect.Request[v1.ListGuestsRequest]) (*connect.Response[v1.ListGuestsResponse], error) {
	snap, c := s.Store.Snapshot(), callerOf(ctx)
	if r.Msg.Name != "" {
		if _, err := find(c, "guest", r.Msg.Name, snap.Guests); err != nil {
			return nil, err
		}
		return connect.NewResponse(&v1.ListGuestsResponse{Guests: []*v1.Guest{view.Guest(snap, s.Sessions, r.Msg.Name)}}), nil
	}
	if r.Msg.Cluster != "" {
		if _, err := find(c, "cluster", r.Msg.Cluster, snap.Clusters); err != nil {
			return nil, err
		}
	}
	resp := &v1.ListGuestsResponse{}
	for _, g := range view.Guests(snap, s.Sessions, r.Msg.Cluster) {
		if c.owns(g.Meta) {
			resp.Guests = append(resp.Guests, g)
		}
	}
	return connect.NewResponse(resp), nil
}

// StartGuest starts a guest that was stopped, or that is not restarted any more after failures.
func (s *Server) StartGuest(ctx context.Context, r *connect.Request[v1.StartGuestRequest]) (*connect.Response[v1.StartGuestResponse], error) {
	err := s.admit(ctx, func(a *core.Admission) (core.Change, error) { return a.StartGuest(r.Msg.Name) })
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&v1.StartGuestResponse{Guest: view.Guest(s.Store.Snapshot(), s.Sessions, r.Msg.Name)}), nil
}

// StopGuest stops a guest until StartGuest.
func (s *Server) StopGuest(ctx context.Context, r *connect.Request[v1.StopGuestRequest]) (*connect.Response[v1.StopGuestResponse], error) {
	err := s.admit(ctx, func(a *core.Admission) (core.Change, error) { return a.StopGuest(r.Msg.Name) })
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&v1.StopGuestResponse{Guest: view.Guest(s.Store.Snapshot(), s.Sessions, r.Msg.Name)}), nil
}
