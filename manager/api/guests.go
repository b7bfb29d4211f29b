package api

// guests.go - listing, starting and stopping guests.

import (
	"context"

	"watari/manager/store"
	"watari/manager/view"

	v1 "watari/api/watariv1"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
)

// ListGuests lists the caller's guests, of one cluster or all.
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

// StartGuest has a guest run that was stopped, or that is not started again after failures.
func (s *Server) StartGuest(ctx context.Context, r *connect.Request[v1.StartGuestRequest]) (*connect.Response[v1.StartGuestResponse], error) {
	g, err := s.changeGuest(ctx, r.Msg.Name, "to be started", func(g *v1.Guest) bool {
		if !g.Stopped && g.Failure == "" {
			return false
		}
		g.Stopped, g.Failure, g.Restarts = false, "", 0
		return true
	})
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&v1.StartGuestResponse{Guest: g}), nil
}

// StopGuest ends a guest until it is started again.
func (s *Server) StopGuest(ctx context.Context, r *connect.Request[v1.StopGuestRequest]) (*connect.Response[v1.StopGuestResponse], error) {
	g, err := s.changeGuest(ctx, r.Msg.Name, "to be stopped", func(g *v1.Guest) bool {
		if g.Stopped {
			return false
		}
		g.Stopped = true
		return true
	})
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&v1.StopGuestResponse{Guest: g}), nil
}

// changeGuest changes the caller's guest (change says whether there is anything to change) and returns it.
func (s *Server) changeGuest(ctx context.Context, name, what string, change func(*v1.Guest) bool) (*v1.Guest, error) {
	err := s.change(ctx, func(snap *store.Snapshot) ([]store.Op, error) {
		g, err := find(callerOf(ctx), "guest", name, snap.Guests)
		if err != nil {
			return nil, err
		}
		if c := snap.Clusters[g.Cluster]; c == nil || c.Meta.Deleting != nil {
			return nil, fail(connect.CodeFailedPrecondition, "cluster %s is being deleted", g.Cluster)
		}
		g = proto.CloneOf(g)
		if !change(g) {
			return nil, nil
		}
		return []store.Op{store.Update(g), audit(ctx, "guest", name, "%s", what)}, nil
	})
	if err != nil {
		return nil, err
	}
	return view.Guest(s.Store.Snapshot(), s.Sessions, name), nil
}
