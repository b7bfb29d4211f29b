package api

// events.go - the history, and watching objects.

import (
	"context"
	"time"

	"watari/manager/store"
	"watari/manager/view"

	v1 "watari/api/watariv1"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
)

// Events streams the history; a user sees only events about the user's own objects.
func (s *Server) Events(ctx context.Context, r *connect.Request[v1.EventsRequest], stream *connect.ServerStream[v1.EventsResponse]) error {
	c, after := callerOf(ctx), r.Msg.After
	if r.Msg.Last > 0 {
		var kept []*v1.Event
		for e := range s.Store.Events(ctx, after, false) {
			if concerns(c, s.Store.Snapshot(), e) {
				kept = append(kept, e)
			}
		}
		kept = kept[max(0, len(kept)-int(r.Msg.Last)):]
		for _, e := range kept {
			after = e.Id
			if err := stream.Send(&v1.EventsResponse{Event: e}); err != nil {
				return err
			}
		}
		if !r.Msg.Follow {
			return nil
		}
	}
	for e, err := range s.Store.Events(ctx, after, r.Msg.Follow) {
		if err != nil {
			return err
		}
		if !concerns(c, s.Store.Snapshot(), e) {
			continue
		}
		if err := stream.Send(&v1.EventsResponse{Event: e}); err != nil {
			return err
		}
	}
	return nil
}

// concerns reports whether a caller may see an event.
func concerns(c caller, snap *store.Snapshot, e *v1.Event) bool {
	if c.admin {
		return true
	}
	if e.Actor == c.name && isOf(e, snap.Users[c.name].GetMeta()) {
		return true
	}
	switch e.Kind {
	case "cluster":
		return owned(c, snap.Clusters, e)
	case "guest":
		return owned(c, snap.Guests, e)
	case "run":
		return owned(c, snap.Runs, e)
	case "migration":
		return owned(c, snap.Migrations, e)
	case "checkpoint":
		return owned(c, snap.Checkpoints, e)
	case "volume":
		return owned(c, snap.Volumes, e)
	case "image":
		return owned(c, snap.Images, e)
	case "user":
		return e.Name == c.name && isOf(e, snap.Users[c.name].GetMeta())
	}
	return false
}

func owned[T store.Object](c caller, all map[string]T, e *v1.Event) bool {
	o, found := all[e.Name]
	return found && c.owns(o.GetMeta()) && isOf(e, o.GetMeta())
}

// isOf reports whether an event is about this object, and not about an earlier one with the same name, which may have had
// another owner.
func isOf(e *v1.Event, meta *v1.Meta) bool {
	return !e.At.AsTime().Before(meta.GetCreated().AsTime())
}

// watchPace is the shortest time between two messages of a Watch.
const watchPace = 100 * time.Millisecond

// Watch sends an object now and after each change, until it no longer exists.
func (s *Server) Watch(ctx context.Context, r *connect.Request[v1.WatchRequest], stream *connect.ServerStream[v1.WatchResponse]) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stored, observed := s.Store.Subscribe(ctx), s.Sessions.Subscribe(ctx)
	var last *v1.WatchResponse
	for {
		now, err := s.look(callerOf(ctx), s.Store.Snapshot(), r.Msg.Kind, r.Msg.Name)
		if connect.CodeOf(err) == connect.CodeNotFound && err != nil && last != nil {
			return stream.Send(&v1.WatchResponse{Gone: true})
		}
		if err != nil {
			return err
		}
		if !proto.Equal(now, last) {
			if err := stream.Send(now); err != nil {
				return err
			}
			last = now
		}
		select {
		case <-time.After(watchPace):
		case <-ctx.Done():
			return ctx.Err()
		}
		select {
		case <-stored:
		case <-observed:
		case <-ctx.Done():
			return ctx.Err()
		}
		if err := s.mustLead(ctx); err != nil {
			return err
		}
	}
}

// look returns one object as the caller may see it.
func (s *Server) look(c caller, snap *store.Snapshot, kind, name string) (*v1.WatchResponse, error) {
	switch kind {
	case "cluster":
		if _, err := find(c, kind, name, snap.Clusters); err != nil {
			return nil, err
		}
		return &v1.WatchResponse{Cluster: view.Cluster(snap, s.Sessions, name), Guests: view.Guests(snap, s.Sessions, name)}, nil
	case "guest":
		if _, err := find(c, kind, name, snap.Guests); err != nil {
			return nil, err
		}
		return &v1.WatchResponse{Guest: view.Guest(snap, s.Sessions, name)}, nil
	case "host":
		if snap.Hosts[name] == nil {
			return nil, missing(kind, name, snap.Hosts)
		}
		h := s.viewHost(c, snap, name)
		h.LastSeen, h.Sample = nil, nil // they change without an event
		return &v1.WatchResponse{Host: h}, nil
	case "migration":
		if _, err := find(c, kind, name, snap.Migrations); err != nil {
			return nil, err
		}
		return &v1.WatchResponse{Migration: view.Migration(snap, s.Sessions, name)}, nil
	case "checkpoint":
		checkpoint, err := find(c, kind, name, snap.Checkpoints)
		if err != nil {
			return nil, err
		}
		return &v1.WatchResponse{Checkpoint: checkpoint}, nil
	case "volume":
		if _, err := find(c, kind, name, snap.Volumes); err != nil {
			return nil, err
		}
		return &v1.WatchResponse{Volume: view.Volume(snap, s.Sessions, name)}, nil
	case "run":
		run, err := find(c, kind, name, snap.Runs)
		if err != nil {
			return nil, err
		}
		return &v1.WatchResponse{Run: run}, nil
	}
	return nil, fail(connect.CodeInvalidArgument, "a %q cannot be watched; cluster, guest, host, migration, checkpoint, volume and run can", kind)
}
