package api

// checkpoints.go - making, listing, deleting and restoring checkpoints.

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"filippo.io/age"
	"google.golang.org/protobuf/proto"

	"watari/core"
	"watari/manager/view"

	v1 "watari/api/watariv1"

	"connectrpc.com/connect"
)

// newCheckpointKey makes a key pair for the checkpoints of a cluster or a volume.
func newCheckpointKey() (core.CheckpointKey, error) {
	identity, err := age.GenerateX25519Identity()
	if err != nil {
		return core.CheckpointKey{}, err
	}
	return core.CheckpointKey{Secret: identity.String(), Recipient: identity.Recipient().String()}, nil
}

// CreateCheckpoint begins a checkpoint; the controller carries it out.
func (s *Server) CreateCheckpoint(ctx context.Context, r *connect.Request[v1.CreateCheckpointRequest]) (*connect.Response[v1.CreateCheckpointResponse], error) {
	name, existed := "", false
	err := s.admit(ctx, func(a *core.Admission) (change core.Change, err error) {
		key, err := newCheckpointKey()
		if err != nil {
			return change, err
		}
		change, name, err = a.CreateCheckpoint(r.Msg, key)
		existed = len(change.Ops) == 0
		return change, err
	})
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&v1.CreateCheckpointResponse{Checkpoint: s.Store.Snapshot().Checkpoints[name], Existed: existed}), nil
}

// ListCheckpoints lists the checkpoints of the caller's clusters, and the snapshots of the caller's volumes.
func (s *Server) ListCheckpoints(ctx context.Context, r *connect.Request[v1.ListCheckpointsRequest]) (*connect.Response[v1.ListCheckpointsResponse], error) {
	snap, c := s.Store.Snapshot(), callerOf(ctx)
	mine := own(c, snap.Checkpoints)
	if r.Msg.Name != "" && mine[r.Msg.Name] == nil {
		return nil, missing("checkpoint", r.Msg.Name, mine)
	}
	if r.Msg.Cluster != "" {
		if _, err := find(c, "cluster", r.Msg.Cluster, snap.Clusters); err != nil {
			return nil, err
		}
	}
	if r.Msg.Volume != "" {
		if _, err := find(c, "volume", r.Msg.Volume, snap.Volumes); err != nil {
			return nil, err
		}
	}
	resp := &v1.ListCheckpointsResponse{}
	for name, checkpoint := range mine {
		ofVolume := r.Msg.Volume == "" || checkpoint.Cluster == "" && checkpoint.Volume.GetGuest() == r.Msg.Volume
		if (r.Msg.Name == "" || r.Msg.Name == name) && (r.Msg.Cluster == "" || r.Msg.Cluster == checkpoint.Cluster) && ofVolume {
			if core.IsLeftBehind(snap, checkpoint) {
				checkpoint = proto.CloneOf(checkpoint)
				checkpoint.Left = true
			}
			resp.Checkpoints = append(resp.Checkpoints, checkpoint)
		}
	}
	slices.SortFunc(resp.Checkpoints, func(a, b *v1.Checkpoint) int {
		volume := 0
		if a.Cluster == "" {
			volume = strings.Compare(a.Volume.GetGuest(), b.Volume.GetGuest())
		}
		return cmp.Or(strings.Compare(a.Cluster, b.Cluster), volume, a.Meta.Created.AsTime().Compare(b.Meta.Created.AsTime()), strings.Compare(a.Meta.Name, b.Meta.Name))
	})
	return connect.NewResponse(resp), nil
}

// DeleteCheckpoint deletes a checkpoint and its files.
func (s *Server) DeleteCheckpoint(ctx context.Context, r *connect.Request[v1.DeleteCheckpointRequest]) (*connect.Response[v1.DeleteCheckpointResponse], error) {
	if err := s.admit(ctx, func(a *core.Admission) (core.Change, error) { return a.DeleteCheckpoint(r.Msg.Name) }); err != nil {
		return nil, err
	}
	return connect.NewResponse(&v1.DeleteCheckpointResponse{}), nil
}

// ChangeCheckpoint pins or unpins a checkpoint.
func (s *Server) ChangeCheckpoint(ctx context.Context, r *connect.Request[v1.ChangeCheckpointRequest]) (*connect.Response[v1.ChangeCheckpointResponse], error) {
	if err := s.admit(ctx, func(a *core.Admission) (core.Change, error) { return a.ChangeCheckpoint(r.Msg) }); err != nil {
		return nil, err
	}
	return connect.NewResponse(&v1.ChangeCheckpointResponse{Checkpoint: s.Store.Snapshot().Checkpoints[r.Msg.Name]}), nil
}

// PlanCheckpoints sets when checkpoints of a cluster or a volume are made automatically.
func (s *Server) PlanCheckpoints(ctx context.Context, r *connect.Request[v1.PlanCheckpointsRequest]) (*connect.Response[v1.PlanCheckpointsResponse], error) {
	err := s.admit(ctx, func(a *core.Admission) (core.Change, error) {
		key, err := newCheckpointKey()
		if err != nil {
			return core.Change{}, err
		}
		return a.PlanCheckpoints(r.Msg, key)
	})
	if err != nil {
		return nil, err
	}
	snap := s.Store.Snapshot()
	return connect.NewResponse(&v1.PlanCheckpointsResponse{Cluster: view.Cluster(snap, s.Sessions, r.Msg.Cluster), Volume: view.Volume(snap, s.Sessions, r.Msg.Volume)}), nil
}

// VerifyCheckpoint requests that a checkpoint is verified; the controller does it.
func (s *Server) VerifyCheckpoint(ctx context.Context, r *connect.Request[v1.VerifyCheckpointRequest]) (*connect.Response[v1.VerifyCheckpointResponse], error) {
	if err := s.admit(ctx, func(a *core.Admission) (core.Change, error) { return a.VerifyCheckpoint(r.Msg.Name) }); err != nil {
		return nil, err
	}
	return connect.NewResponse(&v1.VerifyCheckpointResponse{Checkpoint: s.Store.Snapshot().Checkpoints[r.Msg.Name]}), nil
}

// RestoreCheckpoint restores a cluster from a checkpoint, or a volume from a snapshot; the controller does it.
func (s *Server) RestoreCheckpoint(ctx context.Context, r *connect.Request[v1.RestoreCheckpointRequest]) (*connect.Response[v1.RestoreCheckpointResponse], error) {
	name, note := "", ""
	err := s.admit(ctx, func(a *core.Admission) (change core.Change, err error) {
		if r.Msg.Volume {
			change, name, note, err = a.RestoreVolume(r.Msg.Name, r.Msg.Host)
		} else {
			change, name, err = a.RestoreCheckpoint(r.Msg.Name)
		}
		return change, err
	})
	if err != nil {
		return nil, err
	}
	if r.Msg.Volume {
		return connect.NewResponse(&v1.RestoreCheckpointResponse{Volume: view.Volume(s.Store.Snapshot(), s.Sessions, name), Note: note}), nil
	}
	return connect.NewResponse(&v1.RestoreCheckpointResponse{Cluster: view.Cluster(s.Store.Snapshot(), s.Sessions, name)}), nil
}
