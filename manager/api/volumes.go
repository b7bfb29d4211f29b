package api

// volumes.go - making, listing, moving and deleting volumes.

import (
	"context"
	"slices"
	"strings"

	"connectrpc.com/connect"

	v1 "watari/api/watariv1"
	"watari/core"
	"watari/manager/view"
)

// CreateVolume makes a volume; the controller chooses its host, and the host makes the disk.
func (s *Server) CreateVolume(ctx context.Context, r *connect.Request[v1.CreateVolumeRequest]) (*connect.Response[v1.CreateVolumeResponse], error) {
	existed := false
	err := s.admit(ctx, func(a *core.Admission) (change core.Change, err error) {
		key, err := newCheckpointKey()
		if err != nil {
			return change, err
		}
		change, err = a.CreateVolume(r.Msg, key)
		existed = len(change.Ops) == 0
		return change, err
	})
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&v1.CreateVolumeResponse{Volume: view.Volume(s.Store.Snapshot(), s.Sessions, r.Msg.Name), Existed: existed}), nil
}

// ListVolumes lists the caller's volumes by name.
func (s *Server) ListVolumes(ctx context.Context, r *connect.Request[v1.ListVolumesRequest]) (*connect.Response[v1.ListVolumesResponse], error) {
	snap, c := s.Store.Snapshot(), callerOf(ctx)
	mine := own(c, snap.Volumes)
	if r.Msg.Name != "" && mine[r.Msg.Name] == nil {
		return nil, missing("volume", r.Msg.Name, mine)
	}
	resp := &v1.ListVolumesResponse{}
	for name := range mine {
		if r.Msg.Name == "" || r.Msg.Name == name {
			resp.Volumes = append(resp.Volumes, view.Volume(snap, s.Sessions, name))
		}
	}
	slices.SortFunc(resp.Volumes, func(a, b *v1.Volume) int { return strings.Compare(a.Meta.Name, b.Meta.Name) })
	return connect.NewResponse(resp), nil
}

// DeleteVolume deletes a volume and its data.
func (s *Server) DeleteVolume(ctx context.Context, r *connect.Request[v1.DeleteVolumeRequest]) (*connect.Response[v1.DeleteVolumeResponse], error) {
	if err := s.admit(ctx, func(a *core.Admission) (core.Change, error) { return a.DeleteVolume(r.Msg.Name) }); err != nil {
		return nil, err
	}
	return connect.NewResponse(&v1.DeleteVolumeResponse{}), nil
}

// MoveVolume begins to move a volume, or cancels its move. The controller moves it.
func (s *Server) MoveVolume(ctx context.Context, r *connect.Request[v1.MoveVolumeRequest]) (*connect.Response[v1.MoveVolumeResponse], error) {
	if err := s.admit(ctx, func(a *core.Admission) (core.Change, error) { return a.MoveVolume(r.Msg) }); err != nil {
		return nil, err
	}
	return connect.NewResponse(&v1.MoveVolumeResponse{Volume: view.Volume(s.Store.Snapshot(), s.Sessions, r.Msg.Name)}), nil
}
