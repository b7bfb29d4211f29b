package api

// storage.go - allowing, listing and forbidding storage outside.

import (
	"context"
	"slices"
	"strings"

	"connectrpc.com/connect"

	v1 "watari/api/watariv1"
	"watari/core"
)

// AllowStorage lets clusters mount a folder of a file server outside.
func (s *Server) AllowStorage(ctx context.Context, r *connect.Request[v1.AllowStorageRequest]) (*connect.Response[v1.AllowStorageResponse], error) {
	existed := false
	err := s.admit(ctx, func(a *core.Admission) (change core.Change, err error) {
		change, err = a.AllowStorage(r.Msg.Storage)
		existed = len(change.Ops) == 0
		return change, err
	})
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&v1.AllowStorageResponse{Storage: s.Store.Snapshot().Storages[r.Msg.Storage.GetMeta().GetName()], Existed: existed}), nil
}

// ListStorage lists the storage that the caller may mount; an administrator sees all.
func (s *Server) ListStorage(ctx context.Context, _ *connect.Request[v1.ListStorageRequest]) (*connect.Response[v1.ListStorageResponse], error) {
	c, resp := callerOf(ctx), &v1.ListStorageResponse{}
	for _, storage := range s.Store.Snapshot().Storages {
		if c.admin || core.MayMount(storage, c.name) {
			resp.Storage = append(resp.Storage, storage)
		}
	}
	slices.SortFunc(resp.Storage, func(a, b *v1.Storage) int { return strings.Compare(a.Meta.Name, b.Meta.Name) })
	return connect.NewResponse(resp), nil
}

// ForbidStorage ends the right of clusters to mount a folder.
func (s *Server) ForbidStorage(ctx context.Context, r *connect.Request[v1.ForbidStorageRequest]) (*connect.Response[v1.ForbidStorageResponse], error) {
	if err := s.admit(ctx, func(a *core.Admission) (core.Change, error) { return a.ForbidStorage(r.Msg.Name, r.Msg.Force) }); err != nil {
		return nil, err
	}
	return connect.NewResponse(&v1.ForbidStorageResponse{}), nil
}
