package api

// files.go - files to and from guests.

import (
	"cmp"
	"context"
	"errors"
	"io"
	"path"

	"watari/core"
	"watari/manager/store"

	v1 "watari/api/watariv1"

	"connectrpc.com/connect"
)

// defaultUser owns the files of runs.
const defaultUser = "watari"

// place is a file in a guest.
type place struct {
	guest *v1.Guest
	path  string
	user  string // owner of an uploaded file
	run   *v1.Run
}

// locate finds the guest and path of a request. A path in a guest is absolute; a relative path of a run is in the run's
// directory.
func (s *Server) locate(ctx context.Context, guest, run, file string) (place, error) {
	if (guest == "") == (run == "") {
		return place{}, fail(connect.CodeInvalidArgument, "give a guest or a run")
	}
	if file == "" {
		return place{}, fail(connect.CodeInvalidArgument, "give a file's path")
	}
	if guest != "" {
		if !path.IsAbs(file) {
			return place{}, fail(connect.CodeInvalidArgument, "the path %q is not absolute", file)
		}
		g, err := s.readyGuest(ctx, guest)
		return place{guest: g, path: path.Clean(file)}, err
	}
	snap := s.Store.Snapshot()
	r, err := find(callerOf(ctx), "run", run, snap.Runs)
	if err != nil {
		return place{}, err
	}
	p := place{path: file, user: r.Spec.GetUser(), run: r}
	if p.user == "" {
		p.user = defaultUser
	}
	if !path.IsAbs(file) {
		p.path = path.Join(core.RunDirectory(r), file)
	}
	p.guest, err = s.headGuest(ctx, snap, r)
	return p, err
}

// headGuest returns the guest that has a run's files.
func (s *Server) headGuest(ctx context.Context, snap *store.Snapshot, r *v1.Run) (*v1.Guest, error) {
	name, uid := core.RunHead(snap, r)
	if name == "" {
		return nil, fail(connect.CodeFailedPrecondition, "cluster %s of run %s has no guest", r.Spec.GetCluster(), r.Meta.Name)
	}
	if _, err := s.guestByUID(name, uid); err != nil {
		return nil, fail(connect.CodeFailedPrecondition, "the files of run %s were lost with guest %s", r.Meta.Name, name)
	}
	return s.readyGuest(ctx, name)
}

// PutFile passes a file on to a guest.
func (s *Server) PutFile(ctx context.Context, in *connect.ClientStream[v1.ControlPutFileRequest]) (*connect.Response[v1.ControlPutFileResponse], error) {
	if !in.Receive() {
		return nil, fail(connect.CodeInvalidArgument, "there is no first message")
	}
	first := in.Msg()
	if first.File == nil {
		return nil, fail(connect.CodeInvalidArgument, "the first message names no file")
	}
	to, err := s.locate(ctx, first.Guest, first.Run, first.File.Path)
	if err != nil {
		return nil, err
	}
	client, err := s.files(to.guest)
	if err != nil {
		return nil, err
	}
	if to.run != nil {
		if err := s.mustNotHold(); err != nil {
			return nil, err
		}
		if err := s.admit(ctx, func(a *core.Admission) (core.Change, error) { return a.StageFile(to.run.Meta.Name) }); err != nil {
			return nil, err
		}
	}
	// The history is written first, so that it has every change to the guest's files.
	if err := s.Store.Txn(ctx, audit(ctx, "guest", to.guest.Meta.Name, "file put: %s", to.path)); err != nil {
		return nil, storeError(err)
	}
	if to.run != nil && first.File.User == "" {
		first.File.User = to.user
	}
	if to.run != nil {
		made := client.PutFile(ctx)
		err := made.Send(&v1.PutFileRequest{Path: core.RunDirectory(to.run), Mode: 0o755, User: to.user, Directory: true, Last: true})
		if _, closeErr := made.CloseAndReceive(); err == nil || errors.Is(err, io.EOF) {
			err = closeErr
		}
		if err != nil {
			return nil, wrapError(err, "make the directory of run %s", to.run.Meta.Name)
		}
	}
	out := client.PutFile(ctx)
	message := first.File
	message.Path = to.path
	for {
		if err := out.Send(message); err != nil {
			break // the reason comes with the response
		}
		if !in.Receive() {
			break
		}
		if message = in.Msg().File; message == nil {
			message = &v1.PutFileRequest{}
		}
	}
	if err := in.Err(); err != nil {
		return nil, err
	}
	resp, err := out.CloseAndReceive()
	if err != nil {
		return nil, wrapError(err, "put %s into guest %s", to.path, to.guest.Meta.Name)
	}
	return connect.NewResponse(&v1.ControlPutFileResponse{Size: resp.Msg.Size}), nil
}

// GetFile reads a file of a guest. If the guest moves meanwhile, GetFile continues at the new host.
func (s *Server) GetFile(ctx context.Context, r *connect.Request[v1.ControlGetFileRequest], out *connect.ServerStream[v1.ControlGetFileResponse]) error {
	from, err := s.locate(ctx, r.Msg.Guest, r.Msg.Run, r.Msg.Path)
	if err != nil {
		return err
	}
	offset, version := r.Msg.Offset, r.Msg.Version
	err = s.retry(ctx, from.guest.Meta.Name, from.guest.Meta.Uid, func(g *v1.Guest, alive func()) error {
		client, err := s.files(g)
		if err != nil {
			return err
		}
		in, err := client.GetFile(ctx, connect.NewRequest(&v1.GetFileRequest{Path: from.path, Offset: offset, Version: version}))
		if err != nil {
			return err
		}
		defer in.Close()
		for in.Receive() {
			alive()
			version = cmp.Or(in.Msg().Version, version)
			if err := out.Send(&v1.ControlGetFileResponse{File: in.Msg()}); err != nil {
				return final{err} // the caller is gone
			}
			offset += uint64(len(in.Msg().Data))
		}
		return in.Err()
	})
	if err != nil {
		return wrapError(err, "get %s from guest %s", from.path, from.guest.Meta.Name)
	}
	return nil
}
