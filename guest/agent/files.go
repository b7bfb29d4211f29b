package agent

// files.go - copies files into the guest and out of it.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	v1 "watari/api/watariv1"
	"watari/internal/durable"
)

// owner is the owner of a file.
type owner struct{ uid, gid int }

func findOwner(name string) (owner, error) {
	if name == "" || name == "root" {
		return owner{}, nil
	}
	u, err := user.Lookup(name)
	if err != nil {
		return owner{}, connect.NewError(connect.CodeInvalidArgument, err)
	}
	uid, _ := strconv.Atoi(u.Uid)
	gid, _ := strconv.Atoi(u.Gid)
	return owner{uid, gid}, nil
}

// own changes a file's owner if necessary. On a shared home the server may already have done so.
func (o owner) own(path string) error {
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	if s, ok := info.Sys().(*syscall.Stat_t); ok && int(s.Uid) == o.uid && int(s.Gid) == o.gid {
		return nil
	}
	return os.Lchown(path, o.uid, o.gid)
}

// makeDirectories makes a directory and its missing parents, all the owner's.
func (o owner) makeDirectories(path string) error {
	if info, err := os.Stat(path); err == nil {
		if !info.IsDir() {
			return fmt.Errorf("%s is not a directory", path)
		}
		return nil
	}
	if err := o.makeDirectories(filepath.Dir(path)); err != nil {
		return err
	}
	if err := os.Mkdir(path, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	return o.own(path)
}

func fileError(what, path string, err error) error {
	code := connect.CodeInternal
	switch {
	case errors.Is(err, os.ErrNotExist):
		code = connect.CodeNotFound
	case errors.Is(err, os.ErrPermission):
		code = connect.CodePermissionDenied
	case durable.IsFull(err):
		code = connect.CodeResourceExhausted
	}
	return connect.NewError(code, fmt.Errorf("%s %s: %w", what, path, err))
}

// PutFile writes a temporary file and renames it when it is complete. If the stream ends earlier, the temporary file
// stays, and the answer has its size. A later call whose first message has that offset resumes the transfer.
func (s *guestService) PutFile(ctx context.Context, stream *connect.ClientStream[v1.PutFileRequest]) (*connect.Response[v1.PutFileResponse], error) {
	if !stream.Receive() {
		return nil, errors.Join(connect.NewError(connect.CodeInvalidArgument, errors.New("no file named")), stream.Err())
	}
	first := stream.Msg()
	path := filepath.Clean(first.GetPath())
	if !filepath.IsAbs(path) || path == "/" {
		return nil, connect.NewError(connect.CodeInvalidArgument, fmt.Errorf("path %q is not absolute", first.GetPath()))
	}
	if s.agent.home.within(path) {
		if err := s.agent.home.await(ctx, false); err != nil {
			return nil, err
		}
	}
	who, err := findOwner(first.GetUser())
	if err != nil {
		return nil, err
	}
	mode := os.FileMode(first.GetMode() & 0o777)
	if first.GetDirectory() {
		if err := who.makeDirectories(path); err != nil {
			return nil, fileError("make directory", path, err)
		}
		if mode != 0 {
			if err := os.Chmod(path, mode); err != nil {
				return nil, fileError("make directory", path, err)
			}
		}
		return connect.NewResponse(&v1.PutFileResponse{}), nil
	}
	if mode == 0 {
		mode = 0o644
	}
	if err := who.makeDirectories(filepath.Dir(path)); err != nil {
		return nil, fileError("make directory of", path, err)
	}
	size, err := receiveFile(stream, path, mode, who)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&v1.PutFileResponse{Size: size}), nil
}

// replaced reports whether another file is at the path of an open one, or none.
func replaced(file *os.File, path string) bool {
	open, err := file.Stat()
	there, other := os.Lstat(path)
	return err != nil || other != nil || !os.SameFile(open, there)
}

// versionOf tells a file from another one that replaces it: by its inode.
func versionOf(info os.FileInfo) string {
	if stat, is := info.Sys().(*syscall.Stat_t); is {
		return fmt.Sprintf("%d-%d", stat.Dev, stat.Ino)
	}
	return ""
}

// receiveFile writes the stream's content, including the first message, and returns the file's size.
func receiveFile(stream *connect.ClientStream[v1.PutFileRequest], path string, mode os.FileMode, who owner) (uint64, error) {
	part := filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".watari-part")
	file, err := os.OpenFile(part, os.O_CREATE|os.O_RDWR|syscall.O_NOFOLLOW, 0o600) // the agent never made a link there
	if err != nil {
		return 0, fileError("write", path, err)
	}
	defer file.Close()
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); errors.Is(err, unix.EWOULDBLOCK) || err == nil && replaced(file, part) {
		return 0, connect.NewError(connect.CodeUnavailable, fmt.Errorf("write %s: another upload to it is under way", path)) // or its caller has just gone
	}
	at := stream.Msg().GetOffset()
	info, err := file.Stat()
	if err != nil {
		return 0, fileError("write", path, err)
	}
	if size := uint64(info.Size()); at > size {
		return 0, connect.NewError(connect.CodeOutOfRange, fmt.Errorf("write %s from byte %d: only %d bytes are there", path, at, size))
	}
	for {
		n, err := file.WriteAt(stream.Msg().GetData(), int64(at))
		if at += uint64(n); err != nil {
			os.Remove(part) // free the space: files are in memory, which programs need
			return 0, fileError("write", path, err)
		}
		if stream.Msg().GetLast() {
			break
		}
		if !stream.Receive() {
			if err := stream.Err(); err != nil {
				os.Remove(part)
				return 0, err
			}
			info, err := file.Stat()
			if err != nil {
				return 0, fileError("write", path, err)
			}
			return uint64(info.Size()), nil
		}
	}
	for _, step := range []func() error{
		func() error { return file.Truncate(int64(at)) },
		func() error { return file.Chmod(mode) },
		func() error { return who.own(part) },
		file.Sync, // on a volume, a file without its content could be left otherwise
		func() error { return os.Rename(part, path) },
		file.Close, // this unlocks it
	} {
		if err := step(); err != nil {
			return 0, fileError("finish", path, err)
		}
	}
	return at, nil
}

// GetFile sends a file from an offset to its present end.
func (s *guestService) GetFile(ctx context.Context, r *connect.Request[v1.GetFileRequest], stream *connect.ServerStream[v1.GetFileResponse]) error {
	path := r.Msg.GetPath()
	if !filepath.IsAbs(path) {
		return connect.NewError(connect.CodeInvalidArgument, fmt.Errorf("path %q is not absolute", path))
	}
	if s.agent.home.within(path) {
		if err := s.agent.home.await(ctx, false); err != nil {
			return err
		}
	}
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // otherwise opening a pipe would wait for its writer
	if err != nil {
		return fileError("read", path, err)
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return fileError("read", path, err)
	}
	if !info.Mode().IsRegular() {
		return connect.NewError(connect.CodeInvalidArgument, fmt.Errorf("read %s: not a file", path))
	}
	version := versionOf(info)
	if r.Msg.GetOffset() > 0 && r.Msg.GetVersion() != "" && r.Msg.GetVersion() != version {
		return connect.NewError(connect.CodeAborted, fmt.Errorf("read %s: it was replaced while it was read", path))
	}
	reader := io.NewSectionReader(file, int64(r.Msg.GetOffset()), max(info.Size()-int64(r.Msg.GetOffset()), 0))
	message := &v1.GetFileResponse{Size: uint64(info.Size()), Mode: uint32(info.Mode().Perm()), Version: version}
	buf := make([]byte, outputChunk)
	for {
		n, err := reader.Read(buf)
		if message.Data = buf[:n]; n > 0 || message.Mode != 0 {
			if err := stream.Send(message); err != nil {
				return err
			}
		}
		message = &v1.GetFileResponse{}
		if err == io.EOF {
			return nil
		} else if err != nil {
			return fileError("read", path, err)
		}
	}
}
